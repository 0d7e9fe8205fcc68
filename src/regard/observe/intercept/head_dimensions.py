"""Which dimensions of activations are heads or features, and which are positions.

The scores of queries (batch, positions, heads, width) and keys without heads (batch, positions, width) are (batch,
query, head, key), whose sizes do not show which dimension is that of the queries. What a view has cut from the features
of a layer is none. A dimension that both have, besides batch and heads, is one of queries that have keys of their own,
and a product of two dimensions of features is one of channels.

In outlook attention, which has no queries and keys, a linear layer computes weights for each position: its features are
reshaped to square matrices, and a softmax over these gives the weights of the values in a window around the position.
Each position is thus a window of its own, with several heads. A router's features are not reshaped to matrices, and a
pooling's weights are a single row.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from regard.observe.intercept.call_names_and_products import Layout, Product, TorchCall, read_product
from regard.observe.intercept.layouts import moved, permuted, product_layout
from regard.observe.intercept.operation_kinds import CASTS, JOINS, LINEAR, PARTS, PERMUTES, PRODUCTS, VIEWS
from regard.record.missing_attention import CHANNELS, OWN_KEYS

__all__ = ["Features", "Heads", "Merged", "place"]

_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVW"


def place(
    labels: tuple[str, ...], letters: Mapping[str, str], result: Tensor, *, single: bool = False
) -> tuple[Layout | None, str | None]:
    """Return the layout of scores with these labels of queries, keys and pairs, and why they cannot be shown as queries
    × keys, or None; `letters` are those of `Heads` by label, and `single` means that a dimension of one query was
    inserted.
    """
    left, right, out = labels
    layout = product_layout(result, labels, letters)
    if layout is None:
        return None, None
    ends = [letters.get(out[layout.index(one)], "b") for one in "qk" if one in layout]
    if ends == ["f", "f"] and result.shape[layout.index("k")] > 1:
        return layout, CHANNELS
    shared = [at for at, one in enumerate(out) if one in left and one in right and letters.get(one, "b") == "b"]
    own = (single or len(ends) < 2) and any(result.shape[at] > 1 for at in shared[1:])  # besides the batch
    return layout, OWN_KEYS if own else None


class Heads:
    """Tracks what each dimension of an activation is: "f" the features that a layer computed, "h" a dimension that a
    view cut from them (heads, groups, q, k and v) or that only the layer's weight has, "b" any other, as positions.
    """

    def __init__(self, is_learned: Callable[[Tensor], bool]) -> None:
        self._is_learned = is_learned
        self._layouts = WeakIdKeyDictionary()

    def of(self, one: Tensor) -> Layout:
        """Return a letter for each dimension."""
        found: Layout = self._layouts.get(one, "")
        return found if len(found) == one.ndim else "b" * one.ndim  # `unsqueeze_` and the like change it in place

    def scores(
        self, product: Product, new: tuple[Collection[int], Collection[int]], result: Tensor
    ) -> tuple[Layout | None, str | None]:
        """Return the layout of the product of queries and keys, and why it cannot be shown, as `place` does; `new` are
        the dimensions inserted into either, counted from the end.
        """
        left, right = product.factors
        labels = product.labels or matmul_labels(left, right, new)
        if labels is None:
            return product_layout(result, None), None
        letters: dict[str, str] = {}
        for one, names, own in zip((left, right), labels, new, strict=False):
            for at, (name, letter) in enumerate(zip(names, self.of(one), strict=True), -one.ndim):
                inserted = "i" if at in own and one.shape[at] == 1 else "b"
                letters[name] = max(letters.get(name, "b"), letter, inserted, key="bihf".index)
        return place(labels, letters, result, single=product.labels is None and (-2 in new[0] or -1 in new[1]))

    def carry(self, call: TorchCall, tensors: list[Tensor], results: list[Tensor]) -> None:
        """Process one call."""
        if call.name in PRODUCTS or (call.name in LINEAR and call.name != "embedding"):
            self._project(call, results[0])
            return
        known = [one for one in tensors if one in self._layouts]
        one = next((one for one in known if one.shape == results[0].shape), known[0] if known else None)
        if one is None:
            if call.name in _GIVES_FEATURES and results[0].ndim > 1:
                self._layouts[results[0]] = "b" * (results[0].ndim - 1) + "f"
            return
        for result in results:
            layout = self._moved(self.of(one), call, one, result)
            if layout is not None and len(tensors) > 1 and call.name not in JOINS:  # broadcast: the other's entries
                layout = _without_broadcast(layout, one, result)
            if layout is not None and len(layout) == result.ndim:
                self._layouts[result] = layout

    def _project(self, call: TorchCall, result: Tensor) -> None:
        """Process a layer: what only its weight has are features, and before them heads."""
        if call.name.startswith("conv") and result.ndim > 2:
            self._layouts[result] = f"{'b' * (result.ndim - 1 - int(call.name[-2]))}f{'b' * int(call.name[-2])}"
        product = read_product(call)
        if product is None or len(product.factors) != 2:
            return
        learned = [self._is_learned(one) for one in product.factors]
        labels = product.labels or matmul_labels(*product.factors)
        if sum(learned) != 1 or labels is None or len(labels[2]) != result.ndim:
            return
        at = learned.index(False)
        letters = dict(zip(labels[at], self.of(product.factors[at]), strict=True))
        own = [one for one in labels[2] if one not in letters]
        letters |= {one: "f" if one == own[-1] else "h" for one in own}
        self._layouts[result] = "".join(letters[one] for one in labels[2])

    def _moved(self, layout: Layout, call: TorchCall, one: Tensor, result: Tensor) -> Layout | None:
        if call.name == "view_as_complex":
            return f"{layout[:-2]}f"
        if call.name == "view_as_real":
            return f"{layout}f"
        if call.name == "unbind":
            at = (call.dim() or 0) % one.ndim
            return layout[:at] + layout[at + 1 :]
        if call.name == "stack" and len(call.tensors) > 1:  # heads with layers of their own
            at = (call.dim() or 0) % result.ndim
            return f"{layout[:at]}h{layout[at:]}"
        if (call.name in PARTS or call.name in JOINS) and result.ndim == one.ndim:
            return layout
        if call.name in VIEWS or call.name == "flatten":
            return _regrouped(layout, one.shape, result.shape)
        return moved(layout, call, one, result)


def matmul_labels(
    left: Tensor, right: Tensor, new: tuple[Collection[int], Collection[int]] = ((), ())
) -> tuple[str, str, str] | None:
    """Return labels of a matmul of two factors with at least two dimensions each; leading dimensions that only one of
    them has, as for `pair_labels`, get their own label.

    >>> import torch
    >>> matmul_labels(torch.empty(2, 5, 4, 3), torch.empty(2, 1, 3, 5))
    ('ABYX', 'AbXZ', 'ABYZ')
    """
    ndim = max(left.ndim, right.ndim) - 2
    if ndim > 20:
        return None
    sides = []
    for one, other, (own, others) in ((left, right, new), (right, left, new[::-1])):
        letters = list(_LETTERS[ndim + 2 - one.ndim : ndim])
        for at in range(-one.ndim, -2):
            size = other.shape[at] if -at <= other.ndim else 2
            if one.shape[at] == 1 and (size > 1 or (at in own and at not in others)):
                letters[at + 2] = letters[at + 2].lower()
        sides.append("".join(letters))
    return f"{sides[0]}YX", f"{sides[1]}XZ", f"{_LETTERS[:ndim]}YZ"


class Merged:
    """Records which (batch, heads) were merged to one dimension, as bmm requires, and which dimension that is."""

    def __init__(self) -> None:
        self._whole = WeakIdKeyDictionary()

    def carry(self, tensors: Iterable[Tensor], results: Iterable[Tensor], call: TorchCall | None = None) -> None:
        """Process the results of one call on these tensors."""
        for one in tensors:
            for result in results:
                if result.ndim in (3, 4) and (found := self._after(call, one, result)) is not None:
                    self._whole[result] = found

    def _after(self, call: TorchCall | None, one: Tensor, result: Tensor) -> tuple[tuple[int, int], int] | None:
        before, after = tuple(one.shape), tuple(result.shape)
        if one in self._whole:
            whole, at = self._whole[one]
            if call is not None and call.name in PERMUTES and call.args and call.args[0] is one:
                marked = "".join("m" if at == place else "b" for place in range(one.ndim))
                at = (permuted(marked, call.func, call.args, call.kwargs) or "").find("m")
            else:
                at += len(after) - len(before)
            return (whole, at) if 0 <= at < len(after) and after[at] == whole[0] * whole[1] else None
        if len(before) == len(after) + 1:  # (…, batch, heads, positions, width)
            at = len(before) - 4
            merged = at >= 0 and after == (*before[:at], before[at] * before[at + 1], *before[at + 2 :])
            return ((before[at], before[at + 1]), at) if merged else None
        if len(before) == len(after) == 3 and before[0] == after[0] and after[2] and one.numel() == result.numel():
            heads = before[2] // after[2]  # (positions, batch, width), as fairseq has it
            return ((before[1], heads), 1) if heads > 1 and after[1] == before[1] * heads else None
        return None

    def get(self, one: Tensor) -> tuple[int, int] | None:
        """Return the batch and heads of a tensor whose first dimension is both, or None."""
        whole, at = self._whole.get(one, (None, 0))
        return whole if one.ndim == 3 and at == 0 else None


_GIVES_FEATURES = {"embedding", "layer_norm", "rms_norm"}  # in the last dimension, as layers do
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
        elif call.name in VIEWS and layout == "b" * (one.ndim - 1) + "f":
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


def _without_broadcast(layout: Layout, one: Tensor, result: Tensor) -> Layout:
    """Return the letters of a result without those of dimensions that another tensor has widened."""
    more = result.ndim - one.ndim
    return "".join(
        "b" if at >= more and one.shape[at - more] < result.shape[at] else letter for at, letter in enumerate(layout)
    )


def _regrouped(layout: Layout, before: Sequence[int], after: Sequence[int]) -> Layout | None:
    """Return the letters after a view: features that are split are heads and the rest of the features, and dimensions
    that become one stay what they are if they are of one kind.

    >>> _regrouped("bbf", (2, 5, 12), (2, 5, 3, 4)), _regrouped("bbhf", (2, 5, 3, 4), (10, 12))
    ('bbhf', 'bf')
    """
    if len(before) == 2 < len(after) and after[0] * after[1] == before[0]:  # of rows, which are positions of texts
        return "b" + (_regrouped(layout, (after[1], before[1]), after[1:]) or "")
    found, at, sizes = "", 0, list(after)
    while at < len(before) and sizes:
        begin, here, there, many = at, before[at], sizes.pop(0), 1
        at += 1
        while here != there:
            if here < there and at < len(before):
                here, at = here * before[at], at + 1
            elif there < here and sizes:
                there, many = there * sizes.pop(0), many + 1
            else:
                return None
        letters = {layout[one] for one in range(begin, at) if before[one] > 1} or set(layout[begin:at])
        kind = "f" if letters in ({"f"}, {"h", "f"}) else "h" if letters == {"h"} else "b"
        found += "h" * (many - 1) + "f" if kind == "f" else kind * many
    return found + "b" * len(sizes)
