"""Beside a process that keeps a core busy: what the default path loses there, relative to what PyTorch's call loses."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from regard.masks import Causal, Window
from regard_bench.cases.inputs import forward, fused, fused_training, inputs, training
from regard_bench.rows import Case, Effort, Row, at_most
from regard_bench.timing import Call, Ratio, Times, in_turn

__all__ = ["BUSY", "busy_process"]

_LOST = at_most(1.2)
_SPIN = "while True: pass"


@contextmanager
def busy_process() -> Iterator[subprocess.Popen[bytes]]:
    """Have another process run on one core, wherever the system puts it."""
    with subprocess.Popen([sys.executable, "-c", _SPIN]) as other:
        try:
            yield other
        finally:
            other.kill()


def _rows(effort: Effort) -> Iterator[Row]:
    """Yield how much longer calls take beside a busy process, over how much longer SDPA's causal call takes."""
    n, fewer = min(4096, effort.max_tokens), min(2048, effort.max_tokens)
    window, dropped = inputs(n), inputs(fewer)
    yield _row(
        effort, "window 512, float32", n, forward(window, mask=Causal() & Window(512)), fused(window, is_causal=True)
    )
    yield _row(
        effort, "causal training, dropout 0.1", fewer, training(dropped, mask=Causal(), dropout=0.1),
        fused_training(dropped, is_causal=True),
    )  # fmt: skip


def _row(effort: Effort, name: str, n: int, ours: Call, theirs: Call) -> Row:
    case, at, what = f"{name}, beside a busy process", f"{n:,} tokens", "loss / SDPA's"
    row = Row(case, at, what, target=_LOST)
    if not effort.wants(row):
        return row
    effort.progress(f"{case}, {at}")
    sides, seconds = {"regard": ours, "sdpa": theirs}, effort.max_seconds / 2
    alone = in_turn(sides, max_seconds=seconds)
    with busy_process():
        beside = in_turn(sides, max_seconds=seconds)
    losses = [busy / idle for busy, idle in zip(_ratios(beside), _ratios(alone), strict=False)]
    medians = [(name, alone.median(name)) for name in sides]
    medians += [(f"{name}, busy", beside.median(name)) for name in sides]
    return Row(case, at, what, Ratio.of(losses), _LOST, seconds=tuple(medians))


def _ratios(times: Times) -> list[float]:
    return [a / b for a, b in zip(times.seconds["regard"], times.seconds["sdpa"], strict=True)]


BUSY = Case("busy", "a window and dropout beside a busy process", _rows)
