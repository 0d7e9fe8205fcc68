"""Many short sequences in one call: masks that differ by sequence, a layer, and the windows of an image (Swin).

Of 16 or 49 tokens a call computes so little that what surrounds the kernel counts: checks, masks, copies, and whether a
fused kernel is taken.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention as sdpa
from torch.utils._python_dispatch import TorchDispatchMode

import regard
from regard.masks import Padding
from regard_bench.comparing import compare
from regard_bench.rows import Case, Effort, Row, at_most
from regard_bench.timing import Call

__all__ = ["SHORT"]

_SEQUENCES = (2048, 8192)
_TOKENS, _HEADS, _DIM = 16, 2, 16
_WINDOWS = (1024, 4096)
_WINDOW_TOKENS, _WINDOW_HEADS, _WINDOW_DIM = 49, 4, 32  # 7 × 7 patches, Swin (Liu et al. 2021, arXiv:2103.14030)
_MASKED, _LAYER_TRAINING, _LAYER_INFERENCE = at_most(1.3), at_most(1.3), at_most(1.5)
_BIASED, _BIASED_TRAINING = at_most(1.05), at_most(0.8)
_OVER_SDPA, _OVER_LAYER = "time / SDPA's", "time / PyTorch's"


def _rows(effort: Effort) -> Iterator[Row]:
    for sequences in _SEQUENCES:
        yield from _masked(effort, sequences)
    for sequences in _SEQUENCES:
        yield from _layer(effort, sequences)
    for windows in _WINDOWS:
        yield from _windows(effort, windows)


def _masked(effort: Effort, sequences: int) -> Iterator[Row]:
    """Yield the times with a mask for each sequence over those of SDPA with the same mask as a tensor: a matrix, and a
    padding mask that is made anew in each call, as for each batch of a training.

    SDPA has the row of keys of a padding mask, which it broadcasts: it takes less time than with the matrix.
    """
    q, k, v = _tensors(sequences, _HEADS, _TOKENS, _DIM)
    tokens = _random_tokens(sequences)
    row = tokens[:, None, None]
    matrix = row.expand(-1, 1, _TOKENS, -1).contiguous()
    calls: dict[str, tuple[Call, Call]] = {
        "boolean mask": (
            lambda: regard.attention(q, k, v, mask=matrix),
            lambda: sdpa(q, k, v, attn_mask=matrix),
        ),
        "new padding": (
            lambda: regard.attention(q, k, v, mask=Padding(tokens)),
            lambda: sdpa(q, k, v, attn_mask=row),
        ),
    }
    for name, (ours, theirs) in calls.items():
        sides = {"regard": _without_gradients(ours), "sdpa": _without_gradients(theirs)}
        yield compare(
            effort, f"{_TOKENS} tokens, {name}", f"{sequences:,} sequences", _OVER_SDPA, sides, over=("regard", "sdpa"),
            target=_MASKED,
        )  # fmt: skip


def _layer(effort: Effort, sequences: int) -> Iterator[Row]:
    """Yield the times of a layer over those of PyTorch's with the same weights: in training, and in inference, for
    which PyTorch's has a fast path in one operator.
    """
    torch.manual_seed(0)
    theirs = nn.MultiheadAttention(_HEADS * _DIM, _HEADS, batch_first=True)
    ours = regard.nn.MultiHeadAttention.from_torch(theirs)
    x = torch.randn(sequences, _TOKENS, _HEADS * _DIM)
    padding, at = ~_random_tokens(sequences), f"{sequences:,} sequences"
    over = ("regard", "peer")

    learned = x.clone().requires_grad_()
    sides = {
        "regard": _with_gradients(lambda: ours(learned, key_padding_mask=padding), learned, *ours.parameters()),
        "peer": _with_gradients(
            lambda: theirs(learned, learned, learned, key_padding_mask=padding, need_weights=False)[0],
            learned, *theirs.parameters(),
        ),
    }  # fmt: skip
    case = f"a layer over {_TOKENS} tokens"
    yield compare(effort, f"{case}, training", at, _OVER_LAYER, sides, over=over, target=_LAYER_TRAINING)

    ours.eval()
    theirs.eval()
    sides = {
        "regard": _without_gradients(lambda: ours(x, key_padding_mask=padding)),
        "peer": _without_gradients(lambda: theirs(x, x, x, key_padding_mask=padding, need_weights=False)[0]),
    }
    if _takes_fast_path(sides["peer"]):
        yield compare(effort, f"{case}, inference", at, _OVER_LAYER, sides, over=over, target=_LAYER_INFERENCE)
    else:
        why = "nn.MultiheadAttention does not take its fast path here"
        yield Row(f"{case}, inference", at, _OVER_LAYER, target=_LAYER_INFERENCE, why=why)


def _windows(effort: Effort, windows: int) -> Iterator[Row]:
    """Yield the times with a bias that learns over those of SDPA with the bias as its mask: forward, and in training.

    Given a parameter, SDPA leaves its fused kernel even without gradients. Its forward call gets `bias.detach()`, with
    which it keeps that kernel: ours gets the parameter, as it is in a model.
    """
    tensors = _tensors(windows, _WINDOW_HEADS, _WINDOW_TOKENS, _WINDOW_DIM)
    q, k, v = tensors
    bias = nn.Parameter(torch.randn(1, _WINDOW_HEADS, _WINDOW_TOKENS, _WINDOW_TOKENS))
    detached = bias.detach()
    case, at, over = f"windows of {_WINDOW_TOKENS}, a bias that learns", f"{windows:,} windows", ("regard", "sdpa")
    sides = {
        "regard": _without_gradients(lambda: regard.attention(q, k, v, bias=bias)),
        "sdpa": _without_gradients(lambda: sdpa(q, k, v, attn_mask=detached)),
    }
    yield compare(effort, case, at, _OVER_SDPA, sides, over=over, target=_BIASED)

    q, k, v = leaves = tuple(tensor.detach().requires_grad_() for tensor in tensors)
    sides = {
        "regard": _with_gradients(lambda: regard.attention(q, k, v, bias=bias), *leaves, bias),
        "sdpa": _with_gradients(lambda: sdpa(q, k, v, attn_mask=bias), *leaves, bias),
    }
    yield compare(effort, f"{case}, training", at, _OVER_SDPA, sides, over=over, target=_BIASED_TRAINING)


def _tensors(batch: int, heads: int, n: int, dim: int) -> tuple[Float[Tensor, "batch heads n dim"], ...]:
    """Return q, k and v."""
    generator = torch.Generator().manual_seed(0)
    return tuple(torch.randn(batch, heads, n, dim, generator=generator) for _ in range(3))


def _random_tokens(sequences: int) -> Bool[Tensor, "sequences tokens"]:
    """Return which keys are tokens: the first of each sequence, one at least."""
    lengths = torch.randint(1, _TOKENS + 1, (sequences, 1), generator=torch.Generator().manual_seed(0))
    return torch.arange(_TOKENS) < lengths


def _without_gradients(call: Call) -> Call:
    """Return the call under `no_grad`, as a model is evaluated."""
    return torch.no_grad()(call)


def _with_gradients(call: Callable[[], Tensor], *leaves: Tensor) -> Call:
    """Return the call followed by its backward, to the gradients of the leaves."""
    up = torch.randn(call().shape, generator=torch.Generator().manual_seed(0))
    return lambda: torch.autograd.grad(call(), leaves, up)


class _Operators(TorchDispatchMode):
    """Records the operators that run."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.add(func.name())
        return func(*args, **(kwargs or {}))


def _takes_fast_path(call: Call) -> bool:
    """Return whether a call of nn.MultiheadAttention runs as the one operator of its fast path."""
    with _Operators() as operators:
        call()
    return "aten::_native_multi_head_attention" in operators.names


SHORT = Case("short", "many short sequences with masks, a layer, a bias that learns", _rows)
