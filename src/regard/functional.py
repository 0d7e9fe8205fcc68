"""attention(): the one door to every mechanism."""

from collections.abc import Callable
from typing import Any, Literal, cast, overload

import torch
from jaxtyping import Float
from torch import Tensor

from regard import backends
from regard.autocast import autocast_dtype
from regard.backends import Explanation
from regard.backends.call_cache import Signature, known, remember, signature
from regard.errors import InputError
from regard.jagged import Packing, is_packed
from regard.masks import BoundMask, Mask
from regard.normalizers import Normalizer
from regard.positions import Bias, Rotary
from regard.problem import DEFAULT_MAX_BYTES, Problem
from regard.scores import Score

__all__ = ["attention", "explain"]


@overload
def attention(
    q: Float[Tensor, "*q"],
    k: Float[Tensor, "*k"],
    v: Float[Tensor, "*v"],
    *,
    score: Score | None = ...,
    mask: Mask | BoundMask | Tensor | None = ...,
    bias: Bias | Tensor | None = ...,
    rotary: Rotary | None = ...,
    scale: float | None = ...,
    normalizer: Normalizer | None = ...,
    weight_factor: Bias | None = ...,
    dropout: float = ...,
    generator: torch.Generator | None = ...,
    return_weights: Literal[False] = ...,
    return_lse: Literal[False] = ...,
    backend: str = ...,
    max_bytes: int = ...,
) -> Tensor: ...


@overload
def attention(
    q: Float[Tensor, "*q"],
    k: Float[Tensor, "*k"],
    v: Float[Tensor, "*v"],
    *,
    score: Score | None = ...,
    mask: Mask | BoundMask | Tensor | None = ...,
    bias: Bias | Tensor | None = ...,
    rotary: Rotary | None = ...,
    scale: float | None = ...,
    normalizer: Normalizer | None = ...,
    weight_factor: Bias | None = ...,
    dropout: float = ...,
    generator: torch.Generator | None = ...,
    return_weights: bool = ...,
    return_lse: bool = ...,
    backend: str = ...,
    max_bytes: int = ...,
) -> Tensor | tuple[Tensor, ...]: ...


def attention(
    q: Float[Tensor, "*batch queries dim"],
    k: Float[Tensor, "*batch keys dim"],
    v: Float[Tensor, "*batch keys value_dim"],
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
    backend: str = "auto",
    max_bytes: int = DEFAULT_MAX_BYTES,
) -> Tensor | tuple[Tensor, ...]:
    """Let every query look at the keys and return the weighted sum of their values.

    weights = weight_factor · normalize(cap(scale · score(q, k)) + bias where mask); output = dropout(weights) · v

    Args:
        q: Queries (n, d), (batch, n, d) or (batch, heads, n, d), the last positions of the keys; one query (d,) over a
            bag of keys and values (n, d); or jagged nested tensors, in which each sequence is a call of its own.
        k: Keys (..., keys, d); their heads may be fewer and then divide those of q (grouped queries).
        v: Values (..., keys, value_dim).
        score: How a query and a key fit; scores.ScaledDot() by default.
        mask: A mask of regard.masks (bound to its place or not) or a boolean tensor (queries, keys) or (batch, heads,
            queries, keys), True = may see, which is read at this call. A query that sees nothing gets output 0, weights
            0 and finite gradients.
        bias: What is added to the scores, after scale and softcap: a bias of regard.positions (ALiBi, T5), or a tensor
            that broadcasts like the boolean one. Tensors in it get gradients. A float32 one is added in float32, also
            to the scores of narrower queries and under autocast.
        rotary: A rotary embedding of regard.positions, applied to q and k at their positions, to all keys of the call.
            While decoding turn new keys alone: regard.nn with regard.cache does, or RoPE.rotate at their positions.
        scale: The factor on the scores; 1/√d by default. It always wins over the score's own.
        normalizer: What makes weights of scores; normalizers.Softmax() by default.
        weight_factor: What multiplies the weights after normalizing, by the formulas of a bias (positions.Gaussian).
        dropout: The probability with which a weight is dropped; the others are divided by 1 − dropout. Weights that
            are returned are those before dropout.
        generator: Where the seed of the dropout is drawn from; PyTorch's own generator by default, which activation
            checkpointing winds back before it computes again, as it does no other.
        return_weights: Return the weights too (..., heads, queries, keys), if they fit into `max_bytes`.
        return_lse: Return the log-sum-exp of each row too (..., heads, queries), float32 at least.
        backend: "auto", or the name of one (see regard.explain, regard.use_backend and `regard doctor`).
        max_bytes: Bytes that tensors of queries × keys may take; beyond it the call is refused.

    Returns:
        The output, of the shape of q with the width of v, in the type of q, or in that of autocast where it is on, as
        SDPA gives it (docs/precision.md lists in which type each backend computes); with `return_weights` or
        `return_lse` a tuple (output, weights, lse) of what was requested, in this order.

    Raises:
        InputError: Shapes, types, devices or masks do not fit, or `max_bytes` does not suffice.

    >>> import torch
    >>> q = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    >>> out, w = attention(q, q, torch.tensor([[0.0], [1.0]]), return_weights=True, scale=1.0)
    >>> w
    tensor([[0.7311, 0.2689],
            [0.2689, 0.7311]])
    >>> out
    tensor([[0.2689],
            [0.7311]])
    """
    if not type(return_weights) is type(return_lse) is bool or type(backend) is not str:
        _check_options(return_weights, return_lse, backend)
    nested, overridden = is_packed(q, k, v), torch.overrides.has_torch_function((q, k, v))
    usual: Signature | None = None
    prefers = backends.preferred() if backend == "auto" else "auto"
    if not (nested or overridden or return_weights or return_lse) and _is_usual(
        score, bias, rotary, normalizer, weight_factor, generator, dropout, max_bytes
    ):
        usual = signature(q, k, v, mask, scale, (backend, prefers))
        if usual is not None and (compute := known(usual)) is not None:
            return compute(q, k, v)
    asked: dict[str, Any] = {
        "score": score,
        "mask": mask,
        "bias": bias,
        "rotary": rotary,
        "scale": scale,
        "normalizer": normalizer,
        "weight_factor": weight_factor,
        "dropout": dropout,
        "generator": generator,
        "return_weights": return_weights,
        "return_lse": return_lse,
        "max_bytes": max_bytes,
    }
    if nested:
        packing = Packing.of(q, k, v).rotated(rotary)
        packed = attention(packing.q, packing.k, packing.v, backend=backend, **packing.asked(asked))
        return tuple(packing.restore(one) for one in packed) if isinstance(packed, tuple) else packing.restore(packed)
    if overridden:
        # PyTorch's own protocol: regard.watch and tensor subclasses see one call, not what a backend makes of it.
        handle = cast(Callable[..., Tensor], torch.overrides.handle_torch_function)
        return handle(attention, (q, k, v), q, k, v, backend=backend, **asked)
    problem = _problem(q, k, v, asked, choosing=backend == prefers == "auto")
    chosen = backends.choose(problem, backend, prefers)
    if usual is not None and problem.keys == k.shape[-2]:
        remember(usual, chosen, problem)
    answer = chosen(problem)
    output = answer.output.to(autocast_dtype(q))
    extras = [answer.weights] * return_weights + [answer.lse] * return_lse
    results = [problem.restore(one) for one in (output, *extras) if one is not None]
    return tuple(results) if extras else results[0]


