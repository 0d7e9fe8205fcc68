"""`auto` takes the compiled loops where they were measured faster and are compiled, and there alone."""

import itertools
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.checkpoint import checkpoint

import regard
from measured_processor import MeasuredProcessor
from regard import masks
from regard.backends import call_cache
from regard.backends.numba_loops import auto, object_code
from regard.normalizers import Softmax
from regard.positions import ALiBi, RelativePositionBias, RelativePositionBiasND, T5Bias
from regard.problem import Problem
from regard.scores import ScaledDot
from sweeps import sweep

N = 512
HALF = torch.arange(N)[None] < N // 2
MASKS = {
    "causal": lambda: masks.Causal(),
    "window": lambda: masks.Causal() & masks.Window(100),
    "documents": lambda: masks.Document(torch.arange(N) // 150),
    "padding": lambda: masks.Padding(HALF),
    "prefix": lambda: masks.prefix_lm(100),
    "longformer": lambda: masks.longformer(64, global_positions=[0, 300]),
    "bigbird": lambda: masks.bigbird(),
    "not a window": lambda: ~masks.Window(5),
    "rows that see nothing": lambda: masks.Causal() & masks.Sinks(1) & ~masks.Window(40),
}
OPTIONS = {
    "scale": {"scale": 0.3},
    "softcap": {"score": ScaledDot(softcap=5.0)},
    "sink": {"normalizer": Softmax(torch.tensor([0.5, -1.0]))},
    "ALiBi": {"bias": ALiBi(2)},
}


@pytest.fixture
def ready(monkeypatch):
    """A process that began where the loops were compiled already, on a processor for which they were measured."""
    monkeypatch.setattr(object_code, "_ready", True)
    monkeypatch.setattr(auto, "object_code", MeasuredProcessor())
    call_cache._KEPT.clear()
    yield
    call_cache._KEPT.clear()


def drawn(n=N, m=N, heads=2, kv_heads=2, dim=16, dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    sizes = (heads, n), (kv_heads, m), (kv_heads, m)
    return [torch.randn(1, h, length, dim, generator=generator).to(dtype) for h, length in sizes]


def exact(q, k, v, mask=None, *, scale=None, score=None, normalizer=None, bias=None, added=0.0):
    """The formula in float64; rows that see nothing are 0."""
    k, v = (x.double().repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    s = q.double() @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
    if score is not None:
        s = score.softcap * torch.tanh(s / score.softcap)
    s, (n, m) = s + added, s.shape[-2:]
    if bias is not None:
        distances = (torch.arange(n)[:, None] - torch.arange(m)).abs()
        s = s - distances * torch.tensor([2.0**-4, 2.0**-8], dtype=torch.float64)[:, None, None]
    if mask is not None:
        s = s.masked_fill(~mask.bind(n, m).dense(), -torch.inf)
    peak = s.amax(-1, keepdim=True).clamp_min(-1e300)
    weights = (s - peak).exp()
    total = weights.sum(-1, keepdim=True)
    if normalizer is not None:
        total = total + (normalizer.sink.double()[:, None, None] - peak).exp()
    return weights / total.clamp_min(1e-300) @ v


def gradients(call, *tensors):
    """Output and gradients of leaves, for a fixed gradient of the output."""
    leaves = [x.detach().requires_grad_() for x in tensors]
    output = call(*leaves)
    up = torch.randn(output.shape, generator=torch.Generator().manual_seed(1)).to(output.dtype)
    return output.detach(), *torch.autograd.grad(output, leaves, up)


def error(found, right):
    """The largest difference as a share of the largest value, if that is above 1."""
    return (found.double() - right).abs().max() / right.abs().max().clamp_min(1.0)


def backend_of(*tensors, **asked):
    return regard.explain(*tensors, **asked).backend


def test_each_mask_at_the_least_size_is_as_exact_as_the_loops_by_name(ready):
    for case in sweep(MASKS):
        with case as name:
            q, k, v = drawn()
            mask = MASKS[name]()
            assert backend_of(q, k, v, mask=mask) == "numba"
            ours = regard.attention(q, k, v, mask=mask)
            torch.testing.assert_close(ours.double(), exact(q, k, v, mask), rtol=0, atol=3e-6)
            assert torch.equal(ours, regard.attention(q, k, v, mask=mask, backend="numba"))
            assert torch.equal(ours, regard.attention(q, k, v, mask=mask))  # known by now


def test_training_with_each_mask_at_the_least_size_is_as_exact(ready):
    for case in sweep(MASKS):
        with case as name:
            tensors, mask = drawn(heads=4, kv_heads=2), MASKS[name]()
            assert backend_of(tensors[0].clone().requires_grad_(), *tensors[1:], mask=mask) == "numba"
            ours = gradients(lambda *x, mask=mask: regard.attention(*x, mask=mask), *tensors)
            expected = gradients(lambda *x, mask=mask: exact(*x, mask), *(x.double() for x in tensors))
            for found, right in zip(ours, expected, strict=True):
                assert error(found, right) < 1e-5  # where a row sees one key, that of SDPA is 7e-6, and the loops' 6e-6
            named = gradients(lambda *x, mask=mask: regard.attention(*x, mask=mask, backend="numba"), *tensors)
            assert all(map(torch.equal, ours, named))


@pytest.mark.parametrize("name", OPTIONS)
def test_training_with_options_is_as_exact(ready, name):
    tensors, asked = drawn(), {"mask": masks.Causal(), **OPTIONS[name]}
    assert backend_of(*tensors[:2], tensors[2].clone().requires_grad_(), **asked) == "numba"
    ours = gradients(lambda *x: regard.attention(*x, **asked), *tensors)
    expected = gradients(lambda *x: exact(*x, **asked), *(x.double() for x in tensors))
    for found, right in zip(ours, expected, strict=True):
        assert error(found, right) < 3e-6


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_dropout_with_each_mask_at_the_least_size_drops_what_the_formula_drops(ready, dtype):
    for case in sweep([*MASKS, "all"]):
        with case as name:
            q, k, _ = drawn(heads=4, kv_heads=2, dtype=dtype)
            # With these values the output is the first columns of the weights.
            values = torch.eye(N, 128, dtype=dtype).expand(1, 2, N, 128)
            mask = MASKS[name]() if name in MASKS else None
            leaf = q.clone().requires_grad_()
            assert backend_of(q, k, values, mask=mask, dropout=0.1) == "numba"
            assert backend_of(leaf, k, values, mask=mask, dropout=0.1) == "numba"
            ours, right = (
                regard.attention(
                    one, k, values, mask=mask, dropout=0.1, generator=torch.Generator().manual_seed(3), backend=backend
                )
                for one, backend in ((leaf, "auto"), (q, "reference"))
            )
            assert torch.equal(ours != 0, right != 0)
            torch.testing.assert_close(ours.detach(), right, rtol=2e-5 if dtype == torch.float32 else 2e-2, atol=1e-6)
            for other in (
                [x[:, :, 1:] for x in (q, k, values)],
                [q[:, :, :1], *(torch.cat(8 * [x], 2) for x in (k, values))],
            ):
                assert backend_of(*other, dropout=0.1) in ("reference", "blockwise")


TABLES = {
    "T5": (
        lambda table: T5Bias(table[:16], bidirectional=False, max_distance=9),  # no two distances below 9 share a row
        lambda table, far: table[torch.where(far < 9, far.clamp(min=0), 15)],
    ),
    "clipped": (
        lambda table: RelativePositionBias(table),
        lambda table, far: table[far.clamp(-1000, 1000) + 1000],
    ),
    "ALiBi": (
        lambda table: ALiBi(2, table[0].abs() / 50),
        lambda table, far: -table[0].abs() / 50 * far[..., None],
    ),
}


@pytest.mark.parametrize("kind", TABLES)
def test_a_learned_bias_of_distances_has_its_gradient_from_the_loops_under_each_mask(ready, kind):
    made, pairs = TABLES[kind]
    far = torch.arange(N)[:, None] - torch.arange(N)
    # One slope's gradient is a sum over all pairs, of terms up to 512 times as large as those of a table.
    most = 1e-4 if kind == "ALiBi" else 2e-5
    for case in sweep(itertools.product([*MASKS, "all"], [torch.float32, torch.bfloat16])):
        with case as (name, dtype):
            tensors, mask = drawn(kv_heads=1, dtype=dtype), MASKS[name]() if name in MASKS else None
            tensors.append(torch.randn(2001, 2, generator=torch.Generator().manual_seed(2)))

            def call(q, k, v, table, mask=mask):
                return regard.attention(q, k, v, mask=mask, bias=made(table))

            def formula(q, k, v, table, mask=mask):
                return exact(q, k, v, mask, added=pairs(table, far).movedim(-1, 0))

            leaf = tensors[3].clone().requires_grad_()
            assert backend_of(*tensors[:3], mask=mask, bias=made(leaf)) == "numba"
            assert backend_of(tensors[0].clone().requires_grad_(), *tensors[1:3], mask=mask, bias=made(leaf)) == "numba"
            ours = gradients(call, *tensors)
            expected = gradients(formula, *(x.double() for x in tensors))
            for at, (found, right) in enumerate(zip(ours, expected, strict=True)):
                assert error(found, right) < (most if dtype == torch.float32 else 2e-2), ("output", *"qkv", "table")[at]
            with regard.use_backend("numba"):
                assert all(map(torch.equal, ours, gradients(call, *tensors)))


@pytest.mark.parametrize("name", ["causal", "padding", "all"])
@pytest.mark.parametrize("dim", [16, 128])
def test_training_in_bfloat16_beside_a_fixed_bias_is_as_exact_as_float32(ready, dim, name):
    tensors, mask = drawn(dim=dim, dtype=torch.bfloat16), MASKS[name]() if name in MASKS else None
    bias = ALiBi(2, bidirectional=True)
    assert backend_of(tensors[0].clone().requires_grad_(), *tensors[1:], mask=mask, bias=bias) == "numba"
    ours = gradients(lambda *x: regard.attention(*x, mask=mask, bias=bias), *tensors)
    expected = gradients(lambda *x: exact(*x, mask, bias=bias), *(x.double() for x in tensors))
    for found, right in zip(ours, expected, strict=True):
        rounded = (found.double() - right.bfloat16().double()).abs().max()
        assert rounded <= 2**-7 * right.abs().max()  # a last bit, and the gradient of the output was rounded
        assert (found.double() - right).abs().mean() <= 2**-9 * right.abs().max()


def test_biases_that_learn_otherwise_stay_where_they_were(ready):
    q, k, v = drawn()
    leaf, seen = q.clone().requires_grad_(), {"mask": masks.Causal()}
    table = torch.zeros(32, 2, requires_grad=True)
    learned = T5Bias(table, bidirectional=False)
    assert backend_of(leaf, k, v, **seen, bias=learned) == "numba"
    assert backend_of(leaf, k, v, **seen, bias=learned, dropout=0.1) == "numba"
    said = "calls with a bias of distances in training, float32, were measured faster from 512 on"
    assert said in str(regard.explain(q, k, v, **seen, bias=learned))
    assert backend_of(leaf, k, v, **seen, bias=torch.zeros(N, N, requires_grad=True)) != "numba"
    grid = torch.zeros(31 * 63, 2, requires_grad=True)
    assert backend_of(leaf, k, v, **seen, bias=RelativePositionBiasND(grid, (16, 32))) == "blockwise"
    assert backend_of(leaf[:, :, 1:], k, v, **seen, bias=learned) == "blockwise"
    keys = [torch.zeros(1, 1, 4096, 16)] * 2
    step = torch.zeros(1, 4, 1, 16)
    table = torch.zeros(32, 4, requires_grad=True)
    assert backend_of(step, *keys, bias=T5Bias(table.detach(), bidirectional=False)) == "numba"
    assert backend_of(step, *keys, bias=T5Bias(table, bidirectional=False)) != "numba"
    with torch.no_grad():
        assert backend_of(step, *keys, bias=T5Bias(table, bidirectional=False)) == "numba"
    torch.use_deterministic_algorithms(True)
    try:
        assert backend_of(leaf, k, v, **seen, bias=learned) == "blockwise"
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("name", OPTIONS)
def test_options_of_a_masked_call_are_as_exact(ready, name):
    q, k, v = drawn()
    assert backend_of(q, k, v, mask=masks.Causal(), **OPTIONS[name]) == "numba"
    ours = regard.attention(q, k, v, mask=masks.Causal(), **OPTIONS[name])
    torch.testing.assert_close(ours.double(), exact(q, k, v, masks.Causal(), **OPTIONS[name]), rtol=0, atol=3e-6)


def test_grouped_queries_and_keys_that_nobody_sees(ready):
    q, k, v = drawn(heads=4, kv_heads=2)
    expected = exact(q, k, v, masks.Padding(HALF))
    k[:, :, N // 2 :] = torch.nan
    ours = regard.attention(q, k, v.index_fill(2, torch.arange(N // 2, N), 0.0), mask=masks.Padding(HALF))
    torch.testing.assert_close(ours.double(), expected, rtol=0, atol=3e-6)
    q, k, v = drawn(n=1, m=4096, heads=6, kv_heads=2)
    assert backend_of(q, k, v) == "numba"
    torch.testing.assert_close(regard.attention(q, k, v).double(), exact(q, k, v), rtol=0, atol=3e-6)


F, B = torch.float32, torch.bfloat16
TRAINING = [  # queries, keys, width of keys, of values, masked, dtype, kind
    (1024, 1024, 64, 64, False, F, "without a mask in training, float32"),
    (1023, 1024, 64, 64, False, F, None),
    (1024, 1024, 128, 128, False, F, None),
    (512, 600, 64, 128, True, F, "with a mask in training, float32"),
    (511, 600, 64, 64, True, F, None),
    (512, 512, 64, 136, True, F, None),
    (512, 512, 64, 64, True, B, None),
    (1, 4096, 64, 64, False, F, None),
]


def test_the_rule_of_training_is_that_of_the_table():
    for case in sweep(itertools.product(TRAINING, range(3))):
        with case as ((n, m, dim, value_dim, masked, dtype, kind), learns):
            sizes = (9, n, dim), (3, m, dim), (3, m, value_dim)
            x = [torch.empty(1, *size, dtype=dtype, device="meta") for size in sizes]
            x[learns].requires_grad_()
            mask = masks.Causal() if masked else None
            found = auto.kind_of(Problem.of(*x, mask=mask))
            assert (found and found.name) == kind
            with torch.no_grad():
                assert "training" not in str(auto.kind_of(Problem.of(*x, mask=mask)))


@pytest.mark.parametrize("dtype", [F, B])
@pytest.mark.parametrize("masked", [False, True])
def test_training_beside_a_bias_of_distances_has_a_rule_of_its_own(masked, dtype):
    fixed = ALiBi(2, bidirectional=True)

    def kind(n, dim, *, learns=True, bias=fixed):
        x = torch.empty(1, 2, n, dim, dtype=dtype, device="meta").requires_grad_(learns)
        mask = masks.Padding(torch.ones(1, n, dtype=torch.bool)) if masked else None
        found = auto.kind_of(Problem.of(x, x, x, mask=mask, bias=bias))
        return found and found.name

    name = f"with a bias of distances in training, {'float32' if dtype == F else 'bfloat16'}"
    assert kind(512, 128) == kind(4096, 16) == name
    assert kind(511, 128) is kind(512, 136) is None
    assert kind(512, 64, learns=False) in (None, "with a mask, float32", "without a mask, float32")
    assert kind(512, 64, learns=False, bias=ALiBi(2, torch.ones(2, device="meta", requires_grad=True))) == name
    with torch.no_grad():
        assert kind(512, 64) in (None, "with a mask, float32", "without a mask, float32")
    assert kind(512, 64, bias=torch.zeros(512, 512, device="meta")) in (None, "with a mask in training, float32")


CHOICE = [  # queries, keys, heads, key–value heads, width, masked, dtype, kind
    (512, 512, 8, 8, 64, False, F, "without a mask, float32"),
    (512, 512, 8, 8, 64, False, B, "without a mask, bfloat16"),
    (511, 512, 8, 8, 64, False, F, None),
    (512, 511, 8, 8, 64, False, B, None),
    (2048, 2048, 8, 8, 80, False, F, None),
    (512, 512, 8, 8, 128, True, F, "with a mask, float32"),
    (512, 4096, 8, 2, 64, True, B, "causal or in a window, bfloat16"),
    (511, 4096, 8, 8, 64, True, F, None),
    (512, 512, 8, 8, 136, True, F, None),
    (512, 512, 8, 8, 64, True, torch.float64, None),
    (512, 512, 8, 8, 64, True, torch.float16, None),
    (1, 4096, 9, 3, 64, False, F, "decoding with grouped queries, float32"),
    (1, 4096, 32, 8, 128, True, F, "decoding with grouped queries, float32"),
    (1, 4095, 9, 3, 64, False, F, None),
    (1, 4096, 9, 3, 64, False, B, None),
    (1, 65536, 8, 8, 64, False, F, None),
    (1, 65536, 64, 16, 64, False, F, None),
    (2, 65536, 9, 3, 64, False, F, None),
]


def test_the_rule_is_that_of_the_table():
    for case in sweep(CHOICE):
        with case as (n, m, heads, kv_heads, dim, masked, dtype, kind):
            q, k, v = (
                torch.empty(1, h, x, dim, dtype=dtype, device="meta")
                for h, x in ((heads, n), (kv_heads, m), (kv_heads, m))
            )
            found = auto.kind_of(Problem.of(q, k, v, mask=masks.Causal() if masked else None))
            assert (found and found.name) == kind


def test_bfloat16_takes_them_where_the_loops_beat_blocks_in_float32():
    x = torch.empty(1, 2, 1024, 64, dtype=B, device="meta")
    taken = [{}, {"mask": masks.Causal()}, {"mask": masks.Causal() & masks.Window(9), "bias": ALiBi(2)}]
    left = [{"normalizer": Softmax(torch.zeros(2, device="meta"))}, {"return_lse": True}, {"bias": ALiBi(2)}]
    left += [{"score": ScaledDot(softcap=5.0)}, {"mask": masks.Padding(torch.ones(1, 1024, dtype=torch.bool))}]
    assert all(auto.kind_of(Problem.of(x, x, x, **asked)) for asked in taken)
    assert not any(auto.kind_of(Problem.of(x, x, x, **asked)) for asked in left)
    x = x.to(F)
    assert all(auto.kind_of(Problem.of(x, x, x, **asked)) for asked in taken + left)
    rule = masks.MaskMod(lambda batch, head, i, j: (i + j) % 2 == 0)
    assert auto.kind_of(Problem.of(x, x, x, mask=rule)) is None


def test_other_calls_go_the_way_that_they_go_without_the_loops(ready):
    q, k, v = drawn()
    seen = {"mask": masks.Causal()}
    assert backend_of(q, k, v, **seen) == "numba"
    half = (x.bfloat16() for x in (q, k, v.requires_grad_()))
    assert backend_of(*half, **seen) == "sdpa"
    with torch.no_grad():
        assert backend_of(q.clone().requires_grad_(), k, v, **seen) == "numba"
    v.requires_grad_(requires_grad=False)
    assert backend_of(q, k, v, **seen, return_weights=True) == "reference"
    assert backend_of(q, k, v, **seen, normalizer=Softmax(torch.zeros(2, requires_grad=True))) == "blockwise"
    assert backend_of(*(x.to("meta") for x in (q, k, v)), **seen) == "sdpa"
    with torch.autocast("cpu"):
        assert backend_of(q, k, v, **seen) == "sdpa"
    for name in ("sdpa", "blockwise"):
        with regard.use_backend(name):
            assert backend_of(q, k, v, **seen) == name
    with FakeTensorMode():
        x = torch.zeros(1, 2, N, 16)
        assert backend_of(x, x, x, **seen) == "split"


def test_what_is_known_of_a_size_is_not_taken_where_the_call_is_another(ready):
    q, k, v = drawn()
    seen = {"mask": masks.Causal()}
    loops, plain = (regard.attention(q, k, v, **seen, backend=name) for name in ("numba", "split"))
    assert not torch.equal(loops, plain)
    assert torch.equal(regard.attention(q, k, v, **seen), loops)
    torch.use_deterministic_algorithms(True)
    try:
        assert torch.equal(regard.attention(q, k, v, **seen), plain)
    finally:
        torch.use_deterministic_algorithms(False)
    with FakeTensorMode() as mode:
        x = mode.from_tensor(q)
        assert regard.attention(x, x, x, **seen).shape == q.shape


@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")
def test_mapped_calls_stay_with_pytorch(ready):
    q, k, v = drawn()
    seen = {"mask": masks.Causal()}
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    assert not torch.equal(regard.attention(q, k, v, **seen), expected)
    mapped = torch.func.vmap(lambda x: regard.attention(x, k, v, **seen))(q[None])
    assert torch.equal(mapped[0], expected)


@pytest.mark.parametrize(
    ("features", "dtype", "found"),
    [
        ({"avx2"}, F, "split"),
        ({"avx2", "avx512f"}, F, "numba"),
        ({"avx2", "avx512f"}, B, "sdpa"),
        ({"avx512f", "avx512bf16"}, B, "numba"),
        ({"avx512f", "avx512bf16", "amx-bf16"}, B, "sdpa"),
    ],
)
def test_processors_that_were_not_measured_stay_with_pytorch(ready, monkeypatch, features, dtype, found):
    monkeypatch.setattr(auto, "object_code", object_code)
    monkeypatch.setattr(object_code, "processor", lambda: object_code.Processor("", frozenset(features)))
    monkeypatch.setattr(object_code, "has_pairs", lambda: "avx512bf16" in features)
    assert backend_of(*drawn(dtype=dtype), mask=masks.Causal()) == found
    monkeypatch.setattr(object_code, "_ready", False)
    monkeypatch.setenv("REGARD_AUTO_NUMBA", "1")
    said = str(regard.explain(*drawn(dtype=dtype), mask=masks.Causal()))
    assert ("numba not taken" in said) == (found == "numba")  # nobody is told to compile for nothing


def test_explain_says_why_and_what_would_help(ready, monkeypatch, tmp_path):
    x = drawn()[0]
    assert str(regard.explain(x, x, x, mask=masks.Causal())).startswith(
        "numba runs it\nnumba: its loops are compiled; 512 queries and 512 keys; calls with a mask, float32, were "
        "measured faster from 512 on\n"
    )
    monkeypatch.setattr(object_code, "_ready", False)
    monkeypatch.setenv("REGARD_AUTO_NUMBA", "1")
    assert "numba not taken: this process found no loops when" in str(regard.explain(x, x, x, mask=masks.Causal()))
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path))
    said = str(regard.explain(x, x, x, mask=masks.Causal()))
    assert "numba not taken: its loops are not compiled on this machine: `regard doctor --compile`; calls with" in said
    assert "took 0.53 – 0.87 of the time on two machines" in said
    for asked in ({"return_weights": True}, {"backend": "sdpa"}):
        assert "not taken" not in str(regard.explain(x, x, x, mask=masks.Causal(), **asked))
    assert "calls with dropout, float32, then took" in str(regard.explain(x, x, x, dropout=0.1))
    assert "not taken" not in str(regard.explain(x[:, :, :500], x, x))
    monkeypatch.setenv("REGARD_AUTO_NUMBA", "0")
    assert "numba" not in str(regard.explain(x, x, x, mask=masks.Causal()))


class Layer(nn.Module):
    def __init__(self, dropout=0.0, *, has_table=False):
        super().__init__()
        self.attend = regard.nn.MultiHeadAttention(32, 2, dropout=dropout)
        self.table = nn.Parameter(torch.randn(32, 2)) if has_table else None

    def forward(self, x):
        bias = None if self.table is None else T5Bias(self.table, bidirectional=False)
        return self.attend(x, mask=masks.Causal(), attn_bias=bias)


def test_watched_and_tapped_runs_take_the_same_path_to_the_bit(ready):
    torch.manual_seed(0)
    layer, x = Layer().eval(), torch.randn(1, N, 32)
    with torch.no_grad():
        plain = layer(x)
        with regard.use_backend("sdpa"):
            assert not torch.equal(layer(x), plain)
        with regard.watch(layer) as seen:
            watched = layer(x)
        with regard.tap(layer, heads=[(0, 1)]) as tap:
            tapped = layer(x)
    assert torch.equal(watched, plain)
    assert torch.equal(tapped, plain)
    assert len(seen.layers) == len(tap.rows) == 1


@pytest.mark.parametrize("has_table", [False, True])
@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_training_takes_the_same_path_watched_or_checkpointed_to_the_bit(ready, dropout, has_table):
    torch.manual_seed(0)
    layer, x = Layer(dropout, has_table=has_table), torch.randn(1, N, 32)
    learned = tuple(layer.parameters())

    def step():
        torch.manual_seed(1)
        output = layer(x)
        return output, *torch.autograd.grad(output.square().sum(), learned)

    plain = step()
    with regard.use_backend("blockwise" if dropout or has_table else "sdpa"):
        assert not torch.equal(step()[0], plain[0])
    with regard.watch(layer):
        watched = step()
    torch.manual_seed(1)
    output = checkpoint(layer, x, use_reentrant=False)
    again = output, *torch.autograd.grad(output.square().sum(), learned)
    for found in (watched, again):
        assert all(map(torch.equal, found, plain))


def test_derivatives_of_gradients_and_what_learns_beside_q_k_and_v(ready):
    tensors, seen = drawn(), {"mask": masks.Causal()}

    def twice(call, *given):
        leaves = [x.detach().requires_grad_() for x in given]
        first = torch.autograd.grad(call(*leaves).square().sum(), leaves, create_graph=True)
        return torch.autograd.grad(sum(one.square().sum() for one in first), leaves)

    ours = twice(lambda *x: regard.attention(*x, **seen), *tensors)
    expected = twice(lambda *x: exact(*x, masks.Causal()), *(x.double() for x in tensors))
    for found, right in zip(ours, expected, strict=True):
        assert error(found, right) < 1e-5
    learned = torch.zeros(2, requires_grad=True)
    leaf = tensors[0].clone().requires_grad_()
    assert backend_of(leaf, *tensors[1:], **seen, normalizer=Softmax(learned)) == "blockwise"
    torch.use_deterministic_algorithms(True)
    try:
        assert backend_of(leaf, *tensors[1:], **seen) == "sdpa"
    finally:
        torch.use_deterministic_algorithms(False)


def test_a_process_stays_with_its_first_answer(monkeypatch, tmp_path):
    object_code.loops()
    kept = object_code.file_of_loops()
    assert kept.is_file()
    monkeypatch.setattr(object_code, "_ready", None)
    monkeypatch.setenv("REGARD_AUTO_NUMBA", "1")
    usual = os.environ.get("REGARD_CACHE")
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path))
    assert not object_code.are_ready()  # though they are loaded, by name: no file has them
    if usual is None:
        monkeypatch.delenv("REGARD_CACHE")
    else:
        monkeypatch.setenv("REGARD_CACHE", usual)
    assert object_code.is_kept()
    assert not object_code.are_ready()
    monkeypatch.setattr(object_code, "_ready", None)
    assert object_code.are_ready()
    monkeypatch.setenv("REGARD_AUTO_NUMBA", "0")
    assert object_code.are_ready()
    monkeypatch.setattr(object_code, "_ready", None)
    assert not object_code.are_ready()


def _copied(folder, change=lambda name, data: data):
    """The file of the loops in another cache, changed."""
    with zipfile.ZipFile(object_code.file_of_loops()) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    os.environ["REGARD_CACHE"] = str(folder)
    target = object_code.file_of_loops()
    target.parent.mkdir(parents=True)
    with zipfile.ZipFile(target, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, change(name, data))
    return target


def test_a_file_that_is_damaged_or_of_another_version_is_not_taken(monkeypatch, tmp_path):
    object_code.loops()
    monkeypatch.setenv("REGARD_CACHE", os.environ.get("REGARD_CACHE", ""))  # is put back afterwards
    monkeypatch.setattr(object_code, "_loops", None)
    target = _copied(tmp_path)
    whole = target.read_bytes()
    for damaged in (whole[: len(whole) // 2], whole.replace(b"ELF", b"FLE", 1), b""):
        target.write_bytes(damaged)
        assert object_code.is_kept()
        assert not object_code._load_kept()
    target.write_bytes(whole)
    assert object_code._load_kept()
    monkeypatch.setattr(object_code.metadata, "version", lambda name: "0")
    object_code._key.cache_clear()
    assert not object_code.is_kept()
    object_code._key.cache_clear()


def test_loops_that_cannot_be_kept_are_compiled_all_the_same(monkeypatch, tmp_path):
    with zipfile.ZipFile(object_code.file_of_loops() if object_code.loops() else "") as archive:
        symbols = json.loads(archive.read("symbols.json"))
        codes = {name: object_code.ObjectCode(symbols[name], archive.read(f"{name}.o")) for name in object_code.LOOPS}
    from regard.backends.numba_loops import compile_loops

    monkeypatch.setattr(compile_loops, "compile_loops", lambda: iter(codes.items()))
    monkeypatch.setattr(object_code, "_loops", None)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "file"))  # no folder, for root neither
    counts = []
    assert object_code.compile_and_keep(counts.append) is None
    assert counts == list(range(1, len(codes) + 1))
    assert not object_code.is_kept()
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "new"))
    with pytest.raises(KeyboardInterrupt):
        object_code.compile_and_keep(_stop)
    assert not list((tmp_path / "new").rglob("*.zip"))
    assert object_code.compile_and_keep() == object_code.file_of_loops()
    assert [one.suffix for one in (tmp_path / "new" / "loops").iterdir()] == [".zip"]


def _stop(done):
    if done == 2:
        raise KeyboardInterrupt


_LATER = """
import os, sys, torch, regard
from measured_processor import MeasuredProcessor
from regard import masks
from regard.backends.numba_loops import auto
auto.object_code = MeasuredProcessor()
x = torch.randn(1, 2, 64, 16)
regard.attention(x, x, x, mask=masks.Causal())
assert not {"llvmlite", "numba"} & sys.modules.keys()
x = torch.randn(1, 2, 600, 16)
first = regard.attention(x, x, x, mask=masks.Causal())
assert torch.equal(first, regard.attention(x, x, x, mask=masks.Causal(), backend="numba"))
assert "numba" not in sys.modules
child = os.fork()
if child == 0:
    torch.set_num_threads(1)
    os._exit(not torch.equal(regard.attention(x, x, x, mask=masks.Causal()), first))
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
print(regard.explain(x, x, x, mask=masks.Causal()).backend)
"""


@pytest.mark.slow
def test_a_later_process_takes_them_without_numba_and_a_small_call_loads_nothing():
    object_code.loops()
    path = os.pathsep.join((str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")))
    run = subprocess.run(
        [sys.executable, "-c", _LATER],
        env={**os.environ, "REGARD_AUTO_NUMBA": "1", "PYTHONPATH": path},
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert run.stdout.strip() == "numba", run.stderr[-2000:]
