"""4,096 tokens in float32: relative to the largest value, 2e-6 for outputs and 5e-6 for gradients."""

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

import members
from processes import launch


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 4])
def test_float32_is_as_near_to_float64_as_one_process_has_to_be(tmp_path, ranks):
    launch(ranks, tmp_path, "long")
    for name, mask in members.LONG.items():
        exact = members.long(mask, lambda x: x.double(), backend="blockwise")
        for rank in range(ranks):
            found = np.load(tmp_path / f"{name}.{rank}.npz")
            for what, want in exact.items():
                error = np.abs(found[what] - want).max() / np.abs(want).max()
                assert error <= (5e-6 if what.startswith("gradient") else 2e-6), f"{name}, rank {rank}, {what}"
