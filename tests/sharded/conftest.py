"""One launch of so many ranks for all tests that look at what they find."""

import fcntl
import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

import trained_runs
from processes import launch

RANKS = [2, *(pytest.param(ranks, marks=pytest.mark.slow) for ranks in (3, 4, 8))]


@dataclass(frozen=True)
class Found:
    """What each rank wrote."""

    ranks: int
    folder: Path

    def of(self, name):
        return [dict(np.load(self.folder / f"{name}.{rank}.npz")) for rank in range(self.ranks)]


def _once(tmp_path_factory, name, make):
    """A folder that `make` fills: once, also where these tests run in several processes."""
    shared = tmp_path_factory.getbasetemp()
    shared = shared.parent if "PYTEST_XDIST_WORKER" in os.environ else shared
    folder, done = shared / name, shared / f"{name}.done"
    with (shared / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            make(folder)
            done.touch()
    return folder


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """A corpus, and a run that one process has begun."""

    def make(folder):
        trained_runs.write_corpus(folder)
        trained_runs.run("causal", folder, into="resumed", max_steps=trained_runs.STEPS // 2)

    return _once(tmp_path_factory, "trained", make)


@pytest.fixture(scope="session", params=RANKS)
def computed(request, trained, tmp_path_factory):
    """What so many ranks find for all calls, in one launch."""

    def make(folder):
        shutil.copytree(trained, folder / "trained")
        launch(request.param, folder, "contract")

    return Found(request.param, _once(tmp_path_factory, f"{request.param}-ranks", make))


@pytest.fixture(scope="session", params=[pytest.param(ranks, marks=pytest.mark.slow) for ranks in (2, 3)])
def of_llama(request, tmp_path_factory):
    """What so many ranks find with transformers' Llama, whose import takes each of them seconds."""
    pytest.importorskip("transformers", reason="transformers is not installed (the extra `models`)")
    name = f"llama-{request.param}-ranks"
    return Found(request.param, _once(tmp_path_factory, name, lambda folder: launch(request.param, folder, "llama")))
