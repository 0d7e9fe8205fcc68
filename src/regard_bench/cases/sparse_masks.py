"""Sparse masks: a causal window against the machine's limit and PyTorch's call, and what training with others costs."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

import torch

from regard.masks import Causal, Document, Mask, Window, bigbird, longformer
from regard_bench.cases.inputs import (
    HEADS,
    backward,
    flops,
    forward,
    forward_of_training,
    fused,
    fused_training,
    inputs,
    products,
    training,
)
from regard_bench.comparing import Pair, compare, compare_all
from regard_bench.rows import Case, Effort, Row, at_least, at_most
from regard_bench.timing import Ratio, in_turn
from regard_lab.measuring import exponent

__all__ = ["SPARSE", "WIDTH", "WINDOW"]

WIDTH = 512
_LIMIT = {torch.float32: at_most(1.25), torch.bfloat16: at_most(1.5)}
_DENSE = at_least(20.0)
_LEARNING, _PRODUCTS = at_most(1.4), 3.5  # seven products in training, of which forward attention has two
_BACKWARD, _SLOPE = at_most(3.5), at_most(1.1)
_LENGTHS = (4096, 8192, 16384)
_DOCUMENT = 512


def _window(effort: Effort) -> Iterator[Row]:
    """Forward calls; the limit are matrix products of the same useful FLOPs."""
    for n in (4096, 8192):
        if n <= effort.max_tokens:
            yield from _window_at(effort, n)


def _window_at(effort: Effort, n: int) -> Iterator[Row]:
    mask = Causal() & Window(WIDTH)
    products_count = HEADS * sum(min(WIDTH, row + 1) for row in range(n))
    for dtype, name in ((torch.float32, "float32"), (torch.bfloat16, "bfloat16")):
        q, k, v = inputs(n, dtype=dtype)
        at, case = f"{n:,} tokens", f"window {WIDTH}, {name}"
        sides = {"regard": forward((q, k, v), mask=mask)}
        pairs = {"time / limit": Pair(("regard", "limit"), _LIMIT[dtype] if n == 8192 else None)}
        work = flops(products_count, dtype)
        limited = sides | {"limit": products(products_count, dtype)}
        yield from compare_all(effort, case, at, pairs, limited, size=n, work=work)
        judged = n == 8192 and dtype == torch.bfloat16
        pairs = {"dense time / time": Pair(("dense", "regard"), _DENSE if judged else None)}
        dense = fused((q, k, v), attn_mask=mask.bind(n, n).dense())
        yield from compare_all(effort, case, at, pairs, sides | {"dense": dense}, size=n, work=work)


def _sparse(effort: Effort) -> Iterator[Row]:
    """The backward over the forward at the shortest length; the power of n of forward and backward together."""
    lengths = [n for n in _LENGTHS if n <= effort.max_tokens] or [effort.max_tokens]
    for name in _masks(lengths[0]):
        n, mask = lengths[0], _masks(lengths[0])[name]
        tensors = inputs(n)
        sides = {"forward": forward_of_training(tensors, mask=mask), "backward": backward(tensors, mask=mask)}
        case = f"{name}, training"
        yield compare(
            effort, case, f"{n:,} tokens", "backward / forward", sides, over=("backward", "forward"), target=_BACKWARD
        )
        visible = mask.bind(n, n).dense()
        pairs = {
            "dense time / time": Pair(("dense", "regard"), None),
            "time / limit": Pair(("regard", "limit"), _LEARNING),
        }
        count = round(_PRODUCTS * int(visible.expand(1, HEADS, n, n).sum()))
        sides = {"regard": training(tensors, mask=mask), "dense": fused_training(tensors, attn_mask=visible)}
        sides |= {"limit": products(count)}
        yield from compare_all(effort, case, f"{n:,} tokens", pairs, sides, work=flops(count))
        at = f"{lengths[0]:,} to {lengths[-1]:,} tokens"
        growth = Row(case, at, "power of n", target=_SLOPE, unit="")
        if len(lengths) < 2 or not effort.wants(growth):
            continue
        effort.progress(f"{case}, growth")
        times = in_turn(
            {str(n): training(inputs(n), mask=_masks(n)[name]) for n in lengths}, max_seconds=effort.max_seconds
        )
        powers = [exponent(lengths, each) for each in zip(*(times.seconds[str(n)] for n in lengths), strict=True)]
        seconds = tuple((f"{n:,}", times.median(str(n))) for n in lengths)
        yield replace(growth, ratio=Ratio.of(powers), seconds=seconds)


def _masks(n: int) -> Mapping[str, Mask]:
    lengths = torch.full((n // _DOCUMENT,), _DOCUMENT)
    return {
        "window 512": Causal() & Window(512),
        "Longformer": longformer(512, global_positions=[0]),
        "BigBird": bigbird(heads=HEADS),
        "documents of 512": Document.from_lengths(lengths),
    }


WINDOW = Case("window", "a window of 512", _window)
SPARSE = Case("sparse", "window, Longformer, BigBird and documents, training", _sparse)
