"""One call of attention as data: checked once, at the door, so that backends need not check again."""

import inspect
from dataclasses import dataclass, field, replace
from typing import Any, TypedDict, TypeVar, Unpack

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.dropout import Dropout
from regard.errors import InputError
from regard.masks import BoundMask, Mask
from regard.masks.block_plan import BLOCK, Cover, plan_of
from regard.masks.causal_and_window import band_of
from regard.normalizers import Normalizer, Softmax
from regard.part import Part
from regard.positions import Bias, Rotary
from regard.problem_checks import (
    Sizes,
    bind,
    check_bias,
    check_kinds,
    check_parts,
    check_scale,
    check_shapes,
    four_dimensional,
    learns,
)
from regard.scores import ScaledDot, Score
from regard.tensors import are_in_memory, check_max_bytes, human_bytes
from regard.torch_private import peek_interpreter_stack
from regard.values import flatten, tensors, unflatten

__all__ = [
    "DEFAULTS", "DEFAULT_MAX_BYTES", "FEW_QUERIES", "InputOptions", "Options", "Problem", "complete", "held_by",
    "parts_of", "shows_options", "with_parts",
]  # fmt: skip

Function = TypeVar("Function", bound=Any)

FEW_QUERIES = 16  # of which the keys that no query sees are not read
_LONG = 256  # keys, and
_LEAST = 2**16  # numbers of keys and values, below which reading them costs less than finding those that are seen

# What a call may spend on tensors of queries × keys before it is refused, unless the caller says otherwise.
DEFAULT_MAX_BYTES = 2 * 2**30

# What a call is made of that says nothing else; values, so one of each serves all.
_SCORE, _NORMALIZER = ScaledDot(), Softmax()
_PLAIN = _SCORE, None, _NORMALIZER, None, None  # as `parts_of` gives them


class InputOptions(TypedDict, total=False):
    """What goes into a call besides q, k and v."""

    score: Score | None
    mask: Mask | BoundMask | Tensor | None
    bias: Bias | Tensor | None
    rotary: Rotary | None
    scale: float | None
    normalizer: Normalizer | None
    weight_factor: Bias | None
    dropout: float
    generator: torch.Generator | None
    max_bytes: int


class Options(InputOptions, total=False):
    """The arguments of `regard.attention` besides q, k, v and backend; what they mean is written there."""

    return_weights: bool
    return_lse: bool


DEFAULTS: Options = {
    "score": None,
    "mask": None,
    "bias": None,
    "rotary": None,
    "scale": None,
    "normalizer": None,
    "weight_factor": None,
    "dropout": 0.0,
    "generator": None,
    "return_weights": False,
    "return_lse": False,
    "max_bytes": DEFAULT_MAX_BYTES,
}


def complete(options: Options) -> Options:
    """Add what was not given, to be read; raise a TypeError, as Python does, for a name that there is not."""
    if not options:
        return DEFAULTS
    for name in options:
        if name not in DEFAULTS:
            raise TypeError(f"attention() got an unexpected keyword argument {name!r}")
    return {**DEFAULTS, **options}


def shows_options(function: Function) -> Function:
    """Show each of the options in the signature of a function that takes them all, after its other arguments."""
    own = inspect.signature(function)
    said = [one for one in own.parameters.values() if one.kind is not one.VAR_KEYWORD]
    hints = InputOptions.__annotations__ | Options.__annotations__
    named = (
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=value, annotation=hints[name])
        for name, value in DEFAULTS.items()
    )
    function.__signature__ = own.replace(parameters=[*said, *named])
    return function


