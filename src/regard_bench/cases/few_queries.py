"""Calls with few queries: one new token against cached keys, and the fixed cost of a call."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention as sdpa

import regard
from regard.masks import Causal, Window
from regard.positions import ALiBi
from regard_bench.cases.inputs import DIM, forward, fused, inputs, without_gradients
from regard_bench.comparing import Pair, compare_all
from regard_bench.rows import Case, Effort, Row, Target, at_least, at_most
from regard_bench.shares import Resource, Work
from regard_bench.timing import Ratio, in_turn

__all__ = ["DECODING", "SMALL"]

_SIZES = (4096, 16384, 65536)
_FASTER = at_least(3.0)
_HEADS, _KV = 9, 3
_ABOVE, _ABOVE_WITH_MORE = at_most(5.0), at_most(20.0)  # microseconds
_DROPPING = at_most(2.0)


def _decoding(effort: Effort) -> Iterator[Row]:
    """Yield the speed relative to SDPA; the work is reading the keys and values, and a copy of them is timed beside."""
    for n in _SIZES:
        if n > effort.max_tokens:
            continue
        generator = torch.Generator().manual_seed(0)
        q, k, v = (torch.randn(1, h, m, DIM, generator=generator) for h, m in ((_HEADS, 1), (_KV, n), (_KV, n)))
        both = torch.cat([k, v])
        copied = torch.empty_like(both)
        sides = {"regard": forward((q, k, v)), "sdpa": fused((q, k, v), enable_gqa=True)}
        sides |= {"copied": without_gradients(partial(copied.copy_, both))}
        pairs = {"SDPA's time / time": Pair(("sdpa", "regard"), _FASTER)}
        work = Work(Resource.MEMORY, both.nbytes)
        yield from compare_all(effort, "decoding, 9 heads on 3", f"{n:,} keys", pairs, sides, size=n, work=work)


def _small(effort: Effort) -> Iterator[Row]:
    """Yield the microseconds above a bare SDPA call, for 8 heads and 16 tokens; with dropout the time beside SDPA's own
    with dropout, which leaves its fused kernel.
    """
    q, k, v = inputs(16)
    causal = Causal()
    calls: dict[str, tuple[bool, dict[str, Any], Target]] = {
        "full": (False, {}, _ABOVE),
        "causal": (True, {"mask": causal}, _ABOVE),
        "causal & window": (True, {"mask": causal & Window(512)}, _ABOVE),
        "ALiBi": (True, {"mask": causal, "bias": ALiBi(num_heads=8)}, _ABOVE_WITH_MORE),
    }
    for case, (is_causal, options, target) in calls.items():
        name = f"small calls, {case}"
        effort.progress(name)
        ours, theirs = partial(regard.attention, q, k, v, **options), partial(sdpa, q, k, v, is_causal=is_causal)
        with torch.inference_mode():
            times = in_turn({"regard": ours, "sdpa": theirs}, max_seconds=effort.max_seconds)
        more = times.difference("regard", "sdpa")
        above = Ratio(1e6 * more.median, 1e6 * more.low, 1e6 * more.high, more.rounds)
        seconds = tuple((side, times.median(side)) for side in ("regard", "sdpa"))
        yield Row(name, "16 tokens", "above SDPA", above, target, unit="µs", seconds=seconds)
    sides = {"regard": forward((q, k, v), mask=causal, dropout=0.1)}
    sides |= {"sdpa": fused((q, k, v), is_causal=True, dropout_p=0.1)}
    pairs = {"time / SDPA's": Pair(("regard", "sdpa"), _DROPPING)}
    yield from compare_all(effort, "small calls, dropout 0.1", "16 tokens", pairs, sides, size=16)


DECODING = Case("decoding", "one token against cached keys", _decoding)
SMALL = Case("small", "small calls", _small)
