"""Full and causal attention in float32, against PyTorch's own call."""

from collections.abc import Iterator

from regard.masks import Causal
from regard_bench.cases.inputs import by_numba, forward, fused, inputs, products
from regard_bench.comparing import Pair, compare_all
from regard_bench.rows import Effort, Row, Target, at_most

__all__ = ["NAME", "TITLE", "rows"]

NAME, TITLE = "dense", "full and causal, float32"
SIZES = (512, 1024, 2048, 4096, 8192)
PARITY = at_most(1.02)
# Splitting by hand gave 1.23 and 1.07 of PyTorch's speed at these lengths.
CAUSAL: dict[int, Target] = {512: at_most(1 / 1.15), 1024: at_most(1.0)}


def rows(effort: Effort) -> Iterator[Row]:
    """Times of `regard.attention` over those of SDPA, and over matrix products of the same useful FLOPs."""
    for causal in (False, True):
        for n in SIZES:
            if n > effort.max_tokens:
                continue
            q, k, v = inputs(n)
            products_count = q.shape[1] * (n * (n + 1) // 2 if causal else n * n)
            mask = Causal() if causal else None
            sides = {"regard": forward((q, k, v), mask=mask), **by_numba((q, k, v), mask=mask)}
            sides |= {"sdpa": fused((q, k, v), is_causal=causal), "limit": products(products_count)}
            name = f"{'causal' if causal else 'full'}, float32"
            target = CAUSAL.get(n, PARITY) if causal else PARITY
            pairs = {"time / SDPA's": Pair(("regard", "sdpa"), target)}
            if "numba" in sides:
                pairs["numba's time / SDPA's"] = Pair(("numba", "sdpa"), target)
            yield from compare_all(effort, name, f"{n:,} tokens", pairs, sides, size=n)
