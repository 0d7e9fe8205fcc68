"""Ranks compute and observe what one process does, on random calls; benchmarks/random_ranks.py has more."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))

import random_rank_calls
from random_rank_calls import RankCall, Sharding, check, drawn, drawn_sharding

from random_calls import DisagreementError
from sweeps import sweep

PATH = Path(__file__).parents[2] / "benchmarks" / "random_ranks.py"
QUICK, SLOW = 40, 120


def compared(folder, ranks, first, count):
    """What the benchmark finds for some calls."""
    results = folder / "results.json"
    asked = ["--ranks", ranks, "--first", first, "--count", count, "--results", results, "--attempts", 20]
    ran = subprocess.run(
        [sys.executable, PATH, *map(str, asked)], env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True,
        text=True, check=False, timeout=900,
    )  # fmt: skip
    assert results.exists(), ran.stdout + ran.stderr
    (found,) = json.loads(results.read_text())
    assert found["calls"] == count
    return found


def check_all(found):
    for case in sweep([*found["wrong calls"], None], lambda one: "" if one is None else f"--only {one['number']}"):
        with case as one:
            assert one is None, json.dumps(one, indent=1)


def test_random_calls_on_two_ranks_give_what_one_process_does(tmp_path):
    found = compared(tmp_path, 2, 0, QUICK)
    check_all(found)
    assert {*found["ways"]} >= {"dtensors", "ordered", "cache", "module"}
    assert found["ways"]["watched"] > QUICK / 10
    assert found["right"] > 0.9 * QUICK


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_more_random_calls_give_what_one_process_does(tmp_path, ranks):
    check_all(compared(tmp_path, ranks, QUICK, SLOW))


def _found(call):
    """What one rank would have that is right."""
    expected, _, record = random_rank_calls.expected(call)
    found = {name: x.detach().numpy() for name, x in expected.items()}
    found |= {name: array for name, array in record.items() if name.startswith("seen: ")}
    return found | {f"dtype of {name}": str(torch.float64) for name in expected}


ALONE = Sharding((1,), ("sequence",))


def test_a_wrong_number_is_found_in_every_result():
    call = RankCall(
        seed=3, queries=9, keys=9, heads=2, kv_heads=2, learns="qkvp", mask=("Causal",), bias="alibi",
        normalizer="sink", returns_lse=True, watch="qk",
    )  # fmt: skip
    right = _found(call)
    assert check(call, ALONE, [right]) < 1
    names = [name for name, x in right.items() if isinstance(x, np.ndarray)]
    assert len(names) > 20
    for case in sweep(names):
        with case as name:
            wrong = right[name].copy()
            wrong.flat[wrong.size // 2] += 1 if wrong.dtype.kind == "i" else 1e-6
            with pytest.raises(DisagreementError):
                check(call, ALONE, [right | {name: wrong}])


def test_calls_are_drawn_by_their_number():
    assert [drawn(number) for number in range(40)] == [drawn(number) for number in range(40)]
    calls = [drawn(number) for number in range(400)]
    assert {call.way for call in calls} == {*random_rank_calls.WAYS}
    assert any(call.keys == 0 for call in calls)
    assert any(0 < call.keys < 4 for call in calls)
    assert any(call.queries > call.keys for call in calls)
    shardings = [drawn_sharding(call, 4) for call in calls]
    assert {axis for sharding in shardings for axis in sharding.axes} == {"sequence", "batch", "heads", "nothing"}