@dataclass(frozen=True, eq=False)
class Problem:
    """weights = weight_factor · normalize(cap(scale · score(q, k)) + bias where mask); output = dropout(weights) · v.

    All tensors have four dimensions; `outer` is the shape that the caller's leading dimensions had.
    """

    q: Float[Tensor, "batch heads queries dim"]
    k: Float[Tensor, "batch kv_heads keys key_dim"]
    v: Float[Tensor, "batch kv_heads keys value_dim"]
    scale: float
    score: Score = field(default_factory=lambda: _SCORE)  # a default of the class is not compiled by torch 2.11
    mask: BoundMask | None = None
    bias: Bias | None = None
    normalizer: Normalizer = field(default_factory=lambda: _NORMALIZER)
    weight_factor: Bias | None = None
    dropout: Dropout | None = None
    wants_weights: bool = False
    wants_lse: bool = False
    max_bytes: int = DEFAULT_MAX_BYTES
    outer: tuple[int, ...] = ()
    single: bool = False  # the caller's q was one vector

    @property
    def batch(self) -> int:
        """Number of sequences."""
        return self.q.shape[0]

    @property
    def heads(self) -> int:
        """Number of query heads."""
        return self.q.shape[1]

    @property
    def kv_heads(self) -> int:
        """Number of key–value heads."""
        return self.k.shape[1]

    @property
    def queries(self) -> int:
        """Number of queries."""
        return self.q.shape[2]

    @property
    def keys(self) -> int:
        """Number of keys."""
        return self.k.shape[2]

    @property
    def sizes(self) -> Sizes:
        """The sizes, and the type and device of q."""
        return Sizes(self.batch, self.heads, self.queries, self.keys, self.q.dtype, self.q.device)

    @property
    def is_empty(self) -> bool:
        """Whether there is no pair: no sequence, head, query or key."""
        return 0 in self.q.shape[:3] or self.keys == 0

    @property
    def q_offset(self) -> int:
        """Position of the first query; keys start at position 0."""
        return self.mask.q_offset if self.mask else self.keys - self.queries

    @property
    def sink(self) -> Float[Tensor, " heads"] | None:
        """The sink logits of a softmax, if it has them."""
        return self.normalizer.sink if isinstance(self.normalizer, Softmax) else None

    @property
    def weights_bytes(self) -> int:
        """Bytes of one tensor of all weights."""
        return self.batch * self.heads * self.queries * self.keys * max(4, self.q.element_size())

    def visible(self) -> Bool[Tensor, "#batch #heads queries keys"] | None:
        """The mask as a boolean tensor, or None where all is seen."""
        return self.everything.visible(self.mask, self.q.device)

    @property
    def everything(self) -> Part:
        """All rows and all keys, as one part."""
        return Part.everything(self.batch, self.heads, self.queries, self.keys, self.q_offset)

    @property
    def leaves_keys_out(self) -> bool:
        """Whether few queries meet so many keys that finding those that they see costs less than reading the rest."""
        return (
            not torch.compiler.is_compiling()
            and self.mask is not None
            and self.queries <= FEW_QUERIES
            and self.keys >= _LONG
            and self.k.numel() + self.v.numel() >= _LEAST
            and peek_interpreter_stack() is None
            and are_in_memory(self.q, self.k, self.v)
        )

    @property
    def seen(self) -> Part:
        """All rows, and of the keys those that some row sees, in blocks, of few queries; else all keys."""
        everything = self.everything
        if self.mask is None or self.queries > FEW_QUERIES or torch.compiler.is_compiling():
            return everything
        known: Part | None = vars(self).get("_seen")
        if known is None:
            known = replace(everything, **_spans_of_band(self) or _spans_of_plan(self))
            vars(self)["_seen"] = known
        return known

    def plan(self, block: int = BLOCK) -> Cover:
        """The blocks of `block` × `block` that the mask leaves, planned once for all calls that share the mask."""
        return plan_of(self.mask, self.queries, self.keys, block)

    def i(self, rows: slice | None = None) -> Int[Tensor, " rows"]:
        """Positions of some queries, or of all."""
        rows = rows or slice(0, self.queries)
        return torch.arange(rows.start, rows.stop, device=self.q.device) + self.q_offset

    def j(self, columns: slice | None = None) -> Int[Tensor, " columns"]:
        """Positions of some keys, or of all."""
        columns = columns or slice(0, self.keys)
        return torch.arange(columns.start, columns.stop, device=self.q.device)

    def prepared(self) -> "Problem":
        """The same problem with a score of which all is done once that is alike in all tiles, in float32 at least."""
        if type(self.score).prepare is Score.prepare:
            return self
        wide = self.widened()
        q, k, score = wide.score.prepare(wide.q, wide.k, wide.q_offset)
        return replace(wide, q=q, k=k, score=score)

    def widened(self) -> "Problem":
        """The same problem with float32 in the place of all that is narrower; in compiled code as it is."""
        q, k, v = (x.to(torch.promote_types(x.dtype, torch.float32)) for x in (self.q, self.k, self.v))
        return replace(self.with_wide_parts(), q=q, k=k, v=v)

    def with_wide_parts(self) -> "Problem":
        """The same problem with float32 in the place of what is narrower in its parts; in compiled code as it is."""
        if parts_of(self) == _PLAIN:
            return self
        leaves, form = flatten(parts_of(self))
        narrow = [leaf.is_floating_point() and leaf.itemsize < 4 for leaf in leaves]
        if torch.compiler.is_compiling() or not any(narrow):
            return self
        wide = [leaf.to(torch.float32) if is_narrow else leaf for leaf, is_narrow in zip(leaves, narrow, strict=True)]
        return with_parts(self, unflatten(form, wide))

    def restore(self, rows: Tensor) -> Tensor:
        """Give (batch, heads, ...) the leading dimensions that the caller's q had."""
        whole = rows.reshape(*self.outer, *rows.shape[2:])
        return whole.squeeze(0) if self.single else whole

    @classmethod
    def of(cls, q: Tensor, k: Tensor, v: Tensor, *, turn: bool = True, **options: Unpack[Options]) -> "Problem":
        """Check one call and put it in order; every error names the rule, the value and the way out.

        With `turn=False` applying `rotary` is left to the caller.
        """
        asked = complete(options)
        score = _SCORE if asked["score"] is None else asked["score"]
        normalizer = _NORMALIZER if asked["normalizer"] is None else asked["normalizer"]
        rotary, factor = asked["rotary"], asked["weight_factor"]
        mask, bias, scale, p = asked["mask"], asked["bias"], asked["scale"], asked["dropout"]
        wide = check_kinds(q, k, v)
        if not q.dtype == k.dtype == v.dtype:
            q, k, v = q.to(wide), k.to(wide), v.to(wide)
        single = q.ndim == 1 and k.ndim == v.ndim == 2
        if single:
            # One query over a bag of vectors; what is said of its keys is one row.
            q = q[None]
            mask = mask[None] if isinstance(mask, Tensor) and mask.ndim == 1 else mask
            bias = bias[None] if isinstance(bias, Tensor) and bias.ndim == 1 else bias
        check_shapes(q, k, v)
        check_parts(score, normalizer, rotary)
        problem = cls(
            q=four_dimensional("q", q),
            k=four_dimensional("k", k),
            v=four_dimensional("v", v),
            scale=check_scale(score.default_scale(q.shape[-1]) if scale is None else scale),
            score=score,
            normalizer=normalizer if normalizer is _NORMALIZER else normalizer.resolve(k.shape[-2]),
            dropout=None if type(p) is float and p == 0 else Dropout.of(p, asked["generator"], q.device),
            wants_weights=asked["return_weights"],
            wants_lse=asked["return_lse"],
            max_bytes=asked["max_bytes"],
            outer=tuple(q.shape[:-2]),
            single=single,
        )
        score.check(problem.q, problem.k, problem.v)
        if normalizer is not _NORMALIZER:
            normalizer.check(problem.heads, q.device)
        if mask is not None:
            learned = learns(q, k, v, score, normalizer, bias, factor)
            problem = replace(problem, mask=bind(mask, problem.sizes, learned=learned))
        if bias is not None or factor is not None:
            place = problem.sizes, problem.q_offset
            added, factor = check_bias("bias", bias, *place), check_bias("weight_factor", factor, *place)
            problem = replace(problem, bias=added, weight_factor=factor)
        if rotary is not None:
            rotary.check(q.shape[-1])
        if rotary is not None and turn:
            rotary = rotary.resolve(problem.queries, problem.keys, problem.q_offset)
            i, j = problem.i(), problem.j()
            problem = replace(problem, q=rotary.rotate(problem.q, i), k=rotary.rotate(problem.k, j))
        _check_results(problem)
        return problem


