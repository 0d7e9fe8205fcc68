"""Calls on CPU that are faster in parts than as one call of PyTorch's fused kernel."""

from collections.abc import Callable
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from regard.backends.base import DERIVATIVES, Answer, Backend
from regard.masks import Causal
from regard.problem import Problem

__all__ = ["Split"]

_STRIP, _SHORT, _LONG = 128, 320, 640  # rows of a strip, and the lengths between which strips are faster
_FEW, _SIDES, _FAR = 16, 8, 16384  # rows of a key–value head at most, fewer key–value heads, and keys at least
_PIECE = 1024  # keys
_BARE = "it knows the softmax of scaled dot products alone, over all keys or those up to the diagonal"


class Split(Backend):
    """Two kinds of calls in float32 on CPU, forward only, in the sizes for which it was measured to be faster.

    - One or a few queries and heads against very many keys (decoding): products with pieces of 1,024 keys, side by
      side on all threads, read keys and values once for all query heads that share them.
    - Short causal texts: strips of 128 rows with the keys up to the strip's end. The fused kernel skips what the mask
      hides in steps of 512 keys.
    """

    name = "split"

    lacks = (
        DERIVATIVES
        | dict.fromkeys(("device but cpu", "type but float32"), "it is for float32 on CPU")
        | dict.fromkeys(
            ("compiling", "torch.func", "autocast"), "it runs neither in compiled code nor under torch.func or autocast"
        )
        | {"gradients": "it has no backward"}
        | dict.fromkeys(("weights", "log-sum-exp"), "it returns the output alone")
        | dict.fromkeys(
            (
                *("score but ScaledDot", "softcap", "normalizer", "sink", "bias", "weight_factor", "dropout"),
                "mask but Causal",
            ),
            _BARE,
        )
    )

    def suits(self, problem: Problem) -> bool:
        """Whether it is one of these kinds of calls."""
        return self.refuses(problem) is None

    def limits(self, problem: Problem) -> str | None:
        """Whatever is shorter, or longer, than what was measured; a mask under which a row sees nothing."""
        if problem.mask is not None and _ahead(problem) < 0:
            return _BARE
        if not (_reads_many(problem) or _is_in_strips(problem)):
            return (
                f"it is for causal texts of {_SHORT} to {_LONG} tokens, or few queries against at least {_FAR:,} keys"
            )
        return None

    def bytes(self, problem: Problem) -> int:
        """The scores of the queries of one key–value head, and as many weights; a strip's mask."""
        rows = problem.heads // problem.kv_heads * problem.queries
        floats = 2 * rows * problem.keys if _reads_many(problem) else _STRIP * (_LONG + _STRIP)
        return floats * problem.q.element_size()

    def cost(self, problem: Problem) -> float:
        """Nothing was measured to be faster."""
        return 0.0

    def plain(self, problem: Problem) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
        """The way that such calls are computed."""
        if _reads_many(problem):
            ahead = None if problem.mask is None else _ahead(problem)
            return partial(_in_pieces, ahead=ahead, scale=problem.scale)
        return partial(_in_strips, scale=problem.scale)

    def __call__(self, problem: Problem) -> Answer:
        """Compute it."""
        return Answer(self.plain(problem)(problem.q, problem.k, problem.v))


def _ahead(problem: Problem) -> int:
    """How many keys the first query sees besides the one on its diagonal."""
    mask = problem.mask
    assert mask is not None
    assert isinstance(mask.mask, Causal)
    return mask.q_offset - mask.mask.shift


def _reads_many(problem: Problem) -> bool:
    rows = problem.heads // problem.kv_heads * problem.queries
    return rows <= _FEW and problem.batch * problem.kv_heads < _SIDES and problem.keys >= _FAR


def _is_in_strips(problem: Problem) -> bool:
    """The lengths for which strips were faster, on two cores with AVX-512 (docs/performance.md)."""
    square = problem.queries == problem.keys and problem.mask is not None and _ahead(problem) == 0
    fused = problem.q.shape[-1] == problem.v.shape[-1] and problem.scale > 0
    return square and fused and problem.heads == problem.kv_heads and _SHORT <= problem.queries <= _LONG


