"""Decoding: one new token against cached keys, with three query heads per key–value head."""

from collections.abc import Iterator
from functools import partial

import torch

from regard_bench.cases.inputs import DIM, by_numba, forward, fused, without_gradients
from regard_bench.comparing import Pair, compare_all
from regard_bench.rows import Effort, Row, at_least

__all__ = ["NAME", "TITLE", "rows"]

NAME, TITLE = "decoding", "one token against cached keys"
SIZES = (4096, 16384, 65536)
FASTER, COMPILED = at_least(1.7), at_least(3.0)
_HEADS, _KV = 9, 3


def rows(effort: Effort) -> Iterator[Row]:
    """Yield the speed relative to SDPA; the limit is the time to copy the keys and values."""
    for n in SIZES:
        if n > effort.max_tokens:
            continue
        generator = torch.Generator().manual_seed(0)
        q, k, v = (torch.randn(1, h, m, DIM, generator=generator) for h, m in ((_HEADS, 1), (_KV, n), (_KV, n)))
        both = torch.cat([k, v])
        copied = torch.empty_like(both)
        sides = {"regard": forward((q, k, v)), **by_numba((q, k, v))}
        sides |= {"sdpa": fused((q, k, v), enable_gqa=True), "copied": without_gradients(partial(copied.copy_, both))}
        pairs = {"SDPA's time / time": Pair(("sdpa", "regard"), FASTER)}
        if "numba" in sides:
            pairs["SDPA's time / numba's"] = Pair(("sdpa", "numba"), COMPILED)
        yield from compare_all(effort, "decoding, 9 heads on 3", f"{n:,} keys", pairs, sides, size=n)
