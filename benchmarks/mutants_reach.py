"""A pytest plugin for mutants.py: which lines of src each test executes, as JSON lines in the folder $REACH."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import coverage
import pytest

_SOURCE = Path(__file__).resolve().parent.parent / "src"
_cover = coverage.Coverage(data_file=None, include=[f"{_SOURCE}/*"], config_file=False)
_cover.set_option("run:disable_warnings", ["no-data-collected"])  # of a test that executes none of it
_folder = Path(os.environ["REACH"])
_rows = _folder / f"{os.environ.get('PYTEST_XDIST_WORKER', 'main')}.jsonl"


def _cpu_seconds() -> float:
    """Of this process and of those that it waited for: what else the machine does is not counted."""
    return sum(os.times()[:4])


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave out what an earlier run that was stopped has covered."""
    done = {json.loads(row)["test"] for one in sorted(_folder.glob("*.jsonl")) for row in one.read_text().splitlines()}
    items[:] = [item for item in items if item.nodeid not in done]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Cover one test, its fixtures included."""
    _cover.erase()
    started = _cpu_seconds()
    _cover.start()
    try:
        return (yield)
    finally:
        _cover.stop()
        data, root = _cover.get_data(), _SOURCE.parent
        reached = {str(Path(file).relative_to(root)): data.lines(file) for file in data.measured_files()}
        lines = {file: numbers for file, numbers in reached.items() if numbers}
        row = {"test": item.nodeid, "slow": item.get_closest_marker("slow") is not None, "lines": lines}
        with _rows.open("a", encoding="utf-8") as out:
            out.write(json.dumps(row | {"seconds": round(_cpu_seconds() - started, 3)}) + "\n")
