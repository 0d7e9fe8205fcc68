"""Every backend agrees with the reference on whatever parts are put together: values and the gradient of every tensor.

The reference is tested against numpy in test_backends.py and tests/backends/test_reference.py. Here scores, masks,
positions, head layouts, types and options meet each other; blocks are made small, so that short sequences have bands,
runs and gathered blocks.
"""

import contextlib
import itertools
from dataclasses import dataclass, replace
from unittest import mock

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from regard import masks, normalizers, positions, scores
from regard.backends import BACKENDS, Reference
from regard.backends.blockwise import backend as blockwise
from regard.backends.blockwise.fused_tiles import Fused
from regard.backends.blockwise.unfused import General
from regard.backends.numba_loops import Compiled
from regard.positions import Bias, Relative
from regard.problem import Problem
from regard.scores import Score

OTHERS = [one for one in (*BACKENDS, Compiled()) if one.name != "reference"]
TOLERANCE = {torch.float64: 1e-11, torch.float32: 2e-5, torch.float16: 8e-3, torch.bfloat16: 6e-2}
WIDTH = 8


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    """Small tensors: threads that wait for one another would take most of the time."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@dataclass(frozen=True)
class Shape:
    batch: int
    heads: int
    kv_heads: int
    queries: int
    keys: int
    value_width: int

    @property
    def all_pairs(self):
        return self.batch, self.heads, self.queries, self.keys


LAYOUTS = {
    "alike": Shape(2, 4, 4, 75, 75, WIDTH),
    "whole blocks": Shape(1, 4, 2, 64, 96, 6),
    "grouped, fewer queries": Shape(2, 4, 2, 45, 102, 5),
    "one kv head, more queries": Shape(2, 4, 1, 85, 35, 12),
    "one query": Shape(2, 4, 2, 1, 70, WIDTH),
    "one sequence": Shape(1, 2, 2, 90, 90, 3),
}
LONG = {
    "long": Shape(2, 2, 1, 300, 300, WIDTH),
    "long, fewer queries": Shape(1, 4, 2, 150, 333, 5),
    "long, whole blocks": Shape(1, 2, 2, 256, 256, WIDTH),
}


def _random(*shape, seed=0):
    """Numbers of variance 1 / fan-in."""
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(*shape, generator=generator, dtype=torch.float64) / shape[-1] ** 0.5


def _chance(*shape, p, seed=0):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed)) < p


def _blocks(s):
    """Whole blocks that are seen or not, another choice for each head, and three rows that see nothing."""
    coarse = _chance(1, s.heads, -(-s.queries // 16), -(-s.keys // 16), p=0.4, seed=5)
    seen = coarse.repeat_interleave(16, 2).repeat_interleave(16, 3)[:, :, : s.queries, : s.keys].clone()
    seen[:, :, 3:6] = False
    return seen


def _pairs(s):
    seen = _chance(*s.all_pairs, p=0.5, seed=6)
    seen[:, :, s.queries // 2] = False
    return seen


def _real(s):
    real = torch.ones(s.batch, s.keys, dtype=torch.bool)
    real[0, s.keys // 2 + 3 :] = False
    real[-1, :18] = False
    return real


def _document(s):
    ids = torch.arange(s.keys) * 5 // s.keys
    ids[-7:] = -1
    return masks.Document(ids)


# Masks by the shape they are for: relative and not, for each sequence or head, in runs, in columns and scattered.
MASKS = {
    "none": lambda s: None,
    "causal": lambda s: masks.Causal(),
    "causal from the start": lambda s: masks.Causal(align="start"),
    "window": lambda s: masks.Causal() & masks.Window(21),
    "both sides": lambda s: masks.Window(left=20, right=33),
    "all but a window": lambda s: ~masks.Window(21),
    "dilated": lambda s: masks.DilatedWindow(9, dilation=5),
    "strided": lambda s: masks.sparse_transformer(19),
    "sinks and window": lambda s: masks.Causal() & (masks.Window(17) | masks.Sinks(3)),
    "columns": lambda s: masks.Prefix(32),
    "prefix of each sequence": lambda s: masks.prefix_lm(torch.tensor([s.keys // 3, 30][: s.batch])),
    "padded": lambda s: masks.Padding(_real(s)),
    "padded causal": lambda s: masks.Causal() & masks.Padding(_real(s)),
    "documents": lambda s: masks.Causal() & _document(s),
    "global": lambda s: masks.longformer(24, global_positions=(0, 30, s.keys - 1)),
    "bigbird": lambda s: masks.bigbird(num_random_blocks=1, block=16, heads=s.heads),
    "random": lambda s: masks.RandomBlocks(2, block=16, seed=2, heads=s.heads),
    "block local": lambda s: masks.BlockLocal(24, look_backward=1),
    "tensor of pairs": _pairs,
    "tensor of blocks": _blocks,
    "rule of heads": lambda s: masks.MaskMod(lambda b, h, i, j: (i + 2 * j + h) % 3 > b),
}


@dataclass(frozen=True, eq=False)
class Nearness(Score):
    """A score of one's own, with a tensor: −Σ_d w_d (q_d − k_d)²."""

    weight: torch.Tensor
    softcap: float | None = None

    def tile(self, q, k, i, j):
        return -((q[..., :, None, :] - k[..., None, :, :]).square() * self.weight.to(q.dtype)).sum(-1)


