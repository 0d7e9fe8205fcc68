"""`regard translate` line by line: streams, interruptions, encodings, several translations."""

import io
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time

import pytest
from typer.testing import CliRunner

from regard.cli.app import app
from regard.cli.termination import Terminable
from regard.errors import InputError
from regard.train import Translator, train
from sweeps import sweep
from train.runs import tiny

NUMBERS = dict(zip("one two six ten".split(), "一 二 六 十".split(), strict=True))
COLOURS = dict(zip("red old new big".split(), "红 旧 新 大".split(), strict=True))
THINGS = dict(zip("cat dog car hat cup".split(), "猫 狗 车 帽 杯".split(), strict=True))
PAIRS = {
    f"{number} {colour} {thing}": NUMBERS[number] + COLOURS[colour] + THINGS[thing]
    for number in NUMBERS
    for colour in COLOURS
    for thing in THINGS
}
LINES = list(PAIRS)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """The folder of a model that has seen 80 pairs for 60 steps."""
    folder = tmp_path_factory.mktemp("trained")
    (folder / "pairs.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in PAIRS.items()), "utf-8")
    task = {"type": "translation", "train_file": str(folder / "pairs.tsv"), "validation_size": 5}
    task |= {"src_tokenizer": {"model_type": "bpe", "vocab_size": 60}}
    steps = {"training__max_steps": 60, "training__eval_steps": 60, "training__learning_rate": 1e-2}
    train(tiny(folder / "run", task=task, training__max_tokens_per_batch=500, **steps))
    return folder / "run"


@pytest.fixture(scope="module")
def expected(model):
    """The translation of each line."""
    return dict(zip(LINES, Translator.load(model).translate(LINES), strict=True))


@pytest.fixture
def translate(run, model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def call(text, *options, data=None):
        if data is not None:
            monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
        return run("translate", text, "--model", str(model), *options)

    return call


COMMAND = [sys.executable, "-W", "ignore", "-m", "regard", "translate"]
ONE_THREAD = os.environ | {"COLUMNS": "200", "OMP_NUM_THREADS": "1"}


def started(*arguments, **options):
    def usual_signals():
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)

    given = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "env": ONE_THREAD, "preexec_fn": usual_signals}
    return subprocess.Popen([*COMMAND, *arguments], **given | options)


def wait_for(condition, process, seconds=120):
    limit = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < limit
        time.sleep(0.02)


def test_a_line_in_is_a_line_out_whatever_is_in_it(translate, expected):
    """Line ends of Windows, a byte-order mark, control characters and Unicode's line separators; empty lines."""
    odd = ["red\u2028cat", "a\x0bb\x0cc", "x\0y", "one\rtwo", "\x85", " ", "", "\x1c\x1d\x1e", LINES[3]]
    for case in sweep([("\n", b""), ("\r\n", b""), ("\n", b"\xef\xbb\xbf")]):
        with case as (end, mark):
            data = mark + (end.join([LINES[0], *odd, LINES[1]]) + end).encode()
            status, out, err = translate("-", data=data)
            assert status == 0, err
            lines = out.split("\n")
            assert len(lines) == 12
            assert (lines[0], lines[9], lines[10], lines[11]) == (*[expected[LINES[at]] for at in (0, 3, 1)], "")
            assert (lines[6], lines[7]) == ("", "")


def test_lines_end_as_on_linux_windows_and_the_old_macintosh(translate, expected):
    for case in sweep(["\n", "\r\n", "\r"]):
        with case as end:
            for last in ("", end):
                data = (LINES[0] + end + end + LINES[1] + last).encode()
                assert translate("-", data=data)[1] == f"{expected[LINES[0]]}\n\n{expected[LINES[1]]}\n"


def test_a_translation_is_one_line_whatever_the_vocabulary_has(translate, monkeypatch):
    ends = "\n\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"
    monkeypatch.setattr(Translator, "decode", lambda self, tokens: f"a{ends}b")
    status, out, err = translate(LINES[0])
    assert (status, out) == (0, "a" + " " * len(ends) + "b\n"), err


def test_the_order_and_the_size_of_batches_change_nothing(translate, expected, tmp_path):
    lines = random.Random(0).sample(LINES * 2, 160)
    (tmp_path / "lines.txt").write_text("\n".join(lines), "utf-8")
    for size in ("1", "7", "64"):
        status, out, err = translate("lines.txt", "--batch-size", size)
        assert status == 0, err
        assert out.splitlines() == [expected[line] for line in lines]


def test_output_is_utf_8_on_every_terminal(model, expected):
    for encoding in ("ascii", "gbk", "cp1252"):
        process = started(LINES[0], "--model", str(model), env=ONE_THREAD | {"PYTHONIOENCODING": encoding})
        out, err = process.communicate(timeout=120)
        assert (process.returncode, out) == (0, f"{expected[LINES[0]]}\n".encode()), err


