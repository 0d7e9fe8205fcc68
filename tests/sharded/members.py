"""The calls that several processes compute together, and one alone: every exported mask, score and bias is among them.

They are taken from the contract tests, which fail where an exported member has no example there; so a new member joins
here by being exported.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch

import regard
from contracts import test_biases, test_combinations, test_masks, test_scores
from regard.values import flatten, tensors, unflatten


@dataclass(frozen=True)
class Call:
    """One call of attention: `make` gives q, k, v and the options, with the tensors that are learned in them."""

    make: Callable[[], tuple[list[torch.Tensor], dict[str, Any]]]
    visible: Any = None  # the mask as an array, where an independent rule gives it
    bias: Any = None  # and the bias


def _randn(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def _learned(value):
    """The same with tensors that ask for gradients; integers and booleans stay."""
    held = [one.detach().clone().requires_grad_() if one.is_floating_point() else one for one in tensors(value)]
    return unflatten(flatten(value)[1], held)


def _of_mask(mask, rule):
    def make():
        q, k, v = _randn(2, 3, 90, 8), _randn(2, 1, 150, 8, seed=1), _randn(2, 1, 150, 5, seed=2)
        return [q, k, v], {"mask": mask}

    return Call(make, visible=test_masks._matrix(rule))


def _of_bias(bias, rule):
    b, h, n, m = test_biases.BATCH, test_biases.HEADS, test_biases.QUERIES, test_biases.KEYS
    as_factor = bias.role == "weight_factor"

    def make():
        name = "weight_factor" if as_factor else "bias"
        return [_randn(b, h, n, 4), _randn(b, h, m, 4, seed=1), _randn(b, h, m, 4, seed=2)], {name: _learned(bias)}

    return Call(make, bias=None if as_factor else test_biases._matrix(rule).numpy())


def _of_score(score, key_width):
    def make():
        q, k, v = test_scores._inputs(key_width, kv_heads=2)
        return [q, k, v], {"score": _learned(score), "mask": regard.masks.Causal()}

    return Call(make)


def _of_case(case):
    def make():
        leaves = test_combinations.Leaves(case.dtype, case.dtype, case.learned)
        s = case.shape
        q = leaves("q", s.batch, s.heads, s.queries, test_combinations.WIDTH)
        k = leaves("k", s.batch, s.kv_heads, s.keys, test_combinations.WIDTH)
        v = leaves("v", s.batch, s.kv_heads, s.keys, s.value_width)
        options = {
            "score": test_combinations.SCORES[case.score](s, leaves, case.softcap),
            "mask": test_combinations.MASKS[case.mask](s),
            "bias": test_combinations.BIASES[case.bias](s, leaves),
            "weight_factor": test_combinations.FACTORS[case.factor](s, leaves),
            "normalizer": test_combinations.NORMALIZERS[case.normalizer](s, leaves),
            "rotary": test_combinations.ROTARY[case.rotary],
            "scale": case.scale,
            "dropout": case.dropout,
            "generator": torch.Generator().manual_seed(11),
            "return_lse": case.lse,
        }
        # The leaves themselves: what is computed from them (an absolute value) leads back to them.
        return [q, k, v], options | {"leaves": [one for name, one in leaves.items() if name not in "qkv"]}

    return Call(make)


Case = test_combinations.Case
CASES = {
    "dropout, grouped": Case(mask="causal", layout="grouped, fewer queries", dropout=0.3, lse=True),
    "dropout, all": Case(dropout=0.4, layout="long"),
    "sink, softcap, rope": Case(
        mask="window", normalizer="sink", rotary="rope", softcap=1.5, layout="long, fewer queries", lse=True
    ),
    "sigmoid": Case(mask="documents", normalizer="sigmoid", layout="long"),
    "sigmoid, dropout": Case(mask="columns", normalizer="sigmoid 0", dropout=0.3),
    "everything": Case(
        "shaw", "window", "t5", normalizer="sink", factor="gaussian", rotary="rope", softcap=1.5, dropout=0.3, lse=True
    ),
    "additive, sparse": Case("additive", "bigbird", "matrix", normalizer="sigmoid", factor="matrix", dropout=0.3),
    "one query": Case(mask="causal", layout="one query"),
    "more queries than keys": Case(mask="causal", layout="one kv head, more queries", lse=True),
    "own score and bias": Case("of one's own", "padded causal", "of one's own", factor="relative"),
    "own relative bias": Case(mask="global", bias="relative of one's own", layout="long"),
    "matrix of sequences": Case(mask="prefix of each sequence", bias="matrix of sequences", layout="long"),
    "matrix of heads": Case(mask="tensor of blocks", bias="matrix of heads", layout="long"),
    "number of a key": Case(mask="tensor of pairs", bias="number of a key"),
    "rule": Case(mask="rule of heads", bias="table", layout="grouped, fewer queries"),
    "transformer-xl": Case("transformer-xl", "sinks and window", layout="one sequence", rotary="interleaved half"),
    "deberta": Case("deberta", "dilated", "alibi", layout="long", lse=True),
    "float32": Case(mask="causal", layout="long", dtype=torch.float32, learned=False),
    "negative scale": Case(mask="all but a window", scale=-0.4, layout="long, whole blocks"),
}


ON_EIGHT = {"dropout, all", "sink, softcap, rope", "everything", "additive, sparse", "one query", "matrix of sequences"}

# Calls whose sequences (0) or heads (1) are sharded along another axis of the mesh too: masks, biases, tables, sinks
# and dropout that differ for each.
AXES = {
    "sequences: dropout": (0, Case(mask="padded causal", layout="alike", dropout=0.3, normalizer="sink", lse=True)),
    "sequences: matrices": (0, Case("shaw", "tensor of pairs", "matrix of sequences", factor="gaussian")),
    "sequences: own": (0, Case("of one's own", "prefix of each sequence", "number of a key", normalizer="sigmoid")),
    "heads: dropout": (1, Case(mask="random", layout="alike", dropout=0.3, normalizer="sink", softcap=1.5)),
    "heads: tables": (1, Case("deberta", "bigbird", "t5", factor="matrix")),
    "heads: own": (1, Case("of one's own", "tensor of blocks", "of one's own", lse=True)),
    "heads: grouped": (1, Case("bilinear", "causal", "alibi", layout="grouped, fewer queries", rotary="rope")),
}


# Masks whose work is even in order, in zig-zag, and in blocks.
ORDERS = {
    "window": regard.masks.Window(12),
    "causal": regard.masks.Causal(),
    "documents": regard.masks.Causal()
    & regard.masks.Document(torch.tensor([0] * 70 + [n // 9 for n in range(9, 140)])),
}


def ordered():
    """q, k, v and a cotangent of one call with grouped queries."""
    sizes = (1, 4, 201, 8), (1, 2, 201, 8), (1, 2, 201, 5), (1, 4, 201, 5)
    q, k, v, up = (_randn(*one, seed=at) for at, one in enumerate(sizes))
    return (q, k, v), up


def slopes():
    """A bias that looks at positions."""
    return regard.positions.ALiBi(4, torch.tensor([0.5, 0.1, 0.02, 0.0], dtype=torch.float64))


# A prompt, some tokens one by one, and some together.
STEPS = [(0, 37), (37, 38), (38, 39), (39, 40), (40, 41), (41, 42), (42, 60), (60, 61)]
DECODING = {
    "causal": lambda length: {"mask": regard.masks.Causal(), "normalizer": regard.normalizers.Softmax(slopes().slopes)},
    "window": lambda length: {"mask": regard.masks.Causal() & regard.masks.Window(9), "bias": slopes()},
    "rope": lambda length: {"mask": regard.masks.Causal(), "rotary": regard.positions.RoPE(8)},
}


# Rows of several texts, or of one and padding, for a model whose angles depend on the length of a text.
ROWS = {
    "left": {"attention_mask": torch.arange(29) >= torch.tensor([[4], [17]])},
    "right": {"attention_mask": torch.arange(29) < torch.tensor([[22], [29]])},
    "packed": {"documents": (torch.arange(29) // torch.tensor([[9], [20]])).where(torch.arange(29) < 25, -1)},
}


def read(row, run):
    """The last states of rows."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 20, "hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 8, "decoder_layers": 2}
    turn = regard.positions.RoPE(8, scaling=regard.positions.DynamicNTK(3.0, 8))
    model = regard.models.Transformer(regard.models.TransformerConfig(**sizes, positions=turn)).double().eval()
    ids = torch.randint(0, 20, (2, 29), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        return run(model, lambda: model(ids, **ROWS[row]).last_hidden_state)


# Masks of the longest calls, 4,096 tokens in float32.
LONG = {
    "none": None,
    "causal": regard.masks.Causal(),
    "window": regard.masks.Causal() & regard.masks.Window(512),
    "documents": regard.masks.Causal() & regard.masks.Document(torch.arange(4096) // 900),
}


def long(mask, distribute, **backend):
    """Output and gradients of a call of 4,096 tokens, in the type that `distribute` gives."""
    sizes = (1, 2, 4096, 64), (1, 1, 4096, 64), (1, 1, 4096, 64), (1, 2, 4096, 64)
    q, k, v, up = (distribute(_randn(*one, seed=at).float()) for at, one in enumerate(sizes))
    leaves = [one.detach().requires_grad_() for one in (q, k, v)]
    out = regard.attention(*leaves, mask=mask, **backend)
    out.backward(up)
    found = {"output": out} | {f"gradient of {of}": one.grad for of, one in zip("qkv", leaves, strict=True)}
    return {what: _array(one) for what, one in found.items()}


def decoded():
    """q, k and v of a text that is decoded."""
    return _randn(2, 4, 61, 8), _randn(2, 2, 61, 8, seed=1), _randn(2, 2, 61, 5, seed=2)


@cache
def calls(ranks: int = 2) -> dict[str, Call]:
    """The calls of so many ranks by their names: all examples of each member on 3, its first on 2, those that combine
    them on these and on 4, and some of those on 8, which wait for each other most.
    """
    named = {}
    modules = () if ranks >= 4 else ((test_masks, _of_mask), (test_scores, _of_score), (test_biases, _of_bias))
    for module, make in modules:
        for name, many in module.EXAMPLES.items():
            named |= {f"{name}-{at}": make(*one) for at, one in enumerate(many[: 1 if ranks == 2 else None])}
    return named | {name: _of_case(case) for name, case in CASES.items() if ranks < 8 or name in ON_EIGHT}


def calls_over_axes(ranks: int = 2) -> dict[str, Call]:
    """Every call of `AXES`, on numbers of ranks that two for the other axis divide."""
    return {name: _of_case(case) for name, (_, case) in AXES.items() if ranks % 2 == 0}


def computed(call: Call, distribute=None, **backend) -> dict[str, np.ndarray]:
    """Output, log-sum-exp, and the gradients of q, k, v and all that is learned; `distribute` shards q, k and v."""
    (q, k, v), options = call.make()
    leaves = options.pop("leaves", None)
    given = [one.detach().requires_grad_() if distribute is None else distribute(one.detach()) for one in (q, k, v)]
    results = regard.attention(*given, **options, **backend)
    results = results if isinstance(results, tuple) else (results,)
    found = dict(zip(("output", "lse"), results, strict=False))
    loss = (found["output"] * _like(found["output"], seed=9)).sum()
    if "lse" in found:
        found["lse"] = found["lse"].where(found["lse"].isfinite(), 0)
        loss = loss + (found["lse"] * _like(found["lse"], seed=8)).sum()
    if leaves is None:
        leaves = [one for one in tensors(tuple(options.values())) if one.requires_grad]
    leaves = [one for one in leaves if one.requires_grad]
    loss.backward()
    found |= {f"gradient of {name}": one.grad for name, one in zip("qkv", given, strict=True)}
    found |= {f"gradient of leaf {at}": one.grad for at, one in enumerate(leaves)}
    return {name: _array(one) for name, one in found.items()}


def _like(x, seed):
    """Numbers of the same shape, the same on every rank, that lie as x does."""
    numbers = _randn(*x.shape, seed=seed).to(x.dtype)
    if isinstance(x, torch.Tensor) and type(x).__name__ != "DTensor":
        return numbers
    return distribute_tensor(numbers, x.device_mesh, x.placements)


def distribute_tensor(x, mesh, placements):
    """A DTensor of what every rank has, of which nothing is sent."""
    from torch.distributed import tensor

    return tensor.distribute_tensor(x, mesh, placements, src_data_rank=None)


def _array(x):
    x = x.full_tensor() if type(x).__name__ == "DTensor" else x
    return x.detach().numpy()
