"""Attention of other libraries, if installed (`make bench` installs them), timed alternately with the
equivalent call.
"""

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

import regard
from regard.masks import Causal, Mask, Window
from regard_bench.cases.inputs import DIM, HEADS, forward, inputs, without_gradients
from regard_bench.comparing import compare
from regard_bench.rows import Case, Effort, Row
from regard_bench.timing import Call

__all__ = ["PEERS", "prepared"]

Made = TypeVar("Made")

WIDTH = 512
_ITS_TIME = "its time / time"


@dataclass(frozen=True)
class _Peer:
    """An attention of another library: its package, our equivalent call, and how to make its call from q, k and v."""

    name: str
    package: str
    what: str
    mask: Mask
    make: Callable[[Tensor, Tensor, Tensor], Call]


def _rows(effort: Effort) -> Iterator[Row]:
    """Yield the time of each library relative to regard's, or why it is not installed or does not run."""
    n = min(4096, effort.max_tokens)
    yield _multihead(effort, n)
    tensors = inputs(n)
    for peer in _peers():
        case, at = f"{peer.what}, against {peer.name}", f"{n:,} tokens"
        effort.progress(f"{case}: preparing")
        ours = forward(tensors, mask=peer.mask)
        theirs = prepared(peer.package, peer.name, partial(_same, peer, tensors, ours))
        if isinstance(theirs, str):
            yield Row(case, at, _ITS_TIME, why=theirs)
        else:
            yield compare(effort, case, at, _ITS_TIME, {"regard": ours, "peer": theirs}, over=("peer", "regard"))


def _same(peer: _Peer, tensors: tuple[Tensor, Tensor, Tensor], ours: Call) -> Call:
    """Return a library's call without gradients, after checking that its output equals ours."""
    call = without_gradients(peer.make(*tensors))
    error = float((_tensor(call()) - _tensor(ours())).abs().max())
    if not error < 1e-3:
        raise ValueError(f"it gives other numbers, {error:.2g} apart")
    return call


def _tensor(found: object) -> Tensor:
    """Return the output tensor of a call, which some libraries return with further values."""
    first: Tensor = found[0] if isinstance(found, tuple) else found  # type: ignore[assignment]
    return first


def _peers() -> tuple[_Peer, ...]:
    window = Causal() & Window(WIDTH)
    return (
        _Peer("x-transformers", "x_transformers", "causal", Causal(), _x_transformers),
        # Its exact window of 512 counts the token itself beside the 512 before it.
        _Peer("local-attention", "local_attention", f"window {WIDTH + 1}", Causal() & Window(WIDTH + 1), _local),
        _Peer("FlexAttention, compiled", "torch", f"window {WIDTH}", window, _flex),
        # Without CUDA natten has no kernel of its own, and calls FlexAttention as it is.
        _Peer("natten (FlexAttention, not compiled)", "natten", f"window {WIDTH}", window, _natten),
    )


def prepared(package: str, name: str, make: Callable[[], Made]) -> Made | str:
    """What `make` gives, which imports the package and tries it; or why there is nothing to measure.

    >>> prepared("no_such_package", "no-such-package", lambda: print)
    'no-such-package is not installed'
    """
    if find_spec(package) is None:
        return f"{name} is not installed"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return make()
    except Exception as problem:  # a peer that does not run here is no failure of ours
        reason = " ".join(str(problem).split()) or "no reason given"
        return f"does not run here: {type(problem).__name__}: {reason if len(reason) <= 100 else reason[:99] + '…'}"


def _multihead(effort: Effort, n: int) -> Row:
    """Return the row of the whole layer, projections included."""
    torch.manual_seed(0)
    theirs = nn.MultiheadAttention(HEADS * DIM, HEADS, batch_first=True).eval()
    ours = regard.nn.MultiHeadAttention(HEADS * DIM, HEADS).eval()
    x = torch.randn(1, n, HEADS * DIM)
    sides = {
        "regard": without_gradients(lambda: ours(x)),
        "peer": without_gradients(lambda: theirs(x, x, x, need_weights=False)),
    }
    at = f"{n:,} tokens"
    return compare(effort, "a layer, against nn.MultiheadAttention", at, _ITS_TIME, sides, over=("peer", "regard"))


def _x_transformers(q: Tensor, k: Tensor, v: Tensor) -> Call:
    from x_transformers.attend import Attend

    attend: Any = Attend(causal=True, flash=True)
    return lambda: attend(q, k, v)


def _local(q: Tensor, k: Tensor, v: Tensor) -> Call:
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


def _natten(q: Tensor, k: Tensor, v: Tensor) -> Call:
    from natten.functional import na1d

    q, k, v = (one.transpose(1, 2).contiguous() for one in (q, k, v))
    return lambda: na1d(q, k, v, kernel_size=WIDTH, is_causal=True).transpose(1, 2)


PEERS = Case("peers", "nn.MultiheadAttention, FlexAttention, x-transformers, local-attention, natten", _rows)
