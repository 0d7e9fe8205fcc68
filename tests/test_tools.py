"""The tools of the repository: imports by a string count, and a release note lists what changed in public names."""

import pytest

griffe = pytest.importorskip("griffe", reason="griffe is not installed (the extra `dev`)")
grimp = pytest.importorskip("grimp", reason="import-linter is not installed (the extra `dev`)")

from tools.layers import LayersWithDynamicImports  # noqa: E402
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


def test_an_import_by_a_string_breaks_the_layers_as_a_statement_does(tmp_path, monkeypatch):
    package(tmp_path, init="", high="", low='import importlib\nimportlib.import_module("shop.high")\n')
    monkeypatch.syspath_prepend(tmp_path)

    def is_kept(*layers):
        options = {"containers": ["shop"], "layers": list(layers)}
        contract = LayersWithDynamicImports("", {"root_packages": ["shop"]}, options)
        return contract.check(grimp.build_graph("shop", cache_dir=None), verbose=False).kept

    assert not is_kept("high", "low")
    assert is_kept("low", "high")
