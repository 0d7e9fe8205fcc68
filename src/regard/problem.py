"""One call of attention as data: checked once, at the door, so that backends need not check again."""

import math
from dataclasses import dataclass, field, is_dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.dropout import Dropout
from regard.errors import InputError
from regard.frozen import replace_tensors, tensors
from regard.learned import check_parameters
from regard.masks import BoundMask, Dense, Mask
from regard.masks.shared_binding import SharedMask
from regard.masks.tensor_holders import holders
from regard.normalizers import Normalizer, Softmax
from regard.positions import Bias, DenseBias, Rotary
from regard.positions.base import with_leading
from regard.scores import ScaledDot, Score
from regard.shapes import four_dimensional, has_numbers, human_bytes
from regard.torch_private import is_batchedtensor

__all__ = ["DEFAULT_MAX_BYTES", "Problem"]

# What a call may spend on tensors of queries × keys before it is refused, unless the caller says otherwise.
DEFAULT_MAX_BYTES = 2 * 2**30

# What a call is made of that says nothing else; values, so one of each serves all.
_SCORE, _NORMALIZER = ScaledDot(), Softmax()


@dataclass(frozen=True, eq=False)
class Problem:
    """weights = weight_factor · normalize(cap(scale · score(q, k)) + bias where mask); output = dropout(weights) · v.

    All tensors have four dimensions; `outer` is the shape that the caller's leading dimensions had.
    """

    q: Float[Tensor, "batch heads queries dim"]
    k: Float[Tensor, "batch kv_heads keys key_dim"]
    v: Float[Tensor, "batch kv_heads keys value_dim"]
    scale: float
    score: Score = field(default_factory=ScaledDot)
    mask: BoundMask | None = None
    bias: Bias | None = None
    normalizer: Normalizer = field(default_factory=Softmax)
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
    def is_empty(self) -> bool:
        """Whether there is no sequence, or no head."""
        return 0 in self.q.shape[:2]

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
        return self.mask.dense(self.batch, self.heads, self.q.device) if self.mask else None

    def i(self, rows: slice | None = None) -> Int[Tensor, " rows"]:
        """Positions of some queries, or of all."""
        rows = rows or slice(0, self.queries)
        return torch.arange(rows.start, rows.stop, device=self.q.device) + self.q_offset

    def j(self, columns: slice | None = None) -> Int[Tensor, " columns"]:
        """Positions of some keys, or of all."""
        columns = columns or slice(0, self.keys)
        return torch.arange(columns.start, columns.stop, device=self.q.device)

    def bias_tile(
        self,
        batch: slice | None = None,
        heads: slice | None = None,
        rows: slice | None = None,
        columns: slice | None = None,
    ) -> Float[Tensor, "#batch #heads rows columns"] | None:
        """The bias of some pairs (indices), or of all; None where there is none."""
        if self.bias is None:
            return None
        return self.bias.tile(
            batch or slice(0, self.batch), heads or slice(0, self.heads), self.i(rows), self.j(columns)
        )

    def prepared(self) -> "Problem":
        """The same problem with a score of which all is done that is the same in all tiles."""
        q, k, score = self.score.prepare(self.q, self.k, self.q_offset)
        same = q is self.q and k is self.k and score is self.score
        return self if same else replace(self, q=q, k=k, score=score)

    def widened(self) -> "Problem":
        """The same problem with float32 in the place of all that is narrower; in compiled code as it is."""
        parts = self.score, self.bias, self.normalizer, self.weight_factor
        wide = torch.float32
        held = [one.to(wide) if one.is_floating_point() and one.itemsize < 4 else one for one in tensors(parts)]
        q, k, v = (x.to(torch.promote_types(x.dtype, wide)) for x in (self.q, self.k, self.v))
        if not torch.compiler.is_compiling() and any(
            one is not own for one, own in zip(held, tensors(parts), strict=True)
        ):
            parts = replace_tensors(parts, iter(held))
        score, bias, normalizer, weight_factor = parts
        return replace(self, q=q, k=k, v=v, score=score, bias=bias, normalizer=normalizer, weight_factor=weight_factor)

    def restore(self, rows: Tensor) -> Tensor:
        """Give (batch, heads, ...) the leading dimensions that the caller's q had."""
        whole = rows.reshape(*self.outer, *rows.shape[2:])
        return whole.squeeze(0) if self.single else whole

    @classmethod
    def of(
        cls,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        score: Score | None = None,
        mask: Mask | BoundMask | Tensor | None = None,
        bias: Bias | Tensor | None = None,
        rotary: Rotary | None = None,
        scale: float | None = None,
        normalizer: Normalizer | None = None,
        weight_factor: Bias | None = None,
        dropout: float = 0.0,
        generator: torch.Generator | None = None,
        return_weights: bool = False,
        return_lse: bool = False,
        max_bytes: int = DEFAULT_MAX_BYTES,
        turn: bool = True,
    ) -> "Problem":
        """Check one call and put it in order; every error names the rule, the value and the way out.

        With `turn=False` applying `rotary` is left to the caller.
        """
        check_parameters(score=score, bias=bias, normalizer=normalizer, weight_factor=weight_factor, rotary=rotary)
        score, normalizer = _SCORE if score is None else score, _NORMALIZER if normalizer is None else normalizer
        _check_kinds(q, k, v)
        single = q.ndim == 1 and k.ndim == v.ndim == 2
        if single:
            # One query over a bag of vectors; what is said of its keys is one row.
            q = q[None]
            mask = mask[None] if isinstance(mask, Tensor) and mask.ndim == 1 else mask
            bias = bias[None] if isinstance(bias, Tensor) and bias.ndim == 1 else bias
        _check_shapes(q, k, v)
        _check_parts(score, normalizer, rotary)
        problem = cls(
            q=four_dimensional("q", q),
            k=four_dimensional("k", k),
            v=four_dimensional("v", v),
            scale=_check_scale(score.default_scale(q.shape[-1]) if scale is None else scale),
            score=score,
            normalizer=normalizer.resolve(k.shape[-2]),
            dropout=Dropout.of(dropout, generator, q.device),
            wants_weights=return_weights,
            wants_lse=return_lse,
            max_bytes=max_bytes,
            outer=tuple(q.shape[:-2]),
            single=single,
        )
        score.check(problem.q, problem.k, problem.v)
        normalizer.check(problem.heads, q.device)
        if mask is not None:
            learned = _learns(q, k, v, score, normalizer, bias, weight_factor)
            problem = replace(problem, mask=_bind(mask, problem, learned=learned))
        if bias is not None or weight_factor is not None:
            added, weight_factor = (
                _check_bias("bias", bias, problem),
                _check_bias("weight_factor", weight_factor, problem),
            )
            problem = replace(problem, bias=added, weight_factor=weight_factor)
        if rotary is not None:
            rotary.check(q.shape[-1])
        if rotary is not None and turn:
            rotary = rotary.resolve(problem.queries, problem.keys, problem.q_offset)
            i, j = problem.i(), problem.j()
            problem = replace(problem, q=rotary.rotate(problem.q, i), k=rotary.rotate(problem.k, j))
        _check_wishes(problem)
        return problem


