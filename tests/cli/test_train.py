"""`regard train` and `regard translate`, as a user types them."""

import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

import pytest

from regard.cli import main
from sweeps import sweep

PAIRS = "".join(
    f"{word} {thing}\t{other}{stuff}\n"
    for word, other in zip("red blue big old new".split(), "红蓝大旧新", strict=True)
    for thing, stuff in zip("cat car book tree".split(), "猫车书树", strict=True)
)
CONFIG = """
[task]
type = "translation"
train_file = "pairs.tsv"
validation_size = 3
num_completions_to_print = 1
max_predict_samples = 3
src_tokenizer = {model_type = "char", vocab_size = 40}
[model]
hidden_size = 16
num_attention_heads = 2
intermediate_size = 16
num_hidden_layers = 1
[training]
output_dir = "run"
max_steps = 6
max_tokens_per_batch = 100
eval_steps = 3
num_threads = 1
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    (tmp_path / "pairs.tsv").write_text(PAIRS, "utf-8")
    (tmp_path / "it.toml").write_text(CONFIG, "utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@dataclass(frozen=True)
class Trained:
    """The folder of a run that has ended, and what the command printed."""

    folder: Path
    status: int
    out: str
    err: str


@pytest.fixture(scope="module")
def run_once(tmp_path_factory):
    """A run that has ended, trained once for all who resume it or translate with it."""
    folder = tmp_path_factory.mktemp("trained")
    (folder / "pairs.tsv").write_text(PAIRS, "utf-8")
    (folder / "it.toml").write_text(CONFIG, "utf-8")
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.chdir(folder)
        patch.setenv("COLUMNS", "80")
        patch.setenv("NO_COLOR", "1")
        patch.setattr(sys, "argv", ["regard", "train", "it.toml"])
        with pytest.raises(SystemExit) as ended:
            main()
    return Trained(folder / "run", int(ended.value.code or 0), out.getvalue(), err.getvalue())


@pytest.fixture
def trained(here, run_once):
    """The folder with a copy of that run."""
    shutil.copytree(run_once.folder, here / "run")
    return here


def test_a_run_tells_what_it_does_and_goes_on(trained, run_once, run):
    status, out, err = run_once.status, run_once.out, run_once.err
    assert status == 0, err
    assert out == ""
    assert "pairs.tsv: 20 lines" in err
    assert "17 pairs are trained on, 3 held out" in err
    assert "6 steps, in run" in err
    assert err.count("held out: loss") == 2
    assert "tok:zh" in err
    status, _, err = run("train", "it.toml", "--max_steps", "8")
    assert status == 0, err
    assert "resumed after step 6 of 8" in err
    events = [json.loads(line) for line in (trained / "run" / "log.jsonl").read_text("utf-8").splitlines()]
    assert [one["step"] for one in events if one["event"] == "stepped"] == list(range(1, 9))
    assert (trained / "run" / "curves.svg").stat().st_size > 5000
    (trained / "run" / "log.jsonl").write_text("")
    status, _, err = run("train", "it.toml", "--max_steps", "9")
    assert status == 0, err
    assert "run/log.jsonl is gone or empty: the curves lack steps 1 to 8\n" in err


TRAIN_REFUSALS = [
    (["it.toml", "--model.hiden_size", "3"], "did you mean `model.hidden_size`?"),
    (["it.toml", "--max_steps", "--seed", "1"], "`--max_steps` has no value"),
    (["nowhere.toml"], "cannot read the configuration nowhere.toml"),
    (["it.toml", "--task.train_file", "gone.tsv"], "cannot read gone.tsv"),
    (["it.toml", "--threads", "0"], "`training.num_threads` must be at least 1"),
]


def test_what_is_wrong_is_one_sentence(here, refused):
    for case in sweep(TRAIN_REFUSALS):
        with case as (arguments, words):
            assert words in refused("train", *arguments)


def test_check_prints_the_whole_configuration_and_trains_nothing(here, run):
    status, out, err = run("train", "it.toml", "--check", "--seed", "4")
    assert (status, json.loads(out)["training"]["seed"]) == (0, 4), err
    assert not (here / "run").exists()


def test_check_refuses_what_this_machine_cannot_hold(here, run):
    status, out, err = run(
        "train", "it.toml", "--check", "--model.hidden_size", "1048576", "--model.num_attention_heads", "2"
    )
    assert (status, out) == (2, "")
    assert "AdamW's moments take" in err or "whose weights take" in err


def test_translate_keeps_the_order_of_lines(trained, run):
    (trained / "some.txt").write_text("red cat\n\nold book\nbig\u2028car\n", "utf-8")
    status, out, err = run("translate", "some.txt", "--model", "run", "--num-beams", "2")
    assert status == 0, err
    lines = out.split("\n")
    assert (len(lines), lines[1], lines[4]) == (5, "", "")
    one = run("translate", "old book", "--model", "run", "--num-beams", "2")[1]
    assert one == lines[2] + "\n"


def test_translate_shows_what_each_word_looks_at(trained, run):
    status, out, err = run("translate", "red cat", "--model", "run", "--align", "-")
    assert status == 0, err
    assert "red" in out
    assert all(len(line) <= 80 for line in out.splitlines())
    status, _, err = run("translate", "red cat", "--model", "run", "--align", "it.png")
    assert status == 0, err
    assert (trained / "it.png").read_bytes()[:4] == b"\x89PNG"


TRANSLATE_REFUSALS = [
    (["red cat", "--model", "gone"], "there is no folder 'gone'"),
    (["red cat", "--model", "."], "is no translation"),
    (["red cat", "--model", ".", "--num-beams", "0"], "`--num-beams` must be at least 1"),
    (["red cat", "--model", ".", "--script", "latin"], "`--script` must be hans or hant"),
    (["red\ncat", "--model", ".", "--align", "-"], "`--align` shows one sentence"),
    (["red cat", "--model", ".", "--align", "it.gif"], "`--align` must end in .png or .svg"),
]


def test_translate_says_what_is_wrong(here, refused):
    for case in sweep(TRANSLATE_REFUSALS):
        with case as (arguments, words):
            assert words in refused("translate", *arguments)


SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]


@pytest.mark.slow
@pytest.mark.parametrize("ending", SIGNALS)
def test_a_signal_stops_with_a_checkpoint_and_the_same_command_goes_on(here, ending):
    command = [sys.executable, "-W", "ignore", "-m", "regard", "train", "it.toml", "--max_steps", "100000"]
    command += ["--eval_steps", "100000"]
    started = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=os.environ | {"COLUMNS": "80"})
    log, limit = here / "run" / "log.jsonl", time.time() + 60
    while time.time() < limit and (not log.exists() or log.read_text("utf-8").count("stepped") < 5):
        time.sleep(0.05)
    started.send_signal(ending)
    _, err = started.communicate(timeout=60)
    assert started.returncode == 128 + ending, err
    assert "the same command resumes from there" in err
    assert "Traceback" not in err
    (checkpoint,) = (here / "run" / "checkpoints").glob("step-*")
    steps = [
        event["step"] for event in map(json.loads, log.read_text("utf-8").splitlines()) if event["event"] == "stepped"
    ]
    assert checkpoint.name == f"step-{steps[-1]:08d}"


def send_in_batch(monkeypatch, *signals):
    """Send these signals to this process while the third batch is made."""
    from regard.train.tasks import TranslationTask

    usual, batches = TranslationTask.batch, []

    def batch(self, *given, **options):
        batches.append(given)
        if len(batches) == 3:
            for number in signals:
                os.kill(os.getpid(), number)
        return usual(self, *given, **options)

    monkeypatch.setattr(TranslationTask, "batch", batch)


@pytest.fixture
def usual_signals():
    """Whoever runs the tests may ignore some, as nohup does."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    for number in SIGNALS:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("usual_signals")
