"""One new token against keys that are cached, three query heads to a key–value head."""

from collections.abc import Iterator
from functools import partial

import torch

from regard.bench.cases.inputs import DIM, forward, fused, without_gradients
from regard.bench.comparing import compare
from regard.bench.rows import Effort, Row, at_least

__all__ = ["NAME", "TITLE", "rows"]

NAME, TITLE = "decoding", "one token against cached keys"
SIZES = (4096, 16384, 65536)
FASTER = at_least(1.7)
_HEADS, _KV = 9, 3


def rows(effort: Effort) -> Iterator[Row]:
    """How many times as fast as SDPA; the limit is the time in which the keys and values are copied."""
    for n in SIZES:
        if n > effort.longest:
            continue
        generator = torch.Generator().manual_seed(0)
        q, k, v = (torch.randn(1, h, m, DIM, generator=generator) for h, m in ((_HEADS, 1), (_KV, n), (_KV, n)))
        both = torch.cat([k, v])
        copied = torch.empty_like(both)
        sides = {
            "regard": forward((q, k, v)),
            "sdpa": fused((q, k, v), enable_gqa=True),
            "copied": without_gradients(partial(copied.copy_, both)),
        }
        yield compare(
            effort, "decoding, 9 heads on 3", f"{n:,} keys", "SDPA's time / time", sides, over=("sdpa", "regard"),
            target=FASTER, size=n,
        )  # fmt: skip
