"""Some of the random calls of `generate`; benchmarks/random_generations.py makes 1,000."""

from collections import Counter

import pytest

pytest.importorskip("transformers")
from random_generations import Pool, drawn
from sweeps import sweep

CALLS = 80


@pytest.fixture(scope="module")
def pool(tmp_path_factory):
    return Pool(tmp_path_factory.mktemp("checkpoints"))


def test_generate_gives_what_transformers_gives_or_refuses_by_name(pool):
    outcomes = Counter()
    for case in sweep(range(CALLS)):
        with case as number:
            outcomes[pool.check(drawn(number)).partition(":")[0]] += 1
    assert outcomes["equal"] > 0.75 * CALLS
    assert outcomes["named"]
