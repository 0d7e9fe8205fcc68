"""Random calls of attention(): drawn by number, computed by the native kernels, and compared with the formula.

    call = drawn(17)             call 17: sizes, mask, bias, memory, surroundings
    worst = check(call)          its largest error, by what is allowed; a DisagreementError where there is more
    least = smallest(call)       the simplest call that is wrong as this one is

The formula is backend="reference" in float64. It is given what the mask leaves as a tensor, by the rules in numpy of
drawn_masks.py wherever all queries stand on keys, so that a mistake in the plan of a mask is not made twice.

What is allowed is δ of the largest number for outputs and log-sum-exps, and ε of the largest for gradients (`ALLOWED`),
both times the largest Σ |q k| over 12 where that is more than 1, since scores are rounded too. Where terms of a
result cancel, a share of the largest term is taken for its largest number.
"""

import contextlib
import dataclasses
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

import regard
from drawn_masks import FAMILIES, Place, combined
from families import BIASES, Shape
from regard import masks, normalizers, positions, scores

__all__ = ["AMBIENT", "Call", "DisagreementError", "check", "described", "drawn", "smallest"]

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
# δ and ε by the type of the output, and the share of terms that cancel. In bfloat16 weights are rounded, too.
ALLOWED = {torch.float32: (3e-6, 1e-5, 0.1), torch.float16: (2e-3, 3e-3, 0.1), torch.bfloat16: (1e-2, 1e-2, 0.5)}
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

    @property
    def shape(self) -> Shape:
        """Its sizes, as families of biases know them."""
        return Shape(self.batch, self.heads, self.kv_heads, self.queries, self.keys, self.value_width)

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
        return torch.bfloat16 if self.ambient.startswith("autocast") else DTYPES[self.dtype]


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
GRIDS = ("Axial", "Neighborhood")  # whose queries must stand on cells
TENSOR = "a tensor"


def _mask_of(call: Call) -> tuple[Any, Tensor | None]:
    """The mask as it is passed, and the pairs that it leaves: (batch, heads, queries, keys)."""
    if not call.mask:
        return None, None
    sizes = call.batch, call.heads, call.queries, call.keys
    place = Place(np.random.default_rng([call.seed, 1]), *sizes, call.first)
    if call.mask == (TENSOR,):
        shape = [size if place.rng.random() < 0.5 else 1 for size in sizes[:2]] + list(sizes[2:])
        seen = torch.tensor(place.rng.random(shape) < place.rng.choice([0.02, 0.5, 0.97]))
        return seen, seen.expand(sizes)
    families = [name for name in call.mask if name in FAMILIES]
    mask, rule = combined(place, families) if families else (None, np.True_)
    for name in (name for name in call.mask if name in COMPOSED):
        other = COMPOSED[name](place)
        mask = other if mask is None else mask | other if place.rng.random() < 0.5 else mask & other
    if len(families) == len(call.mask) and call.is_among_keys:
        return mask, torch.tensor(np.broadcast_to(rule, sizes))
    return mask, mask.bind(call.queries, call.keys, q_offset=call.start).dense(*sizes[:2]).expand(sizes)


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
            numbers = rng.standard_normal(shape) * {"W": shape[-1] ** -0.5, "slopes": 0.1}.get(name, 1.0)
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
        if name == "up":
            x = x.bfloat16().double()
        if name == "v" and call.ambient == "autocast, mixed types":
            dtype = torch.bfloat16
        x = self._spoiled(name, x).view(_with_dimensions(call, shape))
        self._keep(name, x, dtype, learns=name in call.learns, memory=memory)

    def _keep(self, name: str, numbers: Tensor, dtype: torch.dtype, *, learns: bool = False, memory: str = "") -> None:
        x = numbers.to(dtype)
        x = x.double() if self.is_exact else _laid_out(x, memory)
        self[name] = x.requires_grad_(learns)

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


