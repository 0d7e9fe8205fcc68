"""`--each-line` of `regard look` and `regard heads`: a text in each line, shared by worker processes."""

import json
from pkgutil import resolve_name

import numpy as np
import pytest

from regard.errors import InputError
from regard.interpret.text_queue import Claims

pytest.importorskip("typer", reason="typer is not installed (the extra `cli`)")
from regard.cli.each_line import read_lines
from sweeps import sweep

LINES = ["the cat sat on the mat", "", "a dog ran", "the " * 90, "it was tired because the cat ran", "a mat"]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A tiny random BERT of words, of 80 positions."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed (the extra `models`)")
    import tokenizers
    import torch

    folder = tmp_path_factory.mktemp("model")
    words = sorted({word for line in LINES for word in line.split()})
    known = {word: at for at, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *words, *map(str, range(40))])}
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel(known, unk_token="[UNK]"))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    backend.post_processor = tokenizers.processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    special = {"unk_token": "[UNK]", "pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    transformers.PreTrainedTokenizerFast(tokenizer_object=backend, **special).save_pretrained(folder)
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 16}
    config = transformers.BertConfig(vocab_size=len(known), max_position_embeddings=80, **sizes)
    transformers.BertModel(config).save_pretrained(folder)
    return str(folder)


@pytest.fixture
def corpus(tmp_path):
    """Four texts, of which one is too long; an empty line, and one in Latin-1."""
    path = tmp_path / "corpus.txt"
    path.write_bytes("\r\n".join(LINES).encode() + "\na café\n".encode("latin-1"))
    return path


def test_lines_are_read_as_they_are_and_those_that_are_no_text_are_named(corpus):
    lines = read_lines(str(corpus))
    assert lines.texts == {number: line for number, line in enumerate(LINES, 1) if line}
    assert lines.bad == {2: "it is empty", 7: "it is no UTF-8 text (byte 5)"}
    assert len(lines.sha256) == 64


def test_a_byte_order_mark_a_lone_return_and_a_last_line_without_an_end_are_no_lines(tmp_path):
    (tmp_path / "it.txt").write_bytes(b"\xef\xbb\xbfone\n\rtwo\x85\nth\0ree\nfour")
    lines = read_lines(str(tmp_path / "it.txt"))
    assert lines.bad == {2: "it is no UTF-8 text (byte 4)", 3: "it holds a NUL byte"}
    assert lines.texts == {1: "one", 4: "four"}


def test_a_file_without_a_text_is_refused(tmp_path):
    (tmp_path / "empty.txt").write_bytes(b"\n\n")
    with pytest.raises(InputError, match=r"no line of '.*empty.txt' is a text: line 1: it is empty"):
        read_lines(str(tmp_path / "empty.txt"))
    with pytest.raises(InputError, match=r"with a text in each line, and 'The cat sat\.' cannot be read: No such file"):
        read_lines("The cat sat.")
    with pytest.raises(InputError, match="'/dev/zero' cannot be read: it is a device or a pipe: save its content to"):
        read_lines("/dev/zero")


REFUSALS = [
    (("look", "corpus.txt", "--each-line"), "name a folder, as in --out atlases, got None"),
    (("look", "corpus.txt", "--each-line", "--out", "it.atlas"), "name a folder, as in --out atlases, got it.atlas"),
    (("look", "corpus.txt", "--num-workers", "2", "--out", "o", "--token", "cat"), "leave --tokens, --token,"),
    (("heads", "--each-line"), "`--each-line` scores the heads on the lines of --text FILE"),
    (("heads", "--each-line", "--text", "corpus.txt", "--ablate", "0.1"), "leave --pair, --ablate and --for out"),
]


def test_what_is_for_one_text_is_refused(refused, corpus, monkeypatch):
    monkeypatch.chdir(corpus.parent)
    for case in sweep(REFUSALS):
        with case as (arguments, words):
            assert words in refused(*arguments)
            assert [path.name for path in corpus.parent.iterdir()] == ["corpus.txt"]


def test_workers_are_not_started_beside_those_of_a_launcher(run, corpus, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "4")
    code, _, err = run("heads", "--text", str(corpus), "--num-workers", "2")
    assert code == 2
    assert "and 4 were started already (WORLD_SIZE): leave it out" in err