def test_what_is_no_utf_8_is_named_when_the_lines_before_it_are_done(translate, expected):
    data = f"{LINES[0]}\n{LINES[1]}\n".encode() + b"caf\xe9\n" + LINES[2].encode()
    status, out, err = translate("-", data=data)
    assert (status, out.splitlines()) == (2, [expected[LINES[0]], expected[LINES[1]]])
    assert "line 3 of standard input is no UTF-8 text (byte 4 of the line)" in err
    assert "2 lines are translated" in err
    for encoding in ("utf-16", "utf-16-le", "utf-16-be", "utf-32"):
        status, out, err = translate("-", data="one red cat\n".encode(encoding))
        assert (status, out) == (2, "")
        assert "iconv -f UTF-16 -t UTF-8" in err


def test_a_line_that_is_too_long_is_left_empty_and_named(translate, expected, tmp_path):
    (tmp_path / "lines.txt").write_text(f"{LINES[0]}\n{'one red cat ' * 4000}\n{LINES[1]}\n", "utf-8")
    status, out, err = translate("lines.txt", "--num-beams", "4")
    assert (status, out) == (0, f"{expected[LINES[0]]}\n\n{expected[LINES[1]]}\n")
    assert "line 2 is left empty: it has 1" in err
    assert "positions for 5000" in err


def test_lines_through_a_pipe_are_answered_one_by_one(model, expected):
    process = started("-", "--model", str(model), stdin=subprocess.PIPE)
    for line in [*LINES[:3], "", LINES[4]]:
        process.stdin.write(f"{line}\n".encode())
        process.stdin.flush()
        assert process.stdout.readline().decode() == expected.get(line, "") + "\n"  # it would wait for ever
    process.stdin.write(b"one red")  # half a line
    process.stdin.flush()
    process.stdin.write(b" cat")
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out.decode()) == (0, expected["one red cat"] + "\n"), err


@pytest.fixture
def many(tmp_path):
    """The name of a file that takes minutes."""
    (tmp_path / "many.txt").write_text("\n".join(LINES * 2000) + "\n", "utf-8")
    return tmp_path / "many.txt"


def test_ctrl_c_and_kills_keep_what_is_done(model, expected, many, tmp_path):
    for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)):
        out = tmp_path / f"out-{number}.txt"
        with out.open("wb") as file:
            process = started(str(many), "--model", str(model), stdout=file)
            wait_for(lambda file=file: os.fstat(file.fileno()).st_size > 2000, process)
            process.send_signal(number)
            err = process.communicate(timeout=60)[1].decode()
        assert process.returncode == code, err
        lines = out.read_text("utf-8").split("\n")
        assert lines[-1] == ""
        assert lines[:-1] == [expected[line] for line in (LINES * 2000)[: len(lines) - 1]]
        if number != signal.SIGKILL:
            assert f"{len(lines) - 1:,} lines are translated\n" in err
        assert "Traceback" not in err


@pytest.mark.parametrize(("number", "error"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)])
def test_a_signal_waits_until_what_is_written_is_counted(number, error):
    counted = []

    def write(signals):
        with Terminable() as ending, ending.whole():
            for _ in range(signals):
                os.kill(os.getpid(), number)
            counted.append(signals)

    before = signal.signal(number, signal.default_int_handler)
    with pytest.raises(error):
        write(signals=1)
    assert counted == [1]
    with pytest.raises(error):
        write(signals=2)  # nobody reads the pipe
    assert counted == [1]
    assert signal.signal(number, before) == signal.default_int_handler


def test_a_reader_that_has_seen_enough_ends_it_quietly(model, many):
    process = started(str(many), "--model", str(model))
    assert process.stdout.readline()
    process.stdout.close()
    assert process.wait(60) in (1, -signal.SIGPIPE)
    with process.stderr:
        assert process.stderr.read() == b""


def test_the_same_command_continues_its_output(model, expected, tmp_path):
    """Killed at any moment, again and again, it is as if it had not been."""
    lines = [*LINES, "", *LINES[::-1]] * 12
    (tmp_path / "lines.txt").write_text("\n".join(lines) + "\n", "utf-8")
    out, at = tmp_path / "out.txt", [0]
    command = [str(tmp_path / "lines.txt"), "--model", str(model), "--output", str(out)]
    for number in (signal.SIGKILL, signal.SIGTERM):
        process = started(*command)
        wait_for(lambda: out.exists() and out.stat().st_size > at[0] + 1000, process)
        process.send_signal(number)
        err = process.communicate(timeout=60)[1].decode()
        at[0] = out.stat().st_size
        if number == signal.SIGTERM:
            assert f"kept in {out}: the same command continues" in err
    with out.open("ab") as file:
        file.write("半".encode()[:2])  # half a character, as a power failure may leave it
    process = started(*command)
    assert process.communicate(timeout=120)[0] == b""
    assert process.returncode == 0
    assert out.read_text("utf-8") == "".join(expected.get(line, "") + "\n" for line in lines)
    assert not (tmp_path / "out.txt.progress").exists()


