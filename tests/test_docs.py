"""The documentation is true: its code runs, its tables are what the code checks, its links lead somewhere."""

import importlib
import json
import re
import runpy

import pytest

from documents import ROOT, first_cells, python_blocks
from regard import hub as bundled
from sweeps import sweep

PAGES = sorted(page.relative_to(ROOT).as_posix() for folder in (ROOT, ROOT / "docs") for page in folder.glob("*.md"))
CODE = {  # tests of their own run the READMEs, and what a contributor adds
    name: blocks
    for name in PAGES
    if not name.startswith(("README", "CONTRIBUTING", "docs/adding")) and (blocks := python_blocks(name))
}


def run(name, code, folder):
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.chdir(folder)
        # 32 by default
        monkeypatch.setitem(importlib.import_module("regard.interpret.find_heads")._COUNT, "induction", 10)
        exec(compile(code, name, "exec"), {"__name__": "documentation"})


PLAIN = {
    name: plain for name, blocks in CODE.items() if (plain := [block for block in blocks if "# needs: " not in block])
}


@pytest.mark.parametrize("name", PLAIN)
def test_code_of_a_page_runs(name, tmp_path_factory):
    for case in sweep(PLAIN[name], lambda block: f"line {len(block) - len(block.lstrip()) + 1}"):
        with case as code:
            run(name, code, tmp_path_factory.mktemp("page"))


NEEDY = [
    pytest.param(name, number, marks=() if "# needs: transformers" in code else pytest.mark.models)
    for name, blocks in CODE.items()
    for number, code in enumerate(blocks)
    if "# needs: " in code and "# needs: runs/" not in code  # of a run: tests/train/test_tasks.py has one
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "number"), NEEDY)
def test_code_of_a_page_that_needs_models_runs(name, number, tmp_path):
    code = CODE[name][number]
    (need,) = re.findall(r"# needs: (\S+)", code)
    if need == "transformers":
        pytest.importorskip("transformers", reason="pip install 'regard[models]'")
    elif not bundled.is_installed(need):
        pytest.skip(f"{need} is missing: regard models get {need}")
    run(name, code, tmp_path)


def test_every_row_of_the_migration_tables_is_checked_by_code():
    checked = re.findall(r"^# (.+)$", "\n".join(python_blocks("docs/migration.md")), flags=re.MULTILINE)
    assert [cell for cell in first_cells("docs/migration.md") if cell not in checked] == []


NOTEBOOKS = tuple(f"docs/notebooks/{page.name}" for page in sorted((ROOT / "docs/notebooks").glob("*.md")))


def test_links_within_the_repository_lead_somewhere():
    for case in sweep((*PAGES, *NOTEBOOKS)):
        with case as name:
            page = ROOT / name
            links = re.findall(r"\]\(([^)#\s]+)", page.read_text(encoding="utf-8"))
            assert [link for link in links if "://" not in link and not (page.parent / link).exists()] == []


def test_tables_of_speed_are_those_of_the_saved_results(monkeypatch, tmp_path):
    results = sorted(ROOT.glob("benchmarks/results/speed-2-cores*.json"))
    table = runpy.run_path(str(ROOT / "benchmarks/table.py"))
    monkeypatch.setattr("sys.argv", ["table.py", *map(str, results), "--check"])
    table["main"]()
    other = tmp_path / results[0].name
    run = json.loads(results[0].read_text("utf-8"))
    run["rows"][0]["median"] *= 2
    other.write_text(json.dumps(run), "utf-8")
    monkeypatch.setattr("sys.argv", ["table.py", str(other), *map(str, results[1:]), "--check"])
    with pytest.raises(SystemExit, match="not the tables"):
        table["main"]()


def test_the_version_is_the_same_everywhere_it_is_written():
    version = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text("utf-8"), re.MULTILINE)[1]
    assert re.search(r"^version: (.+)$", (ROOT / "CITATION.cff").read_text("utf-8"), re.MULTILINE)[1] == version
    assert re.search(r"^## \[(\d.+)\]", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)[1] == version
    for name in ("docs/start.md", "docs/start.zh.md"):
        assert set(re.findall(r"regard-([\d.]+)-py3", (ROOT / name).read_text("utf-8"))) == {version}
