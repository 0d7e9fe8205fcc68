"""Training over processes that share the tokens of each row, from the command line, and what it refuses."""

import os
import random
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from safetensors.torch import load_file

from regard.errors import InputError
from regard.train import read_log, train
from regard.train.config import Config, read_config
from train.runs import tiny

LANGUAGE = {"type": "clm", "train_file": "text.txt"}


def language(out, **training):
    """A causal language model of a file that is never read."""
    return Config.from_dict({"task": LANGUAGE, "training": {"output_dir": str(out), "max_steps": 1} | training})


def test_one_process_has_no_other_to_share_tokens_with(tmp_path):
    with pytest.raises(InputError, match=r"is 2, and must divide the number of processes, which is 1: start torchrun"):
        train(language(tmp_path, context_parallel_size=2))
    assert not list(tmp_path.iterdir())


def test_what_cannot_be_sharded_is_refused_before_anything_is_read(tmp_path):
    with pytest.raises(InputError, match=r'is 2, and `task.type` "synthetic" has no single sequence whose tokens'):
        tiny(tmp_path, training__context_parallel_size=2)
    with pytest.raises(InputError, match="several ranks is not compiled: set torch_compile = false"):
        language(tmp_path, context_parallel_size=2, torch_compile=True)
    with pytest.raises(
        InputError, match=r"parallelism_config` of transformers is not a key here: set `training.context_parallel_size`"
    ):
        language(tmp_path, parallelism_config=2)


WORDS = "the animal did not cross the street because it was too tired and too wide for it today".split()
RUN = """
[task]
type = "clm"
train_file = "text.txt"
block_size = 40
validation_size = 8
tokenizer = {model_type = "char", vocab_size = 40}

[model]
type = "transformer"
hidden_size = 32
num_attention_heads = 2
num_hidden_layers = 1
intermediate_size = 48

[training]
output_dir = "run"
learning_rate = 1e-3
warmup_steps = 2
max_steps = 2000
max_tokens_per_batch = 160
eval_steps = 4000
save_steps = 1
save_total_limit = 3
num_threads = 1
"""
# Eight seconds of silence instead of sixteen: tests/sharded/test_liveness.py has the time that is promised.
COMMAND = """
import sys
from regard.parallel import liveness
liveness._SILENCE = 8.0
from regard.__main__ import main
sys.argv[0] = "regard"
main()
"""


def last_step(folder):
    log = Path(folder, "run", "log.jsonl")
    steps = [one["step"] for one in read_log(log) if one["event"] == "stepped"] if log.exists() else []
    return max(steps, default=0)


def lose(ranks, lost, how, folder):
    """Start `regard train` on so many processes, send one a signal after some steps; return what the others print."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    world = {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1"}
    world |= {"MASTER_PORT": str(port), "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    asked = [sys.executable, "-c", COMMAND, "train", "run.toml", "--context_parallel_size", str(ranks)]
    before, outputs = last_step(folder), [folder / f"output.{rank}" for rank in range(ranks)]
    started = []
    for rank, output in enumerate(outputs):
        own = {"RANK": str(rank), "LOCAL_RANK": str(rank)}
        with output.open("w") as file:
            started.append(subprocess.Popen(asked, cwd=folder, env=os.environ | world | own, stdout=file, stderr=file))
    try:
        deadline = time.monotonic() + 120
        while last_step(folder) < before + 3:
            assert [one.poll() for one in started] == [None] * ranks, [one.read_text() for one in outputs]
            assert time.monotonic() < deadline
            time.sleep(0.1)
        started[lost].send_signal(how)
        at = time.monotonic()
        codes = [one.wait(60) for rank, one in enumerate(started) if rank != lost]
        assert time.monotonic() - at <= 30
        assert codes == [2] * (ranks - 1)
        return [one.read_text("utf-8") for rank, one in enumerate(outputs) if rank != lost]
    finally:
        for one in started:
            one.kill()
            one.wait()


@pytest.mark.slow
def test_a_run_that_loses_a_process_goes_on_on_fewer(tmp_path):
    """Three, of which one is stopped; two, of which the first is killed, with the store; one, to the end."""
    chosen = random.Random(0)
    lines = [" ".join(chosen.choices(WORDS, k=chosen.randint(1, 30))) for _ in range(100)]
    (tmp_path / "text.txt").write_text("\n".join(lines), "utf-8")
    (tmp_path / "run.toml").write_text(RUN, "utf-8")
    for printed in lose(3, 1, signal.SIGSTOP, tmp_path):
        assert "rank 1 is gone (" in printed
        assert "start the processes again, from the last checkpoint" in printed
    stopped = last_step(tmp_path)
    (printed,) = lose(2, 0, signal.SIGKILL, tmp_path)
    assert "rank 0 is gone (" in printed
    killed = last_step(tmp_path)
    assert killed > stopped
    change = ["--max_steps", str(killed + 2), "--task.train_file", str(tmp_path / "text.txt"), "--output_dir"]
    for name in ("run", "whole"):
        train(read_config(tmp_path / "run.toml", [*change, str(tmp_path / name)]))
    ours, theirs = (load_file(tmp_path / name / "model" / "model.safetensors") for name in ("whole", "run"))
    # A key's bias moves all scores of a row alike: its gradient is 0 but for rounding, which Adam makes large.
    for name in [name for name in ours if not name.endswith("k_proj.bias")]:
        assert (ours[name] - theirs[name]).abs().max() <= 5e-5 * ours[name].abs().max(), name
