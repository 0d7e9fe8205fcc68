"""Full and causal attention in bfloat16, against PyTorch's own call: time, and error against float64."""

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention as sdpa

import regard
from regard.bench.cases.inputs import HEADS, forward, fused, inputs, products
from regard.bench.comparing import compare
from regard.bench.rows import Effort, Row, at_least, at_most
from regard.bench.timing import Ratio
from regard.masks import Causal

__all__ = ["NAME", "TITLE", "rows"]

NAME, TITLE = "bf16", "full and causal, bfloat16"
SIZES = (512, 2048, 4096, 8192)
FASTER, ERROR = at_least(2.0), at_most(2.2)
_JUDGED = 2048  # the error is counted up to here: float64 holds all weights


def rows(effort: Effort) -> Iterator[Row]:
    """How many times as fast as SDPA, and how many times its error."""
    for causal in (False, True):
        name = f"{'causal' if causal else 'full'}, bfloat16"
        for n in SIZES:
            if n > effort.longest:
                continue
            q, k, v = inputs(n, dtype=torch.bfloat16)
            mask = Causal() if causal else None
            ours = forward((q, k, v), mask=mask)
            limit = products(HEADS * n * n // (2 if causal else 1), q.dtype)
            sides = {"regard": ours, "sdpa": fused((q, k, v), is_causal=causal), "limit": limit}
            yield compare(
                effort, name, f"{n:,} tokens", "SDPA's time / time", sides, over=("sdpa", "regard"), target=FASTER,
                size=n,
            )  # fmt: skip
            if n <= _JUDGED:
                times = _error(q, k, v, causal=causal)
                yield Row(name, f"{n:,} tokens", "error / SDPA's", Ratio(times, times, times, 1), ERROR)


def _error(q: Tensor, k: Tensor, v: Tensor, *, causal: bool) -> float:
    """The root mean square error against float64, of SDPA's."""
    with torch.inference_mode():
        exact = sdpa(q.double(), k.double(), v.double(), is_causal=causal)
        ours, theirs = (
            (one.double() - exact).square().mean().sqrt()
            for one in (regard.attention(q, k, v, mask=Causal() if causal else None), sdpa(q, k, v, is_causal=causal))
        )
    return float(ours / theirs)
