"""The documentation is true: its code runs, its tables are what the code checks, its links lead somewhere."""

import importlib
import re
import subprocess
import sys
from importlib import util

import pytest

from documents import ROOT, first_cells, python_blocks
from regard.interpret import bundled

PAGES = ("README.md", "README.zh.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/migration.md", "docs/architecture.md")
PAGES += (
    "docs/watching.md",
    "docs/blockwise.md",
    "docs/precision.md",
    "docs/approximations.md",
    "docs/models.md",
    "docs/nn.md",
    "docs/heads.md",
    "docs/atlas.md",
    "docs/seeing.md",
    "docs/data.md",
    "docs/training.md",
    "docs/performance.md",
    "docs/sharded.md",
    "docs/sources.md",
    "docs/lab.md",
    "docs/start.md",
    "docs/start.zh.md",
    "docs/build.zh.md",
    "docs/watching.zh.md",
    "docs/training.zh.md",
    "docs/stability.md",
    "docs/extensions.md",
    "SECURITY.md",
)
NEEDS = {
    "# needs: transformers": [pytest.mark.slow],
    "# needs: smollm2": [
        pytest.mark.slow,
        pytest.mark.models,
        pytest.mark.skipif(not bundled.is_installed("smollm2"), reason="smollm2 is missing: regard models get smollm2"),
    ],
}
BLOCKS = [
    pytest.param(name, number, marks=[mark for text, marks in NEEDS.items() if text in code for mark in marks])
    for name in PAGES
    if "README" not in name and "CONTRIBUTING" not in name  # tests of their own
    for number, code in enumerate(python_blocks(name))
]


@pytest.mark.parametrize(("name", "number"), BLOCKS)
def test_code_of_the_documentation_runs(name, number, tmp_path, monkeypatch):
    code = python_blocks(name)[number]
    if "# needs: transformers" in code and util.find_spec("transformers") is None:
        pytest.skip("transformers is not installed: pip install 'regard[models]'")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(importlib.import_module("regard.interpret.find_heads")._COUNT, "induction", 10)  # 32 by default
    exec(compile(code, name, "exec"), {"__name__": "documentation"})


def test_every_row_of_the_migration_tables_is_checked_by_code():
    checked = re.findall(r"^# (.+)$", "\n".join(python_blocks("docs/migration.md")), flags=re.MULTILINE)
    assert [cell for cell in first_cells("docs/migration.md") if cell not in checked] == []


NOTEBOOKS = tuple(f"docs/notebooks/{page.name}" for page in sorted((ROOT / "docs/notebooks").glob("*.md")))


@pytest.mark.parametrize("name", PAGES + NOTEBOOKS)
def test_links_within_the_repository_lead_somewhere(name):
    page = ROOT / name
    links = re.findall(r"\]\(([^)#\s]+)", page.read_text(encoding="utf-8"))
    assert [link for link in links if "://" not in link and not (page.parent / link).exists()] == []


def test_architecture_shows_the_layers_that_are_enforced():
    contract = (ROOT / "pyproject.toml").read_text(encoding="utf-8").partition("layers = [")[2].partition("]")[0]
    layers = [layer.strip() for layer in re.findall(r'"(.+?)"', contract)]
    shown = (ROOT / "docs/architecture.md").read_text(encoding="utf-8").partition("```text\n")[2].partition("```")[0]
    assert [line.split("  ")[0].strip() for line in shown.splitlines()] == layers


def test_tables_of_speed_are_those_of_the_kept_results():
    results = sorted(ROOT.glob("benchmarks/results/speed-2-cores*.json"))
    command = [sys.executable, "benchmarks/table.py", *map(str, results), "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for name in ("README.md", "README.zh.md", "docs/performance.md"):
        assert (
            len(re.findall(r"^\| .* \|$", (ROOT / name).read_text("utf-8").partition("speed: ")[2], re.MULTILINE)) >= 4
        )


def test_the_version_is_the_same_everywhere_it_is_written():
    version = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text("utf-8"), re.MULTILINE)[1]
    assert re.search(r"^version: (.+)$", (ROOT / "CITATION.cff").read_text("utf-8"), re.MULTILINE)[1] == version
    assert re.search(r"^## \[(\d.+)\]", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)[1] == version
    for name in ("docs/start.md", "docs/start.zh.md"):
        assert set(re.findall(r"regard-([\d.]+)-py3", (ROOT / name).read_text("utf-8"))) == {version}
