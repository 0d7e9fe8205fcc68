"""Random calls over ranks: drawn by number, computed by every rank, and compared with one process.

    call = drawn(17)                             call 17: sizes, mask, score, bias, way to call
    sharding = drawn_sharding(call, ranks=4)     where its tensors lie on 4 ranks
    found = computed(call, sharding)             on each rank: what it has of output, log-sum-exp, gradients, record
    check(call, sharding, [found, ...])          the largest error, by what is allowed; else a DisagreementError

Sizes, masks and their rules in numpy are those of tests/random_calls.py, scores, biases, factors and normalizers those
of tests/families.py. One process computes the same with backend="reference" in float64, of the numbers as the ranks
have them, and is given what the mask leaves as a tensor. Where each rank's numbers belong in the whole is counted here,
as torch.chunk cuts.

What is allowed is that of `random_calls.ALLOWED_OF_AUTO`, relative to the largest number of each result: 1e-11 in
float64, where parts of rows are merged in another order; 2e-5 in float32; 4 units in the last place in bfloat16, which
ranks compute in float32 and round once. Statistics of a watched call are sums of weights: `ALLOWED_OF_RECORDS`.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, lru_cache, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.utils.checkpoint import checkpoint

import random_calls
import regard
from families import FACTORS, NORMALIZERS, SCORES, WIDTH
from random_calls import (
    AMBIENT,
    COMPOSED,
    DTYPES,
    FAMILIES,
    RAW,
    SHORT,
    SHORT_BIASES,
    WITHOUT_GRADIENTS,
    Call,
    DisagreementError,
    Draw,
    Tensors,
)
from regard import masks, positions, scores
from regard.errors import ObservationError
from regard.observe.statistics import Columns, Mass, Rectangle, Rows
from regard.parallel import ShardedKVCache

__all__ = [
    "RankCall", "Sharding", "check", "computed", "described", "drawn", "drawn_sharding", "expected", "may_be_refused",
    "simpler", "simpler_sharding",
]  # fmt: skip

# Relative to the largest number of a statistic, at least 1: weights of float64 calls, and of narrower ones, which are
# computed in float32 from the same queries and keys.
ALLOWED_OF_RECORDS = {"float64": 1e-10, "float32": 2e-5, "bfloat16": 2e-5}
FIELDS = ("mean", "max", "entropy", "received")  # of a record, beside the strongest keys
STATISTICS = ("distance", "confidence", "sink", "self", "previous", "next", "first")


@dataclass(frozen=True)
class RankCall(Call):
    """A call as numbers and words; a default is the simplest of its kind."""

    width: int = WIDTH
    value_width: int = WIDTH
    dtype: str = "float64"
    bias_dtype: str = "float64"
    backend: str = "auto"
    factor: str = "none"
    rotary: str = "none"
    ids: str = ""  # the position_ids of the rotary, "shared" by all sequences or of "each"
    way: str = "dtensors"  # to call: one of `WAYS`
    watch: str = ""  # "maps", "qk", or "heads" for some heads and queries alone
    explained: bool = False  # before the call
    wrapped: str = ""  # the tensors of mask and bias are DTensors: "replicated" or "sharded"
    padding: str = ""  # of the model's inputs: "attention_mask" or "documents"
    steps: tuple[int, ...] = ()  # tokens added to a cache at each step
    checkpointed: bool = False  # computed again in the backward

    @property
    def masked(self) -> "RankCall":
        """The same as `random_calls` draws masks for it."""
        return replace(self, way="")


@dataclass(frozen=True)
class Sharding:
    """The mesh of a call, and what lies along each of its axes: "sequence", "batch", "heads" or "nothing"."""

    mesh: tuple[int, ...]
    axes: tuple[str, ...]
    whole: str = ""  # which of q, k and v every rank has whole, where the others are cut along the sequence

    def of(self, name: str) -> tuple[str, ...]:
        """What lies along each axis of q, k or v."""
        return tuple("nothing" if axis == "sequence" and name in self.whole else axis for axis in self.axes)

    def coordinates(self, rank: int) -> tuple[int, ...]:
        """Where a rank is in the mesh."""
        return tuple(int(at) for at in np.unravel_index(rank, self.mesh))

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return int(np.prod(self.mesh))

    @property
    def sequence(self) -> int | None:
        """The axis along which sequences are cut."""
        return self.axes.index("sequence") if "sequence" in self.axes else None


WAYS = ("dtensors", "ordered", "cache", "module", "sdpa")


# The draw -------------------------------------------------------------------------------------------------------------

LENGTHS = (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 96, 100, 127, 128, 129, 150)
OF_ANY_LENGTH = ("Causal", "Window", "Sinks", "Strided", "BlockLocal", "DilatedWindow")
BIASES_OF_ANY_LENGTH = ("none", "none", "alibi", "t5", "table", "of one's own", "relative of one's own")
ALL_SCORES = (*SCORES, "dot")


class RankDraw(Draw):
    """Choices of one call."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.rng = np.random.default_rng([1_000_231, number])

    def length(self) -> int:
        return int(self.one_of(*LENGTHS)) if self.chance(0.6) else int(self.rng.integers(1, 151))

    def sizes(self) -> dict[str, Any]:
        """Sizes of few heads and tokens; sides without any now and then."""
        keys = self.length()
        queries = keys if self.chance(0.6) else self.one_of(1, 2, 3, self.length())
        dimensions = self.one_of(2, 3, 5) if self.chance(0.1) else 4
        heads = self.one_of(1, 2, 2, 3, 4, 4, 5, 6, 8) if dimensions > 3 else 1
        kv_heads = heads if self.chance(0.5) else self.one_of(*(n for n in range(1, heads + 1) if heads % n == 0))
        batch = self.one_of(1, 1, 2, 2, 3, 4) if dimensions > 2 else 1
        sizes = {"batch": batch, "heads": heads, "kv_heads": kv_heads, "dimensions": dimensions}
        if self.chance(0.03):
            side = self.one_of("queries", "keys")
            return sizes | {"queries": queries, "keys": keys} | {side: 0}
        return sizes | {"queries": queries, "keys": keys}

    def mask(self, call: RankCall) -> dict[str, Any]:
        """A mask of any kind, where the queries are, and what it hides."""
        if call.is_empty:
            return {"mask": (self.one_of(*random_calls.OF_EMPTY),) if self.chance(0.7) else ()}
        if self.chance(0.12):
            return {}
        every = (*FAMILIES, *FAMILIES, *COMPOSED, *(name for name in SHORT if name not in RAW and self.chance(0.5)))
        names = tuple(self.one_of(*every) for _ in range(self.one_of(1, 1, 2, 3)))
        if self.chance(0.08):
            names = (self.one_of(*RAW),)
        if self.chance(0.15):
            names = self.one_of(("Causal",), ("Window",), ("Causal", "Window"))
        return {
            "mask": ("a tensor",) if self.chance(0.05) else names,
            "start": int(self.rng.integers(-call.queries, call.keys + 1)) if self.chance(0.12) else None,
            "hidden": "huge" if self.chance(0.1) else "",
        }

    def parts(self, call: RankCall) -> dict[str, Any]:
        """Everything that is computed with."""
        parts: dict[str, Any] = {"scale": self.one_of(None, None, None, 0.3, 1.0, 0.0, -0.4)}
        if self.chance(0.2):
            return parts | {"returns_lse": self.chance(0.5)}
        rotary = self.one_of("none", "none", "none", *ROTARY)
        return parts | {
            "bias": self.one_of("none", "none", self.one_of(*SHORT_BIASES)),
            "bias_dtype": self.one_of("float32", call.dtype),
            "holes": "infinite" if self.chance(0.1) else "",
            "score": "scaled dot" if self.chance(0.5) else self.one_of(*ALL_SCORES),
            "softcap": None if self.chance(0.8) else self.one_of(1.5, 5.0),
            "normalizer": "softmax" if self.chance(0.5) else self.one_of("sink", "sink", "sigmoid", "sigmoid 0"),
            "factor": "none" if self.chance(0.8) else self.one_of(*FACTORS),
            "rotary": rotary,
            "ids": self.one_of("", "", "shared", "each") if rotary != "none" else "",
            "dropout": 0.0 if self.chance(0.75) else self.one_of(0.1, 0.5, 0.9),
            "own_generator": self.chance(0.5),
            "returns_lse": self.chance(0.4),
        }

    def way(self) -> str:
        return str(self.rng.choice(WAYS, p=(0.62, 0.12, 0.08, 0.12, 0.06)))