@pytest.fixture
def interrupted(translate, tmp_path, expected):
    """A translation of which two lines are done, as after a kill, and the options by which it goes on."""
    (tmp_path / "lines.txt").write_bytes(
        "\n".join([*LINES[:2], "caf", *LINES[3:5]]).encode().replace(b"caf", b"caf\xe9")
    )
    options = ("--output", "out.txt", "--num-beams", "2")
    assert translate("lines.txt", *options)[0] == 2
    (tmp_path / "lines.txt").write_text("\n".join(LINES[:5]) + "\n", "utf-8")
    assert (tmp_path / "out.txt").read_text("utf-8").count("\n") == 2
    return options


def test_only_the_same_translation_is_continued(interrupted, translate, tmp_path, model):
    output, progress = tmp_path / "out.txt", tmp_path / "out.txt.progress"
    before = output.read_bytes(), progress.read_bytes()

    def refused(*options, text="lines.txt"):
        status, out, err = translate(text, *options)
        assert (status, out) == (2, ""), err
        assert (output.read_bytes(), progress.read_bytes()) == before
        return " ".join(err.split())

    assert "begun with another num_beams (2 before, 3 now): give the same" in refused(
        *interrupted[:2], "--num-beams", "3"
    )
    assert "another n-best (None before, 1 now)" in refused(*interrupted, "--n-best", "1")
    assert "another replace-unk" in refused(*interrupted, "--replace-unk")
    (tmp_path / "others.txt").write_text(f"{LINES[0]}\n{LINES[7]}\n{LINES[2]}\n", "utf-8")
    assert "line 2 of the source is not the one that out.txt has" in refused(*interrupted, text="others.txt")
    assert "line 1 of the source is not the one" in refused(*interrupted, text="")
    output.write_bytes(before[0].replace(b"\n", b"!", 1))
    before = output.read_bytes(), progress.read_bytes()
    assert "out.txt was changed where line 1 is translated" in refused(*interrupted)


@pytest.mark.parametrize("entries", [0, 1, 2])
def test_a_file_that_others_wrote_is_not_erased(interrupted, translate, tmp_path, entries):
    """Killed before its first line, or between a line of FILE.progress and that of FILE, which was replaced since."""
    output, progress = tmp_path / "out.txt", tmp_path / "out.txt.progress"
    begun = b"".join(progress.read_bytes().splitlines(keepends=True)[: 1 + entries])
    for text in (b"!\n", b"my own notes, many lines\n" * 9):
        progress.write_bytes(begun)
        output.write_bytes(text)
        status, _, err = translate("lines.txt", *interrupted)
        assert status == 2, err
        assert "remove it and" in " ".join(err.split())
        assert (output.read_bytes(), progress.read_bytes()) == (text, begun)


@pytest.mark.parametrize("entries", [0, 1])
def test_a_kill_before_the_first_line_is_continued(interrupted, translate, tmp_path, entries, expected):
    output, progress = tmp_path / "out.txt", tmp_path / "out.txt.progress"
    progress.write_bytes(b"".join(progress.read_bytes().splitlines(keepends=True)[: 1 + entries]))
    output.write_bytes(b"")
    assert translate("lines.txt", *interrupted)[0] == 0
    assert output.read_text("utf-8").count("\n") == 5


def test_a_file_that_translates_nothing_may_change(interrupted, translate, model):
    path = model / "model" / "scores.json"
    before = path.read_bytes()
    try:
        path.write_text("{}")
        assert translate("lines.txt", *interrupted)[0] == 0
    finally:
        path.write_bytes(before)


def test_another_model_does_not_continue(interrupted, run, tmp_path, model):
    shutil.copytree(model, tmp_path / "other")
    path = tmp_path / "other" / "model" / "translation.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"target_lang": "ja"}))
    status, _, err = run("translate", "lines.txt", "--model", "other", *interrupted)
    assert status == 2
    assert "model" in err


def test_an_output_that_is_there_is_not_overwritten(translate, tmp_path, expected, interrupted):
    assert translate("lines.txt", *interrupted)[0] == 0
    done = (tmp_path / "out.txt").read_bytes()
    status, _, err = translate("lines.txt", *interrupted)
    assert (status, (tmp_path / "out.txt").read_bytes()) == (2, done)
    assert "out.txt exists, and is no unfinished translation: remove out.txt, or name another --output" in err
    status, _, err = translate("lines.txt", "--output", "lines.txt")
    assert (status, "is the source: name another file" in err) == (2, True)
    assert "in a folder that exists" in translate("lines.txt", "--output", "none/out.txt")[2]


