"""The way of one call fits in a head: `benchmarks/house.py` counts the files that it passes."""

import importlib.util
from pathlib import Path

import pytest

HOUSE = Path(__file__).resolve().parent.parent / "benchmarks" / "house.py"


@pytest.mark.slow
def test_a_first_call_with_a_window_passes_at_most_fourteen_files_of_three_hundred_lines():
    spec = importlib.util.spec_from_file_location("house", HOUSE)
    assert spec is not None
    assert spec.loader is not None
    house = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(house)
    files = house.followed(house.ATTENTION)
    assert len(files) <= 14
    assert {name: lines for name in files if (lines := len((house.SOURCE / name).read_text().splitlines())) > 300} == {}
