"""`auto` takes the native kernels where they were measured faster, and there alone."""

import itertools

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.checkpoint import checkpoint

import regard
from measured_kernels import take_rules_of
from regard import masks
from regard.backends import call_cache
from regard.backends.native import choice, library
from regard.errors import InputError
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
    """The rules of the library for which most was measured."""
    take_rules_of(monkeypatch)
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
            assert backend_of(q, k, v, mask=mask) == "native"
            ours = regard.attention(q, k, v, mask=mask)
            torch.testing.assert_close(ours.double(), exact(q, k, v, mask), rtol=0, atol=3e-6)
            assert torch.equal(ours, regard.attention(q, k, v, mask=mask, backend="native"))
            assert torch.equal(ours, regard.attention(q, k, v, mask=mask))  # known by now


def test_training_with_each_mask_at_the_least_size_is_as_exact(ready):
    for case in sweep(MASKS):
        with case as name:
            tensors, mask = drawn(heads=4, kv_heads=2), MASKS[name]()
            assert backend_of(tensors[0].clone().requires_grad_(), *tensors[1:], mask=mask) == "native"
            ours = gradients(lambda *x, mask=mask: regard.attention(*x, mask=mask), *tensors)
            expected = gradients(lambda *x, mask=mask: exact(*x, mask), *(x.double() for x in tensors))
            for found, right in zip(ours, expected, strict=True):
                assert error(found, right) < 1e-5  # where a row sees one key, that of SDPA is 7e-6, and the loops' 6e-6
            named = gradients(lambda *x, mask=mask: regard.attention(*x, mask=mask, backend="native"), *tensors)
            assert all(map(torch.equal, ours, named))


@pytest.mark.parametrize("name", OPTIONS)
def test_training_with_options_is_as_exact(ready, name):
    tensors, asked = drawn(), {"mask": masks.Causal(), **OPTIONS[name]}
    assert backend_of(*tensors[:2], tensors[2].clone().requires_grad_(), **asked) == "native"
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
            assert backend_of(q, k, values, mask=mask, dropout=0.1) == "native"
            assert backend_of(leaf, k, values, mask=mask, dropout=0.1) == "native"
            ours, right = (
                regard.attention(
                    one, k, values, mask=mask, dropout=0.1, generator=torch.Generator().manual_seed(3), backend=backend
                )
                for one, backend in ((leaf, "auto"), (q, "reference"))
            )
            assert torch.equal(ours != 0, right != 0)
            torch.testing.assert_close(ours.detach(), right, rtol=2e-5 if dtype == torch.float32 else 2e-2, atol=1e-6)
            for other in (
                [x[:, :, :15] for x in (q, k, values)],
                [x[:, :, :127].requires_grad_() for x in (q.clone(), k.clone(), values.clone())],
                [q[:, :, :1], *(torch.cat(8 * [x], 2) for x in (k, values))],
            ):
                assert backend_of(*other, dropout=0.1) in ("reference", "strips")


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
            assert backend_of(*tensors[:3], mask=mask, bias=made(leaf)) == "native"
            assert (
                backend_of(tensors[0].clone().requires_grad_(), *tensors[1:3], mask=mask, bias=made(leaf)) == "native"
            )
            ours = gradients(call, *tensors)
            expected = gradients(formula, *(x.double() for x in tensors))
            for at, (found, right) in enumerate(zip(ours, expected, strict=True)):
                assert error(found, right) < (most if dtype == torch.float32 else 2e-2), ("output", *"qkv", "table")[at]
            with regard.use_backend("native"):
                assert all(map(torch.equal, ours, gradients(call, *tensors)))


