"""`regard compare` on real models: texts, models and atlases, and what cannot be compared."""

import json
import re
from pathlib import Path

import pytest
from rich.cells import cell_len

from sweeps import sweep

pytest.importorskip("transformers", reason="transformers is not installed (the extra `models`)")
bundled = pytest.importorskip("regard.hub")

TIRED = "The animal didn't cross the street because it was too tired."
WIDE = "The animal didn't cross the street because it was too wide."

pytestmark = [
    pytest.mark.models,
    pytest.mark.usefixtures("models_stay_loaded"),
    pytest.mark.skipif(
        not all(map(bundled.is_installed, bundled.BUNDLED)), reason="the bundled models are missing: regard models get"
    ),
]


def test_two_texts_that_differ_in_a_word_are_compared_row_by_row(run, tmp_path: Path) -> None:
    code, out, err = run("compare", TIRED, WIDE, "--top", "3")
    assert code == 0, err
    text = " ".join(out.split())
    assert "compared row by row, as 15 of 16 tokens are equal" in text
    assert len(re.findall(r"^  \d+\.\d+ +0\.\d\d +\d\.\d\d   .* → 0\.\d\d$", out, re.MULTILINE)) == 3
    assert max(map(cell_len, out.splitlines())) <= 80
    out_file, numbers = tmp_path / "change.png", tmp_path / "change.json"
    code, _, err = run("compare", TIRED, WIDE, "--out", str(out_file), "--json", str(numbers))
    assert code == 0, err
    assert out_file.read_bytes().startswith(b"\x89PNG")
    read = json.loads(numbers.read_text(encoding="utf-8"))
    assert read["compared_rows"] == 16
    assert max(row["distance"] for row in read["table"] if row["distance"]) > 0.1


@pytest.mark.slow
def test_two_languages_are_compared_by_scores_and_it_says_so(run) -> None:
    code, out, err = run("compare", "The cat chases the mouse because it is hungry.", "貓追老鼠，因為它餓了。")
    assert code == 0, err
    text = " ".join(out.split())
    assert "me5, text 1 and text 2: compared by the scores of the heads, as the texts have" in text
    assert "Two texts differ in more than their language" in text


@pytest.mark.slow
def test_a_model_and_itself_are_the_same_and_other_shapes_are_refused(run) -> None:
    code, out, err = run("compare", "--text", TIRED, "--models", "minilm", "minilm")
    assert code == 0, err
    assert "Half of the 72 heads changed by less than 0.000." in out
    assert re.search(r"^  0\.0 +0\.00 +0\.00 ", out, re.MULTILINE)
    code, _, err = run("compare", "--text", TIRED, "--models", "minilm", "me5")
    assert code == 2
    assert "got 6 layers of 12 heads (minilm) and 12 layers of 12 heads (me5): score each with regard heads" in err


@pytest.mark.slow
def test_two_atlases_are_compared_as_their_texts_are(run, tmp_path: Path) -> None:
    names = [str(tmp_path / name) for name in ("tired.atlas", "wide.atlas")]
    for text, name in zip((TIRED, WIDE), names, strict=True):
        assert run("look", text, "--out", name)[0] == 0
    code, out, err = run("compare", *names, "--top", "2")
    assert code == 0, err
    _, of_texts, _ = run("compare", TIRED, WIDE, "--top", "2")
    rows = re.compile(r"^  \d+\.\d+ +0\.\d\d +\d\.\d\d", re.MULTILINE)
    assert rows.findall(out) == rows.findall(of_texts) != []


REFUSALS = [
    ([], "give two texts"),
    ([TIRED], "give two texts"),
    ([TIRED, "it.atlas"], "'it.atlas' is the name of an atlas, so the other must be one too"),
    (["a.atlas", "b.atlas", "--model", "minilm"], "`--model` is for texts"),
    (["a.atlas", "b.atlas"], "a.atlas"),
    ([TIRED, WIDE, "--text", TIRED], "`--text` is for --models"),
    ([TIRED, WIDE, "--models", "me5", "me5"], "`--models` compares two models over one text"),
    ([TIRED, " "], "the text is empty"),
    ([TIRED, WIDE, "--csv", "a.txt"], "`--csv` must end in .csv"),
]


def test_bad_input_is_one_sentence_and_exit_code_2(refused) -> None:
    for case in sweep(REFUSALS):
        with case as (arguments, words):
            assert words in refused("compare", *arguments)


def test_the_help_fits_a_terminal(run) -> None:
    _, out, _ = run("compare", "--help")
    assert max(map(cell_len, out.splitlines())) <= 80
    assert "languages, the scores of `regard heads`." in out