def _spans_of_band(call: Problem) -> dict[str, Any] | None:
    """The keys that queries in a band see, without a plan: those who decode meet another length with every token."""
    bound = call.mask
    assert bound is not None
    band = band_of(bound.mask)
    if band is None:
        return None
    before, after = band.within(call.queries + call.keys + abs(bound.q_offset))
    first, last = bound.q_offset, bound.q_offset + call.queries - 1
    start, stop = max(0, first - before), min(call.keys, last + after + 1)
    is_masked = last - before > start or first + after + 1 < stop
    return {"spans": (slice(start, stop),) if start < stop else (), "is_masked": is_masked}


def _spans_of_plan(call: Problem) -> dict[str, Any]:
    runs = call.plan(FEW_QUERIES).runs
    found = np.zeros(-(-call.keys // FEW_QUERIES) + 2, np.int64)
    np.add.at(found, runs.start + 1, 1)
    np.add.at(found, runs.start + runs.length + 1, -1)
    edges = np.flatnonzero(np.diff(found.cumsum() > 0)) * FEW_QUERIES
    spans = tuple(slice(int(start), min(int(stop), call.keys)) for start, stop in edges.reshape(-1, 2))
    alike = call.plan(FEW_QUERIES).leading == (1, 1)
    return {"spans": spans, "is_masked": not (alike and bool(runs.full.all()))}


def _check_results(problem: Problem) -> None:
    """Raise where the results that are wanted do not exist, or do not fit into `max_bytes`."""
    check_max_bytes(problem.max_bytes)
    if problem.wants_weights and problem.weights_bytes > problem.max_bytes:
        raise InputError(
            f"the weights to return need {human_bytes(problem.weights_bytes)} for {problem.batch} × {problem.heads} × "
            f"{problem.queries} × {problem.keys} weights, more than the limit of {human_bytes(problem.max_bytes)}: "
            "raise `max_bytes`, pass fewer queries, or use regard.watch, which keeps summaries instead"
        )
    if problem.wants_lse and not isinstance(problem.normalizer, Softmax):
        raise InputError(f"`return_lse=True` needs a softmax: {type(problem.normalizer).__name__} has no log-sum-exp")


def held_by(problem: Problem) -> list[Tensor]:
    """The tensors besides q, k and v that an output depends on."""
    return tensors(parts_of(problem))


def parts_of(problem: Problem) -> tuple[Any, ...]:
    """The parts of the equation that may hold tensors."""
    return problem.score, problem.bias, problem.normalizer, problem.weight_factor, problem.dropout


def with_parts(problem: Problem, parts: tuple[Any, ...]) -> Problem:
    """The same problem with other parts, in the order of `parts_of`."""
    score, bias, normalizer, weight_factor, dropout = parts
    return replace(problem, score=score, bias=bias, normalizer=normalizer, weight_factor=weight_factor, dropout=dropout)
