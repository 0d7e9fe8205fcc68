"""Full and causal attention against PyTorch's call, and causal training with options that its fused kernel lacks."""

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention as sdpa

import regard
from regard.masks import Causal
from regard.positions import T5Bias
from regard_bench.cases.inputs import (
    DIM,
    HEADS,
    flops,
    forward,
    fused,
    fused_training,
    inputs,
    products,
    training,
    visible_pairs,
)
from regard_bench.comparing import Pair, compare, compare_all
from regard_bench.rows import Case, Effort, Row, at_least, at_most
from regard_bench.timing import Ratio

__all__ = ["BEYOND", "BF16", "DENSE", "TRAINING"]

_SIZES = (512, 1024, 2048, 4096, 8192)
_TIME = at_most(0.8)
_BF16_SIZES = (512, 2048, 4096, 8192)
_FASTER, _ERROR = at_least(1 / 0.45), at_most(1.1)
_LEARNING = {512: None, 2048: None, 4096: at_most(0.75)}
_PRODUCTS, _LIMIT = 3.5, at_most(1.4)  # seven products in training, of which forward attention has two
_JUDGED = 2048  # the error is counted up to here: float64 holds all weights
_BEYOND = at_most(1.3)


def _dense(effort: Effort) -> Iterator[Row]:
    """Times of `regard.attention` over those of SDPA, and over matrix products of the same useful FLOPs."""
    for causal in (False, True):
        for n in _SIZES:
            if n > effort.max_tokens:
                continue
            q, k, v = inputs(n)
            count = visible_pairs(n, causal=causal)
            mask = Causal() if causal else None
            sides = {"regard": forward((q, k, v), mask=mask), "sdpa": fused((q, k, v), is_causal=causal)}
            sides |= {"limit": products(count)}
            name = f"{'causal' if causal else 'full'}, float32"
            pairs = {"time / SDPA's": Pair(("regard", "sdpa"), _TIME)}
            yield from compare_all(effort, name, f"{n:,} tokens", pairs, sides, size=n, work=flops(count))


def _bf16(effort: Effort) -> Iterator[Row]:
    """Yield the speed relative to SDPA, and the error relative to SDPA's."""
    for causal in (False, True):
        name = f"{'causal' if causal else 'full'}, bfloat16"
        for n in _BF16_SIZES:
            if n > effort.max_tokens:
                continue
            q, k, v = inputs(n, dtype=torch.bfloat16)
            mask = Causal() if causal else None
            count = visible_pairs(n, causal=causal)
            sides = {"regard": forward((q, k, v), mask=mask), "sdpa": fused((q, k, v), is_causal=causal)}
            sides |= {"limit": products(count, q.dtype)}
            pairs = {"SDPA's time / time": Pair(("sdpa", "regard"), _FASTER)}
            at = f"{n:,} tokens"
            yield from compare_all(effort, name, at, pairs, sides, size=n, work=flops(count, q.dtype))
            if n <= _JUDGED:
                times = _error(q, k, v, causal=causal)
                yield Row(name, at, "error / SDPA's", Ratio(times, times, times, 1), _ERROR)


def _error(q: Tensor, k: Tensor, v: Tensor, *, causal: bool) -> float:
    """Return the root mean square error against float64, relative to SDPA's."""
    mask = Causal() if causal else None
    with torch.inference_mode():
        exact = sdpa(q.double(), k.double(), v.double(), is_causal=causal)
        ours, theirs = (
            (one.double() - exact).square().mean().sqrt()
            for one in (regard.attention(q, k, v, mask=mask), sdpa(q, k, v, is_causal=causal))
        )
    return float(ours / theirs)


def _training(effort: Effort) -> Iterator[Row]:
    """Yield the times of forward and backward over SDPA's, and over the seven matrix products that both need."""
    for causal in (False, True):
        for n, target in _LEARNING.items():
            if n > effort.max_tokens:
                continue
            tensors = inputs(n)
            count = round(_PRODUCTS * visible_pairs(n, causal=causal))
            sides = {"regard": training(tensors, mask=Causal() if causal else None)}
            sides |= {"sdpa": fused_training(tensors, is_causal=causal)}
            sides |= {"limit": products(count)}
            pairs = {
                "time / SDPA's": Pair(("regard", "sdpa"), target if causal else None),
                "time / limit": Pair(("regard", "limit"), _LIMIT if causal and n == max(_LEARNING) else None),
            }
            name = f"{'causal' if causal else 'full'} training, float32"
            yield from compare_all(effort, name, f"{n:,} tokens", pairs, sides, size=n, work=flops(count))


def _beyond(effort: Effort) -> Iterator[Row]:
    """Yield the time of causal training with each option relative to causal training without."""
    n = min(4096, effort.max_tokens)
    tensors, mask = inputs(n), Causal()
    plain = training(tensors, mask=mask)
    table = T5Bias(torch.randn(32, HEADS, requires_grad=True), bidirectional=False)
    wide = inputs(n, value_dim=2 * DIM)
    options = {
        "dropout 0.1": training(tensors, mask=mask, dropout=0.1),
        "a T5 table that learns": training(tensors, mask=mask, bias=table),
        "values of 128": training(wide, mask=mask),  # the products alone take 1.43 times as many operations
    }
    for name, call in options.items():
        sides = {"with": call, "without": plain}
        yield compare(
            effort, f"causal, {name}", f"{n:,} tokens", "training / without", sides, over=("with", "without"),
            target=_BEYOND,
        )  # fmt: skip


DENSE = Case("dense", "full and causal, float32", _dense)
BF16 = Case("bf16", "full and causal, bfloat16", _bf16)
TRAINING = Case("training", "full and causal training, float32", _training)
BEYOND = Case("beyond", "dropout, learned bias and value width, training", _beyond)
