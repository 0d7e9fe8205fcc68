"""Full and causal attention in bfloat16, compared with PyTorch's call: time, and error against float64."""

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention as sdpa

import regard
from regard.masks import Causal
from regard_bench.cases.inputs import HEADS, by_numba, forward, fused, inputs, products
from regard_bench.comparing import Pair, compare_all
from regard_bench.rows import Effort, Row, at_least, at_most
from regard_bench.timing import Ratio

__all__ = ["NAME", "TITLE", "rows"]

NAME, TITLE = "bf16", "full and causal, bfloat16"
SIZES = (512, 2048, 4096, 8192)
FASTER, ERROR, EXACT = at_least(2.0), at_most(2.2), at_most(1.5)
_JUDGED = 2048  # the error is counted up to here: float64 holds all weights


def rows(effort: Effort) -> Iterator[Row]:
    """Yield the speed relative to SDPA, and the error relative to SDPA's."""
    for causal in (False, True):
        name = f"{'causal' if causal else 'full'}, bfloat16"
        for n in SIZES:
            if n > effort.max_tokens:
                continue
            q, k, v = inputs(n, dtype=torch.bfloat16)
            mask = Causal() if causal else None
            sides = {"regard": forward((q, k, v), mask=mask), **by_numba((q, k, v), mask=mask)}
            limit = products(HEADS * n * n // (2 if causal else 1), q.dtype)
            sides |= {"sdpa": fused((q, k, v), is_causal=causal), "limit": limit}
            pairs = {"SDPA's time / time": Pair(("sdpa", "regard"), FASTER)}
            if "numba" in sides:
                pairs["SDPA's time / numba's"] = Pair(("sdpa", "numba"), FASTER)
            at = f"{n:,} tokens"
            yield from compare_all(effort, name, at, pairs, sides, size=n)
            if n > _JUDGED:
                continue
            for backend, what, target in (
                ("auto", "error / SDPA's", ERROR),
                ("numba", "numba's error / SDPA's", EXACT),
            ):
                if backend == "auto" or "numba" in sides:
                    times = _error(q, k, v, causal=causal, backend=backend)
                    yield Row(name, at, what, Ratio(times, times, times, 1), target)


def _error(q: Tensor, k: Tensor, v: Tensor, *, causal: bool, backend: str) -> float:
    """Return the root mean square error against float64, relative to SDPA's."""
    mask = Causal() if causal else None
    with torch.inference_mode():
        exact = sdpa(q.double(), k.double(), v.double(), is_causal=causal)
        ours, theirs = (
            (one.double() - exact).square().mean().sqrt()
            for one in (regard.attention(q, k, v, mask=mask, backend=backend), sdpa(q, k, v, is_causal=causal))
        )
    return float(ours / theirs)