def check(call: Call) -> float:
    """Compute a call both ways and compare; give its largest error, by what is allowed.

    Raises:
        DisagreementError: A result is not that of the formula.
    """
    mask, seen = _mask_of(call)
    exact, tensors = (Tensors(call, seen, is_exact=is_exact) for is_exact in (True, False))
    expected = _computed(call, exact, seen, "reference")
    try:
        results = _computed(call, tensors, mask, "native", call.ambient, call.threads)
    except DisagreementError:
        raise
    except Exception as error:
        raise DisagreementError(f"{type(error).__name__}: {error}") from error
    if results.keys() != expected.keys():
        raise DisagreementError(f"{sorted(results)} instead of {sorted(expected)}")
    dtypes = {"output": call.output_dtype, "lse": torch.float32}
    for name, result in results.items():
        dtype = dtypes[name] if name in dtypes else tensors[name.removeprefix("gradient of ")].dtype
        if (result.shape, result.dtype, result.device.type) != (expected[name].shape, dtype, "cpu"):
            raise DisagreementError(f"{name} is {tuple(result.shape)} of {result.dtype} on {result.device}")
    allowed = _allowed_errors(call, exact, seen, expected)
    worst = 0.0
    for name, result in results.items():
        if call.hidden == "nan" and seen is not None:
            result = _without_nan_of_hidden(call, name, result.double(), expected[name], seen)
        worst = max(worst, _compare(name, result.double(), expected[name], allowed[name]))
    return worst


def _computed(
    call: Call, tensors: Tensors, mask: Any, backend: str, ambient: str = "nothing", threads: int = 1
) -> dict[str, Tensor]:
    """Output, log-sum-exp and the gradients of all that learns; only parts are made outside of the surroundings."""
    generator, options = torch.Generator("cpu"), _options_of(call, tensors)
    vectors = [tensors[name] for name in "qkv"]
    copies = [x.detach().contiguous().clone().requires_grad_(x.requires_grad) for x in vectors]
    if call.own_generator:
        options["generator"] = generator

    def attend(vectors: list[Tensor]) -> tuple[Tensor, ...]:
        (generator if call.own_generator else torch).manual_seed(call.seed)
        results = regard.attention(*vectors, backend=backend, **options)
        return results if isinstance(results, tuple) else (results,)

    with _threads(threads), AMBIENT[ambient]():
        if mask is not None:
            options["mask"] = _bound(call, mask)
        results = attend(vectors)
        if call.again and backend == "native":
            for result, repeated in zip(results, attend(copies), strict=True):
                if not torch.equal(result.detach().nan_to_num(7.0), repeated.detach().nan_to_num(7.0)):
                    raise DisagreementError("the same numbers elsewhere in memory give other bits")
        named = dict(zip(("output", "lse"), results, strict=False))
        gradients = {} if call.ambient in WITHOUT_GRADIENTS else _gradients_of(named, tensors)
    return {name: result.detach() for name, result in named.items()} | gradients


def _bound(call: Call, mask: Any) -> Any:
    """The mask in its place, if that is not where the queries are the last positions."""
    if call.start is None:
        return mask
    mask = masks.Dense(mask) if isinstance(mask, Tensor) else mask
    return mask.bind(call.queries, call.keys, q_offset=call.start)


def _options_of(call: Call, tensors: Tensors) -> dict[str, Any]:
    """What is passed but the mask; what is the default is not, and calls with little else are remembered."""
    options: dict[str, Any] = {}
    if call.bias != "none":
        options["bias"] = ALL_BIASES[call.bias](call.shape, tensors)
    if (call.score, call.softcap) != ("scaled dot", None):
        options["score"] = SCORES[call.score](call, tensors)
    if call.normalizer != "softmax":
        options["normalizer"] = NORMALIZERS[call.normalizer](call, tensors)
    plain = {"scale": call.scale, "dropout": call.dropout or None, "return_lse": call.returns_lse or None}
    return options | {name: value for name, value in plain.items() if value is not None}


def _gradients_of(results: dict[str, Tensor], tensors: Tensors) -> dict[str, Tensor]:
    leaves = {name: x for name, x in tensors.items() if x.requires_grad}
    if not leaves:
        return {}
    pairs = [(results["output"], tensors["up"])]
    if "lse" in results:  # of a row that sees nothing it is −∞
        lse = results["lse"]
        up = tensors["up of lse"].view(lse.shape).to(lse.dtype)
        pairs.append((lse, up.masked_fill(lse.detach() == -torch.inf, 0.0)))
    outputs, ups = zip(*((result, up) for result, up in pairs if result.requires_grad), strict=True)
    gradients = torch.autograd.grad(outputs, list(leaves.values()), ups)
    return {f"gradient of {name}": gradient for name, gradient in zip(leaves, gradients, strict=True)}


