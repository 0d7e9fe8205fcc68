"""Texts that worker processes share: each gets its result, whichever of them is killed at whatever moment."""

import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from interpret.shared_texts import Job
from regard.errors import InputError, RegardError
from regard.files import lock
from regard.interpret.text_folder import open_text_folder
from regard.interpret.text_workers import share_texts
from sweeps import sweep

SCRIPT = Path(__file__).with_name("shared_texts.py")
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="workers are killed by signals")
KILLED = r"worker \d \(process \d+\) was killed by signal 9 \(Killed\)"


def shared(path, texts, *, workers=2, wrong=None):
    """Share texts; return the results, the reasons, the sentences, and what was begun."""
    said, counts, log = [], [], path.with_suffix(".log")
    with open_text_folder(path, ".result", texts, {"file": "it"}) as folder:
        share_texts(
            texts, folder, Job, str(log), wrong, num_workers=workers, progress=counts.append, warn=said.append
        )  # fmt: skip
        results = {one: folder.result(one).read_text() for one in folder.finished() - folder.reasons().keys()}
        reasons = folder.reasons()
    assert counts == sorted(counts)
    assert counts[-1] == len(set(texts) - {0})
    begun = [line.partition(" ")[2] for line in log.read_text().splitlines()] if log.exists() else []
    return results, reasons, said, begun


def test_a_killed_workers_text_is_done_again_and_left_out_with_the_second(tmp_path, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    texts = {1: "a", 2: "killed", 3: "fails", 4: "killed_once", 5: "odd", 6: "exits", 7: "b"}
    for case in sweep([1, 3]):
        with case as workers:
            results, reasons, said, begun = shared(tmp_path / str(workers), texts, workers=workers)
            assert results == {1: "a 1", 4: "killed_once 1", 5: "odd 1", 7: "b 1"}, "with one thread each"
            assert reasons == {
                2: "the 2 workers that had it were lost, the last one was killed by signal 9 (Killed)",
                3: "ValueError: of no use",
                6: "the 2 workers that had it were lost, the last one ended with code 3",
            }
            again = ["killed", "killed_once", "exits"]
            assert sorted(begun) == sorted([*texts.values(), *again])
            assert workers > 1 or begun == [*texts.values(), *again]
            expected = [
                *(f"{KILLED}: line {number} is done again at the end" for number in (2, 4)),
                f"{KILLED}, as the one before that had line 2",
                "line 5: it is odd",
                r"worker \d \(process \d+\) ended with code 3: line 6 is done again at the end",
                r"worker \d \(process \d+\) ended with code 3, as the one before that had line 6",
            ]
            assert len(said) == len(expected)
            for pattern in expected:
                assert [one for one in said if re.fullmatch(pattern, one)], pattern
            names = {one.name for one in (tmp_path / str(workers)).iterdir()}
            assert names == {"run.json", "model.json"} | {
                f"00000{number}.{'txt' if number in reasons else 'result'}" for number in texts
            }


def test_what_is_finished_is_skipped(tmp_path):
    texts = {1: "a", 2: "fails", 3: "b"}
    first = shared(tmp_path / "out", texts)
    (tmp_path / "out" / "000001.result").unlink()
    again = shared(tmp_path / "out", texts)
    assert first[:2] == again[:2]
    assert again[3] == [*first[3], "a"]


def test_where_no_text_can_be_done_the_run_ends_with_a_sentence_and_leaves_no_folder(tmp_path):
    """Also where one is killed for memory that loads its model."""
    cases = [
        ({1: "a"}, "refused", InputError, "^there is no such model$"),
        ({1: "a", 2: "b"}, "killed", RegardError, "^all workers were lost while they loaded the model"),
        ({0: "fails", 1: "waits 9"}, None, InputError, "^ValueError: of no use$"),
        ({0: "killed"}, None, InputError, "^the 2 workers that had it were lost, the last one was killed"),
        ({1: "full", 2: "waits 9"}, None, InputError, "^cannot write: no space left$"),
        ({1: "breaks", 2: "waits 9"}, None, InputError, "^OSError: broken$"),
    ]
    for case in sweep(cases, str):
        with case as (texts, wrong, kind, words):
            begun = time.monotonic()
            with pytest.raises(kind, match=words):
                shared(tmp_path / "out", texts, wrong=wrong)
            assert time.monotonic() - begun < 8, "no worker is waited for"
            assert not (tmp_path / "out").exists()


def test_a_folder_that_was_there_or_is_named_by_a_link_stays_without_results(tmp_path, monkeypatch):
    (tmp_path / "mine").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "mine")
    monkeypatch.chdir(tmp_path / "mine")
    for case in sweep([Path(), tmp_path / "mine", tmp_path / "link"]):
        with case as path:
            with (
                pytest.raises(InputError, match="no such model"),
                open_text_folder(path, ".result", [1], {}) as folder,
            ):
                share_texts(
                    {1: "a"}, folder, Job, str(tmp_path / "log"), "refused", num_workers=1, progress=print, warn=print
                )  # fmt: skip
            assert not list((tmp_path / "mine").iterdir())
            with open_text_folder(path, ".result", [1], {}) as folder:
                folder.leave_out(1, "why")
                assert folder.reasons() == {1: "why"}
                folder.remove()
            assert not list((tmp_path / "mine").iterdir())
            assert (tmp_path / "link").is_symlink()


