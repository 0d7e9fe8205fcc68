"""Record the queries and keys of a call site, its values too if requested, with the mask and biases of each call in
serialized form.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy.typing as npt
import torch
from jaxtyping import Float
from torch import Tensor

from regard.errors import ObservationError
from regard.masks import BoundMask, Causal, Dense
from regard.observe.before_attention import BeforeAttention
from regard.observe.statistics import Extent
from regard.observe.weight_rows import RowBlock
from regard.positions import Bias, DenseBias
from regard.problem import Problem
from regard.record.atlas_compression import numbers_of
from regard.record.kept_qk import Kept, Segment
from regard.serialization import UnwritableError, write
from regard.tensors import human_bytes

__all__ = ["Purse", "QueriesKeys"]

Array = npt.NDArray[Any]


class Purse:
    """The limit in bytes that all sites of a watch share, and the arrays that several of them share."""

    def __init__(self, max_bytes: int, keep: str = "qk") -> None:
        self.keep = keep
        self.max_bytes = self.left = max_bytes
        self._arrays: dict[bytes, Array] = {}

    def __deepcopy__(self, memo: Any) -> "Purse":
        """Return the object itself: each site has its own copy of the statistic, but all share one limit."""
        return self

    def spend(self, count: int, what: str, site: str) -> None:
        """Reserve `count` bytes, or raise an error that names their purpose."""
        if count > self.left:
            raise ObservationError(
                f'keep="{self.keep}" needs {human_bytes(count)} more for {what} of {site or "this call"}, and '
                f"{human_bytes(self.left)} of the limit of {human_bytes(self.max_bytes)} are left: raise `max_bytes` "
                "or name the layers that you want with `layers=[3, 4]`"
            )
        self.left -= count

    def share(self, array: Array, site: str) -> Array:
        """Return the array, or an equal one that is already stored: layers often share a mask."""
        about = f"{array.dtype} {array.shape}".encode()
        digest = hashlib.blake2b(numbers_of(array), key=about, digest_size=20).digest()
        if digest not in self._arrays:
            self.spend(array.nbytes, "the mask and biases", site)
            self._arrays[digest] = array
        return self._arrays[digest]


class _KeyRows:
    """Copies of the rows that a call site has for its keys, the keys themselves or their values, up to the newest one;
    those of later calls are appended.
    """

    def __init__(self) -> None:
        self._parts: list[Tensor] = []
        self._room = torch.empty(0, dtype=torch.float32, device="cpu")  # columns after the newest: unused, or padding

    def append(
        self, new: Float[Tensor, "batch kv_heads keys width"], dropped: int, middle: int, *, cross: bool
    ) -> None:
        """Append rows, of which the first `middle` are up to the newest key.

        `dropped` rows before them, which a cache has dropped before the first call, were never there and are 0. The
        rows of cross-attention are those of the first call.
        """
        if dropped > 0:
            self._parts.append(torch.zeros(*new.shape[:2], dropped, new.shape[3], dtype=new.dtype, device="cpu"))
        if not cross or not self._parts:
            self._parts.append(_copied(new[:, :, :middle]))
            self._room = _copied(new[:, :, middle:])

    def reorder(self, rows: Tensor) -> None:
        """Let each sequence go on from the rows of another."""
        self._parts = [part[rows] for part in self._parts]
        self._room = self._room[rows] if len(self._room) else self._room

    def whole(self, keys: int) -> Array:
        """Return the rows of all keys (batch, kv heads, keys, width)."""
        parts = [part for part in (*self._parts, self._room) if part.shape[2]]
        heads = max(part.shape[1] for part in parts)
        return _whole([_as_heads(part, heads) for part in parts])[:, :, :keys]


class QueriesKeys:
    """q, k and the log-sum-exp of each row, in the model's dtype, and v with `values`; keys of decoding steps are
    appended.

    This is a statistic: `start` receives the call, `fold` the rows, from whose largest weights the log-sum-exp is
    computed, and `finish` returns the content of `Layer.qk`.
    """

    name = "qk"
    by_head = True
    wants_lse = True

    def __init__(self, purse: Purse, *, values: bool = False, before: BeforeAttention | None = None) -> None:
        self._purse = purse
        self._before = before
        self._queries: list[Tensor] = []
        self._keys = _KeyRows()
        self._values = _KeyRows() if values else None
        self._is_chosen = False  # whether some heads were chosen, each with its own keys
        self._known = 0
        self._lse: list[Tensor] = []
        self._first = 0
        self._segments: list[Segment] = []
        self._arrays: dict[str, Array] = {}

    def start(self, extent: Extent, /) -> None:
        """Copy q and the new keys."""
        call = extent.needs(self.name)
        problem = call.gathered()
        if problem is None:
            raise ObservationError(
                f'keep="{self._purse.keep}" needs the queries and keys, and {extent.site or "this call"} computes its '
                'softmax itself, which shows weights alone: load the model with attn_implementation="sdpa", or watch '
                'with keep="weights"'
            )
        if self._before is not None:
            is_whole = call.head_numbers is None and call.project is None  # those of chosen heads are not all
            self._before.compare(extent.site, problem, call.v if is_whole else None)
        self._is_chosen = call.head_numbers is not None
        if call.head_numbers is not None:
            problem = self._of_heads(problem, call.head_numbers, extent)
        self._first = extent.queries - call.queries
        self._take(problem, None if self._values is None else call.values('keep="qkv"'), extent, call.shift)
        lse = torch.full((call.batch, call.heads, call.queries), torch.nan, dtype=torch.float64, device="cpu")
        if call.chosen_rows is not None:
            lse[:, :, [row for row in range(call.queries) if row not in call.chosen_rows]] = torch.inf  # weights of 0
        self._lse.append(lse)
        form = self._form(problem, extent)
        segment = Segment(self._first, call.queries, call.shift, call.keys, form)
        joined = _joined(self._segments[-1], segment) if self._segments and not extent.cross else None
        self._segments = [*self._segments[:-1], joined] if joined else [*self._segments, segment]

    def _of_heads(self, problem: Problem, heads: tuple[int, ...], extent: Extent) -> Problem:
        """Return a problem with the queries and keys of some heads; what all heads share stays as it is."""
        mask = _leading(problem)[1] > 1
        biases = any(one is not None and one.leading[1] > 1 for one in (problem.bias, problem.weight_factor))
        if mask or biases or problem.score.of_heads(slice(0, 1)) is not problem.score or problem.sink is not None:
            raise ObservationError(
                f'keep="{self._purse.keep}" with chosen heads needs masks, biases, scores and sinks that all heads '
                f"share, and {extent.site or 'this call'} has some for each head: leave out `heads`, or use "
                'keep="weights"'
            )
        group = problem.heads // problem.kv_heads
        k = problem.k[:, [head // group for head in heads]]
        return replace(problem, q=problem.q[:, list(heads)], k=k, v=k)

    def fold(self, rows: RowBlock) -> None:
        """Compute the log-sum-exp of some rows; a normalizer without one leaves NaN."""
        if rows.lse is not None:
            here = slice(rows.rows.start - self._first, rows.rows.stop - self._first)
            self._lse[-1][rows.batch_index, rows.heads, here] = rows.lse.cpu()

    def reorder(self, rows: Tensor) -> None:
        """Let each sequence go on from the queries and keys of another.

        Raises:
            ObservationError: A mask or bias has values for each sequence.
        """
        if any(len(one) > 1 for one in self._arrays.values()):
            raise ObservationError(
                f'keep="{self._purse.keep}" stores masks and biases for each sequence, which beam search reorders: '
                'watch with keep="maps", or keep="weights"'
            )
        at = rows.cpu()
        self._queries, self._lse = ([x[at] for x in xs] for xs in (self._queries, self._lse))
        for key_rows in (self._keys, self._values):
            if key_rows is not None:
                key_rows.reorder(at)

    def finish(self, extent: Extent, /) -> Mapping[str, Any]:
        """Return all data as arrays."""
        brain = self._queries[0].dtype == torch.bfloat16
        own = {"q": _whole(self._queries), "k": self._keys.whole(extent.keys), "lse": _whole(self._lse)}
        if self._values is not None:
            own["v"] = self._values.whole(extent.keys)
        return {"qk": Kept({**own, **self._arrays}, tuple(self._segments), brain)}

    def _take(self, problem: Problem, v: Tensor | None, extent: Extent, shift: int) -> None:
        filled = extent.keys if extent.cross else min(extent.offset + extent.queries, extent.keys)
        middle = max(0, filled - self._known)
        new = []
        for key_rows, x in ((self._keys, problem.k), (self._values, v)):
            if key_rows is not None and x is not None:
                own = x.to(problem.q.dtype) if self._is_chosen else _unrepeated(x.to(problem.q.dtype))
                new.append((key_rows, own[:, :, max(0, self._known - shift) : extent.keys - shift]))
        count = problem.q.numel() + sum(x[:, :, :middle].numel() for _, x in new)
        what = "q and k" if v is None else "q, k and v"
        self._purse.spend(count * problem.q.element_size() + 8 * problem.q[..., 0].numel(), what, extent.site)
        dropped = max(0, shift - self._known)  # before the first call, and never seen
        for key_rows, x in new:
            key_rows.append(x, dropped, middle - dropped, cross=extent.cross)
        self._known = max(self._known, filled)
        self._queries.append(_copied(problem.q))

    def _form(self, problem: Problem, extent: Extent) -> dict[str, Any]:
        def value(name: str, one: Any) -> Any:
            try:
                return write(one, self._put(extent.site))
            except UnwritableError as other:
                raise ObservationError(
                    f'keep="{self._purse.keep}" cannot store the {name} {other} of {extent.site or "this call"}, '
                    f'which is not one of regard\'s own: watch with keep="weights", or compute what it gives beforehand'
                ) from None

        return {
            "scale": problem.scale,
            "start": problem.q_offset,
            "score": value("score", problem.score),
            "normalizer": value("normalizer", problem.normalizer),
            "mask": self._mask(problem, extent),
            "bias": self._bias(problem, None if _only_hides(problem) else problem.bias, extent),
            "weight_factor": self._bias(problem, problem.weight_factor, extent),
        }

    def _put(self, site: str) -> Any:
        def put(array: Array) -> str:
            shared = self._purse.share(array, site)
            for name, known in self._arrays.items():
                if known is shared:
                    return name
            name = f"held{len(self._arrays)}"
            self._arrays[name] = shared
            return name

        return put

    def _mask(self, problem: Problem, extent: Extent) -> Any:
        """Return the mask itself, or a mask defined by the user as a tensor of bits, within `max_bytes`."""
        if problem.mask is None:
            alone = problem.queries == 1 and not extent.cross and problem.q_offset == problem.keys - 1
            return write(Causal(), self._put(extent.site)) if alone else None  # a decoding step sees all before it
        try:
            return write(_simple(problem.mask), self._put(extent.site))
        except UnwritableError:
            batch, heads = _leading(problem)
            self._check_dense(batch * heads * problem.queries * problem.keys, "the mask", extent)
            dense = Dense.over(problem.mask.dense(batch, heads, problem.q.device))
            return write(dense.with_place(q_offset=problem.q_offset), self._put(extent.site))

    def _bias(self, problem: Problem, bias: Bias | None, extent: Extent) -> Any:
        """Return the bias itself, or a bias defined by the user as a tensor, within `max_bytes`."""
        try:
            return write(bias, self._put(extent.site))
        except UnwritableError:
            assert bias is not None
            sizes = bias.leading
            wide = max(4, problem.q.element_size())
            self._check_dense(sizes[0] * sizes[1] * problem.queries * problem.keys * wide, "the bias", extent)
            values = bias.tile(slice(0, sizes[0]), slice(0, sizes[1]), problem.i(), problem.j()).detach()
            return write(DenseBias(values, problem.q_offset), self._put(extent.site))

    def _check_dense(self, count: int, what: str, extent: Extent) -> None:
        """Reserve one byte per pair for a mask while it is evaluated, and an eighth of a byte when it is stored."""
        if count > self._purse.left:
            self._purse.spend(count, f"{what}, which is not one of regard's own,", extent.site)


def _leading(problem: Problem) -> tuple[int, int]:
    """Return for how many sequences and heads a mask has values: what it uses, the shape of one pair shows."""
    if problem.mask is None or not (problem.queries and problem.keys):
        return 1, 1
    one, sizes = slice(0, 1), {"batch": problem.batch, "heads": problem.heads}
    batch, heads = problem.mask.tile(one, one, **sizes, device=problem.q.device).shape[:2]
    return batch, heads


def _only_hides(problem: Problem) -> bool:
    """Return whether the bias adds nothing where the mask lets see, as a mask that a model writes as numbers."""
    if type(problem.bias) is not DenseBias or problem.mask is None:
        return False
    seen = problem.mask.dense(*_leading(problem), problem.q.device)
    return not bool(problem.bias.four.where(seen, 0).any())


def _joined(before: Segment, after: Segment) -> Segment | None:
    """Return both segments as one if a decoding step continues the rows of a causal mask, else None."""
    diagonals = []
    for one in (before, after):
        form = one.form
        causal = form["mask"] is not None and form["mask"].get("kind") == "Causal"
        plain = form["bias"] is None and form["weight_factor"] is None and form["score"]["kind"] in ("ScaledDot", "Dot")
        if not causal or not plain:
            return None
        diagonals.append(form["start"] - form["mask"]["fields"]["shift"])
    same = all(before.form[name] == after.form[name] for name in ("scale", "score", "normalizer"))
    follows = diagonals[1] == diagonals[0] + before.rows and after.keys >= before.keys
    if not same or not follows or before.shift != after.shift:
        return None
    return Segment(before.first, before.rows + after.rows, before.shift, after.keys, before.form)


def _simple(bound: BoundMask) -> Any:
    """Return the mask; a tensor that is causal with some hidden keys becomes these two masks, with n flags instead of
    n × n.
    """
    mask = bound.mask
    if not isinstance(mask, Dense) or mask.visible.ndim != 4 or mask.visible.shape[1] != 1:
        return mask
    from regard.masks import Padding

    seen = mask.visible[:, 0]
    if seen.shape[1:] != (bound.q_len, bound.kv_len):
        return mask
    causal = torch.ones(bound.q_len, bound.kv_len, dtype=torch.bool, device=seen.device).tril(
        bound.kv_len - bound.q_len
    )
    real = seen.any(1)
    if torch.equal(seen, causal & real[:, None]):
        shift = bound.q_offset - (bound.kv_len - bound.q_len)
        return Causal("start").with_place(shift=shift) & Padding(real)
    return Padding(real) if torch.equal(seen, real[:, None].expand_as(seen)) else mask


def _unrepeated(k: Float[Tensor, "batch heads keys width"]) -> Tensor:
    """Return each key head once, if they were repeated for grouped queries."""
    heads = k.shape[1]
    run = 1
    while run < heads and torch.equal(k[:, run], k[:, 0]):
        run += 1
    for group in range(run, 1, -1):
        if heads % group == 0 and all(torch.equal(k[:, at], k[:, at - at % group]) for at in range(heads)):
            return k[:, ::group]
    return k


def _copied(x: Tensor) -> Tensor:
    """Return a copy of a tensor that does not depend on the model's cache."""
    return x.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)


def _whole(parts: list[Tensor]) -> Array:
    """Return all rows as an array, without a copy if they come from one call; bfloat16, which NumPy lacks, as bits."""
    whole = parts[0] if len(parts) == 1 else torch.cat(parts, 2)
    whole = whole.view(torch.uint16) if whole.dtype == torch.bfloat16 else whole
    array: Array = whole.numpy()
    return array


def _as_heads(k: Tensor, heads: int) -> Tensor:
    return k.repeat_interleave(heads // k.shape[1], 1) if k.shape[1] < heads else k
