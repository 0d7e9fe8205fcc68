"""Random calls of attention(): drawn by number, computed by the native kernels, and compared with the formula.

    call = drawn(17)             call 17: sizes, mask, bias, memory, surroundings
    worst = check(call)          its largest error, by what is allowed; a DisagreementError where there is more
    least = smallest(call)       the simplest call that is wrong as this one is

A series is several short calls of the same sizes one after the other, as `backend="auto"` computes them: what it keeps
of one call (`call_cache`, plans of masks) must serve the next, whose mask has other numbers, or which is made
elsewhere.

    series = drawn_series(17)    as many calls, each another change of one before
    worst = check_series(series)
    least = smallest_series(series)

The formula is backend="reference" in float64. It is given what the mask leaves as a tensor, by the rules in numpy of
drawn_masks.py wherever all queries stand on keys, so that a mistake in the plan of a mask is not made twice.

What is allowed is δ of the largest number for outputs and log-sum-exps, and ε of the largest for gradients (`ALLOWED`),
both times the largest Σ |q k| over 12 where that is more than 1, since scores are rounded too. Where terms of a
result cancel, a share of the largest term is taken for its largest number.
"""

import contextlib
import dataclasses
import math
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import Parameter
from torch.utils.checkpoint import checkpoint

import regard
from drawn_masks import FAMILIES, Place, combined
from families import BIASES, Shape
from regard import masks, normalizers, positions, scores
from regard.backends import call_cache
from regard.masks.plan_cache import PLANS

__all__ = [
    "AMBIENT", "WAYS", "Call", "DisagreementError", "Series", "check", "check_series", "described", "drawn",
    "drawn_series", "smallest", "smallest_series",
]  # fmt: skip

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "float64": torch.float64}
# δ and ε by the type of the output, and the share of terms that cancel. In bfloat16 weights are rounded, too.
ALLOWED = {torch.float32: (3e-6, 1e-5, 0.1), torch.float16: (2e-3, 3e-3, 0.1), torch.bfloat16: (1e-2, 1e-2, 0.5)}
# The same where `auto` chooses. In float32, 2e-5: kernels of PyTorch and MKL sum in another order in each size. In
# narrow types, 4 units in the last place of the largest: one for the result, and one each for the weights, their
# product and, in gradients, the weights of the backward, which PyTorch rounds to that type.
ALLOWED_OF_AUTO = {
    torch.float64: (1e-11, 1e-11, 0.1),
    torch.float32: (2e-5, 2e-5, 0.1),
    torch.float16: (4 * 2.0**-11, 4 * 2.0**-11, 0.1),
    torch.bfloat16: (4 * 2.0**-8, 4 * 2.0**-8, 0.5),
}
ALLOWED_OF_SECOND = 50  # times what is allowed of gradients: a gradient is differentiated as it was rounded
# The gradient of a slope is a sum over distances, which multiply what does not cancel (docs/precision.md).
ALLOWED_OF_SLOPES = 1e-3


@dataclass(frozen=True)
class Call:
    """A call as numbers and words, from which its tensors are made. A default is the simplest of its kind."""

    seed: int = 0
    queries: int = 1
    keys: int = 1
    width: int = 16
    value_width: int = 16
    batch: int = 1
    heads: int = 1
    kv_heads: int = 1
    dtype: str = "float32"
    learns: str = ""  # of q, k and v; "p" for the parts: bias, sink, score
    mask: tuple[str, ...] = ()
    start: int | None = None  # position of the first query; None where the queries are the last positions
    bias: str = "none"
    bias_dtype: str = "float32"
    holes: str = ""  # in the bias: "infinite" numbers, or "nan" where the mask hides all pairs
    score: str = "scaled dot"
    scale: float | None = None
    softcap: float | None = None
    normalizer: str = "softmax"
    dropout: float = 0.0
    own_generator: bool = False  # of dropout's seed; else it is PyTorch's
    returns_lse: bool = False
    size: float = 1.0  # of queries
    whole: bool = False  # small whole numbers for q and k, whose products are exact: for any scale
    hidden: str = ""  # what nobody sees is "huge" or "nan"; "query": a query is NaN
    memory: tuple[str, ...] = ("", "", "", "")  # of q, k, v and the gradient of the output
    dimensions: int = 4
    ambient: str = "nothing"
    threads: int = 1
    again: bool = False  # once more with the same numbers elsewhere in memory: to the bit
    backend: str = "native"  # or "auto", another, or "prefer …" of `use_backend`
    way: str = ""  # in which it is called and differentiated, one of `WAYS`
    mask_seed: int | None = None  # of the mask's numbers; None is `seed`
    renewed: str = ""  # the same mask is made "again", or new numbers are written into a tensor "in place"
    is_bound: bool = False  # the mask, where its place is the usual one too

    @property
    def shape(self) -> Shape:
        """Its sizes, as families of biases know them."""
        batch = 1 if self.way in OF_ONE_SEQUENCE else self.batch
        return Shape(batch, self.heads, self.kv_heads, self.queries, self.keys, self.value_width)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The sizes of its vectors, in four dimensions."""
        rows, columns = (self.batch, self.heads, self.queries), (self.batch, self.kv_heads, self.keys)
        return {
            "q": (*rows, self.width),
            "k": (*columns, self.width),
            "v": (*columns, self.value_width),
            "up": (*rows, self.value_width),
        }

    @property
    def group(self) -> int:
        """Heads that share their keys."""
        return self.heads // self.kv_heads

    @property
    def first(self) -> int:
        """The position of the first query."""
        return self.keys - self.queries if self.start is None else self.start

    @property
    def is_among_keys(self) -> bool:
        """Whether every query stands on a key."""
        return 0 <= self.first <= self.keys - self.queries

    @property
    def output_dtype(self) -> torch.dtype:
        """Autocast's, or that of q."""
        is_narrowed = self.ambient.startswith("autocast") and self.dtype != "float64"
        return torch.bfloat16 if is_narrowed else DTYPES[self.dtype]

    @property
    def is_empty(self) -> bool:
        """Whether there is no pair."""
        return 0 in (self.batch, self.heads, self.queries, self.keys)


class DisagreementError(AssertionError):
    """What is wrong with a call, in a line."""


# Surroundings of a call -----------------------------------------------------------------------------------------------


@contextmanager
def _default(dtype: torch.dtype = torch.float32, device: str | None = None) -> Iterator[None]:
    torch.set_default_dtype(dtype)
    torch.set_default_device(device)
    try:
        yield
    finally:
        torch.set_default_device(None)
        torch.set_default_dtype(torch.float32)


@contextmanager
def _deterministic() -> Iterator[None]:
    """Memory that is not written yet is NaN, too."""
    assert torch.utils.deterministic.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


AMBIENT: dict[str, Callable[[], contextlib.AbstractContextManager[Any]]] = {
    "nothing": contextlib.nullcontext,
    "float64": lambda: _default(torch.float64),
    "bfloat16": lambda: _default(torch.bfloat16),
    "float16": lambda: _default(torch.float16),
    "meta": lambda: _default(device="meta"),
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "autocast, mixed types": lambda: torch.autocast("cpu", torch.bfloat16),  # v is of bfloat16
    "inference": torch.inference_mode,
    "no gradients": torch.no_grad,
    "deterministic": _deterministic,
}
WITHOUT_GRADIENTS = ("inference", "no gradients")
# Ways to call and to differentiate: transforms of torch.func, of which some map over sequences; twice; and again.
WAYS = ("grad", "vmap", "vmap of grad", "create graph", "checkpoint")
OF_ONE_SEQUENCE = ("vmap", "vmap of grad")


# Masks, biases and other parts ----------------------------------------------------------------------------------------


def _of_some_rows(at: Place) -> masks.Mask:
    rows = torch.tensor(at.rng.random((1, 1, at.queries, 1)) < 0.7)
    return masks.Dense(rows.expand(1, 1, at.queries, at.keys))


COMPOSED: dict[str, Callable[[Place], masks.Mask]] = {
    "bigbird": lambda at: masks.bigbird(block=int(at.rng.choice([1, 16, 64])), heads=int(at.rng.choice([1, at.heads]))),
    "longformer": lambda at: masks.longformer(2 * at.below(60), sorted({0, at.below(at.keys), at.keys - 1})),
    "prefix_lm": lambda at: masks.prefix_lm(torch.tensor(at.rng.integers(0, at.keys, at.batch))),
    "sparse_transformer": lambda at: masks.sparse_transformer(at.below(20, 1)),
    "some rows": _of_some_rows,
    "nothing": lambda at: masks.Window(5) & ~masks.Window(9),
}
GRIDS = ("Axial", "Neighborhood", "shifted neighborhood")  # whose queries must stand on cells
TENSOR = "a tensor"


def _flags(at: Place, *sizes: int) -> np.ndarray:
    return at.rng.random(sizes) < at.rng.choice([0.0, 0.3, 0.6, 0.9, 1.0], p=(0.05, 0.25, 0.3, 0.3, 0.1))


