"""A causal window of 512, against the machine's limit, and against a mask tensor for PyTorch's own call."""

from collections.abc import Iterator

import torch

from regard.masks import Causal, Window
from regard_bench.cases.inputs import HEADS, by_numba, forward, fused, inputs, products
from regard_bench.comparing import Pair, compare_all
from regard_bench.rows import Effort, Row, at_least, at_most

__all__ = ["NAME", "TITLE", "rows"]

NAME, TITLE = "window", "a window of 512"
WIDTH = 512
LIMIT, COMPILED, DENSE = at_most(1.7), at_most(1.3), at_least(20.0)


def rows(effort: Effort) -> Iterator[Row]:
    """Forward calls; the limit are matrix products of the same useful FLOPs."""
    for n in (4096, 8192):
        if n <= effort.max_tokens:
            yield from _at(effort, n)


def _at(effort: Effort, n: int) -> Iterator[Row]:
    mask = Causal() & Window(WIDTH)
    products_count = HEADS * sum(min(WIDTH, row + 1) for row in range(n))
    for dtype, name in ((torch.float32, "float32"), (torch.bfloat16, "bfloat16")):
        q, k, v = inputs(n, dtype=dtype)
        at, case = f"{n:,} tokens", f"window {WIDTH}, {name}"
        sides = {"regard": forward((q, k, v), mask=mask), **by_numba((q, k, v), mask=mask)}
        judged = n == 8192 and dtype == torch.float32
        pairs = {"time / limit": Pair(("regard", "limit"), LIMIT if judged else None)}
        if "numba" in sides:
            pairs["numba's time / limit"] = Pair(("numba", "limit"), COMPILED if judged else None)
        yield from compare_all(effort, case, at, pairs, sides | {"limit": products(products_count, dtype)}, size=n)
        judged = n == 8192 and dtype == torch.bfloat16
        pairs = {"dense time / time": Pair(("dense", "regard"), DENSE if judged else None)}
        if "numba" in sides:
            pairs["dense time / numba's"] = Pair(("dense", "numba"), DENSE if judged else None)
        dense = fused((q, k, v), attn_mask=mask.bind(n, n).dense())
        yield from compare_all(effort, case, at, pairs, sides | {"dense": dense}, size=n)