def drawn(number: int) -> RankCall:
    """Draw call `number`, the same for any number of ranks."""
    draw = RankDraw(number)
    call = RankCall(seed=number, **draw.sizes(), value_width=draw.one_of(WIDTH, WIDTH, 5, 1, 12))
    call = replace(call, dtype=draw.one_of("float64", "float64", "float64", "float64", "float32", "bfloat16"))
    learns = "" if draw.chance(0.15) else "qkvp" if draw.chance(0.6) else "".join(x for x in "qkvp" if draw.chance(0.5))
    call = replace(call, way=draw.way(), learns=learns, **draw.mask(call), **draw.parts(call))
    call = replace(
        call,
        size=draw.one_of(1.0, 1.0, 3.0, 0.1),
        ambient=draw.one_of(*(name for name in AMBIENT if name != "meta")) if draw.chance(0.12) else "nothing",
        watch=draw.one_of("maps", "qk", "qk", "heads") if draw.chance(0.3) else "",
        explained=draw.chance(0.15),
        wrapped=draw.one_of("replicated", "sharded") if draw.chance(0.08) else "",
        padding=draw.one_of("", "attention_mask", "documents"),
        checkpointed=draw.chance(0.06),
    )
    return _possible(draw, call)


ROTARY: dict[str, Callable[[int], positions.Rotary]] = {
    "rope": lambda width: positions.RoPE(width),
    "interleaved half": lambda width: positions.RoPE(width, interleaved=True, rotary_dim=4),
    "yarn": lambda width: positions.RoPE(width, scaling=positions.YaRN(4.0, 32)),
    "dynamic": lambda width: positions.RoPE(width, scaling=positions.DynamicNTK(3.0, 20)),
}


Change = tuple[Callable[[RankCall], bool], Callable[[RankCall], dict[str, Any]]]


def _in(*ways: str) -> Callable[[RankCall], bool]:
    return lambda call: call.way in ways


# What one process refuses too, or what says nothing in its way to call, and what is taken instead.
CHANGES: tuple[Change, ...] = (
    (lambda call: call.start is not None, lambda call: {"is_bound": True}),
    (  # whose rate is itself rounded to the narrow type, so that its record differs
        lambda call: call.bias == "relative of one's own" and call.bias_dtype not in ("float32", "float64"),
        lambda _: {"watch": ""},
    ),
    (
        _in("ordered", "module", "sdpa"),
        lambda call: {"queries": max(1, call.keys), "keys": max(1, call.keys), "start": None, "is_bound": False},
    ),
    (lambda call: call.way != "dtensors", lambda _: {"dimensions": 4, "wrapped": "", "explained": False}),
    (  # which takes masks of regard.masks alone
        lambda call: call.way == "ordered" and not {"a tensor", *RAW}.isdisjoint(call.mask),
        lambda _: {"mask": ("Dense",)},
    ),
    (
        _in("sdpa"),
        lambda call: {
            "mask": ("causal",) if call.seed % 2 else (), "bias": "none", "score": "scaled dot", "softcap": None,
            "factor": "none", "normalizer": "softmax", "rotary": "none", "returns_lse": False, "value_width": WIDTH,
            "holes": "",
        },
    ),
    # It multiplies in the type of the call.
    (lambda call: _in("module", "sdpa")(call) and call.dtype == "bfloat16", lambda _: {"dtype": "float64"}),
    (_in("module", "sdpa"), lambda call: {"bias_dtype": call.dtype, "hidden": "", "ambient": "nothing"}),
    (_in("dtensors", "ordered", "cache"), lambda _: {"padding": ""}),
    (
        lambda call: not _in("dtensors", "ordered")(call) or call.ambient in WITHOUT_GRADIENTS,
        lambda _: {"checkpointed": False},
    ),
    # Which winds PyTorch's own generator back, and no other.
    (lambda call: call.checkpointed, lambda _: {"own_generator": False}),
    # A score that cannot be kept.
    (lambda call: call.watch == "qk" and call.score == "of one's own", lambda _: {"watch": "maps"}),
    # Queries and keys are rounded when they are turned.
    (lambda call: call.watch != "" and call.dtype == "bfloat16", lambda _: {"rotary": "none", "ids": ""}),
    # Weights of both signs may add up to nearly 0.
    (
        lambda call: call.watch != "" and call.dtype != "float64" and call.factor == "matrix",
        lambda _: {"factor": "none"},
    ),
    (lambda call: call.ambient != "nothing" or call.way == "cache" or call.hidden != "", lambda _: {"watch": ""}),
    # There are no positions of them.
    (
        lambda call: call.first < 0 or call.first + call.queries > call.keys,
        lambda _: {"rotary": "none", "ids": ""},
    ),
    # Angles of what is not rounded yet, and scores that autocast rounds.
    (
        lambda call: call.ambient.startswith("autocast")
        and (call.rotary != "none" or call.score not in ("scaled dot", "dot")),
        lambda _: {"ambient": "nothing"},
    ),
    (
        lambda call: call.ambient == "bfloat16" and call.bias == "relative of one's own",
        lambda _: {"ambient": "nothing"},
    ),
    (lambda call: call.factor == "gaussian" and call.dimensions != 4, lambda _: {"factor": "none"}),
    (lambda call: call.is_empty, lambda _: {"rotary": "none", "ids": "", "factor": "none"}),
    (lambda call: call.is_empty and call.bias == "grid", lambda _: {"bias": "none"}),
)  # fmt: skip