def test_two_processes_do_not_write_one_output(model, many, translate, tmp_path):
    process = started(str(many), "--model", str(model), "--output", str(tmp_path / "out.txt"))
    wait_for(lambda: (tmp_path / "out.txt").exists(), process)
    assert "another process is writing" in translate(str(many), "--output", "out.txt")[2]
    process.terminate()
    process.communicate(timeout=60)


def test_several_translations_have_the_number_of_their_line_and_a_score(translate, model):
    data = f"{LINES[0]}\n\n{LINES[5]}\n".encode()
    status, out, err = translate("-", "--n-best", "3", data=data)
    assert status == 0, err
    rows = [line.split(" ||| ") for line in out.splitlines()]
    assert [row[0] for row in rows] == list("0001222")
    assert rows[3] == ["1", "", "0.0000"]
    found = Translator.load(model).stream([LINES[0], "", LINES[5]], n_best=3)
    for one, part in zip(found, (rows[:3], rows[3:4], rows[4:]), strict=True):
        assert [row[1] for row in part] == list(one.texts)
        assert [float(row[2]) for row in part] == pytest.approx(one.scores, abs=2e-4)
    assert "needs as many beams: give --num-beams 5 too" in translate("-", "--n-best", "5", data=data)[2]


def test_a_tilde_is_the_home_folder_in_every_path(run, model, tmp_path, monkeypatch, expected):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "in").mkdir()
    shutil.copytree(model, tmp_path / "run")
    (tmp_path / "in" / "lines.txt").write_text(LINES[0] + "\n", "utf-8")
    status, _, err = run(
        "translate", "~/in/lines.txt", "--model", "~/run", "--output", "~/in/out.txt", "--align", "~/in/it.svg"
    )
    assert status == 0, err
    assert (tmp_path / "in" / "out.txt").read_text("utf-8") == expected[LINES[0]] + "\n"
    assert (tmp_path / "in" / "it.svg").exists()


def test_a_full_disk_keeps_whole_lines(model, many, tmp_path):
    """A limit of the size of files stands for it."""
    import resource

    out = tmp_path / "out.txt"

    def limited():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000))

    process = started(str(many), "--model", str(model), "--output", str(out), preexec_fn=limited)
    err = process.communicate(timeout=120)[1].decode()
    assert process.returncode == 2, err
    assert "File too large; what is translated is kept, and the same command continues" in err
    assert 0 < out.stat().st_size <= 3000
    assert out.read_bytes().endswith(b"\n")


def test_a_table_is_not_translated_whole(translate, refused, expected, model, tmp_path):
    rows = "".join(f"{line}\tx\n" for line in LINES[:3])
    for name, content in (("pairs.tsv", rows), ("pairs", rows), ("pairs.jsonl", '{"text": "a"}\n')):
        (tmp_path / name).write_text(content, "utf-8")
        said = refused("translate", str(tmp_path / name), "--model", str(model))
        assert f"{name} is a table" in said
        assert ("cut -f1" if content == rows else "jq -r .text") in said
    (tmp_path / "text").write_text(f"{LINES[0]}\n{LINES[1]}\tx\n", "utf-8")  # one line with a tab is no table
    status, out, err = translate("text")
    assert (status, out.splitlines()[0], "table" in err) == (0, expected[LINES[0]], False)
    status, out, err = translate("-", data=rows.encode())
    assert (status, len(out.splitlines())) == (0, 3)
    assert err.count("warning: standard input seems to be tab-separated") == 1


def test_what_is_no_list_and_no_translator_is_said(refused, model, tmp_path):
    for call in (Translator.load(model).translate, Translator.load(model).stream):
        with pytest.raises(InputError, match=r"must be a list of texts, got one text: write \['red cat'\]"):
            call("red cat")
    assert "smollm2 is no translator" in refused("translate", "red cat", "--model", "smollm2")
    folder = refused("translate", "red cat", "--model", str(model), "--output", str(tmp_path))
    assert f"`--output` must name a file, and {tmp_path} is a folder" in folder


def test_a_lesson_shows_the_translation_as_it_is_written(model, expected, tmp_path):
    """`regard steps --translator` records greedy search, whose tokens the page holds."""
    page = tmp_path / "page.html"
    result = CliRunner().invoke(app, ["steps", "one red cat", "--translator", str(model), "--out", str(page)])
    assert result.exit_code == 0, result.output
    data = json.loads(re.search('id="data">(.*?)</script>', page.read_text("utf-8"), re.DOTALL)[1])
    greedy = Translator.load(str(model)).translate(["one red cat"], num_beams=1)
    assert [data["translation"]["translation"]] == greedy
