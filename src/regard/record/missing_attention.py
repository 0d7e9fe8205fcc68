"""Attention that ran and could not be recorded: the module, the reason and the number of calls."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

__all__ = [
    "BLOCKED",
    "BLOCKS",
    "BY_HAND",
    "CHANNELS",
    "DEFORMABLE",
    "DEPTH",
    "DIFFERENCE",
    "EDGES",
    "KERNEL_REASON",
    "LANDMARKS",
    "NEGATIVE",
    "ONE_BY_ONE",
    "OTHERWISE",
    "OTHER_KEYS",
    "OTHER_SUM",
    "OWN_KEYS",
    "REARRANGED",
    "TRANSFORMED",
    "UNKNOWN",
    "Caller",
    "Missing",
    "missing_lines",
    "sum_missing",
]


KERNEL_REASON = (
    "calls the kernel {} directly, which gives no weights: let it call F.scaled_dot_product_attention or "
    'regard.attention instead (a transformers model: load it with attn_implementation="sdpa")'
)
TRANSFORMED = (
    "computes attention under torch.func (vmap, grad), where single calls have no values to be seen: watch it without "
    "the transform"
)
REARRANGED = (
    "rearranges its weights (in bands or blocks), takes them apart or puts them together before they meet the values, "
    "so they cannot be shown as queries × keys"
)
NEGATIVE = "has weights below 0 after the softmax (one is taken from another), which cannot be shown as weights"
ONE_BY_ONE = "multiplies its weights with the values one by one and sums, without a product of both"
OTHER_KEYS = (
    "has new keys in each step where other layers keep theirs (as in a predict stream), so its rows do not belong to "
    "one text: run the finished text through the model once"
)
OTHER_SUM = "sums its weights over another dimension than its softmax runs over, so they are no weights of each query"
OWN_KEYS = (
    "has keys of its own for each query (a neighbourhood, chosen blocks, keys with relative positions added), so its "
    "rows do not say which positions they are for"
)
CHANNELS = "attends between channels, whose product sums over positions, so its weights are not those of positions"
DEPTH = "attends to the outputs of several layers, not to positions, so its weights are not those of tokens"
EDGES = (
    "makes its weights by exp and sums over the edges of a graph, each of which has one weight, so they cannot be "
    "shown as queries × keys"
)
DEFORMABLE = (
    "weighs values that it samples at places between the positions (deformable attention), so its weights are not "
    "those of keys"
)
OTHERWISE = (
    "attends otherwise than in an earlier call with such arguments, from which its attention is known: call the model "
    "again, which is then looked at anew"
)
UNKNOWN = (
    "hands its weights, together with other activations, to {}, which is not looked into: let it multiply them by "
    "torch.matmul"
)
BY_HAND = "makes its weights by exp and a sum instead of a softmax: let it call torch.softmax"
DIFFERENCE = (
    "takes the output of one softmax from that of another (differential attention): neither holds the weights that are "
    "in use, and their difference falls below 0, as no weights do"
)
LANDMARKS = (
    "chains softmaxes over landmarks (Nyström, agents): the weights of one are multiplied with those or the output of "
    "another, so none of them are weights of tokens to tokens"
)

# Modules of transformers that attend from blocks of queries to gathered blocks of keys: a row of such weights does not
# say which keys they are for.
BLOCKED = "computes its weights block by block over gathered keys, which cannot be shown as queries × keys"
BLOCKS = {
    "BigBirdBlockSparseAttention": 'load it with attention_type="original_full"',
    "BigBirdPegasusBlockSparseAttention": 'load it with attention_type="original_full"',
    "LongT5LocalAttention": "watch a T5 instead",
    "LongT5TransientGlobalAttention": "watch a T5 instead",
}


@dataclass(frozen=True)
class Missing:
    """One module's attention that is not in the record.

    `module` is its name in the model ("" for the model itself), `reason` begins with its class, and `calls` is the
    number of calls that were not recorded.
    """

    module: str
    reason: str
    calls: int

    @classmethod
    def of(cls, about: Mapping[str, Any]) -> "Missing":
        """Return an entry from an atlas's JSON.

        Raises:
            TypeError, ValueError: The fields or their types differ.
        """
        one = cls(**about)
        texts = isinstance(one.module, str) and isinstance(one.reason, str)
        if not texts or not isinstance(one.calls, int) or isinstance(one.calls, bool) or one.calls < 1:
            raise ValueError(f"missing attention must be a module, a reason and a number of calls, got {one}")
        return one


@dataclass(frozen=True)
class Caller:
    """The origin of a call: the module's name and class, and the number of the model's run."""

    module: str
    kind: str
    run: int


def sum_missing(entries: Iterable[Missing]) -> tuple[Missing, ...]:
    """Return entries with the same module and reason merged.

    >>> sum_missing([Missing("a", "no", 1), Missing("b", "no", 1), Missing("a", "no", 2)])
    (Missing(module='a', reason='no', calls=3), Missing(module='b', reason='no', calls=1))
    """
    calls: Counter[tuple[str, str]] = Counter()
    for one in entries:
        calls[one.module, one.reason] += one.calls
    return tuple(Missing(*key, count) for key, count in calls.items())


def missing_lines(entries: Iterable[Missing]) -> list[str]:
    """Return one line for each reason, with its modules.

    >>> missing_lines([Missing("layers.0", "Band cuts", 1), Missing("layers.1", "Band cuts", 2)])
    ['layers.0, layers.1 (3 calls): Band cuts']
    """
    by_reason: dict[str, list[Missing]] = {}
    for one in entries:
        by_reason.setdefault(one.reason, []).append(one)
    lines = []
    for reason, same in by_reason.items():
        calls = sum(one.calls for one in same)
        names = [one.module or "the model itself" for one in same]
        shown = ", ".join(names if len(names) <= 4 else [*names[:3], f"{len(names) - 3} more"])
        lines.append(f"{shown} ({calls} call{'s' if calls > 1 else ''}): {reason}")
    return lines
