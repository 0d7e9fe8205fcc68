"""The fixed cost of a call, measured on small inputs."""

from collections.abc import Iterator
from functools import partial

import torch
from torch.nn.functional import scaled_dot_product_attention

import regard
from regard.masks import Causal
from regard_bench.cases.inputs import inputs
from regard_bench.rows import Effort, Row, at_most
from regard_bench.timing import Ratio, in_turn

__all__ = ["NAME", "TITLE", "rows"]

NAME, TITLE = "small", "small calls"
ABOVE = at_most(15.0)  # microseconds


def rows(effort: Effort) -> Iterator[Row]:
    """Yield the microseconds above a bare SDPA call, for 8 heads and 16 tokens."""
    q, k, v = inputs(16)
    mask = Causal()
    for causal in (False, True):
        ours = partial(regard.attention, q, k, v, mask=mask if causal else None)
        theirs = partial(scaled_dot_product_attention, q, k, v, is_causal=causal)
        effort.progress(f"small calls, {'causal' if causal else 'full'}")
        with torch.inference_mode():
            times = in_turn({"regard": ours, "sdpa": theirs}, max_seconds=effort.max_seconds)
        more = times.difference("regard", "sdpa")
        above = Ratio(1e6 * more.median, 1e6 * more.low, 1e6 * more.high, more.rounds)
        seconds = tuple((name, times.median(name)) for name in ("regard", "sdpa"))
        name = f"small calls, {'causal' if causal else 'full'}"
        yield Row(name, "16 tokens", "above SDPA", above, ABOVE, unit="µs", seconds=seconds)
