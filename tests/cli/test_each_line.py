"""`--each-line` of `regard look` and `regard heads`: a text in each line, shared by worker processes."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from regard.errors import InputError
from regard.files import lock

pytest.importorskip("typer", reason="typer is not installed (the extra `cli`)")
from regard.cli.each_line import read_lines, scores_of_lines
from regard.record.atlas import read_atlas
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


def test_several_processes_of_a_launcher_are_refused(refused, corpus, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "4")
    for command in (("heads", "--each-line", "--text"), ("look", "--each-line", "--out", str(corpus.parent / "o"))):
        sentence = refused(*command, str(corpus))
        assert "among processes of this one machine, and a launcher has started 4 (WORLD_SIZE): start the c" in sentence
    assert list(corpus.parent.iterdir()) == [corpus]


def test_the_same_command_twice_at_a_time_is_refused(refused, corpus, monkeypatch):
    monkeypatch.chdir(corpus.parent)
    Path("o").mkdir()
    held = lock("o")
    sentence = refused("look", "corpus.txt", "--each-line", "--model", "minilm", "--out", "o")
    os.close(held)
    assert sentence == (
        "regard: another process works on the texts in o: wait until it has ended, or name another folder\n"
    )


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


def check_means(scores, tokens, model):
    """Scores by (layer · heads + head) are means over the rows of all lines, which are computed here at once."""
    from regard.interpret.head_scores import head_scores, read, text_rows, watched
    from regard.interpret.look import prepare

    loaded = read(model)
    records = [watched(prepare(LINES[number - 1], model=loaded)) for number in (1, 3, 5, 6)]
    rows = [text_rows(one) for one in records]
    assert tokens == sum(one.layers[0].queries for one in records) == 8 + 5 + 9 + 4
    wanted = {name: np.concatenate([one[name] for one in rows], -1).mean(-1).ravel() for name in rows[0]}
    probe = head_scores(loaded, "a mat").scores
    wanted |= {name: probe[name].ravel() for name in ("induction", "duplicate_token")}
    for name, per_head in wanted.items():
        np.testing.assert_allclose(scores[name], per_head, rtol=1e-12, atol=1e-15)


def test_scores_over_lines_are_means_over_the_rows_of_all(model, tmp_path):
    """Computed in this process: workers take seconds to load the libraries."""
    from regard.interpret.each_line import ScoreLines, join_scores
    from regard.interpret.text_folder import TextFolder

    folder, score = TextFolder(tmp_path, ".npz", (0, 1, 3, 5, 6)), ScoreLines(model)
    for number in (0, 1, 3, 5, 6):
        save, _ = score(LINES[number - 1] if number else None)
        save(folder.result(number))
    found = join_scores(folder, model)
    check_means({name: one.ravel() for name, one in found.scores.items()}, found.tokens, model)


@pytest.mark.slow
def test_scores_over_lines_are_kept_until_they_are_saved(run, model, corpus, monkeypatch):
    monkeypatch.chdir(corpus.parent)
    part, times = Path("scores.json.part"), []
    for _ in range(2):
        with (
            pytest.raises(OSError, match="the disk is full"),
            scores_of_lines("corpus.txt", model=model, folder=part, num_workers=2),
        ):
            raise OSError("the disk is full")
        times.append({path.name: path.stat().st_mtime_ns for path in part.iterdir()})
        (part / "000003.npz").unlink()
    assert times[1].pop("000003.npz") != times[0].pop("000003.npz")
    assert times[0] == times[1]
    code, out, err = run("heads", "--text", "corpus.txt", "--each-line", "--model", model, "--json", "scores.json")
    assert (code, out) == (0, ""), err
    assert sorted(one.name for one in corpus.parent.iterdir()) == ["corpus.txt", "scores.json"]
    found = json.loads((corpus.parent / "scores.json").read_text("utf-8"))
    names = found["table"][0].keys() - {"rule"}
    check_means({name: [row[name] for row in found["table"]] for name in names}, found["tokens"], model)


@pytest.mark.slow
def test_a_file_of_which_no_line_has_a_result_leaves_no_folder(run, model, tmp_path, monkeypatch):
    (tmp_path / "corpus.txt").write_text(LINES[3])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    for command in (["look", "--each-line", "--out", "o", "corpus.txt"], ["heads", "--each-line", "--text=corpus.txt"]):
        code, out, err = run(*command, "--model", model)
        assert (code, out) == (2, "")
        assert re.fullmatch(
            r"line 1 is left out: the text has 92 tokens .*\nregard: no line of 'corpus.txt' has a result: .*\n", err
        )  # fmt: skip
        assert not Path("o").exists()
        assert not list(tmp_path.glob("cache/heads/*"))


# --- what is killed and interrupted

needs_proc = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="processes are looked up in /proc")


@pytest.fixture
def long_corpus(tmp_path):
    """Some seconds of work."""
    path = tmp_path / "corpus.txt"
    path.write_text("\n".join(f"{LINES[4]} {number % 40} {number // 40}" for number in range(200)))
    return path


def start(corpus, model):
    command = [sys.executable, "-m", "regard", "look", str(corpus), "--num-workers", "2", "--model", model]
    return subprocess.Popen(
        [*command, "--out", str(corpus.with_name("atlases"))], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, start_new_session=True, env={**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "80"},
    )  # fmt: skip


def workers_of(run):
    """The processes that it has started, without the resource tracker."""
    children = Path(f"/proc/{run.pid}/task/{run.pid}/children").read_text().split()
    return [int(pid) for pid in children if "spawn_main" in Path(f"/proc/{pid}/cmdline").read_text()]


def lives(pid):
    try:
        return "(zombie)" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def until(true, seconds):
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def times(corpus):
    return {one.name: one.stat().st_mtime_ns for one in corpus.with_name("atlases").glob("*.atlas")}


@needs_proc
@pytest.mark.slow
def test_of_a_killed_worker_no_line_is_lost(model, long_corpus):
    with start(long_corpus, model) as run:
        until(lambda: len(times(long_corpus)) > 5, 120)
        killed = workers_of(run)[0]
        os.kill(killed, signal.SIGKILL)
        out, err = run.communicate(timeout=120)
    assert (run.returncode, out) == (0, "")
    assert re.fullmatch(
        rf"worker [12] \(process {killed}\) was killed by signal 9 \(Killed\)"
        rf"(: line \d+ is done again at the end|; it had no line)\n{model}: 200 texts → .*\n", err,
    )  # fmt: skip
    for number in range(1, 201):
        (record,) = read_atlas(long_corpus.with_name("atlases") / f"{number:06}.atlas")
        assert record.layers[1].mean.shape[-1] == 11
    assert not list(long_corpus.with_name("atlases").glob(".*"))


@needs_proc
@pytest.mark.slow
@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_what_is_finished_stays_when_the_command_ends_and_the_same_command_does_the_rest(model, long_corpus, ending):
    with start(long_corpus, model) as run:
        until(lambda: len(times(long_corpus)) > 20, 120)
        workers = workers_of(run)
        if ending is signal.SIGINT:
            os.killpg(run.pid, ending)  # as a terminal does
        else:
            os.kill(run.pid, ending)
        out, err = run.communicate(timeout=20)  # the pipes end with the last worker
    assert out == ""
    assert run.returncode == {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGKILL: -9}[ending]
    assert len(workers) == 2
    until(lambda: not any(map(lives, workers)), 5)
    finished = times(long_corpus)
    assert 20 < len(finished) < 200
    kept = (
        f"{len(finished)} of 200 texts are finished and kept in {long_corpus.with_name('atlases')}: the same command "
    )
    last = "regard: interrupted; no file was left half-written\n"
    assert err == {
        signal.SIGINT: f"{kept}does the rest\n{last}", signal.SIGTERM: f"{kept}does the rest\n", signal.SIGKILL: ""
    }[ending]  # fmt: skip
    for name in finished:
        assert len(read_atlas(long_corpus.with_name("atlases") / name)[0]) == 2
    with start(long_corpus, model) as again:
        out, err = again.communicate(timeout=120)
    assert (again.returncode, err) == (0, f"{model}: 200 texts → {long_corpus.with_name('atlases')}\n")
    assert len(times(long_corpus)) == 200
    assert finished.items() <= times(long_corpus).items()
    assert not list(long_corpus.with_name("atlases").glob(".*"))
