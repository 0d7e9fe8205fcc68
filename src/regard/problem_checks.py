"""What `Problem.of` checks of the arguments of one call; every error names the rule, the value and the way out."""

import math
from dataclasses import is_dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from regard.errors import InputError
from regard.masks import BoundMask, Dense, Mask
from regard.masks.causal_and_window import band_of
from regard.masks.random_blocks import draws_blocks
from regard.normalizers import Normalizer
from regard.positions import Bias, DenseBias, Rotary
from regard.positions.base import with_leading
from regard.scores import Score
from regard.tensors import AUTOCAST_TYPES, has_numbers, is_autocast
from regard.torch_private import holds, is_batchedtensor
from regard.values import tensors

__all__ = [
    "Sizes",
    "bind",
    "check_bias",
    "check_kinds",
    "check_parts",
    "check_scale",
    "check_shapes",
    "four_dimensional",
    "learns",
]


class Sizes(NamedTuple):
    """The sizes of a call, and the type and device of its queries."""

    batch: int
    heads: int
    queries: int
    keys: int
    dtype: torch.dtype
    device: torch.device

    @property
    def is_empty(self) -> bool:
        """Whether there is no pair: no sequence, head, query or key."""
        return 0 in self[:4]


def check_kinds(q: Tensor, k: Tensor, v: Tensor) -> torch.dtype:
    """Raise unless q, k and v are dense, on one device and of one type, or types of autocast; return the widest."""
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        if not isinstance(tensor, Tensor):
            raise InputError(f"`{name}` must be a tensor, got {type(tensor).__name__}")
        if tensor.layout not in (torch.strided, torch.jagged):
            raise InputError(f"`{name}` must be dense, got the layout {tensor.layout}: call {name}.to_dense()")
    if any(one.is_nested for one in (q, k, v)):
        raise InputError("q, k and v must not be nested here: pass what q.values() gives, and masks.Document")
    if q.is_floating_point() and q.element_size() < 2:
        raise InputError(f"`q` must be float16, bfloat16 or wider, got {q.dtype}: convert it with q.to(torch.bfloat16)")
    if not q.is_floating_point():
        raise InputError(f"`q` must be of a floating-point type, got {q.dtype}: convert it with q.float()")
    kinds = {q.dtype, k.dtype, v.dtype}
    if len(kinds) > 1 and not (kinds <= AUTOCAST_TYPES and is_autocast(q.device)):
        raise InputError(f"q, k and v must have one dtype, got {q.dtype}, {k.dtype} and {v.dtype}: convert with .to()")
    if not q.device == k.device == v.device:
        devices = f"{q.device}, {k.device} and {v.device}"
        raise InputError(f"q, k and v must be on one device, got {devices}: move with .to()")
    return q.dtype if len(kinds) == 1 else torch.float32


def check_shapes(q: Tensor, k: Tensor, v: Tensor) -> None:
    """Raise unless the shapes of q, k and v fit each other."""
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        four_dimensional(name, tensor)
        if tensor.shape[-1] == 0:
            raise InputError(f"`{name}` must have a width of at least 1, got {_shapes(q, k, v)}")
    if not q.ndim == k.ndim == v.ndim:
        raise InputError(f"q, k and v must have equally many dimensions, got {_shapes(q, k, v)}: add some with x[None]")
    if v.shape[-2] != k.shape[-2]:
        raise InputError(
            f"`v` must have a value for each of {k.shape[-2]} keys, got {v.shape[-2]} in {_shapes(q, k, v)}"
        )
    batch = slice(0, -3) if q.ndim >= 4 else slice(0, -2)
    if not q.shape[batch] == k.shape[batch] == v.shape[batch]:
        raise InputError(f"q, k and v must have the same batch, got {_shapes(q, k, v)}: repeat with x.expand(...)")
    if q.ndim >= 4:
        heads, kv_heads = q.shape[-3], k.shape[-3]
        if v.shape[-3] != kv_heads:
            raise InputError(
                f"`v` must have as many heads as `k` ({kv_heads}), got {v.shape[-3]} in {_shapes(q, k, v)}"
            )
        if heads % kv_heads if kv_heads else heads:
            raise InputError(
                f"the heads of `q` must be a multiple of those of `k` (grouped queries), got {heads} and {kv_heads}"
            )


def _shapes(q: Tensor, k: Tensor, v: Tensor) -> str:
    return f"q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}"


