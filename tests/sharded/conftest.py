"""One launch of so many ranks for all tests that look at what they find."""

import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

import trained_runs
from processes import RANKS, launch, marked

from shared_folders import make_once


@dataclass(frozen=True)
class Found:
    """What each rank wrote."""

    ranks: int
    folder: Path

    def of(self, name):
        return [dict(np.load(self.folder / f"{name}.{rank}.npz")) for rank in range(self.ranks)]


@pytest.fixture(scope="session", params=marked(RANKS))
def computed(request, tmp_path_factory):
    """What so many ranks find for all calls, in one launch."""

    def make(folder):
        (folder / "trained").mkdir()
        trained_runs.write_corpus(folder / "trained")
        if request.param == trained_runs.RESUMING:  # a run that one process has begun
            trained_runs.run("causal", folder / "trained", into="resumed", max_steps=trained_runs.STEPS // 2)
        launch(request.param, folder, "contract")

    return Found(request.param, make_once(tmp_path_factory, f"{request.param}-ranks", make))


@pytest.fixture(scope="session", params=[pytest.param(ranks, marks=pytest.mark.slow) for ranks in (2, 3)])
def of_llama(request, tmp_path_factory):
    """What so many ranks find with transformers' Llama, whose import takes each of them seconds."""
    pytest.importorskip("transformers", reason="transformers is not installed (the extra `models`)")
    name = f"llama-{request.param}-ranks"
    return Found(
        request.param, make_once(tmp_path_factory, name, lambda folder: launch(request.param, folder, "llama"))
    )