def _check_kinds(q: Tensor, k: Tensor, v: Tensor) -> None:
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        if not isinstance(tensor, Tensor):
            raise InputError(f"`{name}` must be a tensor, got {type(tensor).__name__}")
        if tensor.layout not in (torch.strided, torch.jagged):
            raise InputError(
                f"`{name}` must be dense, got the layout {tensor.layout}: convert it with {name}.to_dense()"
            )
    if any(one.is_nested for one in (q, k, v)):
        raise InputError("q, k and v must not be nested here: pass what q.values() gives, and masks.Document")
    if q.is_floating_point() and q.element_size() < 2:
        raise InputError(f"`q` must be float16, bfloat16 or wider, got {q.dtype}: convert it with q.to(torch.bfloat16)")
    if not q.is_floating_point():
        raise InputError(f"`q` must be of a floating-point type, got {q.dtype}: convert it with q.float()")
    if not q.dtype == k.dtype == v.dtype:
        raise InputError(f"q, k and v must have one dtype, got {q.dtype}, {k.dtype} and {v.dtype}: convert with .to()")
    if not q.device == k.device == v.device:
        raise InputError(
            f"q, k and v must be on one device, got {q.device}, {k.device} and {v.device}: move with .to()"
        )


def _check_shapes(q: Tensor, k: Tensor, v: Tensor) -> None:
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        four_dimensional(name, tensor)
        if 0 in tensor.shape[-2:]:
            raise InputError(f"`{name}` must not be empty, got {_shapes(q, k, v)}: attention over nothing has no value")
    if not q.ndim == k.ndim == v.ndim:
        raise InputError(f"q, k and v must have equally many dimensions, got {_shapes(q, k, v)}: add some with x[None]")
    if v.shape[-2] != k.shape[-2]:
        raise InputError(
            f"`v` must have a value for each of {k.shape[-2]} keys, got {v.shape[-2]} in {_shapes(q, k, v)}"
        )
    batch = slice(0, -3) if q.ndim >= 4 else slice(0, -2)
    if not q.shape[batch] == k.shape[batch] == v.shape[batch]:
        raise InputError(f"q, k and v must have the same batch, got {_shapes(q, k, v)}: repeat with x.expand(...)")
    if q.ndim >= 4:
        heads, kv_heads = q.shape[-3], k.shape[-3]
        if v.shape[-3] != kv_heads:
            raise InputError(
                f"`v` must have as many heads as `k` ({kv_heads}), got {v.shape[-3]} in {_shapes(q, k, v)}"
            )
        if heads % kv_heads if kv_heads else heads:
            raise InputError(
                f"the heads of `q` must be a multiple of those of `k` (grouped queries), got {heads} and {kv_heads}"
            )


