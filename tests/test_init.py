"""`import regard` is a table of contents: quick, whole, and read when it is asked."""

import subprocess
import sys

import pytest

import regard

ALONE = """
import sys
import regard
assert "torch" not in sys.modules, "import regard alone needs no PyTorch"
assert set(regard.__all__) <= set(dir(regard))
for name in regard.__all__:
    getattr(regard, name)
assert regard.attention.__module__ == "regard.functional"
assert "torch" in sys.modules
"""


def test_pytorch_is_read_when_something_is_asked_for():
    done = subprocess.run([sys.executable, "-W", "error", "-c", ALONE], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_help_does_without_pytorch():
    """Typing `regard` and Ctrl-C must not wait for it."""
    code = "import sys; sys.argv = ['regard', 'nonsense']\ntry:\n    from regard.cli import main\nfinally:\n"
    code += "    assert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_name_that_is_none_is_refused_as_ever():
    with pytest.raises(AttributeError, match="module 'regard' has no attribute 'atention'"):
        regard.atention  # noqa: B018


def test_what_was_asked_for_once_is_known():
    assert regard.watch is regard.watch
    assert "watch" in vars(regard)