def _possible(draw: RankDraw, call: RankCall) -> RankCall:
    call = _of_cache(draw, call) if call.way == "cache" else call
    for applies, instead in CHANGES:
        call = replace(call, **instead(call)) if applies(call) else call
    # The rules of calls on one process, which know fewer scores and normalizers, and other ways to call.
    known = replace(call.masked, score=_known(call.score), normalizer=_known(call.normalizer))
    mended = random_calls._possible(known)
    return replace(mended, score=call.score, normalizer=call.normalizer, way=call.way, learns=call.learns)


def _known(name: str) -> str:
    """The name as `random_calls` has it."""
    return {"sigmoid 0": "sigmoid"}.get(name, name)


def _of_cache(draw: RankDraw, call: RankCall) -> RankCall:
    """The keys of a cache come in steps, and its mask and bias are for any number of them."""
    keys, steps = max(1, min(call.keys, 40)), []
    while sum(steps) < keys:
        steps.append(min(keys - sum(steps), draw.one_of(1, 1, 1, 2, 3, 5, 17)))
    names = tuple(draw.one_of(*OF_ANY_LENGTH) for _ in range(draw.one_of(0, 1, 1, 2)))
    return replace(
        call, queries=keys, keys=keys, steps=tuple(steps), mask=names, start=None, is_bound=False, learns="",
        bias=draw.one_of(*BIASES_OF_ANY_LENGTH), ids="", hidden="", holes="", watch="", returns_lse=False,
        factor="relative" if call.factor != "none" else "none", ambient="nothing",
    )  # fmt: skip


def drawn_sharding(call: RankCall, ranks: int) -> Sharding:
    """Draw where the tensors of a call lie on so many ranks."""
    draw = RankDraw(call.seed)
    draw.rng = np.random.default_rng([1_000_289, call.seed, ranks])
    if call.way != "dtensors":
        return Sharding((ranks,), ("sequence",))
    meshes = {2: ((1, 2), (2, 1)), 3: ((1, 3), (3, 1)), 4: ((2, 2), (2, 2), (2, 2), (1, 4), (4, 1))}[ranks]
    mesh = (ranks,) if draw.chance(0.6) else draw.one_of(*meshes)
    possible = ("batch",) * (call.dimensions > 2) + ("heads",) * (call.dimensions > 3) + ("nothing",)
    axes = [draw.one_of(*possible, *possible[:2]) for _ in mesh]
    if draw.chance(0.92):
        axes[int(draw.rng.integers(len(mesh)))] = "sequence"
    whole = ""
    if "sequence" in axes and draw.chance(0.2):
        whole = draw.one_of("q", "q", "q", "kv", "k", "v")
    return Sharding(mesh, tuple(axes), whole)


def may_be_refused(call: RankCall, sharding: Sharding) -> bool:
    """Whether a call is one that the ranks may refuse, with the way out."""
    heads = [size for size, axis in zip(sharding.mesh, sharding.axes, strict=True) if axis == "heads" and size > 1]
    grouped = any(
        [len(part) for part in torch.arange(call.heads).chunk(size)]
        != [len(part) * call.group for part in torch.arange(call.kv_heads).chunk(size)]
        for size in heads
    )
    sizes = [len(part) for part in torch.arange(call.keys).chunk(sharding.ranks)]
    one_token = call.way == "sdpa" and call.mask == () and 1 in sizes and call.keys > 1
    not_a_value = call.way == "module" and call.padding != "" and not {"a tensor", *RAW}.isdisjoint(call.mask)
    return grouped or len(heads) > 1 or one_token or not_a_value


def described(call: RankCall) -> str:
    """A call as Python, without what is the default."""
    return random_calls.described(call).replace("Call(", "RankCall(", 1)


# The parts of a call --------------------------------------------------------------------------------------------------


@lru_cache(4)
def _masked(call: RankCall) -> tuple[Any, Tensor | None]:
    """The mask as it is passed, and the pairs that it leaves."""
    if call.way == "sdpa":
        causal = torch.ones(call.queries, call.keys, dtype=torch.bool).tril() if call.mask else None
        return None, causal
    return random_calls._mask_of(call.masked)


