"""The way of one call fits in a head: `benchmarks/house.py` counts the files that it passes."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

HOUSE = Path(__file__).resolve().parent.parent / "benchmarks" / "house.py"


@pytest.fixture(scope="module")
def house() -> ModuleType:
    spec = importlib.util.spec_from_file_location("house", HOUSE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_no_function_is_long_no_class_has_the_name_of_another_and_imports_go_one_way(house):
    texts = house.modules()
    assert house.long_functions(texts) == []
    assert house.classes(texts) == {}
    assert house.circles(texts) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "most"), [("ATTENTION", 17), ("WATCH", 35), ("WATCH PAGE", 13), ("LANGUAGE TRAIN", 53)]
)
def test_a_first_call_passes_few_files_of_three_hundred_lines(house, script, most):
    if "WATCH" in script:
        pytest.importorskip("transformers", reason="transformers is not installed (the extra `models`)")
    files = house.followed("".join(getattr(house, one) for one in script.split()))
    assert len(files) <= most
    assert {name: lines for name in files if (lines := len((house.SOURCE / name).read_text().splitlines())) > 300} == {}
