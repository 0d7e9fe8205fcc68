"""What the backend `flex` tells FlexAttention is the formula, with its gradients; and what it cannot tell, it says.

Uncompiled, FlexAttention computes `score_mod` and `mask_mod` for all pairs with PyTorch's operations, and
differentiates the graphs that TorchDynamo made of them, which are those that its kernels are compiled from. It refuses
gradients on CPU at its door, as there is no kernel for them; these tests take that door away. Lists of blocks, which
only kernels read, are tested in tests/masks/test_block_tables.py; the kernels for CUDA, by benchmarks/flex.py.
"""

import subprocess
import sys

import numpy as np
import pytest
import torch
from torch.nn.attention import flex_attention as pytorch

import regard
from oracles import causal, dense, window
from regard import masks, positions, scores
from regard.backends.flex import Flex
from regard.errors import InputError
from regard.normalizers import Sigmoid, Softmax
from regard.problem import Problem
from sweeps import sweep

pytestmark = [
    pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile:UserWarning"),
    # TorchDynamo hides this one, which "error" would raise before it can.
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"),
]
CLOSE = {"rtol": 1e-11, "atol": 1e-11}
GRID = np.ogrid[:2, :4, :37, :75]  # sequences, heads, queries, keys; queries are the last positions, from 38 on


@pytest.fixture
def gradients(monkeypatch):
    """Let FlexAttention differentiate on CPU."""
    monkeypatch.setattr(pytorch, "_validate_device", lambda *tensors: None)


def _randn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _inputs(shape=(2, 4, 2, 37, 75, 8, 5)):
    b, h, kv, n, m, d, dv = shape
    sizes = (b, h, n, d), (b, kv, m, d), (b, kv, m, dv)
    return [_randn(*size, seed=seed).requires_grad_() for seed, size in enumerate(sizes)]


def _check(inputs, expected, cotangent, learned=None, **asked):
    """Compare output, and gradients of q, k, v and what is learned: pairs of a tensor and what its gradient is."""
    problem = Problem.of(*inputs, **asked)
    output = Flex(compiles=False)(problem).output
    np.testing.assert_allclose(output.detach(), expected.output, **CLOSE)
    pairs = [*zip(inputs, (expected.q, expected.k, expected.v), strict=True), *(learned or [])]
    found = torch.autograd.grad(output, [tensor for tensor, _ in pairs], cotangent)
    for gradient, (_, wanted) in zip(found, pairs, strict=True):
        np.testing.assert_allclose(gradient, np.reshape(wanted, gradient.shape), **CLOSE)


IDS = np.repeat([3, 1, -1, 7], [20, 25, 5, 25])
REAL = np.ones((2, 75), bool)
REAL[0, 60:], REAL[1, :50] = False, False
SEEN = np.random.default_rng(0).random((2, 4, 37, 75)) < 0.4
SEEN[:, :, 7] = False
B, H, ROW, J = GRID
AT = ROW + 38
BIGBIRD = masks.bigbird(block=8, heads=4, num_random_blocks=2)
MASKS = {
    "causal": (masks.Causal(), causal(37, 75)),
    "causal from the start": (masks.Causal(align="start"), np.tri(37, 75, dtype=bool)),
    "window": (masks.Causal() & masks.Window(9), causal(37, 75) & window(37, 75, 8, 0)),
    "longformer": (masks.longformer(8, (0, 50)), window(37, 75, 4, 4) | np.isin(AT, [0, 50]) | np.isin(J, [0, 50])),
    "a plan for each head": (BIGBIRD, BIGBIRD.bind(37, 75).dense(1, 4).numpy()),
    "documents": (masks.Document(torch.tensor(IDS)), (IDS[AT] == IDS[J]) & (IDS[AT] >= 0)),
    "inside documents": (
        masks.Document.from_lengths(torch.tensor([50, 25]), within=masks.Causal()),
        causal(37, 75) & ((AT < 50) == (J < 50)),
    ),
    "padding": (masks.Causal() & masks.Padding(torch.tensor(REAL)), causal(37, 75) & REAL[B, J]),
    "tensor": (torch.tensor(SEEN), SEEN),
    "rule": (masks.MaskMod(lambda b, h, i, j: (i + j + h) % (2 + b) == 0), (AT + J + H) % (2 + B) == 0),
    "bound elsewhere": (masks.Causal().bind(37, 75, q_offset=5), np.arange(75) <= np.arange(5, 42)[:, None]),
    "nothing": (masks.MaskMod(lambda b, h, i, j: (i < 0) & (j < 0)), np.zeros((37, 75), bool)),
}


