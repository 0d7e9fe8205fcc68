"""Calls that several processes observe together, and one alone: what each is called with, and what is recorded."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn

import regard
from regard import masks, positions
from regard.normalizers import Sigmoid, Softmax
from regard.observe.statistics import Columns, Mass, PerKey, PerQuery, Rectangle, Rollout, Rows, ValueNorm

FIELDS = ("mean", "max", "top_keys", "top_weights", "entropy", "received")  # of every record
STATISTICS = (
    *("distance", "confidence", "sink", "self", "previous", "next", "first"),
    Mass(keys=[0, 3, 44], name="chosen"),
    Columns([1, 30]),
    Rows([2, 31]),
    Rectangle(slice(20, 40), slice(10, 35)),
)
SPANS = {"begin": (0, 7), "middle": [9, 25, 40], "rest": (30, None)}
IDS = [[(7 * n + n // 5) % 6 for n in range(45)]] * 2


class Margin(PerQuery):
    """A statistic of one's own of the rows of one head: by how much the largest weight exceeds the second."""

    name = "margin"
    by_head = True

    def of(self, rows):
        values, _ = rows.strongest(2)
        return values[..., 0] - values[..., 1:].sum(-1)


class AmongHeads(PerKey):
    """A statistic of one's own that compares heads: the share of each in what a key receives of all."""

    name = "among_heads"

    def of(self, rows):
        return rows.column_sums

    def finish(self, extent):
        sums = self.sums(extent)
        return {self.name: (sums / sums.sum(1, keepdim=True).clamp_min(1e-9)).cpu().numpy()}


class Attends(nn.Module):
    """One call of attention as a model."""

    def __init__(self, options):
        super().__init__()
        self.options = options

    def forward(self, q, k, v):
        return regard.attention(q, k, v, **self.options)


