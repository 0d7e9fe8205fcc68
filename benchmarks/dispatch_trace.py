"""The attention that a run computes, by PyTorch's dispatcher: fused calls, and results of softmax in a product."""

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

_PRODUCTS = {"bmm", "baddbmm"}  # mm and addmm are linear layers: a softmax in them is over classes, as in CTC
_SOFTMAX = {"_softmax", "_safe_softmax", "softmax"}
# What keeps the weights weights: copies, casts, masks and views.
_KEEPS = {
    *("clone", "_to_copy", "mul", "mul_", "masked_fill", "masked_fill_", "nan_to_num", "where", "native_dropout"),
    *("view", "_unsafe_view", "reshape", "expand", "slice", "transpose", "permute", "squeeze", "unsqueeze", "t"),
    *("select", "detach", "alias", "contiguous", "copy_", "constant_pad_nd", "cat", "split", "unbind", "div"),
}


class Trace(TorchDispatchMode):
    """Follows results of softmax by their memory; `fused` counts the calls of fused attention."""

    def __init__(self) -> None:
        super().__init__()
        self.fused = 0
        self._found: list[torch.Tensor] = []
        self._used: set[int] = set()
        self._origin: dict[int, int] = {}  # by the address of a storage
        self._held: list[Any] = []  # so that no address is used twice

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one operation, and follow what it does with weights."""
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if name == "_scaled_dot_product_flash_attention_for_cpu":
            self._used.add(len(self._found))
            self._found.append(_dense(*args, **(kwargs or {})))
        elif "scaled_dot_product" in name or name == "_native_multi_head_attention":
            self.fused += 1
        elif name in _SOFTMAX and isinstance(result, torch.Tensor) and _over_keys(args, result):
            self._origin[_address(result)] = len(self._found)
            self._found.append(result.detach().clone())
            self._held.append(result)
        elif name in _PRODUCTS:
            for one in args:
                if isinstance(one, torch.Tensor) and _address(one) in self._origin:
                    self._used.add(self._origin[_address(one)])
        elif name in _KEEPS:
            self._follow(args, result)
        return result

    def _follow(self, args: Any, result: Any) -> None:
        flat = [one for part in args for one in (part if isinstance(part, list | tuple) else (part,))]
        origins = [
            self._origin[_address(one)]
            for one in flat
            if isinstance(one, torch.Tensor) and _address(one) in self._origin
        ]
        if origins:
            for one in result if isinstance(result, list | tuple) else (result,):
                if isinstance(one, torch.Tensor):
                    self._origin.setdefault(_address(one), origins[0])
                    self._held.append(one)

    def weights(self) -> list[torch.Tensor]:
        """Return the weights of all attention that was not fused, in the order of the calls."""
        return [self._found[at] for at in sorted(self._used)]


def _over_keys(args: Any, result: torch.Tensor) -> bool:
    """Return whether a softmax is over the last of at least three dimensions; over one number it says nothing."""
    dim = args[1] if len(args) > 1 else -1
    return result.ndim >= 3 and dim in (-1, result.ndim - 1) and result.shape[-1] > 1


def _dense(
    q: torch.Tensor,
    k: torch.Tensor,
    _values: torch.Tensor,
    _dropout: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: torch.Tensor | None = None,
    scale: float | None = None,
) -> torch.Tensor:
    """Return the weights of a fused call as one matrix, by its definition."""
    if k.shape[1] != q.shape[1]:
        k = k.repeat_interleave(q.shape[1] // k.shape[1], 1)
    scores = (q * (q.shape[-1] ** -0.5 if scale is None else scale)) @ k.transpose(-2, -1)
    if is_causal:
        scores = scores.masked_fill(~torch.ones(scores.shape[-2:], dtype=torch.bool).tril(), -torch.inf)
    if attn_mask is not None:
        hidden = attn_mask.dtype == torch.bool
        scores = scores.masked_fill(~attn_mask, -torch.inf) if hidden else scores + attn_mask
    return scores.softmax(-1).nan_to_num(0.0)


def _address(tensor: torch.Tensor) -> int:
    try:
        return tensor.untyped_storage().data_ptr()
    except Exception:  # a subclass without memory of its own
        return -1
