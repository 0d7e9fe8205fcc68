"""The equation, line for line: slow, differentiable, and the definition of right.

weights = weight_factor · normalize(cap(scale · score(q, k)) + bias where mask)    output = dropout(weights) · v
"""

from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor

from regard.normalizers import Softmax
from regard.normalizers.softmax import Sums
from regard.part import Part, product
from regard.problem import Problem

__all__ = ["Rows", "formula", "weigh"]


class Rows(NamedTuple):
    """Rows of a call: the output, the weights before dropout, and the sums of their exponentials."""

    output: Float[Tensor, "batch heads rows value_dim"]
    weights: Float[Tensor, "batch heads rows columns"]
    sums: Sums | None


def formula(
    call: Problem,
    part: Part,
    q: Float[Tensor, "batch heads rows dim"],
    k: Float[Tensor, "batch kv_heads columns dim"],
    v: Float[Tensor, "batch kv_heads columns value_dim"],
    known: Sums | None = None,
) -> Rows:
    """Compute a part of a call: its weights, what dropout leaves of them, and the weighted sums of the values.

    Args:
        call: The call, of whose q, k and v only the sizes are read.
        part: Some rows, and all keys that they see; or some of these keys, where `known` is given.
        q: The queries of the part.
        k: Its keys.
        v: Its values.
        known: The sums of the rows over all keys that they see, of a softmax: the weights are those of the whole rows,
            and in the sums of the result the total is how much of its rows' weight the part has.
    """
    weights, sums = weigh(call, part, q, k, known)
    dropped = weights
    if call.dropout is not None:
        dropped = weights * part.kept(call.dropout) / (1 - call.dropout.p)
    output = product(dropped, v)
    if (term := part.value_term(call.score, dropped, v.shape[-1])) is not None:
        output = output + term
    return Rows(output, weights, sums)


def weigh(
    call: Problem,
    part: Part,
    q: Float[Tensor, "batch heads rows dim"],
    k: Float[Tensor, "batch kv_heads columns dim"],
    known: Sums | None = None,
) -> tuple[Float[Tensor, "batch heads rows columns"], Sums | None]:
    """Compute the weights of a part of a call, before dropout, and the sums of its rows if they are wanted; arguments
    are those of `formula`.
    """
    scores = part.scores(call.score, call.scale, q, k)
    if (cap := call.score.softcap) is not None:
        scores = cap * (scores / cap).tanh()
    if call.bias is not None:
        scores = scores + part.numbers(call.bias, q.device).to(scores.dtype)
    visible, normalizer = part.visible(call.mask, q.device), call.normalizer.of_heads(part.heads)
    if known is not None and isinstance(normalizer, Softmax):
        weights = normalizer.share(scores, visible, known)
        sums: Sums | None = Sums(known.peak, weights.sum(-1))
    else:
        weights, sums = normalizer.normalize(scores, visible, wants_sums=call.wants_lse)
    if call.weight_factor is not None:
        weights = weights * part.numbers(call.weight_factor, q.device).to(weights.dtype)
    return weights, sums
