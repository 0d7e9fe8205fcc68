"""A causal window of 512, against the machine's limit, and against a mask tensor for PyTorch's own call."""

from collections.abc import Iterator

import torch

from regard.bench.cases.inputs import HEADS, forward, fused, inputs, products
from regard.bench.comparing import compare
from regard.bench.rows import Effort, Row, at_least, at_most
from regard.masks import Causal, Window

__all__ = ["NAME", "TITLE", "rows"]

NAME, TITLE = "window", "a window of 512"
WIDTH = 512
LIMIT, DENSE = at_most(1.7), at_least(20.0)


def rows(effort: Effort) -> Iterator[Row]:
    """Forward calls; the limit are matrix products of the same useful FLOPs."""
    for n in (4096, 8192):
        if n <= effort.longest:
            yield from _at(effort, n)


def _at(effort: Effort, n: int) -> Iterator[Row]:
    mask = Causal() & Window(WIDTH)
    pairs = HEADS * sum(min(WIDTH, row + 1) for row in range(n))
    for dtype, name in ((torch.float32, "float32"), (torch.bfloat16, "bfloat16")):
        q, k, v = inputs(n, dtype=dtype)
        at = f"{n:,} tokens"
        ours, limit = forward((q, k, v), mask=mask), products(pairs, dtype)
        target = LIMIT if dtype == torch.float32 and n == 8192 else None
        sides = {"regard": ours, "limit": limit}
        case = f"window {WIDTH}, {name}"
        yield compare(effort, case, at, "time / limit", sides, over=("regard", "limit"), target=target, size=n)
        seen = mask.bind(n, n).dense()
        target = DENSE if dtype == torch.bfloat16 and n == 8192 else None
        sides = {"regard": ours, "dense": fused((q, k, v), attn_mask=seen)}
        yield compare(effort, case, at, "dense time / time", sides, over=("dense", "regard"), target=target, size=n)