@pytest.mark.slow
def test_atlases_of_lines_are_those_of_one_process_to_the_bit_and_are_made_once(run, model, corpus, monkeypatch):
    import regard

    monkeypatch.chdir(corpus.parent)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    command = ["look", "corpus.txt", "--num-workers", "2", "--model", model, "--out", "atlases"]
    code, out, err = run(*command)
    assert (code, out) == (0, ""), err
    *left_out, last = err.splitlines()
    assert left_out[0] == "line 2 is left out: it is empty"
    assert left_out[1].startswith("line 4 is left out: the text has 92 tokens and ")
    assert left_out[2] == "line 7 is left out: it is no UTF-8 text (byte 5)"
    assert last == f"{model}: 4 texts → atlases"
    made = {path.name: path for path in (corpus.parent / "atlases").iterdir()}
    assert made.keys() == {f"{n:06}.atlas" for n in (1, 3, 5, 6)} | {"000004.txt", "run.json", "model.json"}
    for number in (1, 3, 5, 6):
        alone = corpus.parent / "alone.atlas"
        regard.look(LINES[number - 1], model=model, out=alone)
        assert alone.read_bytes() == made[f"{number:06}.atlas"].read_bytes()
    before = {name: path.stat().st_mtime_ns for name, path in made.items()}
    assert run(*command) == (0, "", err)
    assert {path.name: path.stat().st_mtime_ns for path in (corpus.parent / "atlases").iterdir()} == before
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert run("look", "corpus.txt", "--each-line", *command[4:]) == (0, "", ""), "the first process speaks"


def in_this_process(texts, job, *arguments, num_workers, progress, warn):
    """What share_texts does, by one worker that is no process: it would have to load the libraries again."""
    claims, work = Claims(texts, "this"), resolve_name(job)(*arguments)
    for number in claims.take():
        try:
            claims.finish(number, work(number)[0])
        except InputError as problem:
            claims.skip(number, str(problem))


def test_scores_over_lines_are_means_over_the_rows_of_all(run, model, corpus, monkeypatch):
    from regard.interpret.head_scores import head_scores, read, text_rows, watched
    from regard.interpret.look import prepare

    monkeypatch.chdir(corpus.parent)
    monkeypatch.setattr("regard.interpret.text_workers.share_texts", in_this_process)
    code, out, err = run("heads", "--text", "corpus.txt", "--each-line", "--model", model, "--json", "scores.json")
    assert (code, out) == (0, ""), err
    assert sorted(one.name for one in corpus.parent.iterdir()) == ["corpus.txt", "scores.json"]
    found = json.loads((corpus.parent / "scores.json").read_text("utf-8"))
    loaded = read(model)
    records = [watched(prepare(LINES[number - 1], model=loaded)) for number in (1, 3, 5, 6)]
    rows = [text_rows(one) for one in records]
    assert found["tokens"] == sum(one.layers[0].queries for one in records) == 8 + 5 + 9 + 4
    wanted = {name: np.concatenate([one[name] for one in rows], -1).mean(-1).ravel() for name in rows[0]}
    probe = head_scores(loaded, "a mat").scores
    wanted |= {name: probe[name].ravel() for name in ("induction", "duplicate_token")}
    for name, per_head in wanted.items():
        np.testing.assert_allclose([row[name] for row in found["table"]], per_head, rtol=1e-12, atol=1e-15)


def test_scores_that_another_process_has_joined_are_no_traceback(run, corpus, monkeypatch):
    """Two of the same command share their texts, and the first one to finish takes the results away."""

    def by_another(texts, job, *arguments, **options):
        texts.remove(results=True)

    monkeypatch.setattr("regard.interpret.text_workers.share_texts", by_another)
    scores = corpus.with_name("scores.json")
    code, out, err = run("heads", "--text", str(corpus), "--num-workers", "2", "--model", "minilm", f"--json={scores}")
    assert (code, out) == (2, "")
    assert err == (
        f"regard: {scores}.part is gone: it was removed, or the same command has finished in another process\n"
    )