class CallsPyTorch(nn.Module):
    """A causal layer on token ids, by PyTorch's function."""

    IDS = torch.tensor([[(7 * n + n // 5) % 6 for n in range(45)]] * 2)

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.positions, self.projection = nn.Embedding(6, 8), nn.Embedding(45, 8), nn.Linear(8, 24)

    def forward(self, input_ids, position_ids=None):
        position_ids = torch.arange(45) if position_ids is None else position_ids
        x = self.embedding(input_ids) + self.positions(position_ids)  # no two weights of a row are the same
        q, k, v = self.projection(x).unflatten(-1, (6, 4)).movedim(-2, 1).chunk(3, 1)
        return nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)


def _rule_causal(i, j):
    return j <= i


def _rule_window(i, j):
    return (j <= i) & (j > i - 100)


def _rule_blind(i, j):
    return (j <= i) & (i // 20 == j // 20) & ~((j >= 18) & (j < 22)) & ~((j >= 40) & (j < 44))


@dataclass(frozen=True)
class Watched:
    """One call; `rule` gives its mask as an array in numpy, where the formula of `oracles.dense` is all of it."""

    sizes: tuple[tuple[int, int, int, int], ...]  # of q, k and v
    options: Callable[[], dict[str, Any]]
    watch: dict[str, Any] = field(default_factory=lambda: {"statistics": STATISTICS, "keys": SPANS})
    rule: Callable[..., np.ndarray] | None = None
    dense: dict[str, Any] = field(default_factory=dict)
    dtype: torch.dtype = torch.float64

    def tensors(self):
        """q, k and v, the same in every process."""
        generators = (torch.Generator().manual_seed(11 + at) for at in range(3))
        pairs = zip(self.sizes, generators, strict=True)
        return [torch.randn(*one, generator=by, dtype=torch.float64).to(self.dtype) for one, by in pairs]

    def visible(self):
        """The mask as an array."""
        i, j = np.ogrid[: self.sizes[0][2], : self.sizes[1][2]]
        return self.rule(i, j)


def _sizes(n, *, batch=2, heads=4, kv_heads=2, dim=8, queries=None):
    return (batch, heads, queries or n, dim), (batch, kv_heads, n, dim), (batch, kv_heads, n, 5)


PROJECTION = torch.randn(6, 4 * 5, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
_SINK = torch.tensor([0.5, -1.0, 2.0, 0.0], dtype=torch.float64)
_HIDDEN = torch.tensor([[not (18 <= n < 22 or 40 <= n < 44) for n in range(45)]] * 2)
_BLIND = masks.Causal() & masks.Document(torch.arange(45) // 20) & masks.Padding(_HIDDEN)

CASES = {
    "none": Watched(_sizes(45), dict, rule=lambda i, j: (i >= 0) & (j >= 0)),
    "causal": Watched(_sizes(45), lambda: {"mask": masks.Causal(), "dropout": 0.3}, rule=_rule_causal),
    "float32": Watched(_sizes(45), lambda: {"mask": masks.Causal()}, rule=_rule_causal, dtype=torch.float32),
    "pooled": Watched(
        _sizes(601, batch=1, heads=2), lambda: {"mask": masks.Causal() & masks.Window(100)}, rule=_rule_window
    ),
    "rows that see nothing": Watched(_sizes(45), lambda: {"mask": _BLIND}, rule=_rule_blind),
    "sink, softcap": Watched(
        _sizes(45),
        lambda: {
            "mask": masks.Causal(),
            "normalizer": Softmax(_SINK),
            "score": regard.scores.ScaledDot(softcap=1.5),
            "return_lse": True,
        },
        rule=_rule_causal,
        dense={"sink": _SINK, "softcap": 1.5},
    ),
    "tokens": Watched(
        _sizes(45),
        lambda: {"mask": masks.Causal(), "rotary": positions.RoPE(8)},
        {"statistics": [Mass("induction", input_ids=IDS), Mass("duplicate_token", input_ids=IDS)]},
    ),
    "bias, factor": Watched(
        _sizes(45),
        lambda: {
            "bias": positions.ALiBi(4, torch.tensor([0.5, 0.1, 0.02, 0.0], dtype=torch.float64)),
            "weight_factor": torch.linspace(0.5, 1.5, 45 * 45, dtype=torch.float64).view(45, 45),
        },
    ),
    "sigmoid": Watched(_sizes(45), lambda: {"mask": masks.Causal(), "normalizer": Sigmoid()}),
    "fewer queries": Watched(_sizes(45, queries=31), lambda: {"mask": masks.Causal()}),
    "fewer tokens than ranks": Watched(_sizes(1), lambda: {"mask": masks.Causal()}, {}),
    "chosen": Watched(
        _sizes(45),
        lambda: {"mask": masks.Causal()},
        {"statistics": ["distance", "confidence"], "heads": [(0, 1), (0, 2)], "queries": [3, 20, 21, 44]},
    ),
    "values": Watched(
        _sizes(45), lambda: {"mask": masks.Causal()}, {"statistics": [ValueNorm(PROJECTION)]}, rule=_rule_causal
    ),
    "every weight": Watched(
        _sizes(45), lambda: {"mask": masks.Causal()}, {"keep": "weights", "statistics": [Margin()]}, rule=_rule_causal
    ),
    "heads compared": Watched(
        _sizes(45),
        lambda: {"mask": _BLIND, "bias": positions.ALiBi(4)},
        {"statistics": [AmongHeads(), Rollout(key=5), Rollout(query=30, name="from"), ValueNorm(PROJECTION)]},
    ),
    "heads compared, queries, keys and values": Watched(
        _sizes(45),
        lambda: {"mask": masks.Causal()},
        {"keep": "qkv", "statistics": [AmongHeads()], "heads": [(0, 1), (0, 2)]},
    ),
    "long": Watched(
        _sizes(640, heads=6, kv_heads=3),  # three heads each on two ranks, not all of a group
        lambda: {"mask": masks.Causal() & masks.Window(100)},
        {"keep": "qk", "statistics": ["distance", "confidence"]},
        rule=_rule_window,
        dtype=torch.float32,
    ),
    "queries, keys and values": Watched(
        _sizes(45),
        lambda: {"mask": masks.Causal() & masks.Window(20), "normalizer": Softmax(_SINK)},
        {"keep": "qkv"},
    ),
    "a rank whose rows see nothing": Watched(
        _sizes(45),
        lambda: {"mask": masks.Causal() & masks.Padding(torch.arange(45).expand(2, -1) >= 30)},
        {"keep": "qk", "statistics": STATISTICS, "keys": SPANS},
        rule=lambda i, j: (j <= i) & (j >= 30),
    ),
    "queries, keys and values of bfloat16": Watched(
        _sizes(45), lambda: {"mask": _BLIND, "rotary": positions.RoPE(8)}, {"keep": "qkv"}, dtype=torch.bfloat16
    ),
}

# In the order that makes work even: in zig-zag, and in blocks.
ORDERS = {
    "order: causal": Watched(_sizes(45), lambda: {"mask": masks.Causal(), "bias": positions.ALiBi(4)}),
    "order: documents": Watched(
        _sizes(45),
        lambda: {"mask": masks.Causal() & masks.Document(torch.tensor([0] * 25 + [n // 5 for n in range(5, 25)]))},
        {"statistics": STATISTICS, "keep": "qk"},
    ),
}

# Sequences (0) or heads (1) are sharded along another axis of the mesh too; and queries that every rank has whole.
AXES = {
    "axis 0": ("causal", 0),
    "axis 0, long": ("long", 0),
    "axis 1": ("sink, softcap", 1),
    "axis 1, chosen": ("chosen", 1),
    "axis 1, values": ("values", 1),
    "axis 1, heads compared": ("heads compared", 1),
}
REPLICATED = "fewer queries"


def axes(ranks):
    """The names of `AXES`, on numbers of ranks that two for the other axis divide."""
    return list(AXES) if ranks % 2 == 0 else []


def observed(case, q, k, v, mask=None):
    """What is seen of a call, and whether its output is that of the same call without a watch."""
    options = [case.options() | ({} if mask is None else {"mask": mask}) for _ in range(2)]
    for one in options:
        if "dropout" in one:
            one["generator"] = torch.Generator().manual_seed(5)
    plain = Attends(options[0])(q, k, v)
    model = Attends(options[1])
    with regard.watch(model, **case.watch) as seen:
        output = model(q, k, v)
    pairs = zip(*((one if isinstance(one, tuple) else (one,)) for one in (plain, output)), strict=True)
    return seen, all(torch.equal(_local(a), _local(b)) for a, b in pairs)


def _local(x):
    return x.to_local() if type(x).__name__ == "DTensor" else x
