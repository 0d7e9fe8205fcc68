"""Every name of regard that the documentation writes as code exists."""

import importlib
import re

import torch

import regard
from documents import ROOT
from regard.extensions import GROUPS
from sweeps import sweep

PAGES = [
    page.relative_to(ROOT).as_posix()
    for page in (*sorted((ROOT / "docs").rglob("*.md")), *(ROOT / f"{name}.md" for name in ("README", "README.zh")))
]
CODE = re.compile(r"^```\w*\n(.*?)^```$|(`+)(?!`)(.+?)(?<!`)\2(?!`)", flags=re.MULTILINE | re.DOTALL)
FOLDERS = ("masks", "scores", "positions", "normalizers", "approximations", "models")
NAME = re.compile(rf"(?<![\w./\"'-])((?:regard|{'|'.join(FOLDERS)})(?:\.[A-Za-z_]\w*)+)(?![\w/]*[/-])")
FILES = (".md", ".py", ".toml", ".json", ".txt", ".html", ".css", ".ipynb", ".pt")


def names(page):
    """What is written as code as regard.…, or in a line of text as a member of one of its folders.

    Blocks of code have variables of such names, and are run by other tests.
    """
    for block in CODE.finditer((ROOT / page).read_text(encoding="utf-8")):
        for name in NAME.findall(block[1] or block[3] or ""):
            ours = name.startswith("regard.") or not (block[1] or hasattr(torch.Tensor, name.split(".")[1]))
            if ours and not name.endswith(FILES):
                yield name


def exists(name):
    if name in GROUPS:  # of entry points, which are no modules
        return True
    parts = name.split(".")
    value = importlib.import_module("regard") if parts[0] == "regard" else getattr(regard, parts[0])
    for at, part in enumerate(parts[1:], start=1):
        try:
            value = getattr(value, part)
        except AttributeError:
            if getattr(value, "__annotations__", {}).get(part) is not None or part in _set_by_init(value):
                return True  # a field, or an attribute of the instance
            try:
                value = importlib.import_module(".".join(["regard"] * (parts[0] != "regard") + parts[: at + 1]))
            except ImportError:
                return False
    return True


def _set_by_init(value):
    """The names that a class gives its instances in __init__."""
    code = getattr(getattr(value, "__init__", None), "__code__", None) if isinstance(value, type) else None
    return code.co_names if code else ()


def made_on(page):
    """The modules and names that a page shows how to add: tests/test_contributing.py adds and runs them."""
    text = (ROOT / page).read_text(encoding="utf-8")
    modules = {path.replace("/", ".") for path in re.findall(r"`src/(\S+)\.py`:$", text, flags=re.MULTILINE)}
    exports = re.findall(r"^Export: `from (regard\.\S+)\.\w+ import (\w+)`", text, flags=re.MULTILINE)
    return modules | {f"{package}.{name}" for package, name in exports}


def test_every_name_on_a_page_exists():
    for case in sweep(PAGES):
        with case as page:
            assert sorted({name for name in names(page) if not exists(name)} - made_on(page)) == []


def test_names_are_found_and_missing_ones_are_missed():
    assert set(names("docs/nn.md")) >= {"regard.nn", "regard.masks", "regard.approximations", "masks.Causal"}
    assert exists("regard.masks.Padding.from_lengths")
    assert exists("scores.ScaledDot.softcap")
    assert not exists("masks.Only")
    assert not exists("regard.prefer")