def _padding(call: RankCall) -> tuple[dict[str, Tensor], Tensor | None]:
    """What a model is told about its tokens, and the pairs that this leaves: (batch, 1, queries or 1, keys)."""
    rng = np.random.default_rng([call.seed, 5])
    if call.padding == "attention_mask":
        real = torch.tensor(rng.random((call.batch, call.keys)) < 0.8)
        real[:, 0] = True
        return {"attention_mask": real.long()}, real[:, None, None]
    if call.padding == "documents":
        ids = torch.tensor(rng.integers(0, 2, (call.batch, call.keys)).cumsum(1) // 6)
        ids[:, int(rng.integers(1, call.keys + 1)) :] = -1
        return {"documents": ids}, ((ids[:, :, None] == ids[:, None]) & (ids >= 0)[:, None])[:, None]
    return {}, None


def _rotary(call: RankCall) -> positions.Rotary | None:
    if call.rotary == "none":
        return None
    rotary = ROTARY[call.rotary](call.width)
    if not call.ids:
        return rotary
    rows = 1 if call.ids == "shared" or call.way in ("cache",) else call.batch
    ids = np.random.default_rng([call.seed, 6]).integers(0, 3, (rows, call.keys)).cumsum(1)
    return rotary.at(torch.tensor(ids))


def _options(call: RankCall, tensors: Callable[..., Tensor]) -> dict[str, Any]:
    """What is passed but the mask."""
    shape = call.shape
    options: dict[str, Any] = {
        "bias": SHORT_BIASES[call.bias](shape, tensors),
        "normalizer": NORMALIZERS[call.normalizer](shape, tensors),
        "weight_factor": FACTORS[call.factor](shape, tensors),
        "rotary": _rotary(call),
    }
    if call.score == "dot":
        options["score"] = scores.Dot(call.softcap)
    else:

        def new(name: str, *sizes: int) -> Tensor:
            return tensors("table of score" if name == "table" else name, *sizes)  # a bias may have one, too

        options["score"] = SCORES[call.score](shape, new, call.softcap)
    options |= {"scale": call.scale, "dropout": call.dropout, "return_lse": call.returns_lse}
    return {name: value for name, value in options.items() if value is not None}


def _mask_as_passed(call: RankCall, queries: int, keys: int) -> Any:
    mask, _ = _masked(call)
    if not call.is_bound or mask is None:
        return mask
    mask = masks.Dense(mask) if isinstance(mask, Tensor) else mask
    return mask.bind(queries, keys, q_offset=call.start)


# On a rank ------------------------------------------------------------------------------------------------------------


@cache
def _mesh(shape: tuple[int, ...]) -> DeviceMesh:
    return init_device_mesh("cpu", shape, mesh_dim_names=("first", "second")[: len(shape)])


class _Attends(nn.Module):
    """One call of attention as a model."""

    def __init__(self, options: dict[str, Any]) -> None:
        super().__init__()
        self.options = options

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Any:
        return regard.attention(q, k, v, **self.options)


def computed(call: RankCall, sharding: Sharding) -> dict[str, np.ndarray]:
    """What this rank has of the results of a call, and of what it has watched.

    Raises:
        InputError: The ranks refuse the call.
    """
    compute = {"dtensors": _of_dtensors, "ordered": _of_ordered, "cache": _of_cache_steps}.get(call.way, _of_module)
    found = compute(call, sharding)
    return {name: x.detach().double().numpy() if isinstance(x, Tensor) else x for name, x in found.items()}


def _seeded(call: RankCall, options: dict[str, Any]) -> dict[str, Any]:
    """Set the seed of this rank, which the others need not share."""
    seed = call.seed + dist.get_rank()
    torch.manual_seed(seed)
    if call.own_generator and call.dropout:
        return options | {"generator": torch.Generator("cpu").manual_seed(seed)}
    return options


def _distribute(x: Tensor, mesh: DeviceMesh, axes: tuple[str, ...]) -> Tensor:
    """A DTensor of what every rank has, of which nothing is sent."""
    placements = [Replicate() if axis == "nothing" else Shard(_dimension(x.ndim, axis)) for axis in axes]
    return distribute_tensor(x.detach(), mesh, placements, src_data_rank=None).requires_grad_(x.requires_grad)


def _dimension(ndim: int, axis: str) -> int:
    return {"sequence": ndim - 2, "heads": ndim - 3, "batch": 0, "last": ndim - 1}[axis]


class _Wrapped(dict[str, Tensor]):
    """Tensors by name, those of mask and bias as DTensors; made when they are first asked for."""

    def __init__(self, tensors: Tensors, wrap: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.tensors, self.wrap = tensors, wrap

    def __call__(self, name: str, *shape: int) -> Tensor:
        if name not in self:
            self[name] = self.wrap(self.tensors(name, *shape))
        return self[name]


def _of_dtensors(call: RankCall, sharding: Sharding) -> dict[str, Any]:
    mesh = _mesh(sharding.mesh)
    _, visible = _masked(call)
    tensors = Tensors(call, visible, is_exact=False)
    parts: Any = tensors
    mask = _mask_as_passed(call, call.queries, call.keys)
    if call.wrapped:
        axes = ("last" if call.wrapped == "sharded" else "nothing", *("nothing",) * (len(sharding.mesh) - 1))
        parts = _Wrapped(tensors, lambda x: _distribute(x, mesh, axes))
        mask = _distribute(mask, mesh, axes) if isinstance(mask, Tensor) else mask
    options = _options(call, parts) | ({} if mask is None else {"mask": mask})
    q, k, v = (_distribute(tensors[name], mesh, sharding.of(name)) for name in "qkv")
    return _attended(call, tensors, parts, (q, k, v), options, _lying_as)


def _lying_as(up: Tensor, output: Tensor) -> Tensor:
    """A gradient that lies as an output does."""
    assert isinstance(output, DTensor)
    return distribute_tensor(up, output.device_mesh, output.placements, src_data_rank=None)


def _attended(
    call: RankCall,
    tensors: Tensors,
    parts: Mapping[str, Tensor],
    vectors: tuple[Tensor, Tensor, Tensor],
    options: dict[str, Any],
    lie_as: Callable[[Tensor, Tensor], Tensor],
    gather: Callable[[Tensor], Tensor] | None = None,
) -> dict[str, Any]:
    """Call, watch and differentiate; `gather` gives the whole of an output."""
    found: dict[str, Any] = {}
    with AMBIENT[call.ambient]():
        if call.explained:
            _check_explained(vectors, options)
        seeded = _seeded(call, options)
        attend: Callable[..., Any] = partial(regard.attention, **seeded)
        if call.checkpointed:
            results = _as_dict(checkpoint(attend, *vectors, use_reentrant=False))
        else:
            results = _as_dict(attend(*vectors))
        if gather is not None:
            found |= _whole_output(gather(results["output"].detach()))
        if call.watch:
            found |= _watched(call, _Attends(_seeded(call, options)), vectors, results)
        gradients = {}
        if call.ambient not in WITHOUT_GRADIENTS:
            leaves = {name: x for name, x in zip("qkv", vectors, strict=True) if x.requires_grad}
            leaves |= _learned(parts)
            gradients = _gradients(call, tensors, results, leaves, lie_as)
    found |= {f"dtype of {name}": str(x.dtype) for name, x in (results | gradients).items()}
    return found | {name: _local(x) for name, x in (results | gradients).items()}


def _learned(parts: Mapping[str, Tensor]) -> dict[str, Tensor]:
    vectors = ("q", "k", "v", "up", "up of lse")
    return {name: x for name, x in parts.items() if x.requires_grad and name not in vectors}


def _gradients(
    call: RankCall,
    tensors: Tensors,
    results: dict[str, Tensor],
    leaves: dict[str, Tensor],
    lie_as: Callable[[Tensor, Tensor], Tensor],
) -> dict[str, Tensor]:
    pairs = [(results["output"], lie_as(tensors["up"].detach(), results["output"]))]
    if "lse" in results:
        lse = results["lse"]
        blind = (lse.to_local() if isinstance(lse, DTensor) else lse).isneginf()
        up = lie_as(tensors["up of lse"].detach().view(tensors["q"].shape[:-1]).to(lse.dtype), lse)
        if isinstance(up, DTensor):
            up.to_local().masked_fill_(blind, 0.0)
        else:
            up = up.masked_fill(blind, 0.0)
        pairs.append((lse, up))
    pairs = [(result, up) for result, up in pairs if result.requires_grad]
    if not leaves or not pairs:
        return {}
    outputs, ups = zip(*pairs, strict=True)
    found = torch.autograd.grad(outputs, list(leaves.values()), ups, allow_unused=True, materialize_grads=True)
    return {f"gradient of {name}": x for name, x in zip(leaves, found, strict=True)}


def _whole_output(output: Tensor) -> dict[str, Any]:
    return {"whole output": output, "dtype of whole output": str(output.dtype)}


def _as_dict(results: Any) -> dict[str, Tensor]:
    return dict(zip(("output", "lse"), results if isinstance(results, tuple) else (results,), strict=False))


def _local(x: Tensor) -> Tensor:
    return x.to_local() if isinstance(x, DTensor) else x


def _check_explained(vectors: Any, options: dict[str, Any]) -> None:
    """Raise where a call that is computed is explained to be refused."""
    explanation = str(regard.explain(*vectors, **options))
    if explanation.startswith("sharded cannot run it"):
        raise DisagreementError(f"a call that is computed is explained to be refused: {explanation}")


# What is watched ------------------------------------------------------------------------------------------------------


def _watch_options(call: RankCall) -> dict[str, Any]:
    n, m = call.queries, call.keys
    if not m or not n:
        return {"keep": "qk" if call.watch == "qk" else "maps"}
    statistics = [
        *STATISTICS,
        Mass(keys=sorted({0, m // 2, m - 1}), name="chosen"),
        Columns(sorted({0, m - 1})),
        Rows(sorted({0, n // 2})),
        Rectangle(slice(n // 3, n), slice(m // 2, m)),
    ]
    spans = {"begin": (0, 1 + m // 4), "some": sorted({0, m // 3, m - 1}), "rest": (m // 2, None)}
    options: dict[str, Any] = {"statistics": statistics, "keys": spans}
    if call.watch == "qk":
        options["keep"] = "qk"
    if call.watch == "heads":
        options = {"statistics": ["distance", "confidence"]}
        options |= {"heads": [(0, call.heads - 1)], "queries": sorted({0, n // 2, n - 1})}
    return options


def _watched(call: RankCall, model: nn.Module, vectors: Any, results: dict[str, Tensor]) -> dict[str, Any]:
    """The record of a call, and whether its results are those of the same call without a watch."""
    with regard.watch(model, **_watch_options(call)) as seen:
        again = _as_dict(model(*vectors))
    for name, result in again.items():
        if not torch.equal(_local(result), _local(results[name])):
            raise DisagreementError(f"{name} has other bits where it is watched")
    return _record_of(call, seen)


def _record_of(call: RankCall, seen: Any) -> dict[str, Any]:
    """The numbers of a record by name; none where nothing was seen, as of a call without pairs."""
    try:
        (layer,) = seen.layers
    except ObservationError as error:
        if "nothing has been seen" not in str(error):
            raise
        return {"seen: nothing": np.ones(1)}
    found = {name: getattr(layer, name) for name in (*FIELDS, "top_keys", "top_weights")} | dict(layer.statistics)
    padding = layer.query_padding
    found["padding"] = np.zeros((layer.batch, layer.queries), np.bool_) if padding is None else padding
    if call.watch == "qk":
        found["weights"] = seen.weights(layer=0)
        names = ("lse",) if call.dtype == "bfloat16" else ("q", "k", "lse")  # whose q and k are bits
        found |= {f"kept {name}": layer.qk.arrays[name] for name in names}
    return {f"seen: {name}": np.asarray(array) for name, array in found.items()}


# Other ways to call ---------------------------------------------------------------------------------------------------


def _of_ordered(call: RankCall, sharding: Sharding) -> dict[str, Any]:
    """In the order of `shard_sequence`."""
    mesh = _mesh(sharding.mesh)
    mask, visible = _masked(call)
    tensors = Tensors(call, visible, is_exact=False)
    options = _options(call, tensors)
    shards = {name: regard.shard_sequence(tensors[name].detach(), mesh, mask, dim=2) for name in "qkv"}
    vectors = tuple(shard.tensor.detach().requires_grad_(tensors[name].requires_grad) for name, shard in shards.items())

    def lie_as(up: Tensor, output: Tensor) -> Tensor:
        return regard.shard_sequence(up, mesh, mask, dim=2).tensor

    found = _attended(
        call, tensors, tensors, vectors, options | {"mask": shards["q"].mask}, lie_as, shards["q"].restore
    )
    return found | {"position_ids": shards["q"].position_ids}


def _of_cache_steps(call: RankCall, sharding: Sharding) -> dict[str, Any]:
    """Tokens against a cache over the ranks, in steps; the sequences change their order in the middle."""
    mask, _ = _masked(call)
    tensors = Tensors(call, None, is_exact=False)
    options = {name: value for name, value in _options(call, tensors).items() if name != "return_lse"}
    cache = ShardedKVCache(_mesh(sharding.mesh))
    with torch.no_grad():
        outputs = _steps(call, cache, tensors, options, mask)
    return {"output": torch.cat(outputs, 2), "dtype of output": str(outputs[0].dtype)}


def _steps(call: RankCall, cache: Any, tensors: Tensors, options: dict[str, Any], mask: Any) -> list[Tensor]:
    q, k, v = (tensors[name] for name in "qkv")
    outputs, start = [], 0
    for at, count in enumerate(call.steps):
        here = slice(start, start + count)
        if at == len(call.steps) // 2 > 0:
            rows = _reordered(call)
            cache.reorder(rows)
        cache.update(k[:, :, here], v[:, :, here])
        outputs.append(cache.attend(q[:, :, here], **_seeded(call, options), mask=mask))
        start += count
    return outputs


def _reordered(call: RankCall) -> Tensor:
    return torch.arange(call.batch).roll(1)


class _Module(nn.Module):
    """Queries, keys and values cut out of embeddings, times a parameter."""

    def __init__(self, call: RankCall, options: dict[str, Any], parts: Mapping[str, Tensor], factor: Tensor) -> None:
        super().__init__()
        self.call, self.options = call, options
        self.factor = nn.Parameter(factor)
        self.learned = nn.ParameterList(parts.values())

    def forward(self, inputs_embeds: Tensor, attention_mask: None = None, documents: None = None) -> Any:
        call = self.call
        batch, tokens, _ = inputs_embeds.shape
        sizes = (call.heads * call.width, call.kv_heads * call.width, call.kv_heads * call.value_width)
        heads = (call.heads, call.kv_heads, call.kv_heads)
        cut = zip((inputs_embeds * self.factor).split(sizes, -1), heads, sizes, strict=True)
        q, k, v = (x.reshape(batch, tokens, count, size // count).transpose(1, 2) for x, count, size in cut)
        if call.way == "sdpa":
            options = {"dropout_p": call.dropout, "scale": call.scale, "enable_gqa": call.group > 1}
            return nn.functional.scaled_dot_product_attention(q, k, v, is_causal=bool(call.mask), **options)
        return regard.attention(q, k, v, **self.options)


def _embeddings(tensors: Tensors) -> Tensor:
    """q, k and v side by side (batch, tokens, width)."""
    x = torch.cat([tensors[name].detach().transpose(1, 2).flatten(2) for name in "qkv"], -1)
    return x.requires_grad_("q" in tensors.call.learns)


def _factor(call: RankCall, x: Tensor) -> Tensor:
    numbers = np.random.default_rng([call.seed, 7]).uniform(0.5, 1.5, x.shape[-1])
    return torch.tensor(numbers).to(DTYPES[call.dtype]).to(x.dtype)


def _of_module(call: RankCall, sharding: Sharding) -> dict[str, Any]:
    """A model inside `sequence_parallel`."""
    mask, visible = _masked(call)
    tensors = Tensors(call, visible, is_exact=False)
    _options(call, tensors)  # which makes the parts
    parts = {name: nn.Parameter(x.detach()) for name, x in _learned(tensors).items()}
    tensors.update(parts)
    options = _seeded(call, _options(call, tensors) | ({} if mask is None else {"mask": mask}))
    x = _embeddings(tensors)
    model = _Module(call, options, parts, _factor(call, x))
    given, _ = _padding(call)
    found: dict[str, Any] = {}
    with AMBIENT[call.ambient](), regard.sequence_parallel(model, _mesh(sharding.mesh)) as shards:
        results = _as_dict(model(inputs_embeds=x, **given))
        found |= _whole_output(shards.gather(results["output"].movedim(2, 1)).movedim(1, 2))
        if call.watch:
            model.options = _seeded(call, model.options)
            found |= _watched(call, _Given(model, given), (x,), results)
        gradients = {}
        if call.ambient not in WITHOUT_GRADIENTS:
            leaves = {"x": x} if x.requires_grad else {}
            leaves |= {"factor": model.factor, **parts}

            def lie_as(up: Tensor, _: Tensor) -> Tensor:
                return shards.shard(up.movedim(2, 1)).movedim(1, 2)

            gradients = _gradients(call, tensors, results, leaves, lie_as)
    found |= {f"dtype of {name}": str(one.dtype) for name, one in (results | gradients).items()}
    return found | results | gradients


class _Given(nn.Module):
    """A model with what it is told about its tokens."""

    def __init__(self, model: nn.Module, given: dict[str, Tensor]) -> None:
        super().__init__()
        self.model, self.given = model, given

    def forward(self, x: Tensor) -> Any:
        return self.model(inputs_embeds=x, **self.given)


# One process ----------------------------------------------------------------------------------------------------------


def expected(call: RankCall) -> tuple[dict[str, Tensor], Tensors, dict[str, np.ndarray]]:
    """Output, log-sum-exp and gradients by the formula in float64, the tensors of these, and the record of one process.

    Raises:
        InputError: One process refuses the call, too.
    """
    _, visible = _masked(call)
    tensors = Tensors(call, visible, is_exact=True)
    generator = torch.Generator("cpu").manual_seed(call.seed)
    if call.way == "cache":
        return _expected_steps(call, tensors), tensors, {}
    options = _options(call, tensors) | {"generator": generator}
    _, of_tokens = _padding(call)
    seen = visible if of_tokens is None else of_tokens if visible is None else visible & of_tokens
    if seen is not None:
        dense = masks.Dense(seen.expand(call.batch, call.heads, call.queries, call.keys))
        options["mask"] = dense.bind(call.queries, call.keys, q_offset=call.start) if call.is_bound else dense
    leaves = {name: x for name, x in tensors.items() if x.requires_grad}
    if call.way in ("module", "sdpa"):
        x = _embeddings(tensors)
        model = _Module(replace(call, way="module"), options | {"backend": "reference"}, {}, _factor(call, x))
        leaves = ({"x": x} if x.requires_grad else {}) | {"factor": model.factor} | _learned(tensors)
        results = _as_dict(model(inputs_embeds=x))
    else:
        results = _as_dict(regard.attention(*(tensors[name] for name in "qkv"), backend="reference", **options))
    gradients: dict[str, Tensor] = {}
    if call.ambient not in WITHOUT_GRADIENTS and leaves:
        pairs = [pair for pair in random_calls._with_ups(results, tensors) if pair[0].requires_grad]
        outputs, ups = zip(*pairs, strict=True)
        found = torch.autograd.grad(outputs, list(leaves.values()), ups, allow_unused=True, materialize_grads=True)
        gradients = {f"gradient of {name}": x for name, x in zip(leaves, found, strict=True)}
    record = _expected_record(call, tensors, options) if call.watch else {}
    results = {name: x.detach() for name, x in results.items()}
    return results | gradients, tensors, record


def _expected_steps(call: RankCall, tensors: Tensors) -> dict[str, Tensor]:
    """Each step of a cache as a call of its own."""
    mask, _ = _masked(call)
    options = _options(call, tensors)
    q, k, v = (tensors[name] for name in "qkv")
    outputs, end = [], 0
    for at, count in enumerate(call.steps):
        if at == len(call.steps) // 2 > 0:
            rows = _reordered(call)
            k, v = (torch.cat([x[rows, :, :end], x[:, :, end:]], 2) for x in (k, v))
        end += count
        given = q[:, :, end - count : end], k[:, :, :end], v[:, :, :end]
        generator = torch.Generator("cpu").manual_seed(call.seed)
        outputs.append(regard.attention(*given, mask=mask, backend="reference", generator=generator, **options))
    return {"output": torch.cat(outputs, 2)}


def _expected_record(call: RankCall, tensors: Tensors, options: dict[str, Any]) -> dict[str, np.ndarray]:
    """The record of one process, with its weights by the formula."""
    vectors = [tensors[name].detach() for name in "qkv"]
    if call.way in ("module", "sdpa"):
        x = _embeddings(tensors).detach() * _factor(call, _embeddings(tensors))
        sizes = [count * width for count, width in _heads(call)]
        cut = zip(x.split(sizes, -1), _heads(call), strict=True)
        vectors = [one.unflatten(-1, pair).transpose(1, 2) for one, pair in cut]
    with torch.no_grad():
        with regard.watch(model := _Attends(options), **_watch_options(call)) as seen:
            model(*vectors)
        record = _record_of(call, seen)
        if not call.is_empty:
            weights = regard.attention(
                *vectors, **{**options, "return_lse": False}, backend="reference", return_weights=True
            )[1]
            record["weights"] = weights.reshape(-1, call.heads, call.queries, call.keys).numpy()
    return record


def _heads(call: RankCall) -> list[tuple[int, int]]:
    return [(call.heads, call.width), (call.kv_heads, call.width), (call.kv_heads, call.value_width)]


# Comparison -----------------------------------------------------------------------------------------------------------


def check(call: RankCall, sharding: Sharding, found: list[dict[str, Any]]) -> float:
    """Compare what all ranks have with one process; return the largest error, by what is allowed.

    Raises:
        DisagreementError: A rank has something else.
    """
    wanted, exact, record = expected(call)
    if call.way in ("module", "sdpa") and "gradient of x" in found[0]:  # each rank has that of its own tokens
        total = sum(mine["gradient of x"] for mine in found)
        found = [mine | {"gradient of x": total} for mine in found]
    if call.way in ("ordered", "module", "sdpa"):
        wanted["whole output"] = wanted["output"]
    rank_names = {name for name in found[0] if not name.startswith(("dtype of ", "seen: ", "position_ids"))}
    allowed = _allowed(call, exact, wanted)
    allowed["whole output"] = allowed["output"]
    worst = 0.0
    if rank_names != wanted.keys():
        raise DisagreementError(f"{sorted(rank_names)} instead of {sorted(wanted)}")
    for rank, mine in enumerate(found):
        for name, want in wanted.items():
            _check_dtype(call, exact, name, mine[f"dtype of {name}"])
            ours = torch.from_numpy(mine[name])
            part = want[_place(call, sharding, name, want, rank, mine)]
            if ours.shape != part.shape:
                raise DisagreementError(f"rank {rank}: {name} is {tuple(ours.shape)}, not {tuple(part.shape)}")
            if ours.numel():
                worst = max(worst, _compared(rank, name, ours, part, allowed[name]))
    if call.watch:
        worst = max(worst, _check_records(call, found, record))
    return worst


def _compared(rank: int, name: str, ours: Tensor, part: Tensor, allowed: float) -> float:
    try:
        return random_calls._compare(name, ours.double(), part.double(), allowed)
    except DisagreementError as error:
        raise DisagreementError(f"rank {rank}: {error}") from None


def _allowed(call: RankCall, exact: Tensors, expected: dict[str, Tensor]) -> dict[str, float]:
    _, visible = _masked(call)
    if call.is_empty:  # nothing but sums over the log-sum-exp of a sink
        share = 1e-12 if call.dtype == "float64" else 1e-6
        return {name: share * max(1.0, random_calls._largest(want)) for name, want in expected.items()}
    allowed = random_calls._allowed_errors(call, exact, visible if call.way != "cache" else None, expected)
    if call.dtype == "float64" and "gradient of slopes" in allowed:  # 1e-3 there: of what float32 rounds
        allowed["gradient of slopes"] *= 1e-6
    return allowed


def _check_dtype(call: RankCall, exact: Tensors, name: str, found: str) -> None:
    if name in ("output", "whole output"):
        dtype = call.output_dtype
    elif name == "lse":
        dtype = torch.promote_types(DTYPES[call.dtype], torch.float32)
    else:
        leaf = name.removeprefix("gradient of ")
        dtype = DTYPES[call.dtype if leaf in ("q", "k", "v", "x", "factor") else call.bias_dtype]
        if call.ambient == "autocast, mixed types" and leaf == "v":
            dtype = torch.bfloat16
    if found != str(dtype):
        raise DisagreementError(f"{name} is of {found}, not {dtype}")


def _place(
    call: RankCall, sharding: Sharding, name: str, whole: Tensor, rank: int, mine: dict[str, Any]
) -> tuple[Any, ...]:
    """The indices of what a rank has in a whole result."""
    index: list[Any] = [slice(None)] * whole.ndim
    leaf = name.removeprefix("gradient of ")
    by_rows = leaf in ("output", "lse") or (leaf in ("q", "k", "v") and call.way in ("ordered", "dtensors"))
    if call.way == "cache":
        return tuple(index)
    if not by_rows:
        if call.wrapped == "sharded":
            index[-1] = _chunk(slice(0, whole.shape[-1]), sharding.mesh[0], sharding.coordinates(rank)[0])
    elif call.way == "ordered":
        index[2] = torch.from_numpy(mine["position_ids"]).long()
    elif call.way == "dtensors":
        learns = any(found.startswith("gradient of ") for found in mine)
        _cut(index, sharding, leaf, whole, rank, cuts_output=learns and sharding.whole == "q")
    else:
        index[2] = _chunk(slice(0, call.keys), sharding.ranks, rank)
    return tuple(index)


def _cut(index: list[Any], sharding: Sharding, leaf: str, whole: Tensor, rank: int, *, cuts_output: bool) -> None:
    """Write the indices of what a rank has of a DTensor."""
    axes = sharding.of(leaf if leaf in ("q", "k", "v") else "q")
    if leaf in ("output", "lse") and cuts_output:
        axes = sharding.axes
    ndim = whole.ndim + (leaf == "lse")
    for axis, size, at in zip(axes, sharding.mesh, sharding.coordinates(rank), strict=True):
        if axis != "nothing":
            dim = _dimension(ndim, axis)
            before = index[dim] if index[dim] != slice(None) else slice(0, whole.shape[dim])
            index[dim] = _chunk(before, size, at)


def _chunk(whole: slice, parts: int, at: int) -> slice:
    """The part of a rank, as torch.chunk cuts: the last may be shorter, or empty."""
    each = -(-(whole.stop - whole.start) // parts)
    start, end = (min(whole.start + rank * each, whole.stop) for rank in (at, at + 1))
    return slice(start, end)


def _check_records(call: RankCall, found: list[dict[str, Any]], record: dict[str, np.ndarray]) -> float:
    """Compare the records: the same on every rank, that of one process, and its weights those of the formula."""
    names = {name for name in record if name.startswith("seen: ")}
    for rank, mine in enumerate(found):
        if {name for name in mine if name.startswith("seen: ")} != names:
            raise DisagreementError(f"rank {rank} has seen {sorted(mine)}, not {sorted(names)}")
        for name in names:
            if not np.array_equal(mine[name], found[0][name], equal_nan=mine[name].dtype.kind == "f"):
                raise DisagreementError(f"ranks 0 and {rank} have other records: {name}")
    if "weights" not in record:
        return 0.0
    rounding = max(1.0, call.size**2 / 4) if call.dtype != "float64" else 1.0  # of scores
    allowed = ALLOWED_OF_RECORDS[call.dtype] * rounding
    want = {name: record[name] for name in names} | _by_formula(call, record)
    near = [
        _near(name, found[0][name], array, allowed)
        for name, array in want.items()
        if name not in ("seen: top_keys", "seen: top_weights")
    ]
    return max(*near, _check_strongest(found[0], record, None if call.watch == "heads" else want, allowed))


def _by_formula(call: RankCall, record: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """What of a record of all heads and queries is known by the weights of the formula."""
    if call.watch == "heads":
        return {}
    weights = record["weights"][..., : record["seen: received"].shape[-1]]  # without the last keys, if nobody sees them
    padding = record["seen: padding"][:, None, :, None]  # its rows do not count, and nobody sees its keys
    if padding.any() and weights.shape[-1] == weights.shape[-2] and (weights * padding.swapaxes(2, 3)).any():
        raise DisagreementError("padding is seen")
    found = {"seen: received": np.where(padding, 0, weights).sum(-2), "seen: mean": weights, "seen: max": weights}
    if call.factor == "none":
        found["seen: entropy"] = -(weights * np.log(np.where(weights > 0, weights, 1))).sum(-1)
    return found | ({"seen: weights": weights} if call.watch == "qk" else {})


def _check_strongest(
    ours: dict[str, np.ndarray], record: dict[str, np.ndarray], want: dict[str, np.ndarray] | None, allowed: float
) -> float:
    """The strongest keys have the largest weights; which of equal ones they are is not said."""
    keys, top = ours["seen: top_keys"], ours["seen: top_weights"]
    worst = _near("seen: top_weights", top, record["seen: top_weights"], allowed)
    if want is None:
        return worst
    real = keys >= 0
    named = np.take_along_axis(want["seen: max"], np.where(real, keys, 0).astype(np.int64), -1)
    return max(worst, _near("weights of seen: top_keys", np.where(real, top, 0), np.where(real, named, 0), allowed))


def _near(name: str, ours: np.ndarray, want: np.ndarray, allowed: float) -> float:
    if ours.shape != want.shape:
        raise DisagreementError(f"{name} is {ours.shape}, not {want.shape}")
    ours, want = ours.astype(np.float64), want.astype(np.float64)
    wrong = (np.isfinite(ours) != np.isfinite(want)) | (
        ~np.isfinite(want) & (np.nan_to_num(ours) != np.nan_to_num(want))
    )
    both = np.isfinite(ours) & np.isfinite(want)
    errors = np.abs(np.where(both, ours, 0.0) - np.where(both, want, 0.0))
    largest = max(1.0, np.abs(np.where(np.isfinite(want), want, 0)).max(initial=0.0))
    if wrong.any() or errors.max(initial=0.0) > allowed * largest:
        at = tuple(np.argwhere(wrong | (errors > allowed * largest))[0].tolist())
        raise DisagreementError(f"{name} at {at} is {ours[at]:.9g}, not {want[at]:.9g}: more than {allowed:.1e} apart")
    return float(errors.max(initial=0.0) / (allowed * largest))


# The smallest call that is wrong --------------------------------------------------------------------------------------

NEVER_SIMPLER = ("seed", "way", "backend", "is_bound", "bias_dtype")
SIZES = ("queries", "keys", "width", "value_width", "batch", "heads", "kv_heads")


def simpler(call: RankCall) -> Iterator[RankCall]:
    """Yield the call with one field simpler, the simplest first; some are refused by one process, too."""
    for field in dataclasses.fields(RankCall):
        value = getattr(call, field.name)
        if value == field.default or field.name in NEVER_SIMPLER:
            continue
        for other in (field.default, *_smaller(field.name, value)):
            changes: dict[str, Any] = {field.name: other}
            if field.name == "heads":
                changes["kv_heads"] = 1
            if field.name == "start":
                changes["is_bound"] = other is not None
            if field.name == "dtype":
                changes["bias_dtype"] = other
            if field.name in ("queries", "keys") and call.way in ("ordered", "module", "sdpa"):
                changes |= {"queries": other, "keys": other}
            if field.name in ("queries", "keys", "steps") and call.way == "cache":
                steps = other if field.name == "steps" else (other,)
                changes |= {"steps": steps, "queries": sum(steps), "keys": sum(steps)}
            yield replace(call, **changes)


def _smaller(name: str, value: Any) -> list[Any]:
    if isinstance(value, tuple):
        return [value[:at] + value[at + 1 :] for at in range(len(value)) if len(value) > 1]
    if name == "learns":
        return [value.replace(letter, "") for letter in value]
    return [size for size in (value // 2, value - 1) if size > 0] if name in SIZES else []


def simpler_sharding(sharding: Sharding) -> Iterator[Sharding]:
    """Yield shardings over as many ranks, the simplest first."""
    for other in (
        Sharding((sharding.ranks,), ("sequence",)),
        replace(sharding, whole=""),
        *(Sharding((sharding.ranks,), (axis,)) for axis in sharding.axes),
    ):
        if other != sharding and (sharding.whole == "" or other.sequence is not None):
            yield other