def _flags_as(at: Place, kind: str) -> tuple[masks.Mask, np.ndarray]:
    """Flags of keys, one row for each sequence, as each of the constructors takes them."""
    real = _flags(at, 1 if kind == "of all" else at.batch, at.keys)
    if kind == "lengths":
        length = at.rng.integers(0, at.keys + 1, at.batch)
        real = at.j < length[:, None]
        return masks.Padding.from_lengths(torch.tensor(length), at.keys), real[:, None, None]
    given = torch.tensor(real)
    makes = {
        "numbers": lambda: masks.Padding(given.long()),
        "torch": lambda: masks.from_key_padding_mask(~given),
        "global": lambda: masks.Global(given) & masks.Padding(given),
    }
    return makes.get(kind, lambda: masks.Padding(given))(), real[:, None, None]


def _packed(at: Place, queries: bool = False) -> tuple[masks.Mask, np.ndarray]:
    """Texts in each sequence, another packing for each; some positions belong to none."""
    ids = at.rng.integers(0, 2, (at.batch, at.keys)).cumsum(1) - (at.rng.random((at.batch, at.keys)) < 0.1) * 10**6
    if queries:
        own = at.rng.integers(-1, 5, (at.batch, at.queries))
        mask = masks.Document(torch.tensor(ids), query_ids=torch.tensor(own))
    else:
        own = ids[:, np.clip(at.i[:, 0], 0, at.keys - 1)] if at.keys else np.full((at.batch, at.queries), -1)
        mask = masks.Document(torch.tensor(ids))
    seen = (own[:, :, None] == ids[:, None]) & (ids >= 0)[:, None]
    return mask, seen[:, None]


def _inside(at: Place) -> tuple[masks.Mask, np.ndarray]:
    """Documents one after the other, the same in all sequences, each with a diagonal of its own."""
    count = at.below(5, 1)
    lengths = at.rng.multinomial(at.keys, [1 / count] * count)
    ids = np.arange(count).repeat(lengths)
    own = ids[np.clip(at.i, 0, max(0, at.keys - 1))]
    mask = masks.Document.from_lengths(torch.tensor(lengths), within=masks.Causal() & masks.Window(4))
    return mask, (own == ids) & (at.j <= at.i) & (at.i - at.j < 4)


