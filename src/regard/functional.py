"""attention(): the one door to every mechanism."""

from collections.abc import Callable
from typing import Literal, Unpack, cast, overload

import torch
from jaxtyping import Float
from torch import Tensor

from regard import backends
from regard.backends import Explanation, call_cache
from regard.errors import InputError
from regard.hooks import HEARING, are_sharded, over_ranks, report
from regard.jagged import Packing
from regard.problem import InputOptions, Options, Problem, complete, shows_options
from regard.tensors import autocast_dtype, run_eagerly

__all__ = ["attention", "explain"]


@overload
def attention(
    q: Float[Tensor, "*q"],
    k: Float[Tensor, "*k"],
    v: Float[Tensor, "*v"],
    *,
    backend: str = ...,
    return_weights: Literal[False] = ...,
    return_lse: Literal[False] = ...,
    **options: Unpack[InputOptions],
) -> Tensor: ...


@overload
def attention(
    q: Float[Tensor, "*q"],
    k: Float[Tensor, "*k"],
    v: Float[Tensor, "*v"],
    *,
    backend: str = ...,
    **options: Unpack[Options],
) -> Tensor | tuple[Tensor, ...]: ...


@shows_options
def attention(
    q: Float[Tensor, "*batch queries dim"],
    k: Float[Tensor, "*batch keys dim"],
    v: Float[Tensor, "*batch keys value_dim"],
    *,
    backend: str = "auto",
    **options: Unpack[Options],
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
    if (
        not torch.compiler.is_compiling()
        and HEARING.listeners
        and not HEARING.inside
        and not torch.overrides.has_torch_function((q, k, v))  # a mode may make another call of it
    ):
        heard: Tensor | tuple[Tensor, ...] = report(attention, q, k, v, backend=backend, **options)
        return heard
    call = None if torch.compiler.is_compiling() else call_cache.describe(q, k, v, backend, options)
    if call is not None and (compute := call_cache.find(call)) is not None:
        return compute(q, k, v)
    asked = complete(options)
    _check_options(asked, backend)
    overridden = torch.overrides.has_torch_function((q, k, v))
    if are_sharded(q, k, v) and not overridden:
        found: Tensor | tuple[Tensor, ...] = over_ranks().attend(q, k, v, asked, backend)
        return found
    prefers = backends.preferred() if backend == "auto" else "auto"
    if _are_nested(q, k, v):
        packing = Packing.of(q, k, v).rotated(asked["rotary"])
        packed = attention(packing.q, packing.k, packing.v, backend=backend, **packing.asked(asked))
        return tuple(packing.restore(one) for one in packed) if isinstance(packed, tuple) else packing.restore(packed)
    if overridden:
        # PyTorch's own protocol: regard.watch and tensor subclasses see one call, not what a backend makes of it.
        handle = cast(Callable[..., Tensor], torch.overrides.handle_torch_function)
        return handle(attention, (q, k, v), q, k, v, backend=backend, **asked)
    problem = Problem.of(q, k, v, **asked)
    chosen = backends.choose(problem, backend, prefers)
    if torch.compiler.is_dynamo_compiling() and chosen.leaves_graph(problem):
        return _outside_graphs(q, k, v, backend, asked)
    if call is not None and (compute := call_cache.keep(call, chosen, problem)) is not None:
        return compute(q, k, v)  # as later calls are: checkpointing wants all to save the same
    answer = chosen(problem)
    extras = [answer.weights] * asked["return_weights"] + [answer.lse] * asked["return_lse"]
    results = [problem.restore(one) for one in (answer.output.to(autocast_dtype(q)), *extras) if one is not None]
    return tuple(results) if extras else results[0]


@run_eagerly
def _outside_graphs(q: Tensor, k: Tensor, v: Tensor, backend: str, asked: Options) -> Tensor | tuple[Tensor, ...]:
    return attention(q, k, v, backend=backend, **asked)


@shows_options
def explain(
    q: Float[Tensor, "*batch queries dim"],
    k: Float[Tensor, "*batch keys dim"],
    v: Float[Tensor, "*batch keys value_dim"],
    *,
    backend: str = "auto",
    ranks: int | None = None,
    **options: Unpack[Options],
) -> Explanation:
    """Say which backend would run this call, why the others refused, and what it costs; compute nothing but masks.

    Args:
        q: The queries; all tensors may be on the device meta, which takes no memory.
        k: The keys.
        v: The values.
        backend: "auto", or the name of one.
        ranks: Explain the call with its sequence sharded over so many processes (docs/sharded.md), of which none is
            needed: what each of them computes and sends.
        **options: Those of attention().

    Raises:
        InputError: As attention().

    >>> import torch
    >>> x = torch.zeros(1, 1, 256, 64)
    >>> print(explain(x, x, x, return_weights=True))
    reference runs it
    sdpa refused: fused kernels do not return weights
    strips refused: it never holds all weights
    0.0168 GFLOP in the 100% of blocks of 128 × 128 that hold a visible pair, 256.0 KiB besides the output
    """
    asked = complete(options)
    _check_options(asked, backend)
    if isinstance(asked["generator"], torch.Generator | None):
        asked = {**asked, "generator": torch.Generator()}  # no other may advance
    if ranks is not None or are_sharded(q, k, v):
        said: Explanation = over_ranks().explain(q, k, v, asked, backend, ranks)
        return said
    if _are_nested(q, k, v):
        packing = Packing.of(q, k, v).rotated(asked["rotary"])
        q, k, v, asked = packing.q, packing.k, packing.v, packing.asked(asked)
    prefers = backends.preferred()
    return backends.explain(Problem.of(q, k, v, **asked), backend, prefers)


def _are_nested(*tensors: object) -> bool:
    return any(isinstance(one, Tensor) and one.is_nested for one in tensors)


def _check_options(asked: Options, backend: object) -> None:
    weights: object = asked["return_weights"]
    lse: object = asked["return_lse"]
    if not type(weights) is type(lse) is bool:
        name, flag = ("return_lse", lse) if type(weights) is bool else ("return_weights", weights)
        raise InputError(f"`{name}` must be True or False, got {type(flag).__name__}")
    if type(backend) is not str:
        backends.check_name(backend)
