"""`regard heads` on real models: what it prints and writes, and what it says of bad input."""

import csv
import json
import re
from pathlib import Path

import pytest
from rich.cells import cell_len

from sweeps import sweep

pytest.importorskip("transformers", reason="transformers is not installed (the extra `models`)")
bundled = pytest.importorskip("regard.hub")

SENTENCE = "The animal didn't cross the street because it was too tired."

pytestmark = [
    pytest.mark.models,
    pytest.mark.skipif(
        not all(map(bundled.is_installed, bundled.BUNDLED)), reason="the bundled models are missing: regard models get"
    ),
]


def widest(text: str) -> int:
    return max(map(cell_len, text.splitlines()))


def test_it_ranks_the_heads_of_each_test_and_shows_all_at_a_glance(run) -> None:
    code, out, err = run("heads", "--model", "minilm", "--sort", "previous", "--top", "3")
    assert code == 0, err
    assert re.search(r"^P previous token +1 +0\.2 (1\.00|0\.99)", out, re.MULTILINE)
    assert re.search(r"^I induction +0 +–  it reads both ways, so none \(0\.02 at most\)", out, re.MULTILINE)
    assert re.search(r"^  layer 0 · · P ", out, re.MULTILINE)
    assert re.search(r"Heads by previous token:\n.*\n  0\.2 ", out)
    assert "A weight alone is not an explanation" in out
    assert widest(out) <= 80


def test_it_writes_numbers(run, tmp_path: Path) -> None:
    files = {kind: tmp_path / f"heads.{kind}" for kind in ("json", "csv")}
    arguments = [f"--json={files['json']}", f"--csv={files['csv']}"]
    code, out, err = run("heads", "--model", "minilm", "--text", SENTENCE, *arguments)
    assert (code, out) == (0, ""), err
    assert "heads.json" in err
    read = json.loads(files["json"].read_text(encoding="utf-8"))
    assert len(read["table"]) == 72
    assert read["tests"]["induction"]["source"] == "Olsson et al. 2022, arXiv:2209.11895"
    with files["csv"].open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [float(row["previous"]) for row in rows] == [row["previous"] for row in read["table"]]
    assert {row["rule"] for row in rows} >= {"previous", "none"}


@pytest.mark.slow
def test_it_draws_a_figure(run, tmp_path: Path) -> None:
    code, out, err = run("heads", "--model", "minilm", "--text", SENTENCE, f"--out={tmp_path / 'heads.png'}")
    assert (code, out) == (0, ""), err
    assert (tmp_path / "heads.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_pairs_of_words_in_two_languages_find_the_same_head(run, tmp_path: Path) -> None:
    text = tmp_path / "sentences.txt"
    text.write_text(f"{SENTENCE}\n\n貓打破了杯子，所以它躲起來了。\nNeither word.\n", encoding="utf-8")
    code, out, err = run("heads", "--model", "me5", "--pair", "it>animal", "--pair", "它>貓", "--text", str(text))
    assert code == 0, err
    assert "me5: 3 sentences, 1 of them without both words of a pair" in out
    assert "it → animal: 1 sentence (2 lack a word)" in out
    assert re.search(r"^  head   it>animal         它>貓$", out, re.MULTILINE)
    assert re.search(r"^  8\.8 ", out, re.MULTILINE)
    assert widest(out) <= 80


def test_what_is_lost_without_a_head_of_an_encoder_is_a_change_of_its_vectors(run, tmp_path: Path) -> None:
    code, out, err = run("heads", "--model", "minilm", "--text", SENTENCE, "--ablate", "0.2, 1.8", "--random", "3")
    assert code == 0, err
    assert out.startswith("minilm without heads 0.2, 1.8 (output set to 0)")
    assert re.search(r"change of the text's vector +-?0\.000 +0\.\d{3}", out)
    assert "A weight alone is not an explanation" in out
    assert widest(out) <= 80


@pytest.mark.slow
def test_heads_for_a_job_are_printed_and_saved_as_a_head_set(run, tmp_path: Path) -> None:
    from regard.heads import HeadSet

    code, out, err = run("heads", "--model", "minilm", "--for", "previous")
    assert code == 0, err
    assert out.startswith("minilm: 1 head for previous\n")
    assert re.search(r"^  0\.2 +1\.00 +\+1\.00  ", out, re.MULTILINE)
    assert re.search(
        r"^readout on held-out examples: 1\.00 \(0\.81 to 1\.00, 16 examples\); chance is 0\.12$", out, re.M
    )
    assert "with shuffled labels: 0." in out
    assert widest(out) <= 80
    path = tmp_path / "heads.json"
    code, out, err = run("heads", "--model", "minilm", "--for", "sink", "--top", "2", "--json", str(path))
    assert (code, out) == (0, ""), err
    found = HeadSet.load(path)
    assert (found.heads, found.job, found.model) == (((1, 11), (1, 9)), "sink", "minilm")


REFUSALS = [
    (["--sort", "beauty"], "`--sort` must be one of best, previous"),
    (["--ablate", "5"], "`--ablate` takes LAYER.HEAD, such as 5.11, got '5'"),
    (["--ablate", "9.0", "--model", "minilm"], "`layer` must be from 0 to 5 (seen layers: 6), got 9"),
    (["--ablate", "0.2", "--pair", "it>animal"], "two questions"),
    (["--replace", "mean"], "`--replace mean` is for `--ablate LAYER.HEAD`"),
    (["--ablate", "0.2", "--out", "a.png"], "`--out` draws one number a head"),
    (["--pair", "it>animal", "--sort", "self"], "leave it out"),
    (["--pair", "it>animal"], "`--pair` needs `--text`"),
    (["--pair", "it", "--text", SENTENCE], "a pair must be two words"),
    (["--pair", "it>giraffe", "--text", SENTENCE], "no sentence shows 'it' looking at 'giraffe': 1 lack one"),
    (["--for", "beauty"], "`--for` must be one of sources, retrieval, induction"),
    (["--for", "sink", "--pair", "it>animal"], "`--for` takes --model, --examples, --top and --json"),
    (["--for", "alignment"], "`--for alignment` needs `--model`"),
    (["--for", "induction", "--model", "minilm"], "minilm can have no heads for induction"),
    (["--examples", "some.jsonl"], "name it with --for"),
    (["--for", "sink", "--model", "minilm", "--examples", "none.jsonl"], "cannot read none.jsonl"),
    (["--out", "heads.pdf"], "`--out` must end in .png or .svg"),
    (["--json", "no/such/heads.json"], "there is no folder no/such"),
    (["--text", "  "], "the text is empty"),
    (["--model", "minilm", "--text", "word " * 600], "minilm reads at most 512"),
]


def test_bad_input_is_one_sentence_and_exit_code_2(refused) -> None:
    for case in sweep(REFUSALS, name=lambda refusal: " ".join(refusal[0])[:60]):
        with case as (arguments, words):
            assert words in refused("heads", *arguments)


def test_the_help_fits_a_terminal_and_keeps_its_sentences(run) -> None:
    _, out, _ = run("heads", "--help")
    assert widest(out) <= 80
    assert "explanation. Heads are named LAYER.HEAD, counted from 0." in out