def _shifted(at: Place) -> tuple[masks.Mask, np.ndarray]:
    (tall, wide), step = at.grid(), np.ones((at.queries, at.keys), bool)
    size = tuple(2 * at.below((cells + 1) // 2) + 1 for cells in (tall, wide))
    for (i, j), one, cells in zip(
        ((at.i // wide, at.j // wide), (at.i % wide, at.j % wide)), size, (tall, wide), strict=True
    ):
        first = np.clip(i - one // 2, 0, cells - one)
        step &= (j >= first) & (j < first + one)
    return masks.Neighborhood((tall, wide), size), step


def _prefix_of_all(at: Place) -> tuple[masks.Mask, np.ndarray]:
    length = at.below(at.keys + 1)
    return masks.prefix_lm(length), (at.j <= at.i) | (at.j < length)


def _both(of: Callable[[Place], tuple[masks.Mask, np.ndarray]], rule: Callable[[Place], Any], mask: Any) -> Any:
    """A mask that each new batch brings and one that stays, in either order."""

    def drawn(at: Place) -> tuple[masks.Mask, np.ndarray]:
        other, seen = of(at)
        return (other & mask if at.batch % 2 else mask & other), seen & rule(at)

    return drawn


def _tensor_mask(at: Place, dims: str, *, dense: bool = False) -> tuple[Any, np.ndarray]:
    """Booleans of one of the shapes that broadcast: a letter is a side, 1 is 1."""
    sides = {"b": at.batch, "h": at.heads, "q": at.queries, "k": at.keys, "1": 1}
    seen = _flags(at, *(sides[dim] for dim in dims))
    tensor = torch.tensor(seen)
    return (masks.Dense(tensor) if dense else tensor), seen


# Masks whose form the next batch shares, only with other numbers in its tensors: with their rules, as drawn_masks.py.
SHAPES = ["".join(dims) for dims in product("b1", "h1", "q1", "k1")]
RAW = [f"tensor {dims}" for dims in (*SHAPES, "qk", "1k", "q1", "11")]
SHORT: dict[str, Callable[[Place], tuple[Any, np.ndarray]]] = {
    **{f"padding, {kind}": partial(_flags_as, kind=kind) for kind in ("flags", "lengths", "numbers", "torch")},
    "padding, of all": partial(_flags_as, kind="of all"),
    "global and padding": partial(_flags_as, kind="global"),
    "padding, causal": _both(partial(_flags_as, kind="flags"), lambda at: at.j <= at.i, masks.Causal()),
    "padding, window": _both(
        partial(_flags_as, kind="lengths"), lambda at: abs(at.i - at.j) <= 3, masks.Window(left=3, right=3)
    ),
    "padding, first diagonal": _both(
        partial(_flags_as, kind="flags"), lambda at: at.j <= at.i - at.start, masks.Causal(align="start")
    ),
    "not padding": lambda at: (lambda found: (~found[0], ~found[1]))(_flags_as(at, "flags")),
    "padding or sinks": lambda at: (lambda found: (found[0] | masks.Sinks(2), found[1] | (at.j < 2)))(
        _flags_as(at, "flags")
    ),
    "packed": _packed,
    "packed, causal": _both(_packed, lambda at: at.j <= at.i, masks.Causal()),
    "packed, queries": partial(_packed, queries=True),
    "inside documents": _inside,
    "shifted neighborhood": _shifted,
    "prefix of all": _prefix_of_all,
    **{f"dense {dims}": partial(_tensor_mask, dims=dims, dense=True) for dims in SHAPES},
    **{name: partial(_tensor_mask, dims=name.removeprefix("tensor ")) for name in RAW},
}
# Those that are defined on empty sides.
OF_EMPTY = [
    *(name for name in SHORT if name not in ("inside documents", "shifted neighborhood", "prefix of all")),
    *("Causal", "Window", "Sinks", "Strided", "BlockLocal", "DilatedWindow"),
]


def _mask_of(call: Call) -> tuple[Any, Tensor | None]:
    """The mask as it is passed, and the pairs that it leaves: (batch, heads, queries, keys)."""
    if not call.mask:
        return None, None
    sizes = call.batch, call.heads, call.queries, call.keys
    seed = call.seed if call.mask_seed is None else call.mask_seed
    is_alike = call.way in OF_ONE_SEQUENCE and call.mask[0] not in RAW  # mapped, as raw tensors are too
    place = Place(np.random.default_rng([seed, 1]), 1 if is_alike else call.batch, *sizes[1:], call.first)
    if call.mask == (TENSOR,):
        shape = [size if place.rng.random() < 0.5 else 1 for size in sizes[:2]] + list(sizes[2:])
        seen = torch.tensor(place.rng.random(shape) < place.rng.choice([0.02, 0.5, 0.97]))
        return seen, seen.expand(sizes)
    families = [name for name in call.mask if name in FAMILIES]
    mask, rule = combined(place, families) if families else (None, np.True_)
    for name in (name for name in call.mask if name in COMPOSED):
        other = COMPOSED[name](place)
        mask = other if mask is None else mask | other if place.rng.random() < 0.5 else mask & other
    for name in (name for name in call.mask if name in SHORT):
        other, seen = SHORT[name](place)
        is_both = mask is None or place.rng.random() < 0.5
        mask, rule = (
            (other if mask is None else mask & other if is_both else mask | other),
            (rule & seen if is_both else rule | seen),
        )
    if isinstance(mask, Tensor) or (COMPOSED.keys().isdisjoint(call.mask) and call.is_among_keys) or call.is_empty:
        return mask, torch.tensor(np.broadcast_to(rule, sizes).copy())
    return mask, mask.bind(call.queries, call.keys, q_offset=call.start).dense(place.batch, call.heads).expand(sizes)


def _tensor_of(*dims: str) -> Callable[[Shape, Any], Tensor]:
    """A bias as a tensor, some of whose sizes are 1."""

    def bias(s: Shape, new: Any) -> Tensor:
        sizes = {"batch": s.batch, "heads": s.heads, "queries": s.queries, "keys": s.keys, "1": 1}
        return new("matrix", *(sizes[dim] for dim in dims))

    return bias


ALL_BIASES: dict[str, Callable[[Shape, Any], Any]] = {
    **BIASES,
    "alibi, causal": lambda s, new: positions.ALiBi(s.heads),
    "alibi, both sides": lambda s, new: positions.ALiBi(s.heads, bidirectional=True),
    "t5, decoder": lambda s, new: positions.T5Bias(new("table", 32, s.heads), bidirectional=False),
    "table of all heads": lambda s, new: positions.RelativePositionBias(new("table", 21, 1)),
    "wide table": lambda s, new: positions.RelativePositionBias(new("table", 1601, s.heads)),
    "batch heads queries keys": _tensor_of("batch", "heads", "queries", "keys"),
    "batch 1 queries keys": _tensor_of("batch", "1", "queries", "keys"),
    "1 heads 1 keys": _tensor_of("1", "heads", "1", "keys"),
    "1 1 1 keys": _tensor_of("1", "1", "1", "keys"),
    "1 heads queries 1": _tensor_of("1", "heads", "queries", "1"),
    "batch heads 1 1": _tensor_of("batch", "heads", "1", "1"),
    "batch 1 queries 1": _tensor_of("batch", "1", "queries", "1"),
}
# … and of every shape that broadcasts.
SHORT_BIASES = {
    **ALL_BIASES,
    **{
        " ".join(dims): _tensor_of(*dims)
        for dims in product(("batch", "1"), ("heads", "1"), ("queries", "1"), ("keys", "1"))
    },
    "queries 1": _tensor_of("queries", "1"),
    "1 keys": _tensor_of("1", "keys"),
}
TABLES = ("t5", "table", "t5, decoder", "table of all heads", "wide table")  # of i − j, whose gradient kernels compute
SCORES: dict[str, Callable[[Call, Any], scores.Score]] = {
    "scaled dot": lambda call, new: scores.ScaledDot(call.softcap),
    "dot": lambda call, new: scores.Dot(call.softcap),
    "bilinear": lambda call, new: scores.Bilinear(new("W", call.heads, call.width, call.width), call.softcap),
    "cosine": lambda call, new: scores.Cosine(new("temperature", call.heads).abs() + 0.5, call.softcap),
}
NORMALIZERS: dict[str, Callable[[Call, Any], normalizers.Normalizer]] = {
    "softmax": lambda call, new: normalizers.Softmax(),
    "sink": lambda call, new: normalizers.Softmax(new("sink", call.heads)),
    "sigmoid": lambda call, new: normalizers.Sigmoid(),
    "sigmoid, shifted": lambda call, new: normalizers.Sigmoid(-1.5),
}


# Tensors --------------------------------------------------------------------------------------------------------------


def _numbers_for(call: Call, name: str) -> np.random.Generator:
    return np.random.default_rng([call.seed, zlib.crc32(name.encode())])


class Tensors(dict[str, Tensor]):
    """The tensors of a call by name, as the call has them or the same numbers in float64. Those of parts are made when
    they are first asked for, by the protocol of families.py.
    """

    def __init__(self, call: Call, seen: Tensor | None, *, is_exact: bool) -> None:
        super().__init__()
        self.call, self.seen, self.is_exact = call, seen, is_exact
        for name, shape in call.shapes.items():
            self._draw_vectors(name, shape)
        lse = _numbers_for(call, "up of lse").standard_normal(call.shapes["q"][:3])
        self._keep("up of lse", torch.tensor(lse), torch.float32)

    def __call__(self, name: str, *shape: int) -> Tensor:
        if name not in self:
            rng = _numbers_for(self.call, name)
            numbers = rng.standard_normal(shape) * {"W": max(1, shape[-1]) ** -0.5, "slopes": 0.1}.get(name, 1.0)
            if name in ("matrix", "row", "table"):
                numbers = self._with_holes(name, numbers, rng)
            learns = "p" in self.call.learns
            self._keep(name, torch.tensor(numbers), DTYPES[self.call.bias_dtype], learns=learns)
        return self[name]

    def _draw_vectors(self, name: str, shape: tuple[int, ...]) -> None:
        """Draw q, k, v, or the gradient of the output, which is representable in bfloat16 for autocast's outputs."""
        call, rng = self.call, _numbers_for(self.call, name)
        memory = dict(zip(("q", "k", "v", "up"), call.memory, strict=True))[name]
        dtype = call.output_dtype if name == "up" else DTYPES[call.dtype]
        if call.whole and name in "qk":
            x = torch.tensor(rng.integers(-2, 3, shape), dtype=torch.float64)
        else:
            x = torch.tensor(rng.standard_normal(shape)) * (call.size if name == "q" else 1.0)
        if memory in ALIKE:
            x = x.narrow(ALIKE[memory], 0, 1).expand(shape).clone()
        if name == "up" or (call.ambient.startswith("autocast") and call.backend != "native"):
            x = x.bfloat16().double()  # PyTorch's kernel rounds what autocast gives it
        if name == "v" and call.ambient == "autocast, mixed types":
            dtype = torch.bfloat16
        x = self._spoiled(name, x).view(_with_dimensions(call, shape))
        self._keep(name, x, dtype, learns=name in call.learns, memory=memory)

    def _keep(self, name: str, numbers: Tensor, dtype: torch.dtype, *, learns: bool = False, memory: str = "") -> None:
        x = numbers.to(dtype)
        x = x.double() if self.is_exact else _laid_out(x, memory)
        self[name] = Parameter(x, learns) if memory == "parameter" else x.requires_grad_(learns)

    def with_leaves(self, leaves: dict[str, Tensor]) -> "Tensors":
        """The same with other tensors for some of them."""
        other = Tensors.__new__(Tensors)
        other.call, other.seen, other.is_exact = self.call, self.seen, self.is_exact
        other.update({**self, **leaves})
        return other

    def _with_holes(self, name: str, numbers: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        if self.call.holes == "infinite":
            return np.where(rng.random(numbers.shape) < 0.1, -np.inf, numbers)
        if self.call.holes != "nan" or self.seen is None or name == "table":
            return numbers
        seen = self.seen.numpy()
        for dim, size in enumerate((1,) * (4 - numbers.ndim) + numbers.shape):
            seen = seen.any(dim, keepdims=True) if size == 1 else seen
        return np.where(seen.reshape(numbers.shape), numbers, np.nan)

    def _spoiled(self, name: str, x: Tensor) -> Tensor:
        """Put numbers where they must not matter, into keys and values that nobody sees, or NaN into a query."""
        if self.call.hidden == "query":
            return x.index_fill(2, torch.tensor([self.call.queries // 2]), torch.nan) if name == "q" else x
        if self.call.hidden == "" or self.seen is None or self.is_exact or name not in "kv":
            return x
        huge = 1e4 if self.call.dtype == "float16" else 1e30
        value = torch.nan if self.call.hidden == "nan" else huge
        return x.masked_fill(_unseen(self.call, self.seen)[..., None], value)


def _unseen(call: Call, seen: Tensor) -> Tensor:
    """Keys that no query of their group sees: (batch, kv_heads, keys)."""
    return ~seen.any(2).unflatten(1, (call.kv_heads, -1)).any(2)


def _with_dimensions(call: Call, shape: tuple[int, ...]) -> tuple[int, ...]:
    batch, heads, *rest = shape
    return {2: tuple(rest), 3: (batch, *rest), 4: tuple(shape), 5: (batch, 1, heads, *rest)}[call.dimensions]


ALIKE = {"alike sequences": -4, "alike heads": -3, "alike rows": -2, "alike columns": -1}  # of stride 0
MEMORY = ("rows of heads", "columns", "wider", "longer", "every second row", "one further", "negative", *ALIKE)


def _laid_out(x: Tensor, memory: str) -> Tensor:
    """The same numbers elsewhere in memory: in another order, or beside numbers that are NaN."""
    if memory == "rows of heads" and x.ndim == 4:
        return x.transpose(1, 2).contiguous().transpose(1, 2)
    if memory == "columns":
        return x.mT.contiguous().mT
    if memory == "negative":
        return torch._neg_view(-x)
    if memory in ALIKE:
        dim = ALIKE[memory]
        return x.narrow(dim, 0, 1).expand(x.shape) if x.ndim >= -dim else x
    sizes = list(x.shape)
    if memory == "wider":
        room = torch.full((*sizes[:-1], sizes[-1] + 7), torch.nan, dtype=x.dtype)[..., 3:-4]
    elif memory == "longer":
        room = torch.full((*sizes[:-2], sizes[-2] + 7, sizes[-1]), torch.nan, dtype=x.dtype)[..., 3:-4, :]
    elif memory == "every second row":
        room = torch.full((*sizes[:-2], 2 * sizes[-2], sizes[-1]), torch.nan, dtype=x.dtype)[..., ::2, :]
    elif memory == "one further":  # not at the start of a vector
        room = torch.full((x.numel() + 1,), torch.nan, dtype=x.dtype)[1:].view(sizes)
    else:
        room = torch.empty_like(x)
    return room.copy_(x)


# Both computations ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Masked:
    """The mask of a call, the pairs that it leaves, and the mask where it was bound, by its place."""

    mask: Any
    seen: Tensor | None
    bound: dict[int | None, Any] = dataclasses.field(default_factory=dict)


def check(call: Call, masked: Masked | None = None) -> float:
    """Compute a call both ways and compare; give its largest error, by what is allowed.

    Raises:
        DisagreementError: A result is not that of the formula.
    """
    masked = Masked(*_mask_of(call)) if masked is None else masked
    exact, tensors = (Tensors(call, masked.seen, is_exact=is_exact) for is_exact in (True, False))
    expected = _of_no_pair(call, exact) if call.is_empty else _computed(call, exact, Masked(masked.seen, masked.seen))
    try:
        results = _computed(call, tensors, masked)
    except DisagreementError:
        raise
    except Exception as error:
        if _is_refusal(call, error):
            return 0.0
        raise DisagreementError(f"{type(error).__name__}: {error}") from error
    if call.way == "create graph" and not any(name.startswith("second") for name in results):  # refused
        expected = {name: result for name, result in expected.items() if not name.startswith("second")}
    _check_kinds(call, tensors, results, expected)
    if call.is_empty:
        return max(_compare(name, result.double(), expected[name], 0.0) for name, result in results.items())
    allowed = _allowed_errors(call, exact, masked.seen, expected)
    worst = 0.0
    for name, result in results.items():
        if call.hidden == "nan" and masked.seen is not None:
            result = _without_nan_of_hidden(call, name, result.double(), expected[name], masked.seen)
        worst = max(worst, _compare(name, result.double(), expected[name], allowed[name]))
    return worst


def _check_kinds(call: Call, tensors: Tensors, results: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    """Raise where a result is missing, or has another shape, type or device."""
    if results.keys() != expected.keys():
        raise DisagreementError(f"{sorted(results)} instead of {sorted(expected)}")
    dtypes = {"output": call.output_dtype, "lse": torch.promote_types(DTYPES[call.dtype], torch.float32)}
    for name, result in results.items():
        dtype = dtypes[name] if name in dtypes else tensors[name.split("gradient of ")[1]].dtype
        if (result.shape, result.dtype, result.device.type) != (expected[name].shape, dtype, "cpu"):
            raise DisagreementError(f"{name} is {tuple(result.shape)} of {result.dtype} on {result.device}")


def _is_refusal(call: Call, error: Exception) -> bool:
    """Whether a backend that was named says that it cannot compute the call."""
    is_named = call.backend not in ("auto", "native") and not call.backend.startswith("prefer")
    return is_named and isinstance(error, regard.InputError) and "cannot run this call" in str(error)


def _of_no_pair(call: Call, exact: Tensors) -> dict[str, Tensor]:
    """What a call without any pair gives: zeros, no sum but that of the sink, and gradients of zero but for its."""
    _options_of(call, exact)  # which makes the parts
    expected = {"output": exact["q"].detach().new_zeros(*exact["q"].shape[:-1], call.value_width)}
    sums = call.returns_lse and call.normalizer == "sink"
    if call.returns_lse:
        expected["lse"] = exact["q"].detach().new_full(exact["q"].shape[:-1], -torch.inf)
    if sums:
        expected["lse"] = expected["lse"].maximum(exact["sink"].detach()[:, None])
    if call.ambient not in WITHOUT_GRADIENTS:
        for name, x in exact.items():
            if x.requires_grad:
                of_sink = sums and name == "sink"
                expected[f"gradient of {name}"] = exact["up of lse"].sum((0, 2)) if of_sink else torch.zeros_like(x)
    return expected


def _computed(call: Call, tensors: Tensors, masked: Masked) -> dict[str, Tensor]:
    """Output, log-sum-exp and the gradients of all that learns, in exact numbers by the formula, and as the call is
    made; only parts are made outside of the surroundings.
    """
    generator, options = torch.Generator("cpu"), _options_of(call, tensors)
    vectors = [tensors[name] for name in "qkv"]
    copies = [x.detach().contiguous().clone().requires_grad_(x.requires_grad) for x in vectors]
    is_exact = tensors.is_exact
    if call.own_generator:
        options["generator"] = generator
    backend = "reference" if is_exact else "auto" if call.backend.startswith("prefer") else call.backend
    preferred = regard.use_backend(call.backend.removeprefix("prefer ")) if backend != call.backend else None

    def attend(vectors: list[Tensor], options: dict[str, Any] = options) -> tuple[Tensor, ...]:
        (generator if call.own_generator else torch).manual_seed(call.seed)
        results = regard.attention(*vectors, backend=backend, **options)
        return results if isinstance(results, tuple) else (results,)

    with contextlib.ExitStack() as around:
        if not is_exact:
            around.enter_context(_threads(call.threads))
            around.enter_context(AMBIENT[call.ambient]())
            around.enter_context(preferred or contextlib.nullcontext())
        if masked.mask is not None:
            options["mask"] = _bound(call, masked)
        if call.way and not is_exact:
            return _WAYS[call.way](call, tensors, attend, options)
        results = attend(vectors)
        if call.again and not is_exact:
            for result, repeated in zip(results, attend(copies), strict=True):
                if not torch.equal(result.detach().nan_to_num(7.0), repeated.detach().nan_to_num(7.0)):
                    raise DisagreementError("the same numbers elsewhere in memory give other bits")
        named = _named(results)
        gradients = {} if call.ambient in WITHOUT_GRADIENTS else _gradients_of(named, tensors, call.way)
    return {name: result.detach() for name, result in named.items()} | gradients


def _named(results: tuple[Tensor, ...]) -> dict[str, Tensor]:
    return dict(zip(("output", "lse"), results, strict=False))


def _bound(call: Call, masked: Masked) -> Any:
    """The mask in its place, if that is not where the queries are the last positions; bound once for all calls."""
    if call.start is None and not call.is_bound:
        return masked.mask
    if call.start not in masked.bound:
        mask = masks.Dense(masked.mask) if isinstance(masked.mask, Tensor) else masked.mask
        masked.bound[call.start] = mask.bind(call.queries, call.keys, q_offset=call.start)
    return masked.bound[call.start]


# Ways to call ---------------------------------------------------------------------------------------------------------

Attend = Callable[..., tuple[Tensor, ...]]


def _with_grad(call: Call, tensors: Tensors, attend: Attend, options: dict[str, Any]) -> dict[str, Tensor]:
    """By torch.func.grad, of a dictionary of all that learns."""

    def loss(leaves: dict[str, Tensor]) -> tuple[Tensor, tuple[Tensor, ...]]:
        now = tensors.with_leaves(leaves)
        results = attend([now[name] for name in "qkv"], options | _options_of(call, now))
        return _loss(_named(results), now), results

    leaves = {name: x.detach() for name, x in tensors.items() if x.requires_grad}
    gradients, results = torch.func.grad(loss, has_aux=True)(leaves)
    return _named(results) | {f"gradient of {name}": gradient for name, gradient in gradients.items()}


def _loss(results: dict[str, Tensor], tensors: Mapping[str, Tensor]) -> Tensor:
    return torch.stack([(result.double() * up).sum() for result, up in _with_ups(results, tensors)]).sum()


def _mapped(call: Call, attend: Attend, options: dict[str, Any]) -> Callable[..., tuple[Tensor, ...]]:
    """A call of one sequence, and of its mask where each has its own tensor."""

    def one(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> tuple[Tensor, ...]:
        mine = options if mask is None else options | {"mask": mask if mask.ndim == 2 else mask[None]}
        return tuple(result[0] for result in attend([q[None], k[None], v[None]], mine))

    return one


def _own_mask(call: Call, options: dict[str, Any]) -> Tensor | None:
    mask = options.get("mask")
    return mask if isinstance(mask, Tensor) and mask.ndim == 4 and len(mask) == call.batch else None


def _with_vmap(call: Call, tensors: Tensors, attend: Attend, options: dict[str, Any]) -> dict[str, Tensor]:
    """By torch.func.vmap over sequences, whose results are differentiated outside."""
    mask = _own_mask(call, options)
    given = [tensors[name] for name in "qkv"] + ([] if mask is None else [mask])
    results = _named(torch.func.vmap(_mapped(call, attend, options))(*given))
    gradients = {} if call.ambient in WITHOUT_GRADIENTS else _gradients_of(results, tensors)
    return {name: result.detach() for name, result in results.items()} | gradients


def _with_vmap_of_grad(call: Call, tensors: Tensors, attend: Attend, options: dict[str, Any]) -> dict[str, Tensor]:
    """The gradients of each sequence, by torch.func.grad within torch.func.vmap."""
    mask = _own_mask(call, options)
    one = _mapped(call, attend, options)

    def loss(vectors: dict[str, Tensor], rest: dict[str, Tensor], *mask: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        now = rest | vectors
        results = one(*(now[name] for name in "qkv"), *mask)
        return _loss(_named(results), now), results

    leaves = {name: tensors[name].detach() for name in call.learns}
    rest = {name: tensors[name].detach() for name in ("q", "k", "v", "up", "up of lse") if name not in leaves}
    gradients, results = torch.func.vmap(torch.func.grad(loss, has_aux=True))(
        leaves, rest, *([] if mask is None else [mask])
    )
    return _named(results) | {f"gradient of {name}": gradient for name, gradient in gradients.items()}


def _with_checkpoint(call: Call, tensors: Tensors, attend: Attend, _: dict[str, Any]) -> dict[str, Tensor]:
    """Computed again in the backward."""
    torch.manual_seed(call.seed)
    results = _named(checkpoint(lambda *vectors: attend([*vectors]), *(tensors[x] for x in "qkv"), use_reentrant=False))
    gradients = _gradients_of(results, tensors)
    return {name: result.detach() for name, result in results.items()} | gradients


def _with_graph(call: Call, tensors: Tensors, attend: Attend, _: dict[str, Any]) -> dict[str, Tensor]:
    """Differentiated twice, where that is not refused in a sentence; strips and the formula do not refuse it."""
    results = _named(attend([tensors[name] for name in "qkv"]))
    try:
        gradients = _gradients_of(results, tensors, "create graph")
    except regard.InputError as refusal:
        if "second derivative" not in str(refusal) or call.backend in ("strips", "reference"):
            raise
        gradients = _gradients_of(_named(attend([tensors[name] for name in "qkv"])), tensors)
    return {name: result.detach() for name, result in results.items()} | gradients


_WAYS: dict[str, Callable[[Call, Tensors, Attend, dict[str, Any]], dict[str, Tensor]]] = {
    "grad": _with_grad,
    "vmap": _with_vmap,
    "vmap of grad": _with_vmap_of_grad,
    "create graph": _with_graph,
    "checkpoint": _with_checkpoint,
}


def _options_of(call: Call, tensors: Tensors) -> dict[str, Any]:
    """What is passed but the mask; what is the default is not, and calls with little else are remembered."""
    options: dict[str, Any] = {}
    if call.bias != "none":
        options["bias"] = SHORT_BIASES[call.bias](call.shape, tensors)
    if (call.score, call.softcap) != ("scaled dot", None):
        options["score"] = SCORES[call.score](call, tensors)
    if call.normalizer != "softmax":
        options["normalizer"] = NORMALIZERS[call.normalizer](call, tensors)
    plain = {"scale": call.scale, "dropout": call.dropout or None, "return_lse": call.returns_lse or None}
    return options | {name: value for name, value in plain.items() if value is not None}


def _with_ups(results: dict[str, Tensor], tensors: Mapping[str, Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
    """What is differentiated, and what its gradient is; that of a log-sum-exp of a row that sees nothing, −∞, is 0."""
    yield results["output"], tensors["up"]
    if "lse" in results:
        lse = results["lse"]
        up = tensors["up of lse"].view(lse.shape).to(lse.dtype)
        yield lse, up.masked_fill(lse.detach() == -torch.inf, 0.0)


def _gradients_of(results: dict[str, Tensor], tensors: Tensors, way: str = "") -> dict[str, Tensor]:
    """The gradients of all that learns; with a graph, also those of what the gradients add up to, times the leaves."""
    leaves = {name: x for name, x in tensors.items() if x.requires_grad}
    if not leaves:
        return {}
    outputs, ups = zip(*(pair for pair in _with_ups(results, tensors) if pair[0].requires_grad), strict=True)
    is_twice, wanted = way == "create graph", list(leaves.values())
    first = torch.autograd.grad(outputs, wanted, ups, create_graph=is_twice)
    named = {f"gradient of {name}": gradient.detach() for name, gradient in zip(leaves, first, strict=True)}
    if not is_twice:
        return named
    parts = [(gradient.double() * x.detach()).sum() for gradient, x in zip(first, wanted, strict=True)]
    whole = torch.stack(parts).sum()
    again = [torch.zeros_like(x) for x in wanted]
    if whole.requires_grad:
        again = list(torch.autograd.grad(whole, wanted, allow_unused=True, materialize_grads=True))
    return named | {f"second gradient of {name}": x for name, x in zip(leaves, again, strict=True)}


def _compare(name: str, result: Tensor, expected: Tensor, allowed: float) -> float:
    wrong = result.isfinite() != expected.isfinite()
    wrong |= ~expected.isfinite() & (result.nan_to_num(1.0, 2.0, 3.0) != expected.nan_to_num(1.0, 2.0, 3.0))
    if bool(wrong.any()):
        at = tuple(wrong.nonzero()[0].tolist())
        numbers = f"{float(result[at]):.9g}, not {float(expected[at]):.9g}"
        raise DisagreementError(f"{name} at {at} is {numbers} ({int(wrong.sum())} such)")
    errors = (result - expected).nan_to_num(0.0).abs()
    error = _largest(errors)
    if error > allowed:
        at = tuple(errors.eq(error).nonzero()[0].tolist())
        numbers = f"{float(result[at]):.9g}, not {float(expected[at]):.9g}"
        raise DisagreementError(f"{name} at {at} is {numbers}: off by {error:.1e}, more than {allowed:.1e}")
    return error / allowed if error else 0.0


def _without_nan_of_hidden(call: Call, name: str, result: Tensor, expected: Tensor, seen: Tensor) -> Tensor:
    """NaN behind a mask is not kept out of the rows of its sequence and head (docs/precision.md), but of all others."""
    touched = _unseen(call, seen).any(-1).repeat_interleave(call.group, 1)[:, :, None, None]
    touched = touched.view(_with_dimensions(call, tuple(touched.shape)))
    return result.where(result.isfinite() | ~(touched[..., 0] if name == "lse" else touched), expected)


def _allowed_errors(call: Call, exact: Tensors, seen: Tensor | None, expected: dict[str, Tensor]) -> dict[str, float]:
    """The largest error of each result that is allowed."""
    q, k, v, up = (exact[name].detach().reshape(shape) for name, shape in call.shapes.items())
    products = q.nan_to_num().abs() @ k.abs().repeat_interleave(call.group, 1).mT
    of_weights = up @ v.repeat_interleave(call.group, 1).mT
    if seen is not None:
        products, of_weights = (x.masked_fill(~seen, 0.0) for x in (products, of_weights))
    scale = call.scale if call.scale is not None else call.width**-0.5 if call.score == "scaled dot" else 1.0
    rounding = max(1.0, _largest_score(call, abs(scale) * _largest(products), exact) / 12)
    if "alike rows" in call.memory:
        rounding *= 4  # sums of equal numbers are rounded to the same side again and again
    by_dtype = ALLOWED if call.backend == "native" else ALLOWED_OF_AUTO
    delta, epsilon, share = by_dtype[call.output_dtype]
    rows = call.batch * call.heads * call.queries  # whose errors add up where they share a number
    term = _largest(of_weights) / (1 - call.dropout)
    terms = {
        "q": abs(scale) * term * _largest(k),
        "k": abs(scale) * term * _largest(q) * (call.group * call.queries) ** 0.5,
        "v": _largest(up),
        "W": term * _largest(q) * _largest(k) * rows**0.5,
    }
    allowed = {}
    for name, result in expected.items():
        leaf = name.split("gradient of ")[-1]
        if name == "lse":
            relative, least = by_dtype[torch.float32][0] if call.dtype == "float32" else delta, 1.0
        elif name == "output":
            relative, least = delta, 0.1 * share * _largest(v)
        else:
            relative = max(epsilon, ALLOWED_OF_SLOPES) if leaf == "slopes" else epsilon
            if leaf not in ("q", "k", "v"):  # the gradient has the type of its leaf, which may be narrower
                relative = max(relative, by_dtype[DTYPES[call.bias_dtype]][1])
            relative *= ALLOWED_OF_SECOND if name.startswith("second") else 1
            least = share * terms.get(leaf, term * rows**0.5)
        allowed[name] = rounding * relative * max(_largest(result), least, 1e-25)
    return allowed


def _largest_score(call: Call, products: float, exact: Tensors) -> float:
    """About the largest score before the softcap, with all that is added; 0 where none is rounded."""
    if call.whole and call.bias == "none" and call.score in ("scaled dot", "dot"):
        return 0.0  # the scale cannot change their order
    biases = [_largest(x) for name, x in exact.items() if name in ("matrix", "row", "table", "sink")]
    if call.bias.startswith("alibi"):  # slopes are at most ½
        biases.append(0.5 * (call.queries + call.keys + abs(call.first)))
    return products + sum(biases)


def _largest(x: Tensor) -> float:
    return float(x.detach().nan_to_num(0.0, 0.0, 0.0).abs().max()) if x.numel() else 0.0


# The draw -------------------------------------------------------------------------------------------------------------

LENGTHS = (1, 2, 3, 7, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 191, 192, 193, 255, 256, 257, 511, 512, 513)
WIDTHS = (1, 2, 3, 8, 15, 16, 17, 31, 32, 33, 48, 63, 64, 65, 80, 96, 112, 127, 128, 129, 160, 192, 255, 256)
READ_IN_PLACE = (16, 32, 48, 64, 80, 96, 128, 160, 192, 256)  # widths with which few queries read keys as they lie
COSTS = (3e6, 2e7, 5e7)  # pairs · widths, at most


class Draw:
    """Choices of one call."""

    def __init__(self, number: int) -> None:
        self.rng = np.random.default_rng([1_000_003, number])

    def one_of(self, *values: Any) -> Any:
        return values[int(self.rng.integers(len(values)))]

    def chance(self, p: float) -> bool:
        return bool(self.rng.random() < p)

    def length(self) -> int:
        return int(self.one_of(*LENGTHS)) if self.chance(0.6) else int(self.rng.integers(1, 701))

    def any_width(self) -> int:
        return int(self.one_of(*WIDTHS)) if self.chance(0.8) else int(self.rng.integers(1, 257))

    def sizes(self) -> dict[str, int]:
        """Sizes that choose each kernel."""
        few = self.one_of((1, 2, 3), (1, 2, 3), (4, 5, 8, 16))
        queries = self.one_of(*few) if self.chance(0.4) else self.length()
        keys = queries if self.chance(0.25) else self.length()
        width, value_width = self.any_width(), self.any_width()
        if queries <= 16 and self.chance(0.7):
            width = self.one_of(*READ_IN_PLACE)
        dimensions = self.one_of(2, 3, 5) if self.chance(0.1) else 4
        heads = int(self.rng.integers(1, 10)) if dimensions > 3 else 1
        batch = int(self.rng.integers(1, 4)) if dimensions > 2 else 1
        return {
            "queries": queries, "keys": keys, "width": width, "value_width": value_width, "batch": batch,
            "heads": heads, "kv_heads": self.one_of(*(n for n in range(1, heads + 1) if heads % n == 0)),
            "dimensions": dimensions,
        }  # fmt: skip

    def mask(self, call: Call) -> dict[str, Any]:
        """A mask, where the queries are, and what it hides."""
        if self.chance(0.2):
            return {"hidden": "query" if self.chance(0.05) else ""}
        names = tuple(self.one_of(*FAMILIES, *COMPOSED) for _ in range(self.one_of(1, 1, 2, 3)))
        somewhere = self.one_of(
            (0, 1), (0, max(1, call.keys - call.queries + 1)), (-call.queries, call.keys + 1)
        )  # fmt: skip
        return {
            "mask": (TENSOR,) if self.chance(0.08) else names,
            "start": int(self.rng.integers(*somewhere)) if self.chance(0.35) else None,
            "hidden": self.one_of("", "", "huge", "huge", "nan"),
        }

    def parts(self, dtype: str) -> dict[str, Any]:
        """Everything that is computed with."""
        if self.chance(0.08):  # exact products, for scales of all sizes
            return {"whole": True, "scale": self.one_of(1e8, 1e20, -1e10, 1e-46, 3.0, None)}
        scale = {"scale": self.one_of(None, None, None, 0.3, 1.0, 0.0, -0.4)}
        if self.chance(0.2):
            return scale
        return scale | {
            "bias": self.one_of("none", "none", "none", self.one_of(*TABLES), *2 * [self.one_of(*ALL_BIASES)]),
            "bias_dtype": self.one_of("float32", dtype),
            "holes": self.one_of("", "", "", "infinite", "nan"),
            "score": "scaled dot" if self.chance(0.9) else self.one_of("dot", "bilinear", "cosine"),
            "softcap": None if self.chance(0.75) else self.one_of(1.5, 5.0, 30.0),
            "normalizer": "softmax" if self.chance(0.6) else self.one_of("sink", "sink", "sigmoid", "sigmoid, shifted"),
            "returns_lse": self.chance(0.4),
        }


def drawn(number: int) -> Call:
    """Draw call `number`; the surroundings come in turn."""
    draw = Draw(number)
    call = _affordable(Call(seed=number, **draw.sizes()), COSTS[int(draw.rng.choice(3, p=(0.5, 0.4, 0.1)))])
    dtype = draw.one_of("float32", "float32", "float32", "bfloat16", "bfloat16", "float16")
    learns = "" if draw.chance(0.35) else "qkvp" if draw.chance(0.6) else "".join(x for x in "qkvp" if draw.chance(0.5))
    call = replace(
        call,
        dtype=dtype,
        ambient=list(AMBIENT)[number % len(AMBIENT)],
        learns=learns,
        **draw.mask(call),
        **draw.parts(dtype),
        dropout=0.0 if draw.chance(0.75) else draw.one_of(0.1, 0.3, 0.9),
        own_generator=draw.chance(0.5),
        size=draw.one_of(1.0, 1.0, 1.0, 4.0, 0.1),
        memory=tuple(draw.one_of(*MEMORY) if draw.chance(0.25) else "" for _ in range(4)),
        threads=1 if draw.chance(0.8) else 2,
        again=draw.chance(0.3),
    )
    return _possible(call)


def _affordable(call: Call, most: float) -> Call:
    """The same with fewer sequences, heads and at last queries, until the formula takes a moment alone."""

    def costs_more(call: Call) -> bool:
        return call.batch * call.heads * call.queries * call.keys * (call.width + call.value_width + 32) > most

    for fewer in ({"batch": 1}, {"heads": call.group, "kv_heads": 1}, {"heads": min(2, call.group)}):
        call = replace(call, **fewer) if costs_more(call) else call
    while costs_more(call):
        call = replace(call, queries=call.queries * 3 // 4)
    return call


def _without(*names: str) -> Callable[[Call], dict[str, Any]]:
    return lambda call: {"mask": tuple(name for name in call.mask if name not in names) or ("Causal",)}


# What is refused together or says nothing, and what is taken instead.
RULES: tuple[tuple[Callable[[Call], bool], Callable[[Call], dict[str, Any]]], ...] = (
    (lambda call: not call.dropout, lambda call: {"own_generator": False}),
    (lambda call: not call.mask, lambda call: {"start": None, "hidden": "query" if call.hidden == "query" else ""}),
    (lambda call: {"Padding", "LocalMonotonic"} <= {*call.mask}, _without("Padding")),
    (lambda call: "LocalMonotonic" in call.mask and not {*SHORT}.isdisjoint(call.mask), _without("LocalMonotonic")),
    (lambda call: not call.is_among_keys and not {*GRIDS}.isdisjoint(call.mask), _without(*GRIDS)),
    (lambda call: call.bias == "grid" and not call.is_among_keys, lambda call: {"bias": "none"}),
    # Its rule multiplies integers by numbers of the default type.
    (
        lambda call: call.bias == "of one's own" and call.ambient in ("bfloat16", "float16"),
        lambda call: {"bias": "none"},
    ),
    (lambda call: call.bias == "none", lambda call: {"holes": "", "bias_dtype": "float32"}),
    # In a narrower type a bias is computed in that, as the formula would in none.
    (lambda call: call.dtype == "float64", lambda call: {"bias_dtype": "float64"}),
    (lambda call: call.dtype == "float32" and "one's own" in call.bias, lambda call: {"bias_dtype": "float32"}),
    (lambda call: call.holes == "nan" and not call.mask, lambda call: {"holes": ""}),
    # The formula's own gradient is NaN there.
    (lambda call: call.holes == "nan" and "sigmoid" in call.normalizer and call.learns != "", lambda _: {"holes": ""}),
    (lambda call: "sigmoid" in call.normalizer, lambda call: {"returns_lse": False}),
    (lambda call: call.hidden == "nan" and call.learns != "", lambda call: {"hidden": "huge"}),
    # A query that is no number, times 0, is none in the formula alone.
    (lambda call: call.hidden == "query" and (call.scale == 0 or call.whole), lambda _: {"scale": 0.3, "whole": False}),
    # The kernels take 0 for a weight that is dropped, NaN or not.
    (lambda call: call.hidden == "query", lambda call: {"learns": "", "dropout": 0.0, "own_generator": False}),
    # PyTorch's own norms and products depend on the order in memory.
    (lambda call: call.score in ("bilinear", "cosine"), lambda call: {"again": False}),
    # Gradients would be infinite; and float16 is no type of autocast to bfloat16.
    (lambda call: call.dtype == "float16" and abs(call.scale or 0) > 1e3, lambda call: {"scale": 3.0}),
    (
        lambda call: call.ambient == "autocast, mixed types" and call.dtype in ("float16", "float64"),
        lambda _: {"dtype": "float32"},
    ),
    # Keys that are alike are seen all or none.
    (
        lambda call: call.hidden != "" and any(memory in ALIKE for memory in call.memory[:3]),
        lambda call: {"memory": ("", "", "", call.memory[3])},
    ),
    (
        lambda call: call.dimensions == 3,  # whose heads are sequences
        lambda call: {"memory": tuple(memory.replace("alike heads", "alike sequences") for memory in call.memory)},
    ),
    (lambda call: call.dimensions < 4 and call.heads > 1, lambda call: {"dimensions": 4}),
    (lambda call: call.dimensions < 3 and call.batch > 1, lambda call: {"dimensions": 4}),
    # Strips of each sequence for itself take seconds.
    (lambda call: "strips" in call.backend and call.batch * call.heads > 256, lambda call: {"backend": "auto"}),
    # Of other ways to call.
    (lambda call: call.way in OF_ONE_SEQUENCE, lambda call: {"dimensions": 4, "learns": call.learns.replace("p", "")}),
    # PyTorch's own kernel is refused there.
    (
        lambda call: call.way in OF_ONE_SEQUENCE and call.dtype == "float16" and call.ambient.startswith("autocast"),
        lambda call: {"dtype": "float32"},
    ),
    # What the second derivative multiplies by would be huge, too.
    (lambda call: call.way == "create graph" and call.hidden == "huge", lambda call: {"hidden": ""}),
    # A mask that is mapped too cannot be bound before.
    (
        lambda call: call.way in OF_ONE_SEQUENCE and not {*RAW}.isdisjoint(call.mask),
        lambda call: {"start": None, "is_bound": False},
    ),
    # Which may be flags of tokens.
    (
        lambda call: call.mask[:1] in {("tensor qk",), ("tensor q1",)} and call.batch == call.queries > 1,
        lambda call: {"mask": (call.mask[0].replace("tensor ", "tensor 11"),)},
    ),
    # A score's parts have no heads to be for.
    (lambda call: call.heads == 0, lambda call: {"score": "scaled dot", "normalizer": "softmax"}),
    (lambda call: call.way == "vmap of grad" and not call.learns, lambda call: {"way": "vmap"}),
    (lambda call: call.way in ("grad", "create graph") and not call.learns, lambda call: {"learns": "qkv"}),
    (lambda call: call.way not in ("", "vmap") and call.ambient in WITHOUT_GRADIENTS, lambda _: {"ambient": "nothing"}),
    (lambda call: call.way not in ("", "create graph", "checkpoint"), lambda call: {"dropout": 0.0}),
    (lambda call: call.way == "checkpoint" or not call.dropout, lambda call: {"own_generator": False}),
    (lambda call: call.is_empty, lambda call: {"holes": "", "hidden": "", "way": "", "dimensions": 4, "start": None}),
    (
        lambda call: call.is_empty,
        lambda call: {"memory": tuple("" if memory in ALIKE else memory for memory in call.memory)},
    ),
    (lambda call: not call.mask, lambda call: {"is_bound": False, "renewed": ""}),
    (
        lambda call: call.bias == "none" and call.normalizer != "sink" and call.score != "bilinear",
        lambda call: {"learns": call.learns.replace("p", "")},
    ),
)


def _possible(call: Call) -> Call:
    for applies, instead in RULES:
        call = replace(call, **instead(call)) if applies(call) else call
    return call


# Series of short calls ------------------------------------------------------------------------------------------------

Series = tuple[Call, ...]
PAIRS, HOW_OFTEN = (2**12, 2**14, 2**16, 2**18, 2**20, 2**22), (0.3, 0.3, 0.27, 0.1, 0.027, 0.003)
TOKENS = (1, 1, 2, 2, 3, 4, 5, 7, 8, 9, 12, 15, 16, 17, 20, 24, 31, 32, 33, 48, 63, 64)
# Around the lengths at which rules begin: of dropout, strips, few queries, all others.
LONGER = (*(n + d for n in (16, 128, 256, 320, 512, 640) for d in (-1, 0, 0, 1)), 100, 200, 400, 600, 700)
FAR = (4095, 4096, 5000, 16384, 17000)
SHORT_WIDTHS = (1, 2, 3, 4, 7, 8, 8, 16, 16, 24, 32, 32, 33, 48, 64, 64, 80, 96, 128, 129)
NAMED = ("sdpa", "strips", "reference", "prefer strips", "prefer native", "prefer reference")
# What of a call the next one changes, and how often; its vectors are always others.
CHANGES = {
    "numbers": 0.30, "nothing": 0.16, "mask": 0.10, "parts": 0.08, "one part": 0.09, "ambient": 0.10, "learns": 0.06,
    "memory": 0.03, "dtype": 0.02, "way": 0.03, "backend": 0.01, "bound": 0.02,
}  # fmt: skip


class SeriesDraw(Draw):
    """Choices of a series."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.rng = np.random.default_rng([1_000_033, number])
        self.number, self.made = number, 0

    def next_seed(self) -> int:
        """Another one at each asking."""
        self.made += 1
        return 100 * self.number + self.made

    def between(self, least: int, most: int) -> int:
        """A number whose logarithm is uniform."""
        return int(math.exp(self.rng.uniform(math.log(least), math.log(most + 1))))

    def heads(self) -> dict[str, int]:
        heads = self.one_of(1, 1, 2, 2, 3, 4, 4, 6, 8, 12)
        kv_heads = heads if self.chance(0.6) else self.one_of(*(n for n in range(1, heads + 1) if heads % n == 0))
        return {"heads": heads, "kv_heads": kv_heads}

    def short_sizes(self) -> dict[str, int]:
        """Sizes between which the choice of a backend changes, few pairs in all."""
        pairs = PAIRS[int(self.rng.choice(len(PAIRS), p=HOW_OFTEN))]
        kind = self.one_of(*10 * ["many"], *2 * ["crowd"], *4 * ["decoding"], *3 * ["longer"], "empty")
        heads, numbers = self.heads(), max(2**15, 4 * pairs)
        tokens = int(self.one_of(*TOKENS)) if self.chance(0.7) else self.between(1, 64)
        if kind == "decoding":
            queries = self.one_of(1, 1, 1, 2, 3, self.between(1, 17))
            few = self.between(1, 64) if self.chance(0.3) else self.one_of(*LONGER)
            keys, numbers = self.one_of(*FAR) if self.chance(0.04) else few, max(2**18, numbers)
        elif kind == "longer":
            queries = self.one_of(*LONGER)
            keys, pairs = queries if self.chance(0.8) else self.one_of(*LONGER, *TOKENS), max(2**16, pairs)
        elif kind == "crowd":
            queries, pairs, numbers = min(tokens, self.between(1, 16)), max(2**16, pairs), max(2**18, numbers)
            keys = queries if self.chance(0.65) else self.between(1, 16)
            heads = {"heads": 1, "kv_heads": 1} if self.chance(0.6) else heads
        else:
            queries = tokens
            keys = tokens if self.chance(0.65) else self.between(1, 64)
        width = int(self.one_of(*SHORT_WIDTHS))
        while heads["heads"] > 1 and heads["heads"] * queries * keys > pairs:
            heads = {"heads": 1, "kv_heads": 1}
        while width > 8 and heads["heads"] * (queries + keys) * width > numbers:
            width //= 2
        most = min(
            pairs // (heads["heads"] * queries * keys), numbers // (heads["heads"] * (queries + keys) * width), 8192
        )
        most = max(1, most if kind in ("many", "crowd") else min(most, 512))
        batch = most if self.chance(0.7 if kind == "crowd" else 0.12) else self.between(1, most)
        batch = min(most, 2 ** round(math.log2(batch))) if self.chance(0.3) else batch
        sizes = {"queries": queries, "keys": keys, "width": width, "batch": batch, **heads}
        sizes["value_width"] = width if self.chance(0.75) else int(self.one_of(*SHORT_WIDTHS[:15]))
        if kind == "empty":
            for side in {self.one_of("batch", "queries", "keys", "heads"), self.one_of("batch", "keys", "queries")}:
                sizes[side] = 0
            sizes["kv_heads"] = sizes["kv_heads"] if sizes["heads"] else self.one_of(0, 1, 2)
        dimensions = self.one_of(2, 3, 5) if self.chance(0.08) else 4
        if dimensions < 4:
            sizes |= {"heads": 1, "kv_heads": 1} | ({"batch": 1} if dimensions == 2 else {})
        return sizes | {"dimensions": dimensions}

    def short_mask(self, call: Call) -> dict[str, Any]:
        """A mask, of which there are more numbers in the next call."""
        if self.chance(0.12):
            names: tuple[str, ...] = ()
        elif call.is_empty:
            names = (self.one_of(*OF_EMPTY),)
        elif self.chance(0.62):
            names = (self.one_of(*(name for name in SHORT if name not in RAW)),)
            names = (self.one_of(*RAW),) if self.chance(0.2) else names
        else:
            every = (*FAMILIES, *COMPOSED, *(name for name in SHORT if name not in RAW))
            names = tuple(self.one_of(*every) for _ in range(self.one_of(1, 1, 2, 3)))
            names = names if len(names) > 1 or self.chance(0.5) else (self.one_of("Causal", "Window"),)
        place = self.one_of((0, 1), (0, max(1, call.keys - call.queries + 1)), (-call.queries, call.keys + 1))
        start = int(self.rng.integers(*place)) if self.chance(0.08) and not call.is_empty else None
        hidden = "huge" if self.chance(0.15) else ""
        return {"mask": names, "start": start, "hidden": hidden, "mask_seed": self.next_seed()}

    def short_parts(self, call: Call) -> dict[str, Any]:
        """Everything else that is computed with; most calls have nothing."""
        plain = {"scale": None, "bias": "none", "score": "scaled dot", "softcap": None, "normalizer": "softmax"}
        plain |= {"returns_lse": False, "dropout": 0.0, "holes": ""}
        if self.chance(0.5):
            return plain
        if self.chance(0.35):
            return plain | self.one_part(call)
        biases = [name for name in SHORT_BIASES if " " in name and "alibi" not in name and "t5" not in name]
        bias = self.one_of(*biases) if call.is_empty else self.one_of(*SHORT_BIASES)
        bias = self.one_of(*TABLES, "alibi", "alibi, causal") if self.chance(0.3) and not call.is_empty else bias
        return plain | {
            "scale": self.one_of(None, None, None, 0.3, 1.0, 0.0, -0.4),
            "bias": bias if self.chance(0.5) else "none",
            "bias_dtype": self.one_of("float32", call.dtype),
            "holes": "infinite" if self.chance(0.1) else "",
            "score": "scaled dot" if self.chance(0.9) else self.one_of("dot", "bilinear", "cosine"),
            "softcap": None if self.chance(0.85) else self.one_of(1.5, 5.0, 30.0),
            "normalizer": "softmax" if self.chance(0.75) else self.one_of("sink", "sigmoid", "sigmoid, shifted"),
            "returns_lse": self.chance(0.25),
            "dropout": self.one_of(0.1, 0.5) if self.chance(0.15) else 0.0,
            "own_generator": self.chance(0.5),
        }

    def one_part(self, call: Call) -> dict[str, Any]:
        """One of those with which a call is still kept."""
        alibi = self.one_of("none", "alibi, causal", "alibi, both sides")
        bias = "none" if call.is_empty else alibi
        return self.one_of(
            {"scale": self.one_of(None, 0.3, 1.0)}, {"dropout": self.one_of(0.0, 0.1, 0.5)}, {"bias": bias}
        )

    def short_learns(self) -> str:
        return self.one_of("", "", "qkvp", "qkv", "".join(x for x in "qkvp" if self.chance(0.5)))

    def short_memory(self) -> tuple[str, ...]:
        kinds = ("parameter", "rows of heads", *MEMORY)
        return tuple(self.one_of(*kinds) if self.chance(0.2) else "" for _ in range(4))

    def first(self) -> Call:
        """The call with which a series begins."""
        call = Call(seed=self.next_seed(), backend="auto", **self.short_sizes())
        call = replace(call, dtype=self.one_of("float32", "float32", "float32", "bfloat16", "bfloat16", "float64"))
        call = replace(call, dtype="float16") if self.chance(0.03) else call
        call = replace(call, **self.short_mask(call), **self.short_parts(call), learns=self.short_learns())
        return replace(
            call,
            ambient=self.one_of(*AMBIENT) if self.chance(0.35) else "nothing",
            memory=self.short_memory(),
            way=self.one_of(*WAYS) if self.chance(0.12) else "",
            is_bound=self.chance(0.06),
            threads=1 if self.chance(0.7) else 2,
        )

    def changed(self, call: Call) -> Call:
        """The next call."""
        call = replace(call, seed=self.next_seed(), renewed="")
        what = str(self.rng.choice(list(CHANGES), p=list(CHANGES.values())))
        if what == "numbers" and call.mask:
            in_place = call.mask[0] in RAW and self.chance(0.5)
            return replace(call, mask_seed=self.next_seed(), renewed="in place" if in_place else "")
        changes: dict[str, Callable[[], dict[str, Any]]] = {
            "numbers": lambda: self.short_mask(call),
            "nothing": lambda: {"renewed": "again" if self.chance(0.3) else ""},
            "mask": lambda: self.short_mask(call),
            "parts": lambda: self.short_parts(call),
            "one part": lambda: self.one_part(call),
            "ambient": lambda: {"ambient": self.one_of(*AMBIENT)},
            "learns": lambda: {"learns": self.short_learns()},
            "memory": lambda: {"memory": self.short_memory()},
            "dtype": lambda: {"dtype": self.one_of(*DTYPES)},
            "way": lambda: {"way": self.one_of(*WAYS)},
            "backend": lambda: {"backend": self.one_of(*NAMED)},
            "bound": lambda: {"is_bound": not call.is_bound},
        }
        return replace(call, **changes[what]())


def drawn_series(number: int) -> Series:
    """Draw series `number`: a call, and others of its sizes, each a change of the last or of one before."""
    draw = SeriesDraw(number)
    calls = [draw.first()]
    for _ in range(draw.one_of(2, 3, 3, 4, 5)):
        calls.append(draw.changed(calls[-1] if draw.chance(0.75) else draw.one_of(*calls)))
    return tuple(_possible(call) for call in calls)


def check_series(series: Series) -> float:
    """Compute the calls one after the other with what is kept of them, and nothing of what was before; give the largest
    error, by what is allowed.

    Raises:
        DisagreementError: The result of one is not that of the formula; it says of which.
    """
    call_cache._KEPT.clear()
    PLANS.clear()
    worst, known = 0.0, dict[Any, Masked]()
    for at, call in enumerate(series):
        key = _mask_key(call)
        if key not in known or call.renewed:
            known[key] = _renewed(call, known)
        try:
            worst = max(worst, check(call, known[key]))
        except DisagreementError as disagreement:
            raise DisagreementError(f"call {at}: {disagreement}") from disagreement
        # The addresses of masks that are not passed again are free for others.
        again = {_mask_key(later) for later in series[at + 1 :] if not later.renewed}
        known = {key: masked for key, masked in known.items() if key in again or masked is known[_mask_key(call)]}
    return worst


def _mask_key(call: Call) -> tuple[Any, ...]:
    return (
        call.mask,
        call.mask_seed,
        call.start,
        call.batch,
        call.heads,
        call.queries,
        call.keys,
        (call.way in OF_ONE_SEQUENCE),
    )


def _renewed(call: Call, known: dict[Any, Masked]) -> Masked:
    """A mask that is not known, or its numbers in the last tensor of these sizes, which is known by them no more."""
    masked = Masked(*_mask_of(call))
    if call.renewed != "in place":
        return masked
    for key, other in reversed(list(known.items())):
        if isinstance(other.mask, Tensor) and other.mask.shape == masked.mask.shape:
            del known[key]
            other.mask.copy_(masked.mask)
            return Masked(other.mask, masked.seen)
    return masked


# The smallest call that is wrong --------------------------------------------------------------------------------------


def described(call: Call | Series) -> str:
    """A call as Python, without what is the default, or a series of them.

    >>> described(Call(keys=65, mask=("Causal",)))
    "Call(keys=65, mask=('Causal',))"
    """
    if isinstance(call, tuple):
        return f"({', '.join(map(described, call))},)"
    values = ((field.name, getattr(call, field.name), field.default) for field in dataclasses.fields(call))
    return f"Call({', '.join(f'{name}={value!r}' for name, value, default in values if value != default)})"


def smallest(call: Call, attempts: int = 200) -> Call:
    """Simplify a call that is wrong as long as it is."""
    return _smallest(call, _simpler, check, attempts)


def smallest_series(series: Series, attempts: int = 300) -> Series:
    """Simplify a series that is wrong as long as it is: fewer calls, then simpler ones."""
    return _smallest(series, _simpler_series, check_series, attempts)


Wrong = TypeVar("Wrong", Call, Series)


def _smallest(
    wrong: Wrong, simpler: Callable[[Wrong], Iterator[Wrong]], check: Callable[[Wrong], float], attempts: int
) -> Wrong:
    tried = {wrong}
    is_simpler = True
    while is_simpler:
        is_simpler = False
        for other in simpler(wrong):
            if other in tried or len(tried) > attempts:
                continue
            tried.add(other)
            if _is_wrong(lambda other=other: check(other)):
                wrong, is_simpler = other, True
                break
    return wrong


def _is_wrong(check: Callable[[], float]) -> bool:
    try:
        check()
    except DisagreementError:
        return True
    except Exception:  # the formula refuses it
        return False
    return False


def _simpler_series(series: Series) -> Iterator[Series]:
    """A series without one of its calls, and with one field simpler in all or in one."""
    for at in range(len(series) if len(series) > 1 else 0):
        yield series[:at] + series[at + 1 :]
    for field in dataclasses.fields(Call):
        if field.name in NEVER_SIMPLER:
            continue
        for value in dict.fromkeys(getattr(call, field.name) for call in series):
            for other in (field.default, *_smaller(field.name, value)):
                heads = {"kv_heads": 1} if field.name == "heads" else {}
                all_of_it = tuple(
                    replace(call, **{field.name: other}, **heads) if getattr(call, field.name) == value else call
                    for call in series
                )
                each = [(*series[:at], all_of_it[at], *series[at + 1 :]) for at in range(len(series))]
                sizes = {"queries", "keys", "width", "value_width", "batch", "heads", "kv_heads", "dimensions"}
                for simpler in (all_of_it, *([] if field.name in sizes else each)):
                    if simpler != series and all(_is_possible(call) for call in simpler):
                        yield simpler


def _is_possible(call: Call) -> bool:
    return (call.heads % call.kv_heads == 0 if call.kv_heads else not call.heads) and _possible(call) == call


def _simpler(call: Call) -> Iterator[Call]:
    """The call with one field simpler, the simplest first."""
    for field in dataclasses.fields(call):
        value = getattr(call, field.name)
        if value == field.default or field.name in NEVER_SIMPLER:
            continue
        for other in (field.default, *_smaller(field.name, value)):
            heads = {"kv_heads": 1} if field.name == "heads" else {}
            simpler = replace(call, **{field.name: other}, **heads)
            if simpler.heads % simpler.kv_heads == 0 and _possible(simpler) == simpler:
                yield simpler


NEVER_SIMPLER = ("seed", "backend", "mask_seed")


def _smaller(name: str, value: Any) -> list[Any]:
    if name == "mask":
        return [value[:at] + value[at + 1 :] for at in range(len(value))]
    if name == "memory":
        return [(*value[:at], "", *value[at + 1 :]) for at in range(len(value)) if value[at]]
    if name == "learns":
        return [value.replace(letter, "") for letter in value]
    if type(value) is int and name not in ("start", "dimensions"):
        return [size for size in (value // 64 * 64, value // 2, value - 1) if size > 0]
    return []
