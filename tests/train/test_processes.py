"""Two processes take the steps of one with twice the batch."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from regard.train import train
from shared_folders import make_once
from train.runs import tiny

SCRIPT = Path(__file__).with_name("both.py")


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """What two processes of one launch leave of several runs: Gloo on CPU, dropout 0."""

    def make(folder):
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
        done = subprocess.run(
            [*command, str(SCRIPT), str(folder)], capture_output=True, text=True, timeout=240, env=environment
        )
        assert done.returncode == 0, done.stderr[-3000:]

    return make_once(tmp_path_factory, "both", make)


def losses(folder, steps):
    return json.loads((folder / f"losses-{steps}.json").read_text("utf-8"))


def weights(folder):
    return load_file(folder / "model" / "model.safetensors")


@pytest.mark.slow
def test_two_processes_have_the_curve_of_one_with_twice_the_batch(both, tmp_path):
    """The loss is averaged over the tokens of both."""
    told = []
    options = {
        "training__max_steps": 20,
        "training__max_tokens_per_batch": 120,
        "training__save_steps": None,
        "training__eval_steps": 20,
        "model__dropout": 0.0,
    }
    train(tiny(tmp_path / "one", **options), [told.append])
    one = [event.loss for event in told if type(event).__name__ == "Stepped"]
    two = losses(both / "two", 20)
    assert len(two) == len(one) == 20
    assert two == pytest.approx(one, abs=1e-5)
    alone, together = weights(tmp_path / "one"), weights(both / "two")
    # A key's bias moves all scores of a row alike: its gradient is 0 but for rounding, which Adam makes large.
    names = [name for name in alone if not name.endswith("k_proj.bias")]
    assert all(torch.allclose(alone[name], together[name], atol=1e-4) for name in names)


@pytest.mark.slow
def test_all_processes_stop_behind_the_same_step(both):
    """Ctrl-C reaches them at different moments: who went on alone would wait for the others for ever."""
    assert [(both / f"stopped.{rank}.txt").read_text("utf-8") for rank in (0, 1)] == ["5 should_stop"] * 2


@pytest.mark.slow
def test_two_processes_go_on_from_their_checkpoint(both):
    assert losses(both / "parts", 10) + losses(both / "parts", 20) == losses(both / "two", 20)
    whole, parts = weights(both / "two"), weights(both / "parts")
    assert all(torch.equal(whole[name], parts[name]) for name in whole)