SCORES = {
    "scaled dot": lambda s, new, cap: scores.ScaledDot(cap),
    "additive": lambda s, new, cap: scores.Additive(
        new("W", 5, WIDTH), new("U", 5, WIDTH), new("vector", s.heads, 5), new("inner", 5), cap
    ),
    "concat": lambda s, new, cap: scores.Concat(new("W", 5, 2 * WIDTH), new("vector", 5), softcap=cap),
    "bilinear": lambda s, new, cap: scores.Bilinear(new("W", s.heads, WIDTH, WIDTH), cap),
    "cosine": lambda s, new, cap: scores.Cosine(new("temperature", s.heads).abs() + 0.5, cap),
    "shaw": lambda s, new, cap: scores.Shaw(new("keys", 31, WIDTH), new("values", s.heads, 61, s.value_width), cap),
    "relative key query": lambda s, new, cap: scores.RelativeKeyQuery(new("table", s.heads, 31, WIDTH), cap),
    "deberta": lambda s, new, cap: scores.DeBERTa(
        new("keys", s.heads, 16, WIDTH), new("queries", s.heads, 16, WIDTH), 8, 40, cap
    ),
    "transformer-xl": lambda s, new, cap: scores.TransformerXL(
        new("content", s.heads, WIDTH), new("place", s.heads, WIDTH), new("R", s.heads, WIDTH, 6), cap
    ),
    "of one's own": lambda s, new, cap: Nearness(new("weight", WIDTH), cap),
}


@dataclass(frozen=True, eq=False)
class Slopes(Bias):
    """A bias of one's own, with a tensor."""

    slopes: torch.Tensor

    @property
    def leading(self):
        return 1, self.slopes.shape[0]

    def __call__(self, batch, head, i, j):
        return self.slopes[head] * torch.cos(0.3 * i + 0.2 * j)


@dataclass(frozen=True, eq=False)
class Decay(Relative):
    """A relative bias of one's own, for all heads, with a tensor."""

    rate: torch.Tensor

    def diagonals(self, distance):
        return torch.exp(-self.rate[:, None] * distance.abs())


