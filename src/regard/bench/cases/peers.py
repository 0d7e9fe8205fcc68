"""Other people's attention, where it is installed (`pip install 'regard[peers]'`): the same call, in turn."""

from collections.abc import Callable, Iterator, Mapping
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn

import regard
from regard.bench.cases.inputs import DIM, HEADS, forward, inputs, without_gradients
from regard.bench.comparing import compare
from regard.bench.rows import Effort, Row
from regard.bench.timing import Call
from regard.masks import Causal, Window

__all__ = ["NAME", "TITLE", "rows"]

NAME, TITLE = "peers", "nn.MultiheadAttention, FlexAttention, x-transformers, local-attention, attnread"
WIDTH = 512


def rows(effort: Effort) -> Iterator[Row]:
    """How many times as long as regard each takes; what is not installed is said to be missing."""
    n = min(4096, effort.longest)
    yield _multihead(effort, n)
    tensors = inputs(n)
    causal = forward(tensors, mask=Causal())
    window = forward(tensors, mask=Causal() & Window(WIDTH))
    makers: Mapping[str, tuple[str, str, Call, Callable[..., Call]]] = {
        "x-transformers": ("x_transformers", "causal", causal, _x_transformers),
        "local-attention": ("local_attention", f"window {WIDTH}", window, _local_attention),
        "FlexAttention, compiled": ("torch", f"window {WIDTH}", window, _flex),
    }
    for name, (module, what, ours, make) in makers.items():
        at, case = f"{n:,} tokens", f"{what}, against {name}"
        if find_spec(module) is None:
            yield Row(case, at, "its time / time", why=f"{name} is not installed")
            continue
        effort.say(f"{case}: preparing")
        try:
            theirs = without_gradients(make(*tensors))
            theirs()
        except Exception as problem:  # a peer that does not run here is no failure of ours
            yield Row(case, at, "its time / time", why=f"does not run here: {type(problem).__name__}")
            continue
        yield compare(effort, case, at, "its time / time", {"regard": ours, "peer": theirs}, over=("peer", "regard"))


def _multihead(effort: Effort, n: int) -> Row:
    """The whole layer, projections included."""
    torch.manual_seed(0)
    theirs = nn.MultiheadAttention(HEADS * DIM, HEADS, batch_first=True).eval()
    ours = regard.nn.MultiHeadAttention(HEADS * DIM, HEADS).eval()
    x = torch.randn(1, n, HEADS * DIM)
    sides = {
        "regard": without_gradients(lambda: ours(x)),
        "peer": without_gradients(lambda: theirs(x, x, x, need_weights=False)),
    }
    at = f"{n:,} tokens"
    return compare(
        effort, "a layer, against nn.MultiheadAttention", at, "its time / time", sides, over=("peer", "regard")
    )


def _x_transformers(q: Tensor, k: Tensor, v: Tensor) -> Call:
    from x_transformers.attend import Attend

    attend: Any = Attend(causal=True, flash=True)
    return lambda: attend(q, k, v)


def _local_attention(q: Tensor, k: Tensor, v: Tensor) -> Call:
    """An exact window of 512, as `exact_windowsize` has it."""
    from local_attention import LocalAttention

    layer: Any = LocalAttention(
        dim=DIM, window_size=WIDTH, causal=True, look_backward=1, exact_windowsize=True, use_rotary_pos_emb=False,
        autopad=True,
    )  # fmt: skip
    return lambda: layer(q, k, v)


def _flex(q: Tensor, k: Tensor, v: Tensor) -> Call:
    from torch.nn.attention.flex_attention import flex_attention

    mask = regard.masks.to_block_mask((Causal() & Window(WIDTH)).bind(q.shape[2], k.shape[2]))
    compiled: Any = torch.compile(flex_attention)
    return lambda: compiled(q, k, v, block_mask=mask)
