"""The notebooks of examples/ are what their source says, run in Jupyter, and give what they show."""

import base64
import importlib.util
import re
import sys
from types import SimpleNamespace

import pytest

from documents import ROOT
from sweeps import sweep

nbformat = pytest.importorskip("nbformat")
pytest.importorskip("nbclient")


def builder():
    """docs/notebooks.py, which is no package."""
    spec = importlib.util.spec_from_file_location("regard_notebooks", ROOT / "docs/notebooks.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


notebooks = builder()
MODELS = {"en": "minilm", "zh": "me5"}
EACH = [(name, language) for name in notebooks.NAMES for language in notebooks.LANGUAGES]
NUMBER = re.compile(r"\d+(?:\.\d+)?(?:e[-+]\d+)?")


def written(name, language):
    return nbformat.read(ROOT / f"examples/{name}{notebooks.LANGUAGES[language]}.ipynb", as_version=4)


def sources(notebook, kind):
    return [cell.source for cell in notebook.cells if cell.cell_type == kind]


def said(cell):
    """What a cell wrote, as text; of a picture only that there is one."""
    outputs = (SimpleNamespace(text=one.get("text", ""), data=one.get("data", {})) for one in cell.get("outputs", ()))
    return "\n".join("a picture" if "image/png" in one.data else one.text for one in outputs)


def test_the_notebook_is_made_from_its_source():
    for case in sweep(EACH):
        with case as (name, language):
            found, made = written(name, language), notebooks.notebook(name, language)
            nbformat.validate(found)
            assert [(cell.cell_type, cell.source, cell.id) for cell in found.cells] == [
                (cell.cell_type, cell.source, cell.id) for cell in made.cells
            ], "run `make notebooks`"


def test_it_was_run_from_top_to_bottom_and_is_small():
    for case in sweep(EACH):
        with case as (name, language):
            found = written(name, language)
            code = [cell for cell in found.cells if cell.cell_type == "code"]
            assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
            assert not [
                one
                for cell in code
                for one in cell.outputs
                if one.output_type == "error" or one.get("name") == "stderr"
            ]
            assert any("image/png" in one.get("data", {}) for cell in code for one in cell.outputs)
            assert (ROOT / f"examples/{name}{notebooks.LANGUAGES[language]}.ipynb").stat().st_size < 300_000


def test_its_page_in_the_docs_shows_the_same():
    for case in sweep(EACH):
        with case as (name, language):
            text, pictures = notebooks.page(written(name, language), name, language)
            assert (ROOT / f"docs/notebooks/{name}{notebooks.LANGUAGES[language]}.md").read_text("utf-8") == text
            for picture, data in pictures.items():
                assert (ROOT / "docs/notebooks/images" / picture).read_bytes() == data
                assert f"](images/{picture})" in text


@pytest.mark.parametrize("name", notebooks.NAMES)
def test_both_languages_have_the_same_cells_and_no_text_in_the_other(name):
    english, chinese = (written(name, language) for language in ("en", "zh"))
    assert [cell.cell_type for cell in english.cells] == [cell.cell_type for cell in chinese.cells]
    headings = [[text.split(" ")[0] for text in sources(one, "markdown")] for one in (english, chinese)]
    assert [one for one in headings[0] if one.startswith("#")] == [one for one in headings[1] if one.startswith("#")]
    differing = [
        one for one, other in zip(sources(english, "code"), sources(chinese, "code"), strict=True) if one != other
    ]
    assert len(differing) <= 2  # the sentences
    assert all(re.search(r"[\u4e00-\u9fff]", text) for text in sources(chinese, "markdown"))


@pytest.mark.slow
@pytest.mark.models
@pytest.mark.parametrize(("name", "language"), EACH)
def test_it_runs_in_jupyter_and_says_what_it_shows(name, language, tmp_path):
    """Words to the letter, numbers to two hundredths of themselves or of one; up to where a test trains less."""
    if name == "what_does_this_model_look_at":
        bundled = pytest.importorskip("regard.hub")
        if not bundled.is_installed(MODELS[language]):
            pytest.skip(f"{MODELS[language]} is not installed: regard models get {MODELS[language]}")
    shown = written(name, language)
    run = notebooks.execute(notebooks.notebook(name, language), tmp_path, quick=True)
    compared = 0
    for there, here in zip(shown.cells, run.cells, strict=True):
        if there.source != here.source:
            break
        assert NUMBER.sub("#", said(here)) == NUMBER.sub("#", said(there)), there.source
        for one, other in zip(NUMBER.findall(said(here)), NUMBER.findall(said(there)), strict=True):
            assert float(one) == pytest.approx(float(other), rel=0.02, abs=0.02), there.source
        compared += there.cell_type == "code"
    assert compared >= 10
    assert all(
        said(cell) or there.outputs == []
        for there, cell in zip(shown.cells, run.cells, strict=True)
        if cell.cell_type == "code"
    )
    assert list(tmp_path.iterdir()) == []


def test_a_page_joins_the_lines_of_chinese_without_a_blank():
    (cell, *_) = notebooks._cells('"""d"""\n\n# %% [zh]\n# 注意力，\n# 权重 a\n# b“它”\n# 看\n', "zh")
    assert cell.text == "注意力，权重 a\nb“它”看"


def test_pictures_of_a_page_are_those_of_the_notebook():
    made = nbformat.v4.new_notebook()
    output = nbformat.v4.new_output("display_data", {"image/png": base64.b64encode(b"it").decode()})
    made.cells = [nbformat.v4.new_markdown_cell("# A"), nbformat.v4.new_code_cell("draw()", outputs=[output])]
    text, pictures = notebooks.page(made, "name", "zh")
    assert pictures == {"name.zh-1.png": b"it"}
    assert "```python\ndraw()\n```\n\n![A](images/name.zh-1.png)" in text
