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
from train.runs import tiny

SCRIPT = Path(__file__).with_name("both.py")


@pytest.mark.slow
def test_two_processes_have_the_curve_of_one_with_twice_the_batch(tmp_path):
    """Gloo on CPU, dropout 0, the loss averaged over the tokens of both."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(
        [*command, str(SCRIPT), str(tmp_path / "two"), "60"],
        capture_output=True,
        text=True,
        timeout=240,
        env=environment,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    two = json.loads((tmp_path / "two" / "losses.json").read_text("utf-8"))
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
    assert len(two) == len(one) == 20
    assert two == pytest.approx(one, abs=1e-5)
    weights = [load_file(tmp_path / name / "model" / "model.safetensors") for name in ("one", "two")]
    # A key's bias moves all scores of a row alike: its gradient is 0 but for rounding, which Adam makes large.
    names = [name for name in weights[0] if not name.endswith("k_proj.bias")]
    assert all(torch.allclose(weights[0][name], weights[1][name], atol=1e-4) for name in names)


@pytest.mark.slow
def test_all_processes_stop_behind_the_same_step(tmp_path):
    """Ctrl-C reaches them at different moments: who went on alone would wait for the others for ever."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    script = SCRIPT.with_name("stopped.py")
    done = subprocess.run(
        [*command, str(script), str(tmp_path / "run")], capture_output=True, text=True, timeout=120, env=environment
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert [(tmp_path / "run" / f"{rank}.txt").read_text("utf-8") for rank in (0, 1)] == ["5 should_stop"] * 2


@pytest.mark.slow
def test_two_processes_go_on_from_their_checkpoint(tmp_path):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(SCRIPT)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    for name, steps in (("whole", 20), ("parts", 10), ("parts", 20)):
        asked = [*command, str(tmp_path / name), "60", str(steps)]
        done = subprocess.run(asked, capture_output=True, text=True, timeout=240, env=environment)
        assert done.returncode == 0, done.stderr[-3000:]
    whole, parts = (json.loads((tmp_path / name / "losses.json").read_text("utf-8")) for name in ("whole", "parts"))
    assert parts == whole[10:]
    weights = [load_file(tmp_path / name / "model" / "model.safetensors") for name in ("whole", "parts")]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