def _compare(name: str, result: Tensor, expected: Tensor, allowed: float) -> float:
    wrong = result.isfinite() != expected.isfinite()
    wrong |= ~expected.isfinite() & (result.nan_to_num(1.0, 2.0, 3.0) != expected.nan_to_num(1.0, 2.0, 3.0))
    if bool(wrong.any()):
        at = tuple(wrong.nonzero()[0].tolist())
        numbers = f"{float(result[at]):.9g}, not {float(expected[at]):.9g}"
        raise DisagreementError(f"{name} at {at} is {numbers} ({int(wrong.sum())} such)")
    errors = (result - expected).nan_to_num(0.0).abs()
    error = float(errors.max())
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
    delta, epsilon, share = ALLOWED[call.output_dtype]
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
        leaf = name.removeprefix("gradient of ")
        if name == "lse":
            relative, least = ALLOWED[torch.float32][0] if call.dtype == "float32" else delta, 1.0
        elif name == "output":
            relative, least = delta, 0.1 * share * _largest(v)
        else:
            relative = max(epsilon, ALLOWED_OF_SLOPES) if leaf == "slopes" else epsilon
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
    return float(x.detach().nan_to_num(0.0, 0.0, 0.0).abs().max())


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
    (lambda call: not call.is_among_keys and not {*GRIDS}.isdisjoint(call.mask), _without(*GRIDS)),
    (lambda call: call.bias == "grid" and not call.is_among_keys, lambda call: {"bias": "none"}),
    # Its rule multiplies integers by numbers of the default type.
    (lambda call: call.bias == "of one's own" and call.ambient in DTYPES, lambda call: {"bias": "none"}),
    (lambda call: call.bias == "none", lambda call: {"holes": "", "bias_dtype": "float32"}),
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
    (lambda call: (call.dtype, call.ambient) == ("float16", "autocast, mixed types"), lambda _: {"dtype": "float32"}),
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
    (
        lambda call: call.bias == "none" and call.normalizer != "sink" and call.score != "bilinear",
        lambda call: {"learns": call.learns.replace("p", "")},
    ),
)


def _possible(call: Call) -> Call:
    for applies, instead in RULES:
        call = replace(call, **instead(call)) if applies(call) else call
    return call


# The smallest call that is wrong --------------------------------------------------------------------------------------


def described(call: Call) -> str:
    """A call as Python, without what is the default.

    >>> described(Call(keys=65, mask=("Causal",)))
    "Call(keys=65, mask=('Causal',))"
    """
    values = ((field.name, getattr(call, field.name), field.default) for field in dataclasses.fields(call))
    return f"Call({', '.join(f'{name}={value!r}' for name, value, default in values if value != default)})"


def smallest(call: Call, attempts: int = 200) -> Call:
    """Simplify a call that is wrong as long as it is."""
    tried = {call}
    is_simpler = True
    while is_simpler:
        is_simpler = False
        for simpler in _simpler(call):
            if simpler in tried or len(tried) > attempts:
                continue
            tried.add(simpler)
            if _is_wrong(simpler):
                call, is_simpler = simpler, True
                break
    return call


def _is_wrong(call: Call) -> bool:
    try:
        check(call)
    except DisagreementError:
        return True
    except Exception:  # the formula refuses it
        return False
    return False


def _simpler(call: Call) -> Iterator[Call]:
    """The call with one field simpler, the simplest first."""
    for field in dataclasses.fields(call):
        value = getattr(call, field.name)
        if value == field.default or field.name == "seed":
            continue
        for other in (field.default, *_smaller(field.name, value)):
            heads = {"kv_heads": 1} if field.name == "heads" else {}
            simpler = replace(call, **{field.name: other}, **heads)
            if simpler.heads % simpler.kv_heads == 0 and _possible(simpler) == simpler:
                yield simpler


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