@pytest.mark.slow
@pytest.mark.usefixtures("gradients")
def test_every_mask_gives_the_formula_and_its_gradients():
    for case in sweep(MASKS):
        with case as name:
            mask, visible = MASKS[name]
            inputs, cotangent = _inputs(), _randn(2, 4, 37, 5, seed=9)
            expected = dense(*inputs, visible=visible, cotangent=cotangent)
            _check(inputs, expected, cotangent, mask=mask)


OPTIONS = {
    "scale": {"scale": 0.9},
    "negative scale": {"scale": -0.7},
    "scale 0": {"scale": 0.0},
    "softcap": {"softcap": 1.5},
    "sink": {"sink": True},
    "bias": {"bias": (2, 4, 37, 75)},
    "bias of a head": {"bias": (1, 4, 1, 1)},
    "bias of a key": {"bias": (1, 75)},
    "bias of rows and columns": {"bias": (37, 75)},
    "all at once": {"bias": (1, 4, 37, 75), "softcap": 2.0, "sink": True, "scale": 0.4},
}
QUICK = ("bias of a head", "bias of rows and columns", "all at once")


@pytest.mark.usefixtures("gradients")
@pytest.mark.parametrize(
    "quick", [pytest.param(True, id="quick"), pytest.param(False, id="the others", marks=pytest.mark.slow)]
)
def test_every_option_gives_the_formula_and_its_gradients(quick):
    for case in sweep(name for name in OPTIONS if (name in QUICK) == quick):
        with case as name:
            asked = OPTIONS[name]
            inputs, cotangent = _inputs(), _randn(2, 4, 37, 5, seed=9)
            mask, visible = MASKS["tensor"]
            bias = _randn(*asked["bias"], seed=5).requires_grad_() if "bias" in asked else None
            sink = _randn(4, seed=6).requires_grad_() if asked.get("sink") else None
            scale, softcap = asked.get("scale"), asked.get("softcap")
            four = None if bias is None else bias.detach()[(None,) * (4 - bias.ndim)]
            expected = dense(
                *inputs, visible=visible, bias=four, sink=sink, scale=scale, softcap=softcap, cotangent=cotangent
            )
            _check(
                inputs,
                expected,
                cotangent,
                [(one, wanted) for one, wanted in ((bias, expected.bias), (sink, expected.sink)) if one is not None],
                mask=mask,
                bias=bias,
                scale=scale,
                score=scores.ScaledDot(softcap),
                normalizer=Softmax(sink),
            )


def _slopes():
    return torch.tensor([0.5, 0.25, 0.1, 0.7], dtype=torch.float64)


# Each bias with its numbers for (head, i − j), and with the row of its table that a pair reads where it is learned.
RELATIVE = {
    "ALiBi": (lambda: positions.ALiBi(4), lambda t, h, far: -(2.0 ** (-2 * (h + 1))) * far, None),
    "ALiBi with slopes, both sides": (
        lambda: positions.ALiBi(4, _slopes(), bidirectional=True),
        lambda t, h, far: -t[h] * abs(far),
        None,
    ),
    "ALiBi, learned": (
        lambda: positions.ALiBi(4, _slopes().requires_grad_()),
        lambda t, h, far: -t[h] * far,
        lambda h, far: ((h,), -far),
    ),
    "a table of distances, learned": (
        lambda: positions.RelativePositionBias(_randn(13, 4, seed=3).requires_grad_()),
        lambda t, h, far: t[np.clip(far, -6, 6) + 6, h],
        lambda h, far: ((np.clip(far, -6, 6) + 6, h), 1.0),
    ),
    "T5's buckets of one distance each, learned": (
        # 128 buckets for decoders: 64 hold one distance each, and none here is further than 75.
        lambda: positions.T5Bias(_randn(256, 4, seed=3).requires_grad_(), bidirectional=False, max_distance=512),
        lambda t, h, far: t[np.maximum(far, 0), h],
        lambda h, far: ((np.maximum(far, 0), h), 1.0),
    ),
}


