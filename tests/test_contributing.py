"""The examples of CONTRIBUTING.md and docs/adding.md: each file and export is added, and its check is run."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import regard

ROOT = Path(__file__).resolve().parents[1]
PAGES = ("CONTRIBUTING.md", "docs/adding.md")
BLOCK = re.compile(r"```python\n(.*?)```", flags=re.DOTALL)


def sections() -> dict[str, str]:
    """The sections that have Python, by title."""
    text = "\n".join((ROOT / page).read_text("utf-8") for page in PAGES)
    titled = re.findall(r"^## ([^\n]+)\n(.*?)(?=^## |\Z)", text, flags=re.MULTILINE | re.DOTALL)
    return {title: body for title, body in titled if BLOCK.search(body)}


def file_and_check(body: str) -> tuple[Path, str, str]:
    """Return the place of an example's file below src, its text, and the code of its check."""
    [place] = re.findall(r"`src/(\S+\.py)`:\n", body)
    text, check = BLOCK.findall(body)
    return Path(place), text, check


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
        text, many = re.subn(rf"^({call[2]}\b.*= \()", rf"\1{call[1]}(), ", path.read_text("utf-8"), flags=re.MULTILINE)
        assert many == 1, f"{call[2]} is not a tuple of {call[3]}"
        module = ".".join(place.with_suffix("").parts)
        first = re.search(r"^(from|import) ", text, flags=re.MULTILINE)
        path.write_text(f"{text[: first.start()]}from {module} import {call[1]}\n{text[first.start() :]}", "utf-8")
    else:
        assert "Export: none" in body


def test_the_mask_of_the_guide_is_exported_and_does_what_its_check_says(tmp_path, monkeypatch):
    place, text, check = file_and_check(sections()["Add a mask"])
    (tmp_path / place.name).write_text(text, "utf-8")
    monkeypatch.setattr(regard.masks, "__path__", [*regard.masks.__path__, str(tmp_path)])
    before = dict(vars(regard.masks))
    try:
        [line] = re.findall(r"Export:\s+`(from [^`]+)`", sections()["Add a mask"])
        exec(line, vars(regard.masks))
        exec(compile(check, "CONTRIBUTING.md", "exec"), {})
    finally:
        for name in vars(regard.masks).keys() - before.keys():
            delattr(regard.masks, name)
        sys.modules.pop(f"regard.masks.{place.stem}", None)


@pytest.mark.slow
def test_every_example_does_what_its_check_says(tmp_path):
    source = tmp_path / "src"
    shutil.copytree(ROOT / "src", source, ignore=shutil.ignore_patterns("__pycache__"))
    code = ["import regard", f"assert regard.__file__.startswith({str(source)!r})"]
    for number, (title, body) in enumerate(sections().items()):
        place, text, check = file_and_check(body)
        (source / place).write_text(text, "utf-8")
        export(source, place, body)
        indented = "".join(f"    {line}\n" for line in check.splitlines())
        code += [f"def check_{number}():\n{indented}", f"print({title!r}, flush=True)", f"check_{number}()"]
    environment = {**os.environ, "PYTHONPATH": str(source)}
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(code)], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines().count("Add a mask") == 1
