"""`regard sources`: a newcomer's three files, and what is refused before a model is loaded."""

import json

import pytest

from regard import hub as bundled
from regard.heads.answer_sources import Sources
from sweeps import sweep

FILES = {
    "garden.txt": "The garden lies behind the mill. Anna planted the first pear tree in 1962. Nobody has cut it since.",
    "mill.txt": "The mill belongs to the town. Its wheel was made of oak in Bremen. Children play there.",
    "harbour.txt": "In winter the harbour freezes. The lighthouse is painted red. Boats come back in April.",
}


@pytest.fixture
def files(tmp_path):
    for name, text in FILES.items():
        (tmp_path / name).write_text(text, "utf-8")
    return [str(tmp_path / name) for name in FILES]


@pytest.mark.slow
@pytest.mark.models
@pytest.mark.skipif(not bundled.is_installed("smollm2"), reason="smollm2 is missing: regard models get smollm2")
def test_the_sentence_that_has_the_answer_comes_first_and_counts(run, files, tmp_path):
    numbers, page = tmp_path / "found.json", tmp_path / "found.html"
    code, out, err = run(
        "sources", *files, "--question", "What colour is the lighthouse?", "--verify", f"--json={numbers}",
        f"--out={page}",
    )  # fmt: skip
    assert code == 0, err
    found = Sources.load(numbers)
    best, score = found.ranked()[0]
    assert found.text(best) == "The lighthouse is painted red."
    assert "red" in found.answer
    assert found.removals[0].part == best.id == "3.2"
    assert found.removals[0].drop > 1 > found.removals[0].control_drop
    assert found.from_nowhere is False
    assert f"3.2  {score:.2f} ██████ The lighthouse is painted red." in out
    assert "Without 3.2" in out
    assert max(map(len, out.splitlines())) <= 80
    assert page.read_text("utf-8").startswith("<!doctype html>")
    assert json.loads(numbers.read_text("utf-8"))["parts"][7]["score"] == pytest.approx(score)


REFUSALS = [
    (["gone.txt"], "there is no file gone.txt"),
    (["{0}", "{0}"], "is given twice"),
    (["."], ". is a folder"),
    (["{0}", "--out=x.png"], "`--out` must end in .html"),
    (["{0}", "--json=x.txt"], "`--json` must end in .json"),
    (["{0}", "--heads=gone.json"], "cannot read the head set gone.json"),
    (["{0}", "--heads=gone.safetensors"], "cannot read AT2's coefficients from gone.safetensors"),
    (["{0}", "--model=smolm2"], "smollm2"),
]


def test_bad_input_is_one_sentence_and_exit_code_2(refused, files):
    for case in sweep(REFUSALS):
        with case as (arguments, words):
            assert words in refused("sources", *(argument.format(*files) for argument in arguments), "--question", "?")


def test_files_of_one_name_in_several_folders_are_all_read(tmp_path, monkeypatch):
    from regard.cli.sources import _documents

    monkeypatch.chdir(tmp_path)
    (tmp_path / "old").mkdir()
    texts = {"old/notes.txt": "The door is red.", "notes.txt": "The roof is blue.", "other.txt": "It rains."}
    for file, text in texts.items():
        (tmp_path / file).write_text(text, "utf-8")
    for files in (list(texts), list(reversed(texts))):
        assert _documents(files) == texts
    assert _documents(["old/notes.txt", "other.txt"]) == {"notes.txt": "The door is red.", "other.txt": "It rains."}
