"""Read the calls of PyTorch's attention functions as problems; nothing is checked, since the model's call is as it is.

Of multi-head attention, q and k are projected again from the arguments of PyTorch's function or kernel.
"""

import contextlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import torch
from jaxtyping import Int
from torch import Tensor, nn
from torch.nn import functional

from regard.masks import Causal, Dense, Document
from regard.observe.call_kinds import CallFromQK
from regard.observe.watched_call import WatchedCall
from regard.observe.weigh import hiding
from regard.positions import DenseBias
from regard.problem import Problem
from regard.torch_private import scaled_dot_product_attention

__all__ = [
    "KERNEL",
    "Groups",
    "groups_of",
    "is_plain",
    "padded",
    "problem_of_sdpa",
    "read_encoder_layer",
    "read_functional_softmax",
    "read_native",
    "read_sdpa",
    "sdpa_arguments",
    "unpack_groups",
]


# The original function, even if it is replaced later (as by SageAttention, to call its own kernel).
KERNEL = scaled_dot_product_attention

Groups = tuple[int, int | None]  # heads that share a key head, and key heads
_Attend = Tensor | Document | None  # PyTorch's mask, or the texts of a nested batch

# The form in which a torch-function mode receives the kernel: its builtin has no signature.
_SDPA = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")


def sdpa_arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of PyTorch's kernel by name."""
    return dict(zip(_SDPA, args, strict=False)) | kwargs


def is_plain(given: Mapping[str, Any]) -> bool:
    """Return whether a kernel's call, its arguments by name, has four dimensions, and as many sequences of keys as of
    queries.
    """
    q, k = given["query"], given["key"]
    return not q.is_nested and q.ndim == k.ndim == 4 and q.shape[0] == k.shape[0] and k.shape[1] > 0


def read_sdpa(groups: Groups, arguments: dict[str, Any]) -> CallFromQK:
    """Return a call of `F.scaled_dot_product_attention` in a module with these groups as a watched call."""
    q, k, v, mask = *(arguments[name] for name in ("query", "key", "value")), arguments.get("attn_mask")
    if _is_usual(q, k, v) and (groups[1] is None or q.shape[1] != groups[1]):
        return SdpaCall(q, k, v, mask, is_causal=arguments.get("is_causal", False), scale=arguments.get("scale"))
    texts = None
    if q.is_nested:  # PyTorch has no mask for these
        (q, of_queries), (k, of_keys), (v, _) = map(padded, (q, k, v))
        texts = Document(of_keys, of_queries)
    ndim = max(q.ndim, k.ndim, v.ndim, 4 if arguments.get("enable_gqa") else 2)  # without a batch, three are heads
    q, k, v = (_narrowed(one[(None,) * (ndim - one.ndim)]) for one in (q, k, v))
    mask = None if mask is None else _narrowed(mask)
    kept = 3 if ndim > 3 else 2  # values may have a larger batch
    q = q.expand(*_broadcast(q.shape[:-kept], v.shape[:-kept]), *q.shape[-kept:])
    q, mask = unpack_groups(groups, q, k, mask)
    seen = mask if texts is None else texts
    problem = problem_of_sdpa(q, k, seen, is_causal=arguments.get("is_causal", False), scale=arguments.get("scale"))
    return CallFromQK(problem, v=_values(problem, v.detach()))