def _shapes(q: Tensor, k: Tensor, v: Tensor) -> str:
    return f"q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}"


def _check_parts(score: Score, normalizer: Normalizer, rotary: Rotary | None) -> None:
    for name, part in (("score", score), ("normalizer", normalizer)):
        _check_is_value(name, part)
    if not isinstance(score, Score):
        raise InputError(f"`score` must be a score of regard.scores, such as scores.ScaledDot(), got {_named(score)}")
    if not isinstance(normalizer, Normalizer):
        raise InputError(f"`normalizer` must be one of regard.normalizers, such as Softmax(), got {_named(normalizer)}")
    if rotary is not None and not isinstance(rotary, Rotary):
        raise InputError(
            f"`rotary` must be a rotary embedding of regard.positions, such as RoPE(64), got {_named(rotary)}"
        )


def _named(value: object) -> str:
    """What was given, in a word; a class that wants to be called is the most usual mistake."""
    if isinstance(value, type):
        return f"the class {value.__name__}: write {value.__name__}(...)"
    return f"{value!r}" if isinstance(value, str | int | float) else type(value).__name__


def _check_is_value(name: str, part: object) -> None:
    """Tensors are found in the fields of a dataclass; elsewhere they would lose their gradients in silence."""
    if isinstance(part, Score | Normalizer | Bias) and not is_dataclass(part):
        raise InputError(
            f"`{name}` must be a frozen dataclass, so that the tensors in its fields are found, got "
            f"{type(part).__name__}: write @dataclass(frozen=True, eq=False) above the class"
        )


def _check_scale(scale: float) -> float:
    if isinstance(scale, bool) or not isinstance(scale, int | float):
        raise InputError(
            f"`scale` must be a number, got {type(scale).__name__}: to learn one, multiply it into q and pass scale=1.0"
        )
    if not math.isfinite(scale):
        raise InputError(f"`scale` must be a finite number, got {scale}")
    return float(scale)


def _check_wishes(problem: Problem) -> None:
    if (
        isinstance(problem.max_bytes, bool)
        or not isinstance(problem.max_bytes, int | float)
        or not problem.max_bytes >= 0
    ):
        raise InputError(f"`max_bytes` is a number of bytes, got {problem.max_bytes!r}: 2 GiB is 2 * 2**30")
    if problem.wants_weights and problem.weights_bytes > problem.max_bytes:
        raise InputError(
            f"the weights to return need {human_bytes(problem.weights_bytes)} for {problem.batch} × {problem.heads} × "
            f"{problem.queries} × {problem.keys} weights, more than the limit of {human_bytes(problem.max_bytes)}: "
            "raise `max_bytes`, pass fewer queries, or use regard.watch, which keeps summaries instead"
        )
    if problem.wants_lse and not isinstance(problem.normalizer, Softmax):
        raise InputError(f"`return_lse=True` needs a softmax: {type(problem.normalizer).__name__} has no log-sum-exp")


def _bind(mask: Mask | BoundMask | Tensor, problem: Problem, *, learned: bool) -> BoundMask:
    if isinstance(mask, Tensor):
        _check_meaning(mask, problem)
        mask = Dense(mask) if learned else Dense.over(mask)  # says the way out for integers and floats
    if not isinstance(mask, Mask | BoundMask):
        raise InputError(f"`mask` must be a mask of regard.masks or a boolean tensor, got {_named(mask)}")
    bound = mask if isinstance(mask, BoundMask) else mask.bind(problem.queries, problem.keys)
    if not torch.compiler.is_compiling() and holders(bound.given) is None:
        bound = bound if isinstance(bound, SharedMask) else replace(bound)
        vars(bound).setdefault("of_this_call", {})  # what may change is planned for anew in the next one
    if (bound.q_len, bound.kv_len) != (problem.queries, problem.keys):
        raise InputError(
            f"the mask is bound to {bound.q_len} queries and {bound.kv_len} keys, but q has {problem.queries} and k "
            f"has {problem.keys}: bind it to these"
        )
    sizes = bound.mask.leading
    if any(size not in (1, want) for size, want in zip(sizes, (problem.batch, problem.heads), strict=True)):
        raise InputError(
            f"the mask is for batch {sizes[0]} and heads {sizes[1]}, but q has batch {problem.batch} and heads "
            f"{problem.heads}: give it a size of 1 where all are alike"
        )
    if not problem.is_empty:
        _probe(bound, problem.q.device)
    return bound


