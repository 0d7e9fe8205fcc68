"""4,096 tokens in float32: relative to the largest value, 2e-6 for outputs and 5e-6 for gradients."""

import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

import members
from processes import launch


@cache
def _exact(name):
    """What one process computes in float64, once for all numbers of ranks."""
    return members.long(members.LONG[name], lambda x: x.double(), backend="strips")


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 4])
def test_float32_is_as_near_to_float64_as_one_process_has_to_be(tmp_path, ranks):
    launch(ranks, tmp_path, "long")
    for name in members.LONG:
        for rank in range(ranks):
            found = np.load(tmp_path / f"{name}.{rank}.npz")
            for what, want in _exact(name).items():
                error = np.abs(found[what] - want).max() / np.abs(want).max()
                assert error <= (5e-6 if what.startswith("gradient") else 2e-6), f"{name}, rank {rank}, {what}"