def check_parts(score: Score, normalizer: Normalizer, rotary: Rotary | None) -> None:
    """Raise unless score, normalizer and rotary are values of their roles."""
    for name, part in (("score", score), ("normalizer", normalizer)):
        _check_is_value(name, part)
    if not isinstance(score, Score):
        raise InputError(f"`score` must be a score of regard.scores, such as scores.ScaledDot(), got {_named(score)}")
    if not isinstance(normalizer, Normalizer):
        raise InputError(f"`normalizer` must be one of regard.normalizers, such as Softmax(), got {_named(normalizer)}")
    if rotary is not None and not isinstance(rotary, Rotary):
        raise InputError(
            f"`rotary` must be a rotary embedding of regard.positions, such as RoPE(64), got {_named(rotary)}"
        )


def _named(value: object) -> str:
    """What was given, in a word; a class that wants to be called is the most usual mistake."""
    if isinstance(value, type):
        return f"the class {value.__name__}: write {value.__name__}(...)"
    return f"{value!r}" if isinstance(value, str | int | float) else type(value).__name__


def _check_is_value(name: str, part: object) -> None:
    """Tensors are found in the fields of a dataclass; elsewhere they would lose their gradients in silence."""
    if isinstance(part, Score | Normalizer | Bias) and not is_dataclass(part):
        raise InputError(
            f"`{name}` must be a frozen dataclass, so that the tensors in its fields are found, got "
            f"{type(part).__name__}: write @dataclass(frozen=True, eq=False) above the class"
        )


def check_scale(scale: float) -> float:
    """Give a scale as a float; raise unless it is a finite number."""
    if isinstance(scale, bool) or not isinstance(scale, int | float):
        raise InputError(
            f"`scale` must be a number, got {type(scale).__name__}: to learn one, multiply it into q and pass scale=1.0"
        )
    if not abs(scale) < math.inf:  # not math.isfinite, which a compiler cannot ask of a symbol
        raise InputError(f"`scale` must be a finite number, got {scale}")
    return float(scale)


def _way(mask: object) -> str:
    return ": pass masks.MaskMod(rule), with rule(batch, head, i, j)" * (callable(mask) and not isinstance(mask, type))


def bind(mask: Mask | BoundMask | Tensor, call: Sizes, *, learned: bool) -> BoundMask:
    """Give the mask of a call, bound to its place and probed; `learned`: a backward may have to find it again."""
    if isinstance(mask, Tensor):
        _check_meaning(mask, call)
        mask = Dense(mask) if learned else Dense.over(mask)  # says the way out for integers and floats
    if not isinstance(mask, Mask | BoundMask):
        raise InputError(f"`mask` must be a mask of regard.masks or a boolean tensor, got {_named(mask)}{_way(mask)}")
    if torch.compiler.is_compiling() and draws_blocks(mask):
        queries, keys = call.queries, call.keys
        assert isinstance(mask, Mask)
        return BoundMask(mask, queries, keys, keys - queries, given=mask)  # for an operator, which binds it
    bound = mask if isinstance(mask, BoundMask) else mask.bind(call.queries, call.keys)
    if not torch.compiler.is_compiling() and bound.given.identity() is None:
        bound = replace(bound)
        vars(bound).setdefault("of_this_call", {})  # what may change is planned for anew in the next one
    if (bound.q_len, bound.kv_len) != (call.queries, call.keys):
        raise InputError(
            f"the mask is bound to {bound.q_len} queries and {bound.kv_len} keys, but q has {call.queries} and k "
            f"has {call.keys}: bind it to these"
        )
    sizes = bound.mask.leading
    if any(1 != size != want for size, want in zip(sizes, (call.batch, call.heads), strict=True)):
        raise InputError(
            f"the mask is for batch {sizes[0]} and heads {sizes[1]}, but q has batch {call.batch} and heads "
            f"{call.heads}: give it a size of 1 where all are alike"
        )
    if not call.is_empty and not torch.compiler.is_dynamo_compiling():  # one pair is no part of a graph
        _probe(bound, call.device)
    return bound


def _check_meaning(mask: Tensor, call: Sizes) -> None:
    """Refuse a boolean tensor of two dimensions that may as well be flags of tokens: it would hide other pairs."""
    if mask.dtype != torch.bool or mask.ndim != 2 or mask.shape[0] == 1 or not holds(mask.shape[0] == call.batch):
        return
    raise InputError(
        f"a boolean mask of shape {tuple(mask.shape)} may be (queries, keys) or, as q has a batch of {call.batch}, "
        "(batch, keys): write mask[None, None] for a matrix, masks.Padding(mask) for flags of tokens"
    )


def learns(*parts: object) -> bool:
    """Whether a backward may follow, which has to find the mask as the forward did."""
    return torch.is_grad_enabled() and any(one.requires_grad for one in tensors(parts))


