"""Texts that processes share: each is finished once, whatever worker is killed or stopped at whatever moment."""

import os
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from interpret.shared_texts import WITHOUT
from regard.errors import InputError
from regard.interpret.text_queue import Claims, Silence, TextFolder

SCRIPT = Path(__file__).with_name("shared_texts.py")
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="workers are killed by signals")


def folder(path, numbers=(1, 2, 3)):
    texts = TextFolder(path / "out", ".result", numbers)
    texts.create()
    return texts


def writes(content):
    return lambda path: path.write_text(content)


def test_each_text_is_one_workers(tmp_path):
    texts = folder(tmp_path)
    ours, theirs = Claims(texts, "ours"), Claims(texts, "theirs")
    a, b = ours.take(), theirs.take()
    assert [next(one) for one in (a, b, a)] == [1, 2, 3]
    for claims, number in [(ours, 1), (theirs, 2), (ours, 3)]:
        assert claims.finish(number, writes(claims.name))
    assert list(a) == list(b) == []
    assert [texts.result(one).read_text() for one in (1, 2, 3)] == ["ours", "theirs", "ours"]
    assert sorted(one.name for one in texts.claims.iterdir()) == ["ours.worker", "theirs.worker"]


def test_a_worker_that_lives_keeps_its_text(tmp_path):
    texts = folder(tmp_path, [1])
    ours, theirs = Claims(texts, "ours"), Claims(texts, "theirs")
    assert next(ours.take()) == 1
    with ThreadPoolExecutor(1) as pool:
        rest = pool.submit(lambda: list(theirs.take()))
        time.sleep(0.7)  # the other worker looks for lost texts several times
        assert texts.claimed_by(ours.file) == [1]
        assert texts.claimed_by(theirs.file) == []
        assert ours.finish(1, writes("ours"))
        assert rest.result(timeout=30) == []


def test_the_text_of_a_process_that_has_ended_is_another_workers_at_once_and_one_workers(tmp_path):
    texts = folder(tmp_path, [1])
    gone, ours, theirs = (Claims(texts, name) for name in ("gone", "ours", "theirs"))
    assert next(gone.take()) == 1
    os.close(gone._held)  # as the system does
    assert next(theirs.take()) == 1
    with ThreadPoolExecutor(1) as pool:
        rest = pool.submit(lambda: list(ours.take()))
        assert theirs.finish(1, writes("theirs"))
        assert rest.result(timeout=30) == []
    assert list(ours.take()) == [], "its claims are gone, and it is finished"
    assert sorted(one.suffix for one in texts.claims.iterdir()) == [".worker"] * 3


def test_a_worker_that_is_silent_loses_its_text_and_finishes_nothing_when_it_goes_on(tmp_path):
    texts = folder(tmp_path, [1])
    stopped, ours = Claims(texts, "stopped"), Claims(texts, "ours", silence=0.1)
    assert next(stopped.take()) == 1
    begun = time.monotonic()
    assert next(ours.take()) == 1
    assert time.monotonic() - begun > 0.1
    assert ours.finish(1, writes("ours"))
    assert not stopped.finish(1, writes("stopped"))
    assert not stopped.skip(1, "whatever")
    assert texts.reasons() == {}
    assert texts.result(1).read_text() == "ours"


def test_a_sign_of_life_ends_the_silence_and_time_that_nobody_looked_does_not_count(tmp_path):
    claims = Claims(folder(tmp_path), "ours")
    watch = Silence(0.05)
    assert watch.seconds(claims.file) == 0.0
    time.sleep(0.06)
    assert watch.seconds(claims.file) == pytest.approx(0.01), "a fifth of the limit, however long nobody looked"
    claims.beat()
    assert watch.seconds(claims.file) == 0.0


def test_a_folder_of_another_run_or_of_something_else_is_refused(tmp_path):
    texts = folder(tmp_path)
    texts.hold("run.json", {"model": "minilm", "layers": [1, 2]})
    texts.hold("run.json", {"model": "minilm", "layers": (1, 2)})
    with pytest.raises(InputError, match=r"another run, whose model was 'minilm' and is now 'me5': run it with the"):
        texts.hold("run.json", {"model": "me5", "layers": [1, 2]})
    (tmp_path / "run.txt").touch()
    with pytest.raises(InputError, match="is not empty, and what it holds belongs to no run"):
        TextFolder(tmp_path, ".result", [1]).create()
    with pytest.raises(InputError, match=r"cannot write .*run\.txt: "):
        TextFolder(tmp_path / "run.txt", ".result", [1]).create()


def start(out, *numbers, **more):
    command = [sys.executable, str(SCRIPT), str(out), *map(str, numbers)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **more)


def log_of(out):
    log = out.with_name(f"{out.name}.log")
    lines = log.read_text().splitlines() if log.exists() else []
    return [(what, int(pid), int(number)) for what, pid, number, _ in map(str.split, lines)]


def pids(out, parent=""):
    """The workers that have begun, or those of one parent."""
    log = out.with_name(f"{out.name}.log")
    lines = map(str.split, log.read_text().splitlines() if log.exists() else [])
    return {int(line[1]) for line in lines if str(parent) in ("", line[3])}


