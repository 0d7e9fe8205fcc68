"""The pages of the mechanisms are what the docstrings say, are complete, and their examples print what they show."""

import contextlib
import importlib
import inspect
import io
import re

import pytest

from documents import ROOT, first_cells, python_blocks
from regard import masks, normalizers, positions, scores
from sweeps import sweep

FOLDER = ROOT / "docs/mechanisms"
FAMILIES = {"scores": scores, "masks": masks, "positions": positions, "normalizers": normalizers}
PAGES = sorted(path.relative_to(ROOT).as_posix() for path in FOLDER.rglob("*.md"))
EXAMPLES = [page for page in PAGES if "README" not in page]
SECTIONS = ["Picture", "Example", "Cost", "Backends"]

# What is exported and is no mechanism: what others derive from, constants, converters and helpers.
OTHERS = set(
    """
    Score Mask BoundMask EMPTY FULL PARTIAL Bias Relative Rotary Scaling Normalizer Unpadded alibi_slopes t5_buckets
    cu_seqlens_from_lengths pack unpack unpad
    """.split()
)


@pytest.fixture(scope="module")
def generated() -> dict[str, str]:
    """What `make docs` would write now."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "docs"))
        return importlib.import_module("generate").pages()


def test_pages_are_what_make_docs_writes(generated):
    there = {path.relative_to(FOLDER).as_posix(): path.read_text(encoding="utf-8") for path in FOLDER.rglob("*.md")}
    stale = sorted(name for name in generated.keys() | there.keys() if generated.get(name) != there.get(name))
    assert stale == [], "these pages are not what the docstrings say: run `make docs`"


def test_every_exported_mechanism_has_a_page():
    for case in sweep(FAMILIES):
        with case as family:
            exported = {one for one in FAMILIES[family].__all__ if not one.startswith(("from_", "to_"))} - OTHERS
            listed = {page.split("/")[-1].removesuffix(".md") for page in EXAMPLES if f"/{family}/" in page}
            assert listed == {name.lower() for name in exported}


def test_example_prints_what_the_page_shows(tmp_path_factory):
    for case in sweep(EXAMPLES):
        with case as name, pytest.MonkeyPatch.context() as monkeypatch:
            tmp_path = tmp_path_factory.mktemp("case")
            (code,) = python_blocks(name)
            assert len([line for line in code.splitlines() if line]) <= 5, "an example takes four lines, five at most"
            monkeypatch.chdir(tmp_path)
            with contextlib.redirect_stdout(io.StringIO()) as printed:
                exec(compile(code, name, "exec"), {"__name__": "documentation"})
            page = (ROOT / name).read_text(encoding="utf-8")
            shown = re.search(r"^prints\n\n```text\n(.+?)\n```$", page, flags=re.MULTILINE | re.DOTALL)
            assert printed.getvalue().rstrip() == shown[1]


def test_page_has_a_formula_and_every_section_with_something_in_it():
    for case in sweep(EXAMPLES):
        with case as name:
            page = (ROOT / name).read_text(encoding="utf-8")
            head, *sections = re.split(r"^## ", page, flags=re.MULTILINE)
            assert re.search(r"^```text\n.+\n```$", head, flags=re.MULTILINE)
            filled = {title: body.strip() for title, _, body in (section.partition("\n") for section in sections)}
            assert [title for title in SECTIONS if not filled.get(title)] == []
            assert page.count("```") % 2 == 0
            assert not re.search(r"\b(None|nan|inf)$", head)


def test_links_of_the_pages_lead_somewhere():
    for case in sweep(PAGES):
        with case as name:
            page = ROOT / name
            links = re.findall(r"\]\(([^)#\s]+)", page.read_text(encoding="utf-8"))
            assert links
            assert [link for link in links if "://" not in link and not (page.parent / link).exists()] == []
            assert [
                link for link in links if "://" in link and not re.fullmatch(r"https://arxiv.org/abs/[\d.]+", link)
            ] == []


@pytest.mark.parametrize("name", ["README.md", "README.zh.md"])
def test_index_lists_every_page_once(name):
    rows = first_cells(f"docs/mechanisms/{name}")
    linked = [re.search(r"\((.+)\)", row)[1] for row in rows]
    assert sorted(f"docs/mechanisms/{link}" for link in linked) == EXAMPLES


def test_docstring_of_every_mechanism_says_what_it_costs():
    for case in sweep(FAMILIES):
        with case as family:
            names = [
                one for one in FAMILIES[family].__all__ if not one.startswith(("from_", "to_")) and one not in OTHERS
            ]
            silent = [name for name in names if "Cost: " not in inspect.getdoc(getattr(FAMILIES[family], name))]
            assert silent == []


@pytest.mark.parametrize(("name", "picture"), [("causal", "█ · ·\n█ █ ·\n█ █ █"), ("strided", "█ · ·\n· █ ·\n· · █")])
def test_picture_of_a_mask_has_queries_down_and_keys_across(name, picture):
    page = (FOLDER / f"masks/{name}.md").read_text(encoding="utf-8")
    drawn = page.partition("## Picture")[2].partition("```text\n")[2].partition("```")[0].splitlines()
    assert "\n".join(row[:5] for row in drawn[:3]) == picture