def test_a_signal_lets_the_step_end_and_a_second_one_does_not(here, run, monkeypatch):
    before = [signal.getsignal(number) for number in SIGNALS]
    for number in SIGNALS:
        with monkeypatch.context() as patch:
            send_in_batch(patch, number)
            status, _, err = run("train", "it.toml", "--output-dir", f"run {number}")
            assert (status, "stopped after step 3" in err) == (128 + number, True), err
        assert [path.name for path in (here / f"run {number}" / "checkpoints").glob("step-*")] == ["step-00000003"]
        with monkeypatch.context() as patch:
            send_in_batch(patch, number, number)
            status, _, err = run("train", "it.toml", "--output-dir", f"other {number}")
            assert (status, "no file was left half-written" in err) == (128 + number, True), err
        assert not list((here / f"other {number}" / "checkpoints").glob("step-*"))
    assert [signal.getsignal(number) for number in SIGNALS] == before


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="Windows has no SIGHUP")
def test_a_signal_that_nohup_ignores_stays_ignored(here, run, monkeypatch):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        send_in_batch(monkeypatch, signal.SIGHUP)
        assert run("train", "it.toml")[0] == 0
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_signal_before_training_ends_the_command_at_once(here, run, monkeypatch):
    from regard.train.run_dir import Folder

    usual = Folder.begin

    def begin(*given, **options):
        os.kill(os.getpid(), signal.SIGTERM)
        return usual(*given, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Folder, "begin", begin)
        status, _, err = run("train", "it.toml")
    assert (status, "no file was left half-written" in err) == (143, True), err
    assert not (here / "run" / "run.json").exists()
    assert run("train", "it.toml")[0] == 0


def test_a_folder_has_the_name_that_was_typed(here, run):
    for case in sweep(['a "b"', "C:\\new\\table", "2024", "[x]", "täglich"]):
        with case as name:
            status, out, err = run("train", "it.toml", "--check", "--output-dir", name)
            assert (status, json.loads(out)["training"]["output_dir"]) == (0, name), err


def test_of_nothing_comes_nothing(trained, run):
    """One line in, one line out: an empty file has no line."""
    (trained / "empty.txt").write_text("", "utf-8")
    assert run("translate", "empty.txt", "--model", "run")[:2] == (0, "")
    (trained / "empty.txt").write_text("\n\n", "utf-8")
    assert run("translate", "empty.txt", "--model", "run")[:2] == (0, "\n\n")


def test_the_alignment_is_of_what_was_said(trained, run, monkeypatch):
    from regard.train import Translator

    asked, usual = [], Translator.align
    monkeypatch.setattr(
        Translator, "align", lambda self, text, **given: asked.append(given) or usual(self, text, **given)
    )
    given = ["--num-beams", "1", "--length-penalty", "0.5", "--align", "-"]
    status, _, err = run("translate", "red cat", "--model", "run", *given)
    assert status == 0, err
    assert asked == [{"num_beams": 1, "length_penalty": 0.5}]


def test_a_model_that_lost_its_configuration_is_one_sentence(trained, run):
    (trained / "run" / "model" / "config.json").unlink()
    status, _, err = run("translate", "red cat", "--model", "run")
    assert (status, "'run/model' has no config.json" in err.replace("\n", " ")) == (2, True)