def _check_meaning(mask: Tensor, problem: Problem) -> None:
    """Refuse a boolean tensor of two dimensions that may as well be flags of tokens: it would hide other pairs."""
    if mask.dtype != torch.bool or mask.ndim != 2 or not 1 < mask.shape[0] == problem.batch:
        return
    raise InputError(
        f"a boolean mask of shape {tuple(mask.shape)} may be (queries, keys) or, as q has a batch of {problem.batch}, "
        "(batch, keys): write mask[None, None] for a matrix, masks.Padding(mask) for flags of tokens"
    )


def _learns(*parts: object) -> bool:
    """Whether a backward may follow, which has to find the mask as the forward did."""
    return torch.is_grad_enabled() and any(one.requires_grad for one in tensors(parts))


def _probe(bound: BoundMask, device: torch.device) -> None:
    """Ask for one pair: a mask that cannot answer for it fails here rather than in a backend."""
    if isinstance(bound, SharedMask) and bound.proven(device):
        return
    try:
        pair = bound.tile(slice(0, 1), slice(0, 1), device=device)
    except InputError:
        raise
    except Exception as trouble:  # whatever a rule of one's own may raise
        if isinstance(trouble, RuntimeError) and "device" in str(trouble):
            raise InputError(f"`mask` must be on the device of q ({device}): move its tensors with .to()") from trouble
        if torch.compiler.is_compiling():
            raise
        raise InputError(
            "`mask` must answer mask(batch, head, i, j) with a boolean tensor, broadcast from these four integer "
            f"tensors, and fails: {trouble}"
        ) from trouble
    if pair.device != device:
        raise InputError(
            f"`mask` must be on the device of q ({device}), got {pair.device}: move its tensors with .to()"
        )
    if pair.dtype != torch.bool:
        raise InputError(f"`mask` must give booleans, got {pair.dtype}")


def _check_bias(name: str, bias: Bias | Tensor | None, problem: Problem) -> Bias | None:
    if bias is None:
        return None
    if isinstance(bias, Tensor):
        whole = DenseBias(bias)
        if name == "bias" and _looks_like_a_mask(bias):
            raise InputError(
                "`bias` holds only zeros and ones and is added to the scores, which hides nothing: pass "
                "mask=masks.from_attention_mask(...) to hide, or bias.requires_grad_() if it is a bias to be learned"
            )
        # In the type of the sums, where it is not the queries': a narrower one would round it.
        wide = torch.promote_types(problem.q.dtype, torch.float32)
        bias = whole if bias.dtype in (problem.q.dtype, wide) else DenseBias(bias.to(wide))
    if isinstance(bias, type) or not isinstance(bias, Bias):
        raise InputError(
            f"`{name}` must be a tensor or a bias of regard.positions, such as ALiBi(num_heads=8), got {_named(bias)}"
        )
    _check_is_value(name, bias)
    if bias.role not in (None, name):
        kind, does = (
            type(bias).__name__,
            {"bias": "is added to the scores", "weight_factor": "multiplies the weights"}[bias.role],
        )
        raise InputError(f"`{name}` cannot be {kind}, which {does}: pass it as `{bias.role}=`")
    bias = bias.resolve(problem.queries, problem.keys, problem.q_offset)
    for one in tensors(bias):
        if one.device != problem.q.device:
            raise InputError(f"`{name}` must be on the device of q ({problem.q.device}), got {one.device}")
    if not problem.is_empty:
        bias = with_leading(bias, problem.batch, problem.heads, problem.i(), problem.j())
    if any(size not in (1, want) for size, want in zip(bias.leading, (problem.batch, problem.heads), strict=True)):
        raise InputError(
            f"`{name}` must broadcast to batch {problem.batch} and heads {problem.heads}, got batch {bias.leading[0]} "
            f"and heads {bias.leading[1]}"
        )
    return bias


def _looks_like_a_mask(bias: Tensor) -> bool:
    """A float mask of zeros and ones passed as bias; only looked for on CPU, where looking does not stall a device."""
    if (
        not has_numbers(bias)
        or bias.requires_grad
        or bias.device.type != "cpu"
        or torch.compiler.is_compiling()
        or is_batchedtensor(bias)
    ):
        return False  # under vmap no value can be looked at
    sample = bias.flatten()[:64] if bias.is_contiguous() else bias[..., :64]
    if not bool(((sample == 0) | (sample == 1)).all()):
        return False
    return bool(((bias == 0) | (bias == 1)).all()) and bool((bias == 1).any()) and bool((bias == 0).any())
