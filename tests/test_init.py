"""`import regard` is a table of contents: quick, whole, and read when it is asked."""

import re
import subprocess
import sys

import pytest

import regard
from documents import ROOT

ALONE = """
import sys
import regard
assert "torch" not in sys.modules, "import regard alone needs no PyTorch"
assert set(regard.__all__) <= set(dir(regard))
assert regard.statistics.__name__ == "regard.observe.statistics", "known before anything has imported it"
for name in regard.__all__:
    getattr(regard, name)
assert regard.attention.__module__ == "regard.functional"
import torch
x = torch.ones(1, 1, 9, 4)
regard.attention(x, x, x, mask=regard.masks.Window(2), backend="strips")
assert "torch._dynamo" not in sys.modules, "the compiler takes as long as PyTorch, and nothing is compiled"
for name in ("triton", "torch.nn.attention.flex_attention", "transformers", "matplotlib", "native"):
    assert name not in sys.modules, f"{name} was imported, and nothing needs it"
"""


def test_pytorch_is_imported_when_something_is_asked_for_and_its_compiler_is_not():
    done = subprocess.run([sys.executable, "-W", "error", "-c", ALONE], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_name_that_is_none_is_refused_as_ever():
    with pytest.raises(AttributeError, match="module 'regard' has no attribute 'atention'"):
        regard.atention  # noqa: B018


def test_what_was_asked_for_once_is_known():
    assert regard.watch is regard.watch
    assert "watch" in vars(regard)


def test_shapes_are_of_the_class_of_arrays_as_numpy_makes_an_alias_of_its_name_for_types():
    sources = (ROOT / "src").rglob("*.py")  # numpy 2.5, for Python 3.12 and newer: jaxtyping takes classes only
    users = [
        path.name for path in sources if re.search(r"\b[A-Z]\w+\[(npt\.)?NDArray\[.*\], \"", path.read_text("utf-8"))
    ]
    assert users == []
