"""The tools of the repository: imports are statements without circles; a release note lists what changed in names."""

import pytest

griffe = pytest.importorskip("griffe", reason="griffe is not installed (the extra `dev`)")
grimp = pytest.importorskip("grimp", reason="import-linter is not installed (the extra `dev`)")

from tools.layers import NoCircles, NoImportsByString  # noqa: E402
from tools.public_changes import changes, public_names  # noqa: E402

BEFORE = """
from shop.store import Store, open
__all__ = ["Store", "open", "gone"]
gone = 1
"""
STORE = "class Store:\n    def sell(self, item, price=1): ...\ndef open(path, mode): ...\n"


def package(folder, *, init, **modules):
    (folder / "shop").mkdir(parents=True)
    for name, text in {"__init__": init, **modules}.items():
        (folder / "shop" / f"{name}.py").write_text(text, encoding="utf-8")
    return griffe.load("shop", search_paths=[folder], resolve_aliases=True)


def test_a_release_note_has_names_that_are_gone_new_or_called_differently_and_no_others(tmp_path):
    old = package(tmp_path / "old", init=BEFORE, store=STORE + "def inner(): ...\n")
    moved = "class Store:\n    def sell(self, item, cost=1): ...\ndef open(path, mode): ...\n"  # elsewhere, one renamed
    exports = 'from shop.depot import Store, open\n__all__ = ["Store", "open", "added"]\nadded = 1\n'
    new = package(tmp_path / "new", init=exports, depot=moved)
    before, after = public_names(old, ["shop"]), public_names(new, ["shop"])
    assert before.keys() - after.keys() == {"shop.gone"}
    assert after.keys() - before.keys() == {"shop.added"}
    lines = changes(before, after)
    assert [line.partition(":")[0] for line in lines] == ["shop.Store.sell"]
    assert "price" in lines[0]


@pytest.fixture
def broken(tmp_path, monkeypatch, capsys):
    """What a contract prints of a package `shop` with these modules."""

    def broken(kind, **modules):
        package(tmp_path, **{"init": "", **modules})
        monkeypatch.syspath_prepend(tmp_path)
        contract = kind("", {"root_packages": ["shop"]}, {})
        check = contract.check(grimp.build_graph("shop", cache_dir=None), verbose=False)
        if not check.kept:
            contract.render_broken_contract(check)
        return capsys.readouterr().out.splitlines()

    return broken


LATER = "def later():\n    from shop import low\n"
TYPES = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from shop.high import Sale\n"


def test_a_circle_is_named_with_its_imports_in_functions_and_for_types_too(broken):
    lines = broken(NoCircles, high="from shop import middle\n", middle=LATER, low=TYPES, aside="import shop.low\n")
    assert lines == [
        "3 modules import each other:",
        "  shop.high -> shop.middle (line 1: from shop import middle)",
        "  shop.low -> shop.high (line 3: from shop.high import Sale)",
        "  shop.middle -> shop.low (line 2: from shop import low)",
    ]


def test_modules_that_import_downwards_make_no_circle_and_the_root_is_left_out(broken):
    assert broken(NoCircles, init="from shop import high\n", high="from shop import low\n", low="import shop\n") == []


def test_an_import_by_a_string_is_refused_but_in_the_root(broken):
    modules = {
        "init": 'import importlib\nimportlib.import_module("shop.high")\n',
        "high": 'import importlib\nimportlib.import_module("json")\n',
        "low": 'from pkgutil import resolve_name\nresolve_name("shop.high:sell")\n',
    }
    (line,) = broken(NoImportsByString, **modules)
    assert line == "shop.low imports shop.high:sell by a string (line 2): write an import statement"
