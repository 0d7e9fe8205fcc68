"""Recognize weights that a linear layer computes for each position, as in outlook attention, which has no queries and
keys.

A layer's features are reshaped to square matrices, and a softmax over these gives the weights of the values in a
window around the position. Each position is thus a window of its own, with several heads. A router's features are not
reshaped to matrices, and a pooling's weights are a single row.
"""

from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from regard.capture.intercept.call_names import TorchCall
from regard.capture.intercept.follow_tensors import moved
from regard.capture.intercept.layout import Layout
from regard.capture.intercept.operation_kinds import CASTS, PERMUTES

__all__ = ["Features"]

_CUTS = {"view", "reshape", "unflatten"}
_SCALES = {"mul", "__mul__", "__rmul__", "div", "__truediv__", "mul_", "div_", "contiguous"} | CASTS


class Features:
    """Tracks the features of linear layers: in a layout "f" is a dimension cut from them, "b" any other."""

    def __init__(self) -> None:
        self._layouts = WeakIdKeyDictionary()

    def carry(self, call: TorchCall, tensors: list[Tensor], result: Tensor, *, learned: bool) -> None:
        """Process one call."""
        if call.name == "linear":
            if learned and result.ndim > 1:
                self._layouts[result] = "b" * (result.ndim - 1) + "f"
            return
        layout = self._layouts.get(tensors[0]) if tensors else None
        if layout is None:
            return
        one = tensors[0]
        if call.name in PERMUTES:
            self._layouts[result] = moved(layout, call, one, result)
        elif call.name in _CUTS and layout == "b" * (one.ndim - 1) + "f":
            self._layouts[result] = _cut(one.shape[-1], result)
        elif call.name in _SCALES and len(tensors) == 1:
            self._layouts[result] = layout

    def window(self, scores: Tensor, dim: object) -> Layout | None:
        """Return the layout of weights for a softmax over these features, if they are square matrices, else None."""
        layout: Layout | None = self._layouts.get(scores)
        last = scores.ndim - 1
        if layout is None or not layout.endswith("ff") or dim not in (-1, last) or scores.shape[-1] < 2:
            return None
        if scores.shape[-1] != scores.shape[-2] or "b" not in layout:
            return None
        return layout[:-2].replace("b", "w").replace("f", "h") + "qk"


def _cut(width: int, result: Tensor) -> Layout | None:
    """Return which of the last dimensions the features were reshaped to, or None if their sizes do not match."""
    size, at = 1, result.ndim
    while size < width and at:
        at -= 1
        size *= result.shape[at]
    return "b" * at + "f" * (result.ndim - at) if size == width and at else None