def _in_strips(
    q: Float[Tensor, "batch heads n dim"],
    k: Float[Tensor, "batch heads n dim"],
    v: Float[Tensor, "batch heads n dim"],
    *,
    scale: float,
) -> Float[Tensor, "batch heads n dim"]:
    """The fused kernel on strips of rows, each with the keys up to its last row."""
    n, output = q.shape[2], torch.empty_like(q)
    # What is added in any strip: as many zeros as there are keys before it, then −inf above the diagonal.
    mask = torch.cat([q.new_zeros(_STRIP, n), q.new_full((_STRIP, _STRIP), -torch.inf).triu_(1)], 1)
    for top in range(0, n, _STRIP):
        end = min(top + _STRIP, n)
        seen = mask[: end - top, n - top : n - top + end]
        output[:, :, top:end] = functional.scaled_dot_product_attention(
            q[:, :, top:end], k[:, :, :end], v[:, :, :end], attn_mask=seen, scale=scale
        )
    return output


def _in_pieces(
    q: Float[Tensor, "batch heads queries dim"],
    k: Float[Tensor, "batch kv_heads keys dim"],
    v: Float[Tensor, "batch kv_heads keys value_dim"],
    *,
    ahead: int | None,
    scale: float,
) -> Float[Tensor, "batch heads queries value_dim"]:
    """Products in pieces, the softmax over whole rows, the queries of heads that share keys side by side."""
    batch, heads, queries, dim = q.shape
    if ahead is not None:  # the keys after the last query's diagonal are not even read
        k, v = k[:, :, : ahead + queries], v[:, :, : ahead + queries]
    kv_heads, keys = k.shape[1], k.shape[2]
    rows = (q * scale).reshape(batch, kv_heads, heads // kv_heads * queries, dim)
    scores = _products(rows, k)
    if ahead is not None and ahead + 1 < keys:  # the first query does not see all that are left
        columns = torch.arange(keys, device=q.device)
        hidden = columns > columns[:queries, None] + ahead
        scores.view(batch, kv_heads, -1, queries, keys).masked_fill_(hidden, -torch.inf)
    return _mixed(torch.softmax(scores, -1), v).reshape(batch, heads, queries, -1)


def _products(
    rows: Float[Tensor, "batch kv_heads rows dim"], k: Float[Tensor, "batch kv_heads keys dim"]
) -> Float[Tensor, "batch kv_heads rows keys"]:
    count = k.shape[2] // _PIECE
    whole = count * _PIECE
    scores = rows.new_empty(*rows.shape[:3], k.shape[2])
    for mine, keys, into in zip(rows.flatten(0, 1), k.flatten(0, 1), scores.flatten(0, 1), strict=True):
        pieces = keys[:whole].unflatten(0, (count, _PIECE)).transpose(1, 2)
        into[:, :whole].unflatten(1, (count, _PIECE)).copy_(
            torch.bmm(mine.expand(count, -1, -1), pieces).transpose(0, 1)
        )
        if whole < len(keys):
            into[:, whole:] = mine @ keys[whole:].T
    return scores


def _mixed(
    weights: Float[Tensor, "batch kv_heads rows keys"], v: Float[Tensor, "batch kv_heads keys width"]
) -> Float[Tensor, "batch kv_heads rows width"]:
    count = v.shape[2] // _PIECE
    whole = count * _PIECE
    output = weights.new_empty(*weights.shape[:3], v.shape[3])
    for mine, values, into in zip(weights.flatten(0, 1), v.flatten(0, 1), output.flatten(0, 1), strict=True):
        pieces = mine[:, :whole].unflatten(1, (count, _PIECE)).transpose(0, 1)
        torch.sum(torch.bmm(pieces, values[:whole].unflatten(0, (count, _PIECE))), 0, out=into)
        if whole < len(values):
            into.addmm_(mine[:, whole:], values[whole:])
    return output
