"""Every backend agrees with the reference on whatever parts are put together: values and the gradient of every tensor.

The reference is tested against numpy in test_backends.py and tests/backends/test_reference.py. Here scores, masks,
positions, head layouts, types and options meet each other; blocks and strips are made small, so that short sequences
are cut into rows with several spans of keys.
"""

import contextlib
import itertools
from dataclasses import dataclass, replace
from unittest import mock

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from backend_lists import GENERAL
from families import BIASES, FACTORS, MASKS, NORMALIZERS, SCORES, WIDTH, Leaves, Shape, drawn_at
from regard import positions
from regard.backends import Reference, strips
from regard.backends.native import Native
from regard.problem import Problem
from sweeps import sweep

OTHERS = [one for one in (*GENERAL, Native()) if one.name != "reference"]
TOLERANCE = {torch.float64: 1e-11, torch.float32: 2e-5, torch.float16: 8e-3, torch.bfloat16: 6e-2}


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    """Small tensors: threads that wait for one another would take most of the time."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


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
    room: int = 2**20  # scores of a strip, at most

    @property
    def shape(self):
        return (LAYOUTS | LONG)[self.layout]

    def possible(self):
        no_lse = self.lse and self.normalizer.startswith("sigmoid")
        no_cell = self.bias == "grid" and self.shape.queries > self.shape.keys
        return not (no_lse or no_cell)


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
    loss = (answer.output * drawn_at(*answer.output.shape, seed=9).to(problem.q.dtype)).sum()
    results = {"output": answer.output}
    if problem.wants_lse:
        assert (answer.lse.isneginf() | answer.lse.isfinite()).all()
        lse = answer.lse.where(answer.lse.isfinite(), 0)
        loss = loss + (lse * drawn_at(*lse.shape, seed=8)).sum().to(loss.dtype)
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
    assert "strips" in {one.name for one in backends}
    exact = Leaves(case.dtype, torch.float64, case.learned)
    expected = _computed(Reference(), _problem(case, exact), exact)
    for backend in backends:
        with _small_strips(case):
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
def _small_strips(case):
    with mock.patch.object(strips, "BLOCK", case.block), mock.patch.object(strips, "_SCORES", case.room):
        yield


# Each score with each mask, in the layouts by turns.
TURNS = dict(zip(itertools.product(SCORES, MASKS), itertools.cycle(LAYOUTS), strict=False))


@pytest.mark.slow
@pytest.mark.parametrize("score", SCORES)
def test_every_score_meets_every_mask(score):
    for case in sweep(MASKS):
        with case as mask:
            _check(Case(score=score, mask=mask, layout=TURNS[score, mask]))


@pytest.mark.slow
@pytest.mark.parametrize("bias", BIASES)
def test_every_bias_meets_every_mask(bias):
    for case in sweep(MASKS):
        with case as mask:
            _check(Case(bias=bias, mask=mask, layout="grouped, fewer queries"))


@pytest.mark.parametrize(("layout", "block"), [(name, 16) for name in LAYOUTS] + [(name, 128) for name in LONG])
def test_every_layout_meets_every_mask(layout, block):
    for case in sweep(MASKS):
        with case as mask:
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
    room=st.sampled_from([2**20, 2**13, 2**10]),
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


def test_the_same_seed_drops_the_same_weights_however_they_are_laid_out():
    names = "none", "columns", "bigbird", "window", "padded causal"
    for case in sweep(itertools.product(["alike", "grouped, fewer queries"], names)):
        with case as (layout, mask):
            case = Case(mask=mask, layout=layout, dropout=0.4, lse=True)
            for block, room in ((16, 2**20), (64, 2**20), (16, 2**10)):
                _check(replace(case, block=block, room=room))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"softcap": 1.5, "lse": True},
        {"layout": "grouped, fewer queries", "normalizer": "sigmoid"},
        {"score": "shaw", "bias": "table"},
    ],
    ids=["plain", "softcap", "sigmoid", "value terms"],
)
def test_nothing_is_read_that_was_not_written(options):
    for case in sweep(MASKS):
        with case as mask:
            before = torch.are_deterministic_algorithms_enabled()
            torch.use_deterministic_algorithms(True)  # fills what is allocated with NaN
            try:
                _check(Case(mask=mask, **options))
            finally:
                torch.use_deterministic_algorithms(before)


OF_REAL_SIZE = [
    Case(mask="causal", layout="long", block=128),
    Case("additive", "documents", "t5", "long, fewer queries", block=128),
    Case(mask="window", bias="t5", layout="long, whole blocks", block=128, learned=False),
]


def test_every_type_at_the_real_size_of_a_block():
    for case in sweep(itertools.product(OF_REAL_SIZE, TOLERANCE)):
        with case as (parts, dtype):
            _check(replace(parts, dtype=dtype))