def test_a_folder_of_another_run_or_of_something_else_or_in_use_is_refused(tmp_path):
    shared(tmp_path / "out", {1: "a"})
    with (
        pytest.raises(InputError, match=r"another run, whose file was 'it' and is now 'other': run it with the same"),
        open_text_folder(tmp_path / "out", ".result", [1], {"file": "other"}),
    ):
        pass
    (tmp_path / "out" / "model.json").write_text('{"model": "other"}')
    (tmp_path / "out" / "000001.result").rename(tmp_path / "out" / "000002.result")
    with pytest.raises(InputError, match=r"another run, whose model was 'other' and is now 'none'"):
        shared(tmp_path / "out", {1: "a", 2: "b"})
    (tmp_path / "out" / "run.json").write_text("{")
    with pytest.raises(InputError, match=r"run\.json cannot be read .*: remove .*out to start over"):
        shared(tmp_path / "out", {1: "a"})
    assert (tmp_path / "out" / "000002.result").exists()
    held = lock(tmp_path / "out")
    with pytest.raises(InputError, match=r"another process works on the texts in .*out: wait until it has ended"):
        shared(tmp_path / "out", {1: "a"})
    os.close(held)
    (tmp_path / "mine.txt").touch()
    with pytest.raises(InputError, match="is not empty, and what it holds belongs to no run"):
        shared(tmp_path, {1: "a"})
    with pytest.raises(InputError, match=r"cannot write .*mine\.txt: "):
        shared(tmp_path / "mine.txt", {1: "a"})


def test_the_process_that_starts_workers_imports_no_torch():
    code = "import sys, regard.cli.each_line, regard.interpret.each_line, regard.interpret.text_workers as _; "
    subprocess.run([sys.executable, "-c", f"{code}sys.exit('torch' in sys.modules)"], check=True)


def workers_of(log):
    return {int(line.split()[0]) for line in log.read_text().splitlines()} if log.exists() else set()


@pytest.mark.slow
def test_workers_that_are_killed_at_random_moments_leave_a_result_of_each_text(tmp_path):
    chosen, killed, log = random.Random(0), set(), tmp_path / "out.log"

    def kill():
        for _ in range(12):
            time.sleep(chosen.uniform(0.05, 0.4))
            if living := sorted(workers_of(log) - killed):
                killed.add(living[-1])  # the newest may have ended, and that is no harm
                os.kill(living[-1], signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    texts = {number: f"waits 0.0{number % 7}" for number in range(1, 151)}
    results, reasons, said, begun = shared(tmp_path / "out", texts, workers=4)
    killer.join()
    lost = [one for one in said if re.match(KILLED, one)]
    assert len(lost) == len(killed) > 5
    assert reasons.keys() | results.keys() == texts.keys()
    assert len(reasons) < 3, "twice the same text"
    assert len(begun) <= len(texts) + len(killed)


def exists(pid):
    try:
        return "zombie" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="processes are looked up in /proc")
def test_workers_end_with_a_killed_parent_and_its_folder_is_gone_on_with(tmp_path):
    out, log = tmp_path / "out", tmp_path / "out.log"
    command = [sys.executable, str(SCRIPT), str(out), "6", "3"]
    with subprocess.Popen([*command, "60"]) as run:
        deadline = time.monotonic() + 60
        while len(workers_of(log)) < 3 or len(list(out.glob("*.result"))) < 3:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        run.kill()
    killed = time.monotonic()
    while any(map(exists, workers_of(log))):
        assert time.monotonic() - killed < 5, "the workers outlive it"
        time.sleep(0.01)
    finished = {one.name: one.stat().st_mtime_ns for one in out.glob("*.result")}
    assert len(finished) == 3
    subprocess.run([*command, "0"], check=True, timeout=60)
    now = {one.name: one.stat().st_mtime_ns for one in out.glob("*.result")}
    assert sorted(now) == [f"00000{number}.result" for number in range(1, 7)]
    assert finished.items() <= now.items()