def _problem(q: Tensor, k: Tensor, v: Tensor, asked: dict[str, Any], *, choosing: bool) -> Problem:
    """The call as data: over the keys that few queries see, where the choice of a backend is open."""
    problem = Problem.of(q, k, v, turn=not choosing, **asked)
    return backends.narrowed(problem, asked["rotary"]) if choosing else problem


def _check_options(return_weights: object, return_lse: object, backend: object) -> None:
    for name, flag in (("return_weights", return_weights), ("return_lse", return_lse)):
        if not isinstance(flag, bool):
            raise InputError(f"`{name}` must be True or False, got {type(flag).__name__}")
    if not isinstance(backend, str):
        backends.check_name(backend)


def _is_usual(*parts: object) -> bool:
    """Whether nothing but a mask and a scale was asked for: all parts are their defaults, by identity."""
    *absent, dropout, max_bytes = parts
    return (
        not any(part is not None for part in absent)
        and type(dropout) is float
        and dropout == 0.0
        and max_bytes is DEFAULT_MAX_BYTES
    )


def explain(
    q: Float[Tensor, "*batch queries dim"],
    k: Float[Tensor, "*batch keys dim"],
    v: Float[Tensor, "*batch keys value_dim"],
    *,
    backend: str = "auto",
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
) -> Explanation:
    """Say which backend would run this call, why the others refused, and what it costs; compute nothing but masks.

    Of few queries it is the call over the keys that one of them sees.

    >>> import torch
    >>> x = torch.zeros(1, 1, 256, 64)
    >>> print(explain(x, x, x, return_weights=True))
    reference runs it
    sdpa refused: fused kernels do not return weights
    blockwise refused: it never holds all weights
    0.0168 GFLOP in the 100% of blocks of 128 × 128 that hold a visible pair, 256.0 KiB besides the output
    """
    _check_options(return_weights, return_lse, backend)
    asked: dict[str, Any] = {
        "score": score,
        "mask": mask,
        "bias": bias,
        "rotary": rotary,
        "scale": scale,
        "normalizer": normalizer,
        "weight_factor": weight_factor,
        "dropout": dropout,
        "generator": torch.Generator() if isinstance(generator, torch.Generator | None) else generator,
        "return_weights": return_weights,
        "return_lse": return_lse,
        "max_bytes": max_bytes,
    }
    if is_packed(q, k, v):
        packing = Packing.of(q, k, v).rotated(rotary)
        q, k, v, asked = packing.q, packing.k, packing.v, packing.asked(asked)
    prefers = backends.preferred()
    problem = _problem(q, k, v, asked, choosing=backend == prefers == "auto")
    return backends.explain(problem, backend, prefers)
