"""The examples run, each in a process of its own, and say something."""

import subprocess
import sys

import pytest

from documents import ROOT

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def test_there_is_an_example_for_each_kind_of_user():
    assert {example.stem.partition("_")[0] for example in EXAMPLES} >= {"build", "watch", "learn"}


@pytest.mark.slow
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs(example, tmp_path, request):
    if "train_a_small_translator" in example.stem + example.read_text("utf-8"):
        request.getfixturevalue("small_translator")
    done = subprocess.run(
        [sys.executable, "-W", "error", str(example)], cwd=tmp_path, capture_output=True, encoding="utf-8", timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    assert list(tmp_path.iterdir()) == []
