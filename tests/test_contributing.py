"""The examples of CONTRIBUTING.md: each file and export is added to a copy of the sources, and its check is run."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^### (An? [^\n]+)\n(.*?)(?=^##|\Z)", TEXT, flags=re.MULTILINE | re.DOTALL))
BLOCK = re.compile(r"```python\n(.*?)```", flags=re.DOTALL)


def export(source: Path, place: Path, body: str) -> None:
    """Add the line, or the name to the tuple or list, that a section names as its export."""
    if line := re.search(r"Export:\s+`(from [^`]+)`\s+in\s+`src/([^`]+)`", body):
        path = source / line[2]
        path.write_text(path.read_text("utf-8") + f"\n{line[1]}\n", "utf-8")
    elif name := re.search(r"Export:\s+`(\w+)`\s+in\s+`(\w+)`\s+of\s+`src/([^`]+)`", body):
        path = source / name[3]
        module = ".".join(place.parent.parts if name[1] == place.stem else place.with_suffix("").parts)
        added = f"\nfrom {module} import {name[1]}\n{name[2]} = (*{name[2]}, {name[1]})\n"
        path.write_text(path.read_text("utf-8") + added, "utf-8")
    elif call := re.search(r"Export:\s+`(\w+)\(\)`\s+in\s+`(\w+)`\s+of\s+`src/([^`]+)`", body):
        path = source / call[3]
        text = path.read_text("utf-8").replace(f"{call[2]}=(", f"{call[2]}=({call[1]}(), ", 1)
        module = ".".join(place.with_suffix("").parts)
        first = re.search(r"^(from|import) ", text, flags=re.MULTILINE)
        path.write_text(f"{text[: first.start()]}from {module} import {call[1]}\n{text[first.start() :]}", "utf-8")
    else:
        assert "Export: none" in body


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A copy of the sources with every example added."""
    folder = tmp_path_factory.mktemp("contributed") / "src"
    shutil.copytree(ROOT / "src", folder, ignore=shutil.ignore_patterns("__pycache__"))
    for body in SECTIONS.values():
        [place] = re.findall(r"`src/(\S+\.py)`:\n", body)
        (folder / place).write_text(BLOCK.findall(body)[0], "utf-8")
        export(folder, Path(place), body)
    return folder


def test_there_is_an_example_of_each():
    assert [title.split(" ", 1)[1] for title in SECTIONS] == [
        "mask", "score", "statistic", "backend", "training task", "claim of the lab", "picture",
    ]  # fmt: skip


@pytest.mark.slow
def test_every_example_does_what_its_check_says(source):
    checks = [f"def check_{at}():\n" + "".join(f"    {line}\n" for line in BLOCK.findall(body)[-1].splitlines())
              for at, body in enumerate(SECTIONS.values())]  # fmt: skip
    calls = [f"check_{at}()" for at in range(len(checks))]
    environment = {**os.environ, "PYTHONPATH": str(source)}
    code = "\n".join(["import regard", f"assert regard.__file__.startswith({str(source)!r})", *checks, *calls])
    ran = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