def _probe(bound: BoundMask, device: torch.device) -> None:
    """Ask for one pair: a mask that cannot answer for it fails here rather than in a backend."""
    if band_of(bound.mask) is not None:
        return  # a band is two numbers, in which nothing can be wrong
    try:
        pair = bound.tile(slice(0, 1), slice(0, 1), device=device)
    except InputError:
        raise
    except Exception as trouble:  # whatever a rule of one's own may raise
        if isinstance(trouble, RuntimeError) and "device" in str(trouble):
            raise InputError(f"`mask` must be on the device of q ({device}): move its tensors with .to()") from trouble
        if torch.compiler.is_compiling():
            raise
        raise InputError(
            "`mask` must answer mask(batch, head, i, j) with a boolean tensor, broadcast from these four integer "
            f"tensors, and fails: {trouble}"
        ) from trouble
    if pair.device != device:
        raise InputError(
            f"`mask` must be on the device of q ({device}), got {pair.device}: move its tensors with .to()"
        )
    if pair.dtype != torch.bool:
        raise InputError(f"`mask` must give booleans, got {pair.dtype}")


def check_bias(name: str, bias: Bias | Tensor | None, call: Sizes, q_offset: int) -> Bias | None:
    """Give a bias or weight factor in order, with its `leading`; raise unless it fits the call."""
    if bias is None:
        return None
    if isinstance(bias, Tensor):
        whole = DenseBias(bias)
        if name == "bias" and _looks_like_a_mask(bias):
            raise InputError(
                "`bias` holds only zeros and ones and is added to the scores, which hides nothing: pass "
                "mask=masks.from_attention_mask(...) to hide, or bias.requires_grad_() if it is a bias to be learned"
            )
        # In the type of the sums, where it is not the queries': a narrower one would round it.
        wide = torch.promote_types(call.dtype, torch.float32)
        bias = whole if bias.dtype in (call.dtype, wide) else DenseBias(bias.to(wide))
    if isinstance(bias, type) or not isinstance(bias, Bias):
        raise InputError(
            f"`{name}` must be a tensor or a bias of regard.positions, such as ALiBi(num_heads=8), got {_named(bias)}"
        )
    _check_is_value(name, bias)
    if bias.role not in (None, name):
        kind, does = (
            type(bias).__name__,
            {"bias": "is added to the scores", "weight_factor": "multiplies the weights"}[bias.role],
        )
        raise InputError(f"`{name}` cannot be {kind}, which {does}: pass it as `{bias.role}=`")
    bias = bias.resolve(call.queries, call.keys, q_offset)
    for one in tensors(bias):
        if one.device != call.device:
            raise InputError(f"`{name}` must be on the device of q ({call.device}), got {one.device}")
    if not call.is_empty:
        i, j = (torch.arange(1, device=call.device) + position for position in (q_offset, 0))
        bias = with_leading(bias, call.batch, call.heads, i, j)
    if any(1 != size != want for size, want in zip(bias.leading, (call.batch, call.heads), strict=True)):
        raise InputError(
            f"`{name}` must broadcast to batch {call.batch} and heads {call.heads}, got batch {bias.leading[0]} "
            f"and heads {bias.leading[1]}"
        )
    return bias


def _looks_like_a_mask(bias: Tensor) -> bool:
    """A float mask of zeros and ones passed as bias; only looked for on CPU, where looking does not stall a device."""
    if (
        not has_numbers(bias)
        or bias.requires_grad
        or bias.device.type != "cpu"
        or torch.compiler.is_compiling()
        or is_batchedtensor(bias)
    ):
        return False  # under vmap no value can be looked at
    sample = bias.flatten()[:64] if bias.is_contiguous() else bias[..., :64]
    if not bool(((sample == 0) | (sample == 1)).all()):
        return False
    return bool(((bias == 0) | (bias == 1)).all()) and bool((bias == 1).any()) and bool((bias == 0).any())


def four_dimensional(name: str, tensor: Tensor) -> Tensor:
    """View (n, d), (batch, n, d) or (..., heads, n, d) as (batch, heads, n, d).

    >>> import torch
    >>> four_dimensional("q", torch.zeros(5, 8)).shape
    torch.Size([1, 1, 5, 8])
    >>> four_dimensional("q", torch.zeros(2, 3, 4, 5, 8)).shape
    torch.Size([6, 4, 5, 8])
    """
    if tensor.ndim < 2:
        raise InputError(
            f"`{name}` must be (length, width), (batch, length, width) or (batch, heads, length, width), got shape "
            f"{tuple(tensor.shape)}"
        )
    if tensor.ndim == 2:
        return tensor[None, None]
    if tensor.ndim == 3:
        return tensor[:, None]
    return tensor if tensor.ndim == 4 else tensor.flatten(0, -4)
