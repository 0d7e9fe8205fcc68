"""Weights that a linear layer makes of each position itself, as outlook attention does: no queries, no keys.

A layer's features are cut into matrices, as many queries as keys, and a softmax over them weighs the values of a
window around the position. So each position is a window of its own, with so many heads. A router's features are not
cut into matrices, and a pooling's weights are one row.
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
    """Follows the features of linear layers: "f" in a layout is a dimension cut from them, "b" any other."""

    def __init__(self) -> None:
        self._layouts = WeakIdKeyDictionary()

    def carry(self, call: TorchCall, tensors: list[Tensor], result: Tensor, *, learned: bool) -> None:
        """Take note of one call."""
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
        """The layout of weights for a softmax over these features, if they are matrices of a window's own positions."""
        layout: Layout | None = self._layouts.get(scores)
        last = scores.ndim - 1
        if layout is None or not layout.endswith("ff") or dim not in (-1, last) or scores.shape[-1] < 2:
            return None
        if scores.shape[-1] != scores.shape[-2] or "b" not in layout:
            return None
        return layout[:-2].replace("b", "w").replace("f", "h") + "qk"


def _cut(width: int, result: Tensor) -> Layout | None:
    """Which of the last dimensions the features were cut into; None where they do not come out even."""
    size, at = 1, result.ndim
    while size < width and at:
        at -= 1
        size *= result.shape[at]
    return "b" * at + "f" * (result.ndim - at) if size == width and at else None
