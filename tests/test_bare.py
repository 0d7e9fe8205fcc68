"""What `.ci/bare` expects to be skipped on a machine without Chromium is what needs it."""

import subprocess
import sys

import pytest

from documents import ROOT


@pytest.mark.slow
def test_the_skips_of_a_bare_machine_are_those_of_the_tests_in_a_browser():
    asked = [path for path in sorted((ROOT / "tests").rglob("test_*.py")) if "browser" in path.read_text("utf-8")]
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, "-m", "browser and not slow", *map(str, asked)], cwd=ROOT, capture_output=True, text=True, check=True
    )
    found = sorted({line.partition("::")[0] for line in done.stdout.splitlines() if "::" in line})
    listed = (ROOT / ".ci" / "bare-skips").read_text("utf-8").splitlines()
    assert found == [line.partition(":")[0] for line in listed]