@pytest.mark.parametrize("name", ["causal", "padding", "all"])
@pytest.mark.parametrize("dim", [16, 128])
def test_training_in_bfloat16_beside_a_fixed_bias_is_as_exact_as_float32(ready, dim, name):
    tensors, mask = drawn(dim=dim, dtype=torch.bfloat16), MASKS[name]() if name in MASKS else None
    bias = ALiBi(2, bidirectional=True)
    assert backend_of(tensors[0].clone().requires_grad_(), *tensors[1:], mask=mask, bias=bias) == "native"
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
    assert backend_of(leaf, k, v, **seen, bias=learned) == "native"
    assert backend_of(leaf, k, v, **seen, bias=learned, dropout=0.1) == "native"
    said = "calls with a bias of distances in training, float32, were measured faster from 512 on"
    assert said in str(regard.explain(q, k, v, **seen, bias=learned))
    assert backend_of(leaf, k, v, **seen, bias=torch.zeros(N, N, requires_grad=True)) != "native"
    grid = torch.zeros(31 * 63, 2, requires_grad=True)
    assert backend_of(leaf, k, v, **seen, bias=RelativePositionBiasND(grid, (16, 32))) != "native"
    assert backend_of(leaf[:, :, 1:], k, v, **seen, bias=learned) != "native"
    keys = [torch.zeros(1, 1, 4096, 16)] * 2
    step = torch.zeros(1, 4, 1, 16)
    table = torch.zeros(32, 4, requires_grad=True)
    assert backend_of(step, *keys, bias=T5Bias(table.detach(), bidirectional=False)) == "native"
    assert backend_of(step, *keys, bias=T5Bias(table, bidirectional=False)) != "native"
    with torch.no_grad():
        assert backend_of(step, *keys, bias=T5Bias(table, bidirectional=False)) == "native"
    torch.use_deterministic_algorithms(True)
    try:
        assert backend_of(leaf, k, v, **seen, bias=learned) == "strips"
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("name", OPTIONS)
def test_options_of_a_masked_call_are_as_exact(ready, name):
    q, k, v = drawn()
    assert backend_of(q, k, v, mask=masks.Causal(), **OPTIONS[name]) == "native"
    ours = regard.attention(q, k, v, mask=masks.Causal(), **OPTIONS[name])
    torch.testing.assert_close(ours.double(), exact(q, k, v, masks.Causal(), **OPTIONS[name]), rtol=0, atol=3e-6)


