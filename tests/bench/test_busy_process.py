"""The case with a busy process: it runs only while calls are timed, and losses are relative to SDPA's."""

import subprocess
from contextlib import contextmanager

import pytest

from regard.masks import Causal
from regard_bench.cases import BUSY, busy_process
from regard_bench.rows import Effort, Outcome
from regard_bench.timing import Times


def test_the_process_runs_inside_the_block_and_has_ended_after_it():
    with busy_process.busy_process() as other, pytest.raises(subprocess.TimeoutExpired):
        other.wait(timeout=0.5)
    assert other.poll() is not None


def test_a_loss_is_the_growth_of_the_ratio_to_sdpa(monkeypatch):
    busy = []

    @contextmanager
    def process():
        busy.append(True)
        yield
        busy.pop()

    def timed(sides, *, max_seconds):
        assert list(sides) == ["regard", "sdpa"]
        ours, theirs = (0.9, 0.3) if busy else (0.4, 0.2)
        return Times({"regard": (ours,) * 5, "sdpa": (theirs,) * 5})

    monkeypatch.setattr(busy_process, "busy_process", process)
    monkeypatch.setattr(busy_process, "in_turn", timed)
    rows = list(BUSY.rows(Effort(max_tokens=64)))
    assert [row.at for row in rows] == ["64 tokens"] * 2
    for row in rows:
        assert row.ratio is not None
        assert row.ratio.median == pytest.approx(1.5)
        assert row.outcome is Outcome.MISSED
        assert dict(row.seconds) == {"regard": 0.4, "sdpa": 0.2, "regard, busy": 0.9, "sdpa, busy": 0.3}


def test_rows_that_nobody_wants_are_not_measured(monkeypatch):
    monkeypatch.setattr(busy_process, "in_turn", None)
    assert all(row.ratio is None for row in BUSY.rows(Effort(max_tokens=64, only=())))


def test_the_calls_are_those_of_the_rows(monkeypatch):
    made, training = [], busy_process.training
    monkeypatch.setattr(
        busy_process, "training", lambda given, **options: made.append(options) or training(given, **options)
    )
    first, second = BUSY.rows(Effort(max_seconds=0.01, max_tokens=64))
    assert (first.case, second.case) == (
        "window 512, float32, beside a busy process",
        "causal training, dropout 0.1, beside a busy process",
    )
    assert first.ratio is not None
    assert second.ratio is not None
    assert made == [{"mask": Causal(), "dropout": 0.1}]