def _grid(s, new):
    offsets = (2 * 5 - 1) * (2 * (-(-s.keys // 5)) - 1)
    return positions.RelativePositionBiasND(new("grid", offsets, s.heads), (5, -(-s.keys // 5)))


BIASES = {
    "none": lambda s, new: None,
    "alibi": lambda s, new: positions.ALiBi(s.heads, new("slopes", s.heads).abs(), bidirectional=True),
    "t5": lambda s, new: positions.T5Bias(new("table", 16, s.heads), bidirectional=True, max_distance=60),
    "table": lambda s, new: positions.RelativePositionBias(new("table", 41, s.heads)),
    "grid": _grid,
    "matrix": lambda s, new: new("matrix", s.queries, s.keys),
    "matrix of heads": lambda s, new: new("matrix", 1, s.heads, s.queries, s.keys),
    "matrix of sequences": lambda s, new: positions.DenseBias(new("matrix", s.batch, 1, s.queries, s.keys)),
    "number of a key": lambda s, new: new("row", s.batch, 1, 1, s.keys),
    "of one's own": lambda s, new: Slopes(new("slopes", s.heads)),
    "relative of one's own": lambda s, new: Decay(new("rate", 1).abs() + 0.02),
}
FACTORS = {
    "none": lambda s, new: None,
    "gaussian": lambda s, new: positions.Gaussian(new("center", s.batch, s.queries).abs() * 0.5 * s.keys, 30.0),
    "relative": lambda s, new: Decay(new("decay", 1).abs() + 0.02),
    "matrix": lambda s, new: positions.DenseBias(new("gate", 1, s.heads, s.queries, s.keys)),
}
NORMALIZERS = {
    "softmax": lambda s, new: normalizers.Softmax(),
    "sink": lambda s, new: normalizers.Softmax(new("sink", s.heads)),
    "sigmoid": lambda s, new: normalizers.Sigmoid(),
    "sigmoid 0": lambda s, new: normalizers.Sigmoid(0.0),
}
ROTARY = {
    "none": None,
    "rope": positions.RoPE(WIDTH),
    "interleaved half": positions.RoPE(WIDTH, interleaved=True, rotary_dim=4),
}


@dataclass(frozen=True)
class Case:
    score: str = "scaled dot"
    mask: str = "none"
    bias: str = "none"
    layout: str = "alike"
    normalizer: str = "softmax"
    factor: str = "none"
    rotary: str = "none"
    softcap: float | None = None
    scale: float | None = None
    dropout: float = 0.0
    lse: bool = False
    learned: bool = True
    dtype: torch.dtype = torch.float64
    block: int = 16
    elements: int | None = None  # scores of a tile, at most

    @property
    def shape(self):
        return (LAYOUTS | LONG)[self.layout]

    def possible(self):
        no_lse = self.lse and self.normalizer.startswith("sigmoid")
        no_cell = self.bias == "grid" and self.shape.queries > self.shape.keys
        return not (no_lse or no_cell)


class Leaves(dict):
    """Tensors by name: made at the first asking in the type of the case, and differentiated afterwards."""

    def __init__(self, rounded, dtype, learned):
        super().__init__()
        self.rounded, self.dtype, self.learned = rounded, dtype, learned

    def __call__(self, name, *shape):
        if name not in self:
            exact = _random(*shape, seed=len(self)) * (shape[-1] ** 0.5 if len(shape) == 1 else 1)
            exact = 3 * exact if name in ("q", "k") else exact
            self[name] = exact.to(self.rounded).to(self.dtype).requires_grad_(self.learned or name in "qkv")
        return self[name]


def _problem(case, leaves):
    s = case.shape
    q = leaves("q", s.batch, s.heads, s.queries, WIDTH)
    k = leaves("k", s.batch, s.kv_heads, s.keys, WIDTH)
    v = leaves("v", s.batch, s.kv_heads, s.keys, s.value_width)
    return Problem.of(
        q,
        k,
        v,
        score=SCORES[case.score](s, leaves, case.softcap),
        mask=MASKS[case.mask](s),
        bias=BIASES[case.bias](s, leaves),
        weight_factor=FACTORS[case.factor](s, leaves),
        normalizer=NORMALIZERS[case.normalizer](s, leaves),
        rotary=ROTARY[case.rotary],
        scale=case.scale,
        dropout=case.dropout,
        generator=torch.Generator().manual_seed(11),
        return_lse=case.lse,
    )


def _computed(backend, problem, leaves):
    """Output, log-sum-exp, and the gradient of every leaf."""
    answer = backend(problem)
    loss = (answer.output * _random(*answer.output.shape, seed=9).to(problem.q.dtype)).sum()
    results = {"output": answer.output}
    if problem.wants_lse:
        assert (answer.lse.isneginf() | answer.lse.isfinite()).all()
        lse = answer.lse.where(answer.lse.isfinite(), 0)
        loss = loss + (lse * _random(*lse.shape, seed=8)).sum().to(loss.dtype)
        results["log-sum-exp"] = lse
        assert torch.equal(answer.lse.isneginf(), _blind(problem, answer))
    names = [name for name, one in leaves.items() if one.requires_grad]
    grads = torch.autograd.grad(loss, [leaves[name] for name in names])
    return results | {f"gradient of {name}": grad for name, grad in zip(names, grads, strict=True)}


def _blind(problem, answer):
    if problem.mask is None or problem.sink is not None:
        return torch.zeros(answer.lse.shape, dtype=torch.bool)
    return (~problem.visible().any(-1)).expand(answer.lse.shape)


def _check(case):
    narrow = Leaves(case.dtype, case.dtype, case.learned)
    problem = _problem(case, narrow)
    backends = [one for one in OTHERS if one.refuses(problem) is None]
    assert "blockwise" in {one.name for one in backends}
    exact = Leaves(case.dtype, torch.float64, case.learned)
    expected = _computed(Reference(), _problem(case, exact), exact)
    for backend in backends:
        with _small_blocks(case):
            ours = _computed(backend, _problem(case, narrow), narrow)
        assert ours.keys() == expected.keys()
        for name, value in ours.items():
            want = expected[name]
            assert bool(value.isfinite().all()), f"{backend.name}: {name} is not finite"
            error = (value.double() - want).abs().max()
            bound = TOLERANCE[case.dtype] * max(1.0, want.abs().max())
            assert error <= bound, f"{backend.name}: {name} is off by {error:.2e}, more than {bound:.2e}"
        _check_hidden(problem, ours, backend.name)


def _check_hidden(problem, ours, name):
    """What sees nothing is exactly 0, and what nobody sees gets no gradient."""
    if problem.mask is None:
        return
    seen = problem.visible().expand(problem.batch, problem.heads, -1, -1)
    blind, unseen = ~seen.any(-1), ~seen.any(-2)
    unseen = unseen.unflatten(1, (problem.kv_heads, -1)).all(2)
    assert (ours["output"][blind] == 0).all(), f"{name}: a row that sees nothing gives something"
    assert (ours["gradient of q"][blind] == 0).all(), f"{name}: a row that sees nothing is learned from"
    for of in "kv":
        assert (ours[f"gradient of {of}"][unseen] == 0).all(), f"{name}: a hidden {of} is learned from"


@contextlib.contextmanager
def _small_blocks(case):
    with mock.patch.object(blockwise, "BLOCK", case.block):
        if case.elements is None:
            yield
        else:
            with mock.patch.object(General, "elements", case.elements), mock.patch.object(Fused, "elements", 4096):
                yield


GRID = [
    (score, mask, layout)
    for (score, mask), layout in zip(itertools.product(SCORES, MASKS), itertools.cycle(LAYOUTS), strict=False)
]


@pytest.mark.slow
@pytest.mark.parametrize(("score", "mask", "layout"), GRID)
def test_every_score_meets_every_mask(score, mask, layout):
    _check(Case(score=score, mask=mask, layout=layout))


@pytest.mark.slow
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("bias", BIASES)
def test_every_bias_meets_every_mask(bias, mask):
    _check(Case(bias=bias, mask=mask, layout="grouped, fewer queries"))


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize(("layout", "block"), [(one, 16) for one in LAYOUTS] + [(one, 128) for one in LONG])
def test_every_layout_meets_every_mask(layout, block, mask):
    _check(Case(layout=layout, mask=mask, block=block))


CASES = st.builds(
    Case,
    score=st.sampled_from([*SCORES, "scaled dot", "scaled dot"]),
    mask=st.sampled_from(list(MASKS)),
    bias=st.sampled_from([*BIASES, "none", "none"]),
    layout=st.sampled_from(list(LAYOUTS)),
    normalizer=st.sampled_from(["softmax", *NORMALIZERS]),
    factor=st.sampled_from(["none", "none", *FACTORS]),
    rotary=st.sampled_from(list(ROTARY)),
    softcap=st.sampled_from([None, None, 1.5]),
    scale=st.sampled_from([None, None, -0.4, 0.0]),
    dropout=st.sampled_from([0.0, 0.0, 0.3]),
    lse=st.booleans(),
    learned=st.booleans(),
    dtype=st.sampled_from([torch.float64, *TOLERANCE]),
    block=st.sampled_from([16, 64, 128]),
    elements=st.sampled_from([None, 2**13]),
).filter(Case.possible)


@pytest.mark.slow
@settings(derandomize=True, max_examples=150, deadline=None, database=None)
@given(CASES)
@example(
    Case(
        "shaw", "window", "t5", normalizer="sink", factor="gaussian", rotary="rope", softcap=1.5, dropout=0.3, lse=True
    )
)
@example(Case("additive", "bigbird", "matrix", normalizer="sigmoid", factor="matrix", softcap=1.5, dropout=0.3))
@example(Case(mask="columns", normalizer="sigmoid", dropout=0.3, layout="grouped, fewer queries"))
def test_whatever_is_put_together_agrees(case):
    _check(case)


@pytest.mark.parametrize("mask", ["none", "columns", "bigbird", "window", "padded causal"])
@pytest.mark.parametrize("layout", ["alike", "grouped, fewer queries"])
def test_the_same_seed_drops_the_same_weights_however_they_are_laid_out(mask, layout):
    case = Case(mask=mask, layout=layout, dropout=0.4, lse=True)
    for block in (16, 64):
        _check(replace(case, block=block))


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"softcap": 1.5, "lse": True},
        {"layout": "grouped, fewer queries", "normalizer": "sigmoid"},
        {"score": "shaw", "bias": "table"},
    ],
    ids=["fused", "general", "sigmoid", "tile by tile"],
)
def test_nothing_is_read_that_was_not_written(options, mask):
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)  # fills what is allocated with NaN
    try:
        _check(Case(mask=mask, **options))
    finally:
        torch.use_deterministic_algorithms(before)


@pytest.mark.parametrize(
    "case",
    [
        Case(mask="causal", layout="long", block=128),
        Case("additive", "documents", "t5", "long, fewer queries", block=128),
        Case(mask="window", bias="t5", layout="long, whole blocks", block=128, learned=False),
    ],
    ids=str,
)
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_every_type_at_the_real_size_of_a_block(case, dtype):
    _check(replace(case, dtype=dtype))