@pytest.mark.usefixtures("gradients")
def test_biases_of_distances_and_their_gradients():
    for case in sweep(RELATIVE):
        with case as name:
            make, rule, read = RELATIVE[name]
            inputs, cotangent, bias = _inputs(), _randn(2, 4, 37, 5, seed=9), make()
            held = regard.values.tensors(bias)
            table = held[0].detach().numpy() if held else None
            matrix = np.broadcast_to(rule(table, H, AT - J), (1, 4, 37, 75))
            expected = dense(*inputs, bias=np.broadcast_to(matrix, (2, 4, 37, 75)), cotangent=cotangent)
            learned = []
            if read is not None:
                entry, factor = read(np.broadcast_to(H, (2, 4, 37, 75)), np.broadcast_to(AT - J, (2, 4, 37, 75)))
                wanted = np.zeros_like(table)
                np.add.at(wanted, entry, expected.bias * factor)
                learned = [(held[0], wanted)]
            _check(inputs, expected, cotangent, learned, bias=bias)


@pytest.mark.usefixtures("gradients")
def test_a_table_of_grid_offsets_is_learned():
    inputs, cotangent = _inputs((1, 2, 2, 6, 6, 4, 4)), _randn(1, 2, 6, 4, seed=9)
    table = _randn(15, 2, seed=3).requires_grad_()
    y, x = np.divmod(np.arange(6), 3)
    row = (y[:, None] - y + 1) * 5 + x[:, None] - x + 2
    expected = dense(*inputs, bias=table.detach().numpy()[row].transpose(2, 0, 1)[None], cotangent=cotangent)
    wanted = np.zeros((15, 2))
    for head in range(2):
        np.add.at(wanted[:, head], row, expected.bias[0, head])
    _check(inputs, expected, cotangent, [(table, wanted)], bias=positions.RelativePositionBiasND(table, (2, 3)))


@pytest.mark.usefixtures("gradients")
def test_scores_that_become_products_are_computed():
    inputs, cotangent = _inputs((1, 2, 2, 9, 9, 6, 6)), _randn(1, 2, 9, 6, seed=9)
    for score in (scores.Cosine(torch.tensor([0.3, 2.0], dtype=torch.float64)), scores.Bilinear(_randn(6, 6, seed=4))):
        ours, theirs = (
            one(Problem.of(*inputs, score=score, mask=masks.Causal())).output
            for one in (Flex(compiles=False), regard.backends.Reference())
        )
        torch.testing.assert_close(ours, theirs, **CLOSE)
        for one, other in zip(*(torch.autograd.grad(x, inputs, cotangent) for x in (ours, theirs)), strict=True):
            torch.testing.assert_close(one, other, **CLOSE)


@pytest.mark.parametrize("sink", [None, _randn(4, seed=6)], ids=["plain", "sink"])
def test_the_log_sum_exp_is_natural_and_minus_infinity_where_nothing_is_seen(sink):
    inputs = [x.detach() for x in _inputs()]
    answer = Flex(compiles=False)(
        Problem.of(*inputs, mask=torch.tensor(SEEN), normalizer=Softmax(sink), return_lse=True)
    )
    expected = dense(*inputs, visible=SEEN, sink=sink)
    np.testing.assert_allclose(answer.lse, expected.lse, **CLOSE)
    assert sink is not None or (answer.lse[:, :, 7] == -torch.inf).all()
    assert (answer.output[:, :, 7] == 0).all()


@pytest.mark.usefixtures("gradients")
@pytest.mark.parametrize("sink", [False, True], ids=["plain", "sink"])
def test_the_log_sum_exp_has_a_gradient(sink):
    inputs = _inputs()
    logit = _randn(4, seed=6).requires_grad_() if sink else None
    asked = {"mask": masks.Causal() & masks.Window(9), "normalizer": Softmax(logit), "return_lse": True}
    found = []
    for backend in (Flex(compiles=False), regard.backends.Reference()):
        answer = backend(Problem.of(*inputs, **asked))
        total = (answer.lse * _randn(2, 4, 37, seed=8)).sum() + (answer.output * _randn(2, 4, 37, 5, seed=9)).sum()
        found.append(torch.autograd.grad(total, [*inputs, *([logit] if sink else [])]))
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, **CLOSE)