def until(true, seconds=30):
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def check_each_once(out, count, lost):
    """Each text has one result, of one process; who else began or wrote it was lost while it had it."""
    texts = TextFolder(out, ".result", range(1, count + 1))
    assert texts.finished() == set(texts.numbers)
    assert texts.reasons() == {WITHOUT: "it is the third"}
    begun = Counter((number, pid) for what, pid, number in log_of(out) if what == "begun")
    written = Counter((number, pid) for what, pid, number in log_of(out) if what == "written")
    assert set(begun.values()) | set(written.values()) == {1}
    for number in set(texts.numbers) - {WITHOUT}:
        author = int(texts.result(number).read_text())
        assert (number, author) in written
        assert {pid for one, pid in begun if one == number} - {author} <= lost


def test_a_killed_workers_text_is_done_by_another(tmp_path):
    out = tmp_path / "out"
    run = start(out, 12, 2, 0.03, 30)
    until(lambda: len(pids(out)) == 2)
    (what, lost, number) = log_of(out)[-1]
    os.kill(lost, signal.SIGKILL)
    said, problem = run.communicate(timeout=60)
    assert (run.returncode, problem) == (0, "")
    assert re.fullmatch(rf"worker [12] \(process {lost}\) was killed by signal 9 \(Killed\): .*\n", said)
    assert f"the others do line {number}" in said or what == "written" or "it had no line" in said
    check_each_once(out, 12, {lost})


def test_without_workers_it_ends_and_says_what_is_done_and_the_rest_is_done_next_time(tmp_path):
    out = tmp_path / "out"
    run = start(out, 12, 2, 0.03, 30)
    until(lambda: len(pids(out)) == 2)
    lost = pids(out)
    for one in lost:
        os.kill(one, signal.SIGKILL)
    _, problem = run.communicate(timeout=60)
    assert run.returncode == 1
    done = len(TextFolder(out, ".result", range(1, 13)).finished())
    assert re.fullmatch(
        rf"all workers were lost, the last at lines? [\d, ]+: {done} of 12 texts are done and kept in {out}, lines "
        r"[\d, ]+( and \d+ more)? are not; run the same command again to do the rest\n",
        problem,
    )
    run = start(out, 12, 1, 0.0, 30)
    assert run.communicate(timeout=60) == ("", "")
    check_each_once(out, 12, lost)


@pytest.mark.slow
def test_workers_that_are_killed_at_random_moments_leave_each_text_finished_once(tmp_path):
    chosen, out = random.Random(0), tmp_path / "out"
    run = start(out, 120, 5, 0.02, 30)
    until(lambda: len(pids(out)) == 5)
    lost = set()
    for _ in range(4):
        time.sleep(chosen.uniform(0, 0.08))
        one = chosen.choice(sorted(pids(out) - lost))
        os.kill(one, signal.SIGKILL)
        lost.add(one)
    said, problem = run.communicate(timeout=60)
    assert (run.returncode, problem) == (0, "")
    assert {int(number) for number in re.findall(r"^worker \d \(process (\d+)\) was killed", said, re.M)} == lost
    check_each_once(out, 120, lost)


@pytest.mark.slow
def test_a_stopped_worker_is_ended_and_named(tmp_path):
    out = tmp_path / "out"
    run = start(out, 4, 2, 0.3, 1.5)
    until(lambda: len(pids(out)) == 2)
    lost = log_of(out)[-1]
    os.kill(lost[1], signal.SIGSTOP)
    said, problem = run.communicate(timeout=60)
    assert (run.returncode, problem) == (0, "")
    assert re.fullmatch(
        rf"worker [12] \(process {lost[1]}\) gave no sign of life for \d seconds and was ended: the others do line "
        rf"{lost[2]}\n", said
    )  # fmt: skip
    with pytest.raises(ProcessLookupError):
        os.kill(lost[1], 0)
    check_each_once(out, 4, {lost[1]})


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_ctrl_c_and_a_killed_parent_end_all_workers_and_keep_what_is_finished(tmp_path, how):
    out = tmp_path / "out"
    run, texts = start(out, 40, 3, 1.0, 30, start_new_session=True), TextFolder(out, ".result", range(1, 41))
    until(lambda: len(pids(out)) == 3)
    begun = len(texts.finished())
    until(lambda: len(texts.finished()) >= begun + 3)  # a second later: Ctrl-C while a process starts is lost
    lost = pids(out)
    begun = time.monotonic()
    if how == signal.SIGINT:
        os.killpg(run.pid, how)  # as a terminal does
    else:
        run.kill()
    run.communicate(timeout=60)  # the pipes end with the last worker
    assert time.monotonic() - begun < 8, "the rest of the texts takes eleven seconds"
    finished = texts.finished()
    assert start(out, 40, 2, 0.0, 30).communicate(timeout=60) == ("", "")
    again = {number for what, pid, number in log_of(out) if pid not in lost}
    assert again == set(range(1, 41)) - finished
    check_each_once(out, 40, lost)


@pytest.mark.slow
def test_processes_that_were_started_separately_share_a_folder(tmp_path):
    """As torchrun starts them; one loses its worker, and one is killed with its worker."""
    out = tmp_path / "out"
    runs = [start(out, 30, 1, 0.05, 30) for _ in range(3)]
    until(lambda: len(pids(out)) == 3)
    for one in pids(out, runs[1].pid):
        os.kill(one, signal.SIGKILL)
    until(lambda: len(log_of(out)) > 30)
    runs[2].kill()
    ended = [one.communicate(timeout=60) for one in runs]
    assert [one.returncode for one in runs[:2]] == [0, 0], ended
    check_each_once(out, 30, pids(out, runs[1].pid) | pids(out, runs[2].pid))