def _is_usual(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Return whether a call is (batch, heads, length, width) throughout, and computed in the types that it has."""
    if q.is_nested or k.is_nested or not q.ndim == k.ndim == v.ndim == 4 or not k.shape[1]:
        return False
    same = q.shape[0] == k.shape[0] == v.shape[0] and not q.shape[1] % k.shape[1]
    return same and _autocast_type(q.device.type) is None


class SdpaCall(CallFromQK):
    """A call of F.scaled_dot_product_attention with four dimensions, which is put in order when its rows are asked for.

    What most calls are asked for, where they stand among their keys, is read from its sizes.
    """

    def __init__(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, *, is_causal: bool, scale: float | None):
        self._given = q, k, mask, is_causal, scale
        self.batch, self.heads, self.queries, _ = q.shape
        self.keys = k.shape[2]
        self.marks, self.v = (one.detach() if one.requires_grad else one for one in (k, v))

    @cached_property
    def problem(self) -> Problem:  # type: ignore[override]
        """The call."""
        q, k, mask, is_causal, scale = self._given
        return hiding(problem_of_sdpa(q, k, mask, is_causal=is_causal, scale=scale).with_wide_parts())

    @cached_property
    def newest(self) -> int:
        """The column of the newest key."""
        _, _, mask, is_causal, _ = self._given
        if self.queries == self.keys or (mask is None and not is_causal):
            return self.keys - 1
        return min(self.queries, self.keys) - 1 if mask is None else self._last_seen(self.queries - 1)

    @property
    def device(self) -> torch.device:
        """Where q and k are."""
        return self.marks.device

    @property
    def nbytes(self) -> int:
        """The bytes of q and k."""
        return self._given[0].nbytes + self.marks.nbytes

    @property
    def place(self) -> None:
        """Nothing: no mask of PyTorch's is bound to a place."""
        return

    def _first_seen(self) -> Int[Tensor, " batch"]:
        """Return the first key that any query of each sequence sees: without a mask the first one."""
        if self._given[2] is None:
            return torch.zeros(self.batch, dtype=torch.int64, device=self.device)
        return super()._first_seen()

    def owned(self) -> "SdpaCall":
        """Return the call in memory of its own."""
        q, k, mask, is_causal, scale = self._given
        with torch.no_grad():
            mask = None if mask is None else mask.detach().clone()
            q, k = q.detach().clone(), k.detach().clone()
        return SdpaCall(q, k, k, mask, is_causal=is_causal, scale=scale).having(shift=self.shift)

    def as_heads(self, calls: Sequence[WatchedCall | None]) -> "SdpaCall | None":
        """Return several calls of the same sizes as one, with the heads of all; None if they differ in more."""
        q, k, mask, is_causal, scale = self._given
        given = [one._given for one in calls if isinstance(one, SdpaCall)]
        alike = len(given) == len(calls) and all(
            (its_q.shape, its_k.shape, its_q.dtype, its_causal, its_scale)
            == (q.shape, k.shape, q.dtype, is_causal, scale)
            and (its is mask or (its is not None and mask is not None and torch.equal(its, mask)))
            for its_q, its_k, its, its_causal, its_scale in given
        )
        if not alike or (mask is not None and mask.ndim > 2 and mask.shape[-3] > 1):
            return None
        q, k = (torch.cat(some, 1) for some in ([one[0] for one in given], [one[1] for one in given]))
        return SdpaCall(q, k, k, mask, is_causal=is_causal, scale=scale)

    def copied(self) -> Self:
        """Return the call with copies of q and k."""
        return super().copied().having(_given=())


def _broadcast(one: tuple[int, ...], other: tuple[int, ...]) -> tuple[int, ...]:
    return one if one == other else torch.broadcast_shapes(one, other)


def _narrowed(one: Tensor) -> Tensor:
    """Return a tensor in the type to which autocast casts it for the kernel."""
    narrow = _autocast_type(one.device.type) if one.is_floating_point() and one.dtype != torch.float64 else None
    return one.to(narrow or one.dtype)


def padded(nested: Tensor) -> tuple[Tensor, Tensor]:
    """Return a nested batch (batch, ..., length, width) padded, and its ids for `masks.Document`, −1 at padding."""
    lengths = torch.tensor([one.shape[-2] for one in nested.unbind()], device=nested.device)
    whole = torch.nested.to_padded_tensor(nested, 0.0)
    return whole, -(torch.arange(whole.shape[-2], device=nested.device) >= lengths[:, None]).long()


def _values(problem: Problem, v: Tensor) -> Tensor:
    """Return the values with four dimensions, in the layout of the keys."""
    if v.ndim == 3 and problem.heads == 1:
        v = v[:, None]  # (batch, length, width)
    v = v if v.ndim > 2 else v[None]
    leading = v.shape[:-3] if v.ndim > 4 else (problem.batch,)
    return v.expand(*leading, *v.shape[-3:]).reshape(math.prod(leading), *v.shape[-3:])


def problem_of_sdpa(
    q: Tensor, k: Tensor, attend: _Attend, *, is_causal: bool = False, scale: float | None = None
) -> Problem:
    """Convert q, k and a mask of PyTorch's (True or a finite number = visible) to a problem with four dimensions.

    Weights do not depend on values, so the keys are used in their place.
    """
    q, k = q.detach(), k.detach()
    leading = _broadcast(q.shape[:-3], k.shape[:-3]) if q.ndim > 3 else ()
    if q.ndim == 3:
        # Three dimensions are (batch, length, width): each batch entry has one head.
        leading = torch.broadcast_shapes(q.shape[:1], k.shape[:1])
        q, k = q[:, None], k[:, None]
        attend = attend[:, None] if isinstance(attend, Tensor) and attend.ndim == 3 else attend
    elif q.ndim == 2:
        q, k = q[None], k[None]
    heads = k.shape[-3] if q.shape[-3] == 1 else q.shape[-3]  # one head of queries is broadcast over those of keys
    q = q.expand(*leading, heads, *q.shape[-2:]).reshape(math.prod(leading), heads, *q.shape[-2:])
    k = k.expand(*leading, *k.shape[-3:]).reshape(math.prod(leading), *k.shape[-3:])
    if isinstance(attend, Tensor):
        attend = attend.detach()[(None,) * (max(4, len(leading) + 3) - attend.ndim)]
        if attend.ndim > 4:
            attend = attend.expand(*leading, *attend.shape[-3:]).reshape(math.prod(leading), *attend.shape[-3:])
    mask, bias = _mask_and_bias(q, k, attend, is_causal)
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    queries, keys = q.shape[2], k.shape[2]
    placed = None if bias is None else DenseBias(bias).resolve(queries, keys, keys - queries)
    return Problem(q, k, k, scale=scale, mask=mask, bias=placed)


def _mask_and_bias(q: Tensor, k: Tensor, attend: _Attend, is_causal: bool) -> tuple[Any, Tensor | None]:
    queries, keys = q.shape[2], k.shape[2]
    mask = Causal(align="start").bind(queries, keys) if is_causal else None
    if attend is None:
        return mask, None
    if not isinstance(attend, Tensor) or attend.dtype == torch.bool:
        dense = Dense.over(attend) if isinstance(attend, Tensor) else attend
        return (dense if mask is None else dense & Causal(align="start")).bind(queries, keys), None
    return mask, attend


def groups_of(module: nn.Module | None) -> Groups:
    """Return the groups of heads in a module of transformers."""
    groups = getattr(module, "num_key_value_groups", 1)
    return groups, _kv_heads(module, groups) if groups > 1 else None


def unpack_groups(groups: Groups, q: Tensor, k: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Undo transformers' packing, which passes the heads of a group as queries where there is a single query."""
    if groups[1] is None or q.ndim != 4 or (q.shape[1], q.shape[2], k.shape[1]) != (groups[1], *groups):
        return q, mask
    if mask is not None and mask.ndim == 4 and mask.shape[1] > 1:
        mask = mask.reshape(mask.shape[0], -1, 1, mask.shape[-1])
    return q.reshape(q.shape[0], -1, 1, q.shape[-1]), mask


def _kv_heads(module: nn.Module | None, groups: int) -> int | None:
    """Return the number of key heads; that of the configuration need not be the layer's."""
    config = getattr(module, "config", None)
    for name, shared in (("num_attention_heads", groups), ("num_key_value_heads", 1)):
        try:
            found = getattr(config, name, None)
        except RuntimeError:  # transformers refuses a key of the whole model that each layer has its own of
            found = getattr(getattr(config, "per_layer_config", {})[getattr(module, "layer_idx", 0)], name, None)
        if isinstance(found, int):
            return found // shared
    return None


# The kernels of the fast paths are builtins without a signature.
_NATIVE = (
    *("query", "key", "value", "embed_dim", "num_heads", "qkv_weight", "qkv_bias", "proj_weight", "proj_bias"),
    *("mask", "need_weights", "average_attn_weights", "mask_type"),
)
_LAYER = (
    *("src", "embed_dim", "num_heads", "qkv_weight", "qkv_bias", "proj_weight", "proj_bias", "use_gelu", "norm_first"),
    *("eps", "norm_weight_1", "norm_bias_1", "norm_weight_2", "norm_bias_2", "ffn_weight_1", "ffn_bias_1"),
    *("ffn_weight_2", "ffn_bias_2", "mask", "mask_type"),
)


@dataclass(frozen=True, eq=False)
class _Attention:
    """The parameters of nn.MultiheadAttention that determine q, k and v."""

    num_heads: int
    in_proj_bias: Tensor | None


def read_functional_softmax(given: Mapping[str, Any]) -> CallFromQK:
    """Return a call of `F.multi_head_attention_forward` that computes its weights, by its local variables: q, k and v
    are (batch · heads, length, width), and its mask is added to the scores.
    """
    heads, batch = given["num_heads"], given["bsz"]
    q, k, v = (given[name].unflatten(0, (batch, heads)) for name in "qkv")
    mask = given["attn_mask"]
    if mask is not None:
        mask = mask.unflatten(0, (batch, heads)) if len(mask) == batch * heads else mask[:, None]
    problem = problem_of_sdpa(q, k, mask)
    return CallFromQK(problem, cross=given["query"] is not given["key"], v=v.detach())


def read_native(args: tuple[Any, ...], kwargs: dict[str, Any]) -> CallFromQK:
    """Return a call of the kernel of nn.MultiheadAttention's fast path, which is self-attention, as a watched call."""
    return _of_kernel(dict(zip(_NATIVE, args, strict=False)) | kwargs, "query")


def read_encoder_layer(args: tuple[Any, ...], kwargs: dict[str, Any]) -> CallFromQK:
    """Return a call of the kernel of nn.TransformerEncoderLayer's fast path, which computes the whole layer."""
    given = dict(zip(_LAYER, args, strict=False)) | kwargs
    if given["norm_first"]:
        norm = given["norm_weight_1"], given["norm_bias_1"], given["eps"]
        given["src"] = functional.layer_norm(given["src"], (given["embed_dim"],), *norm)
    return _of_kernel(given, "src")


def _of_kernel(given: dict[str, Any], name: str) -> CallFromQK:
    """Return a kernel's call. Nonzero entries of its mask hide; its type is pairs (0), keys (1) or complete (2)."""
    x, mask = given[name], given.get("mask")
    masks: dict[str, Any] = {}
    if x.is_nested:
        x, ids = padded(x)
        masks["texts"] = Document(ids)
    elif mask is not None:
        hidden = mask.bool()
        masks = {"key_padding_mask": hidden} if given["mask_type"] == 1 else {"attn_mask": hidden}
    made = _Attention(given["num_heads"], given["qkv_bias"])
    return _seen(made, (x, x, x), given["qkv_weight"].chunk(3), masks, cross=False)


def _seen(
    made: _Attention, inputs: tuple[Tensor, Tensor, Tensor], weights: Any, masks: dict[str, Any], *, cross: bool
) -> CallFromQK:
    """Project, split into heads, and merge the masks, in which True hides."""
    biases = made.in_proj_bias.chunk(3) if made.in_proj_bias is not None else (None, None, None)
    q, k = (_heads(made, functional.linear(inputs[at], weights[at], biases[at])) for at in (0, 1))
    attend = _attend(masks)
    problem = problem_of_sdpa(q, k, attend)

    kind, narrow = q.device.type, _autocast_type(q.device.type)

    def project() -> Tensor:
        # Under the model's autocast, if enabled, since otherwise inputs and weights may differ in dtype.
        with contextlib.nullcontext() if narrow is None else torch.autocast(kind, dtype=narrow):
            return _heads(made, functional.linear(inputs[2], weights[2], biases[2]))

    return CallFromQK(problem, cross=cross, project=project)


def _autocast_type(kind: str) -> torch.dtype | None:
    casts = torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)
    return torch.get_autocast_dtype(kind) if casts else None


def _heads(made: _Attention, x: Tensor) -> Tensor:
    split: Tensor = x.unflatten(-1, (made.num_heads, -1))
    return split.transpose(1, 2)


def _attend(given: dict[str, Any]) -> _Attend:
    """Return the mask of a kernel as SDPA has it."""
    if isinstance(texts := given.get("texts"), Document):
        return texts
    padding: Tensor | None = given.get("key_padding_mask")
    mask: Tensor | None = given.get("attn_mask") if padding is None else padding[:, None, None]
    if mask is None:
        return None
    return ~mask[(None,) * (4 - mask.ndim)]