@pytest.mark.usefixtures("gradients")
def test_a_row_that_sees_nothing_is_exactly_zero_and_gets_no_gradient():
    x = _randn(1, 2, 4, 3).requires_grad_()
    sink = torch.zeros(2, dtype=torch.float64)
    for normalizer in (Softmax(), Softmax(sink)):
        hiding = masks.MaskMod(lambda b, h, i, j: (i != 2) & (j >= 0))
        output = Flex(compiles=False)(Problem.of(x, x, x, mask=hiding, normalizer=normalizer)).output
        assert (output[:, :, 2] == 0).all()
        assert (output[:, :, 1] != 0).all()
        (gradient,) = torch.autograd.grad(output[:, :, 2].sum(), x)
        assert (gradient == 0).all()


def test_autocast_changes_nothing():
    q, k, v = (x.detach().float() for x in _inputs())
    with torch.autocast("cpu", torch.bfloat16):
        answer = Flex(compiles=False)(Problem.of(q, k, v))
    assert answer.output.dtype == torch.float32
    np.testing.assert_allclose(answer.output, dense(q, k, v).output, atol=1e-5)


def test_where_no_gradient_is_asked_for_inputs_may_be_ones_that_learn():
    inputs = _inputs()
    with torch.no_grad():
        problem = Problem.of(*inputs, bias=_randn(37, 75, seed=4).requires_grad_())
        assert Flex(compiles=False).refuses(problem) is None
        answer = Flex(compiles=False)(problem)
    np.testing.assert_allclose(answer.output, dense(*inputs, bias=_randn(1, 1, 37, 75, seed=4)).output, **CLOSE)


X = torch.zeros(1, 2, 5, 4)
LEARNED = torch.zeros(1, 2, 5, 4, requires_grad=True)
REFUSED = {
    "weights": (X, {"return_weights": True}, "all weights"),
    "additive": (X, {"score": scores.Additive(None, None, torch.zeros(4))}, "dot product alone, not Additive"),
    "sigmoid": (X, {"normalizer": Sigmoid()}, "no Sigmoid, only the softmax"),
    "weight_factor": (X, {"weight_factor": torch.ones(5, 5) * 0.5}, "no factor on the weights"),
    "dropout": (X, {"dropout": 0.1}, "no dropout"),
    "gradients": (LEARNED, {}, "no backward on CPU"),
    "a learned bias": (X, {"bias": torch.randn(5, 5, requires_grad=True)}, "no backward on CPU"),
    "float64": (X.double(), {}, "float32, float16 and bfloat16.*float64"),
    "lse": (X, {"return_lse": True}, "on CPU .*log-sum-exp"),
    "sink": (X, {"normalizer": Softmax(torch.zeros(2))}, "log-sum-exp, which a sink"),
}


def test_what_cannot_be_computed_is_refused_with_a_reason():
    for case in sweep(REFUSED):
        with case as name:
            x, asked, reason = REFUSED[name]
            with pytest.raises(InputError, match=f"the backend 'flex' cannot run this call: .*{reason}"):
                regard.attention(x, x, x, backend="flex", **asked)


def test_uncompiled_it_refuses_what_does_not_fit_into_max_bytes():
    assert "200 B, more than the limit of 100 B" in Flex(compiles=False).refuses(Problem.of(X, X, X, max_bytes=100))
    assert Flex().refuses(Problem.of(X, X, X, max_bytes=100)) is None


def test_it_runs_by_name_alone():
    assert regard.explain(X, X, X, backend="flex").backend == "flex"
    auto = regard.explain(X, X, X)
    assert "flex" not in {auto.backend, *(name for name, _ in (*auto.refusals, *auto.slower))}


def test_under_torch_func_it_refuses():
    said = []

    def asked(x):
        said.append(Flex().refuses(Problem.of(x, x, x)))
        return x

    torch.func.vmap(asked)(torch.zeros(3, 1, 2, 5, 4))
    assert "torch.func" in said[0]


@pytest.mark.slow  # a process of its own
def test_import_regard_imports_neither_flex_attention_nor_dynamo():
    told = "import sys, regard; print({'torch.nn.attention.flex_attention', 'torch._dynamo'} & set(sys.modules))"
    run = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, check=True)
    assert run.stdout == "set()\n"