def test_grouped_queries_and_keys_that_nobody_sees(ready):
    q, k, v = drawn(heads=4, kv_heads=2)
    expected = exact(q, k, v, masks.Padding(HALF))
    k[:, :, N // 2 :] = torch.nan
    ours = regard.attention(q, k, v.index_fill(2, torch.arange(N // 2, N), 0.0), mask=masks.Padding(HALF))
    torch.testing.assert_close(ours.double(), expected, rtol=0, atol=3e-6)
    q, k, v = drawn(n=1, m=4096, heads=6, kv_heads=2)
    assert backend_of(q, k, v) == "native"
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
            found = choice.rule_for(Problem.of(*x, mask=mask))
            assert (found and found.name) == kind
            with torch.no_grad():
                assert "training" not in str(choice.rule_for(Problem.of(*x, mask=mask)))


@pytest.mark.parametrize("dtype", [F, B])
@pytest.mark.parametrize("masked", [False, True])
def test_training_beside_a_bias_of_distances_has_a_rule_of_its_own(masked, dtype):
    fixed = ALiBi(2, bidirectional=True)

    def kind(n, dim, *, learns=True, bias=fixed):
        x = torch.empty(1, 2, n, dim, dtype=dtype, device="meta").requires_grad_(learns)
        mask = masks.Padding(torch.ones(1, n, dtype=torch.bool)) if masked else None
        found = choice.rule_for(Problem.of(x, x, x, mask=mask, bias=bias))
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
    (511, 511, 8, 8, 64, True, F, "causal, of 256 to 511 tokens, float32"),
    (256, 256, 8, 8, 64, True, F, "causal, of 256 to 511 tokens, float32"),
    (255, 255, 8, 8, 64, True, F, None),
    (256, 256, 8, 8, 64, False, F, None),
    (256, 256, 8, 8, 72, True, F, None),
    (256, 256, 8, 8, 64, True, B, None),
    (512, 512, 8, 8, 136, True, F, None),
    (512, 512, 8, 8, 64, True, torch.float64, None),
    (512, 512, 8, 8, 64, True, torch.float16, None),
    (1, 4096, 9, 3, 64, False, F, "decoding with grouped queries, float32"),
    (1, 4096, 32, 8, 128, True, F, "decoding with grouped queries, float32"),
    (1, 4095, 9, 3, 64, False, F, None),
    (1, 4096, 9, 3, 64, False, B, None),
    (1, 4096, 2, 1, 64, False, F, None),
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
            found = choice.rule_for(Problem.of(q, k, v, mask=masks.Causal() if masked else None))
            assert (found and found.name) == kind


def test_bfloat16_takes_them_where_the_loops_beat_blocks_in_float32():
    x = torch.empty(1, 2, 1024, 64, dtype=B, device="meta")
    taken = [{}, {"mask": masks.Causal()}, {"mask": masks.Causal() & masks.Window(9), "bias": ALiBi(2)}]
    left = [{"normalizer": Softmax(torch.zeros(2, device="meta"))}, {"return_lse": True}, {"bias": ALiBi(2)}]
    left += [{"score": ScaledDot(softcap=5.0)}, {"mask": masks.Padding(torch.ones(1, 1024, dtype=torch.bool))}]
    assert all(choice.rule_for(Problem.of(x, x, x, **asked)) for asked in taken)
    assert not any(choice.rule_for(Problem.of(x, x, x, **asked)) for asked in left)
    x = x.to(F)
    assert all(choice.rule_for(Problem.of(x, x, x, **asked)) for asked in taken + left)
    rule = masks.MaskMod(lambda batch, head, i, j: (i + j) % 2 == 0)
    assert choice.rule_for(Problem.of(x, x, x, mask=rule)) is None


def test_other_calls_go_the_way_that_they_go_without_the_loops(ready):
    q, k, v = drawn()
    seen = {"mask": masks.Causal()}
    assert backend_of(q, k, v, **seen) == "native"
    half = (x.bfloat16() for x in (q, k, v.requires_grad_()))
    assert backend_of(*half, **seen) == "sdpa"
    with torch.no_grad():
        assert backend_of(q.clone().requires_grad_(), k, v, **seen) == "native"
    v.requires_grad_(requires_grad=False)
    assert backend_of(q, k, v, **seen, return_weights=True) == "reference"
    assert backend_of(q, k, v, **seen, normalizer=Softmax(torch.zeros(2, requires_grad=True))) == "strips"
    assert backend_of(*(x.to("meta") for x in (q, k, v)), **seen) == "sdpa"
    with torch.autocast("cpu"):
        assert backend_of(q, k, v, **seen) == "sdpa"
    for name in ("sdpa", "strips"):
        with regard.use_backend(name):
            assert backend_of(q, k, v, **seen) == name
    with FakeTensorMode():
        x = torch.zeros(1, 2, N, 16)
        assert backend_of(x, x, x, **seen) == "sdpa"


def test_what_is_known_of_a_size_is_not_taken_where_the_call_is_another(ready):
    q, k, v = drawn()
    seen = {"mask": masks.Causal()}
    loops, plain = (regard.attention(q, k, v, **seen, backend=name) for name in ("native", "sdpa"))
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
    ("rules", "dtype", "mask", "found"),
    [
        ("x86_64_v4", F, masks.Causal(), "native"),
        ("x86_64_v4", B, masks.Causal(), "sdpa"),
        ("unmeasured", F, masks.Causal(), "sdpa"),
        ("unmeasured", F, masks.Causal() & masks.Window(64), "native"),
        ("unmeasured", F, masks.Padding(HALF), "sdpa"),
        ("", F, masks.Causal() & masks.Window(64), "strips"),
    ],
)
def test_libraries_that_were_not_measured_take_what_pytorch_lacks(monkeypatch, rules, dtype, mask, found):
    take_rules_of(monkeypatch, rules)
    assert backend_of(*drawn(dtype=dtype), mask=mask) == found


def test_of_a_library_that_nobody_measured_auto_takes_windows_dropout_and_biases_that_learn(monkeypatch):
    take_rules_of(monkeypatch, "unmeasured")
    q, k, v = drawn()
    assert backend_of(q, k, v, dropout=0.1) == "native"
    assert backend_of(q, k, v, bias=T5Bias(torch.zeros(32, 2, requires_grad=True), bidirectional=True)) == "native"
    assert backend_of(q, k, v, bias=ALiBi(2)) != "native"
    assert "are what PyTorch's fused kernel lacks" in str(regard.explain(q, k, v, dropout=0.1))


def test_explain_says_why_and_what_would_help(ready, monkeypatch):
    x = drawn()[0]
    assert str(regard.explain(x, x, x, mask=masks.Causal())).startswith(
        "native runs it\nnative: 512 queries and 512 keys; calls with a mask, float32, were measured faster from 512"
    )
    monkeypatch.setattr(library, "refuses", lambda: "there are none: run this")
    monkeypatch.setattr(choice, "_loaded", lambda: "")
    said = str(regard.explain(x, x, x, mask=masks.Causal()))
    assert (
        "native not taken: there are none: run this; calls with a mask, float32, took 0.53 – 0.87 of the time" in said
    )
    for asked in ({"return_weights": True}, {"backend": "sdpa"}):
        assert "not taken" not in str(regard.explain(x, x, x, mask=masks.Causal(), **asked))
    assert "calls with dropout, float32, took" in str(regard.explain(x, x, x, dropout=0.1))
    assert "not taken" not in str(regard.explain(x[:, :, :500], x, x))


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
    with regard.use_backend("strips" if dropout or has_table else "sdpa"):
        assert not torch.equal(step()[0], plain[0])
    with regard.watch(layer):
        watched = step()
    torch.manual_seed(1)
    output = checkpoint(layer, x, use_reentrant=False)
    again = output, *torch.autograd.grad(output.square().sum(), learned)
    for found in (watched, again):
        assert all(map(torch.equal, found, plain))


def test_a_gradient_that_is_differentiated_again_names_the_backends_that_can(ready):
    tensors, seen = drawn(), {"mask": masks.Causal()}

    def twice(call, *given):
        leaves = [x.detach().requires_grad_() for x in given]
        first = torch.autograd.grad(call(*leaves).square().sum(), leaves, create_graph=True)
        return torch.autograd.grad(sum(one.square().sum() for one in first), leaves)

    with pytest.raises(InputError, match=r'"native".* pass backend="strips"'):
        twice(lambda *x: regard.attention(*x, **seen), *tensors)
    expected = twice(lambda *x: exact(*x, masks.Causal()), *(x.double() for x in tensors))
    with regard.use_backend("strips"):
        ours = twice(lambda *x: regard.attention(*x, **seen), *tensors)
    for found, right in zip(ours, expected, strict=True):
        assert error(found, right) < 1e-5


def test_a_sink_that_learns_and_deterministic_algorithms_stay_with_pytorch(ready):
    tensors, seen = drawn(), {"mask": masks.Causal()}
    learned = torch.zeros(2, requires_grad=True)
    leaf = tensors[0].clone().requires_grad_()
    assert backend_of(leaf, *tensors[1:], **seen, normalizer=Softmax(learned)) == "strips"
    torch.use_deterministic_algorithms(True)
    try:
        assert backend_of(leaf, *tensors[1:], **seen) == "sdpa"
    finally:
        torch.use_deterministic_algorithms(False)


def test_short_calls_with_dropout_draw_a_seed_each_and_none_twice(ready):
    q, k, v = drawn(40, 40)
    mask = masks.Causal()
    assert backend_of(q, k, v, mask=mask, dropout=0.5) == "native"

    def calls(backend):
        torch.manual_seed(3)
        return [regard.attention(q, k, v, mask=mask, dropout=0.5, backend=backend) for _ in range(3)], torch.rand(1)

    (first, second, third), after = calls("auto")
    again, _ = calls("auto")  # known by now
    expected, after_formula = calls("reference")
    assert not torch.equal(first, second)
    assert not torch.equal(second, third)
    assert torch.equal(after, after_formula)
    for ours, repeated, right in zip((first, second, third), again, expected, strict=True):
        assert torch.equal(ours, repeated)
        torch.testing.assert_close(ours, right, rtol=0, atol=2e-6)
