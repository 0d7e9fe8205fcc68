"""A bias of float32 is added as it is to the scores of narrower queries: near −250 bfloat16 knows whole numbers alone.

The biases differ by a quarter from key to key, which rounding to bfloat16 loses; the formula is that of float64.
"""

import itertools

import numpy as np
import pytest
import torch

import regard
from oracles import causal, dense
from regard import masks, positions
from regard.backends.flex import Flex
from regard.backends.selection import named
from regard.problem import Problem
from sweeps import sweep
from tiers import slow_but

HEADS, DIM = 2, 8
TOLERANCE = {torch.float16: 4e-3, torch.bfloat16: 2.5e-2}
# Queries and keys: a decoding step, a few rows, whole blocks of both sides.
SIZES = {"one query": (1, 300), "few queries": (3, 290), "prefill": (130, 260)}


def _far(n, m):
    """−250.5 and falling, by the distance, in quarters: exact in float32."""
    return -250.5 - 0.25 * ((np.arange(n)[:, None] + m - n - np.arange(m)) % 40)


def _alibi(n, m):
    slopes = torch.tensor([0.75, 0.53125])
    distance = np.arange(n)[:, None] + m - n - np.arange(m)
    return positions.ALiBi(HEADS, slopes, bidirectional=True), -slopes.double().numpy()[:, None, None] * abs(distance)


def _t5(n, m):
    """Eight buckets of one distance each, then the last for all that is farther."""
    table = -250.5 - 0.25 * torch.arange(16 * HEADS).reshape(16, HEADS)
    distance = np.maximum(np.arange(n)[:, None] + m - n - np.arange(m), 0)
    bias = positions.T5Bias(table, bidirectional=False, max_distance=9)
    return bias, table.double().numpy()[np.where(distance < 9, distance, 15)].transpose(2, 0, 1)


def _dense(n, m):
    return torch.tensor(_far(n, m), dtype=torch.float32), _far(n, m)


BIASES = {"alibi": _alibi, "t5": _t5, "tensor": _dense}
BACKENDS = [one for name, one in named().items() if name != "flex"]


def _case(bias, sizes, dtype):
    n, m = SIZES[sizes]
    rng = np.random.default_rng(0)
    shapes = (1, HEADS, n, DIM), (1, HEADS, m, DIM), (1, HEADS, m, DIM)
    q, k, v = (torch.tensor(rng.standard_normal(shape)).to(dtype) for shape in shapes)
    added, formula = BIASES[bias](n, m)
    # ALiBi is large where keys are far, and with the nearest ones those would have no weight.
    seen = causal(n, m - 100) if bias == "alibi" else causal(n, m)
    seen = np.pad(seen, [(0, 0), (0, m - seen.shape[1])])
    return (q, k, v), added, formula, seen


def _assert_close(found, expected, dtype):
    error = np.abs(found.detach().double().numpy() - expected).max()
    assert error <= TOLERANCE[dtype] * max(1.0, np.abs(expected).max()), f"off by {error:.2e}"


CALLS = [
    *((bias, sizes, torch.bfloat16) for bias in BIASES for sizes in SIZES),
    ("alibi", "one query", torch.float16),
    ("tensor", "prefill", torch.float16),
]
BY_NAME = {one.name: one for one in (*BACKENDS, Flex(compiles=False))}
FLEX_TOO = [call for call in CALLS if call[1:] == ("one query", torch.bfloat16)]  # uncompiled half a second each
CALLS_OF = {
    **dict.fromkeys((backend.name for backend in BACKENDS), CALLS),
    "flex": FLEX_TOO,
    "flex, the others": [call for call in CALLS if call not in FLEX_TOO],
}


@pytest.mark.parametrize("name", slow_but([name for name in CALLS_OF if "others" not in name], CALLS_OF))
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile:UserWarning")
def test_a_bias_of_float32_stays_what_it_is(name):
    for case in sweep(CALLS_OF[name]):
        with case as (bias, sizes, dtype):
            backend = BY_NAME[name.split(",")[0]]
            tensors, added, formula, seen = _case(bias, sizes, dtype)
            mask = masks.Dense(torch.tensor(seen))
            problem = Problem.of(*tensors, bias=added, mask=mask)
            assert backend.refuses(problem) is None
            _assert_close(backend(problem).output, dense(*tensors, visible=seen, bias=formula).output, dtype)


def test_autocast_does_not_round_it_either():
    for case in sweep(itertools.product([False, True], BIASES, ["one query", "prefill"])):
        with case as (masked, bias, sizes):
            tensors, added, formula, seen = _case(bias, sizes, torch.bfloat16)
            seen = seen if masked else np.ones_like(seen)
            mask = masks.Dense(torch.tensor(seen)) if masked else None
            with torch.autocast("cpu", torch.bfloat16):
                found = regard.attention(*(one.float() for one in tensors), bias=added, mask=mask, backend="sdpa")
            assert found.dtype == torch.bfloat16
            _assert_close(found, dense(*tensors, visible=seen, bias=formula).output, torch.bfloat16)


@pytest.mark.parametrize("backend", ["sdpa", "strips", "reference", "native"])
def test_a_learned_bias_of_float32_gets_the_gradient_of_the_formula(backend):
    tensors, added, formula, _ = _case("tensor", "few queries", torch.bfloat16)
    q, k, v = (one.requires_grad_() for one in tensors)
    added.requires_grad_()
    up = torch.ones(1, HEADS, 3, DIM, dtype=torch.bfloat16)
    regard.attention(q, k, v, bias=added, backend=backend).backward(up)
    expected = dense(q, k, v, bias=formula, cotangent=up)
    _assert_close(added.grad, expected.bias.sum((0, 1)), torch.bfloat16)
    for one, wanted in zip((q, k, v), (expected.q, expected.k, expected.v), strict=True):
        _assert_close(one.grad, wanted, torch.bfloat16)


def test_the_bytes_of_a_bias_are_those_of_its_type():
    x = torch.zeros(1, 2, 8, 4, dtype=torch.bfloat16)
    sdpa = named()["sdpa"]
    wide, narrow = (torch.zeros(8, 8, dtype=one) - 2 for one in (torch.float32, torch.bfloat16))
    assert sdpa.bytes(Problem.of(x, x, x, bias=wide)) == 8 * 8 * 4
    assert sdpa.bytes(Problem.of(x, x, x, bias=narrow)) == 8 * 8 * 2
    assert sdpa.bytes(Problem.of(x, x, x, bias=positions.ALiBi(2))) == 2 * 8 * 8 * 4
