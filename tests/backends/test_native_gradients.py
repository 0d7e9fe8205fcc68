"""The backward of backend="native" beside PyTorch's autograd of the formula in float64."""

import itertools
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

import regard
from regard import masks, positions, scores
from regard.backends import strips
from regard.backends.native import calls, threads
from regard.errors import InputError
from regard.normalizers import Softmax
from sweeps import sweep

# batch, heads, key–value heads, queries, keys, width, value width
SHAPES = {
    "many queries": (1, 4, 2, 300, 517, 64, 64),
    "whole blocks": (1, 2, 2, 256, 256, 32, 32),
    "narrow": (2, 2, 2, 130, 200, 24, 20),
    "wide": (1, 2, 2, 70, 129, 144, 80),
    "wide values": (1, 2, 1, 65, 129, 30, 144),
    "one query": (2, 6, 2, 1, 150, 64, 64),
    "two queries": (1, 4, 4, 2, 131, 32, 48),
    "three queries": (1, 2, 1, 3, 70, 20, 24),
    "one key": (1, 2, 2, 67, 1, 16, 16),
}


def _random(n, m, share, *leading):
    return torch.rand(*leading, n, m, generator=torch.Generator().manual_seed(4)) < share


def _padded(n, m, batch):
    return masks.Padding(torch.arange(m)[None] < torch.tensor([m, max(1, m // 2)])[:batch, None])


MASKS = {
    "all": lambda b, h, n, m: None,
    "causal": lambda b, h, n, m: masks.Causal(),
    "window": lambda b, h, n, m: masks.Causal() & masks.Window(100),
    "both sides": lambda b, h, n, m: masks.Window(left=20, right=70),
    "dilated": lambda b, h, n, m: masks.DilatedWindow(left=40, right=40, dilation=3),
    "global": lambda b, h, n, m: masks.Window(left=9, right=9) | masks.Global(torch.arange(m)[None] % 97 == 0),
    "documents": lambda b, h, n, m: masks.Causal() & masks.Document(
        torch.arange(m) // 90, (torch.arange(n) + m - n).clamp(min=0) // 90
    ),
    "padding": lambda b, h, n, m: _padded(n, m, b),
    "prefix": lambda b, h, n, m: masks.Prefix(m // 3) | masks.Causal(),
    "few pairs": lambda b, h, n, m: _random(n, m, 0.02),  # and rows that see nothing
    "of heads": lambda b, h, n, m: _random(n, m, 0.5, 1, h),
    "nothing": lambda b, h, n, m: torch.zeros(n, m, dtype=torch.bool),
}  # fmt: skip


def drawn(shape, dtype=torch.float32, seed=0):
    b, h, kv, n, m, d, dv = shape
    generator = torch.Generator().manual_seed(seed)
    sizes = (b, h, n, d), (b, kv, m, d), (b, kv, m, dv), (b, h, n, dv)
    return tuple(torch.randn(*one, generator=generator).to(dtype) for one in sizes)


def formula(q, k, v, *, mask=None, scale=None, softcap=None, bias=None, sink=None):
    """Output and log-sum-exp in float64 with all weights at hand; a row that sees nothing is 0."""
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    s = q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
    s = s if softcap is None else softcap * torch.tanh(s / softcap)
    s = s if bias is None else s + bias
    if mask is not None:
        seen = mask if isinstance(mask, torch.Tensor) else mask.bind(q.shape[2], k.shape[2]).dense(*q.shape[:2])
        s = s.masked_fill(~seen, -torch.inf)
    if sink is not None:
        s = torch.cat([s, sink[:, None, None].expand(*s.shape[:3], 1)], -1)
    blind = (s == -torch.inf).all(-1, keepdim=True)
    s = s.masked_fill(blind, 0.0)
    lse = s.logsumexp(-1).masked_fill(blind[..., 0], -torch.inf)
    weights = s.softmax(-1).masked_fill(blind, 0.0)[..., : k.shape[2]]
    return weights @ v, lse


def exact_gradients(given, up, up_lse=None, **options):
    leaves = [x.detach().double().requires_grad_() for x in given]
    wide = {
        name: one.double() if isinstance(one, torch.Tensor) and one.is_floating_point() else one
        for name, one in options.items()
    }
    output, lse = formula(*leaves, **wide)
    total = (output * up.double()).sum()
    if up_lse is not None:
        total = total + (lse * up_lse.double()).masked_fill(lse == -torch.inf, 0.0).sum()
    return torch.autograd.grad(total, leaves)


def our_gradients(given, up, backend="native", **options):
    leaves = [x.detach().requires_grad_() for x in given]
    return torch.autograd.grad(regard.attention(*leaves, backend=backend, **options), leaves, up)


def assert_close(found, expected, most=5e-6):
    for name, one, other in zip("qkv", found, expected, strict=True):
        error = (one.double() - other).abs().max()
        assert error <= most * max(1.0, float(other.abs().max())), (
            f"the gradient of {name} is off by {float(error):.1e}"
        )


@pytest.fixture
def no_strips(monkeypatch):
    """The kernels alone compute gradients."""

    def never(*_):
        raise AssertionError("the backward of strips ran")

    monkeypatch.setattr(strips, "differentiate", never)


@pytest.mark.usefixtures("no_strips")
@pytest.mark.parametrize("shape", SHAPES)
def test_its_gradients_are_those_of_the_formula(shape):
    for case in sweep(MASKS):
        with case as mask:
            b, h, _, n, m = SHAPES[shape][:5]
            seen = MASKS[mask](b, h, n, m)
            *given, up = drawn(SHAPES[shape])
            assert_close(our_gradients(given, up, mask=seen), exact_gradients(given, up, mask=seen))


OPTIONS = {
    "scale": {"scale": 0.9},
    "negative scale": {"scale": -0.7},
    "no scale": {"scale": 0.0},
    "tiny scale": {"scale": 1e-46},
    "softcap": {"softcap": 1.5},
    "large softcap": {"softcap": 1e6},
    "bias": {"bias": torch.randn(130, 200, generator=torch.Generator().manual_seed(1))},
    "bias of heads": {"bias": torch.randn(2, 2, 130, 200, generator=torch.Generator().manual_seed(1))},
    "bias that hides": {"bias": torch.zeros(130, 200).masked_fill(torch.arange(200) % 3 > 0, -torch.inf)},
    "lowest bias": {"bias": torch.zeros(130, 200).masked_fill(torch.arange(200) > 30, torch.finfo(torch.float32).min)},
    "sink": {"sink": torch.tensor([0.5, -1.0])},
    "all at once": {
        "bias": torch.randn(1, 2, 1, 200, generator=torch.Generator().manual_seed(1)),
        "softcap": 2.0, "sink": torch.tensor([3.0, 0.0]), "scale": 0.4,
    },
}  # fmt: skip


@pytest.mark.usefixtures("no_strips")
def test_every_option_has_the_gradients_of_the_formula():
    for case in sweep(itertools.product(OPTIONS, ["all", "window", "few pairs"])):
        with case as (name, mask):
            options = OPTIONS[name]
            *given, up = drawn(SHAPES["narrow"])
            seen = MASKS[mask](2, 2, 130, 200)
            ours = our_gradients(
                given, up, mask=seen, scale=options.get("scale"), score=scores.ScaledDot(options.get("softcap")),
                bias=options.get("bias"), normalizer=Softmax(options.get("sink")),
            )  # fmt: skip
            assert_close(ours, exact_gradients(given, up, mask=seen, **options))


@pytest.mark.usefixtures("no_strips")
def test_a_bias_of_distances_and_the_gradient_of_a_sink():
    *given, up = drawn(SHAPES["many queries"])
    i, j = torch.arange(300)[:, None] + 217, torch.arange(517)
    slopes = torch.tensor([2.0**-2, 2.0**-4, 2.0**-6, 2.0**-8])
    bias = -slopes[:, None, None] * (i - j).abs()
    sink = torch.randn(4).requires_grad_()
    leaves = [*(x.requires_grad_() for x in given), sink]
    output = regard.attention(
        *given,
        bias=positions.ALiBi(4, slopes=slopes, bidirectional=True),
        mask=masks.Causal(),
        normalizer=Softmax(sink),
        backend="native",
    )
    found = torch.autograd.grad(output, leaves, up)
    wide = [x.detach().double().requires_grad_() for x in leaves]
    expected = torch.autograd.grad(
        formula(*wide[:3], bias=bias.double(), mask=masks.Causal(), sink=wide[3])[0], wide, up.double()
    )
    assert_close(found[:3], expected[:3])
    torch.testing.assert_close(found[3].double(), expected[3], rtol=0, atol=2e-5)


@pytest.mark.usefixtures("no_strips")
def test_the_log_sum_exp_has_a_gradient():
    *given, up = drawn(SHAPES["narrow"])
    up_lse = up[..., 0].contiguous()
    seen = MASKS["few pairs"](2, 2, 130, 200)
    leaves = [x.requires_grad_() for x in given]
    output, lse = regard.attention(*leaves, mask=seen, return_lse=True, backend="native")
    visible = lse > -torch.inf
    found = torch.autograd.grad((output, lse[visible]), leaves, (up, up_lse[visible]))
    assert_close(found, exact_gradients(given, up, up_lse, mask=seen))
    (alone,) = torch.autograd.grad(
        regard.attention(*leaves, mask=masks.Causal(), return_lse=True, backend="native")[1].sum(), leaves[2:]
    )
    assert not alone.any()


def test_a_bias_of_all_pairs_learns_too():
    *given, up = drawn(SHAPES["whole blocks"])
    bias = torch.randn(256, 256).requires_grad_()
    leaves = [*(x.requires_grad_() for x in given), bias]
    found = torch.autograd.grad(regard.attention(*given, bias=bias, backend="native"), leaves, up)
    wide = [x.detach().double().requires_grad_() for x in leaves]
    expected = torch.autograd.grad(formula(*wide[:3], bias=wide[3])[0], wide, up.double())
    assert_close(found[:3], expected[:3])
    torch.testing.assert_close(found[3].double(), expected[3], rtol=0, atol=1e-5)


@pytest.mark.parametrize("what", ["output", "log-sum-exp", "learned bias"])
def test_a_gradient_that_is_differentiated_again_names_the_backends_that_can(what):
    q, k, v, up = drawn((1, 2, 1, 70, 80, 16, 24))
    leaves = [x.requires_grad_() for x in (q, k, v)]
    bias = torch.zeros(70, 80, requires_grad=True) if what == "learned bias" else None
    output, lse = regard.attention(*leaves, mask=masks.Causal(), bias=bias, return_lse=True, backend="native")
    of, ups = (lse, up[..., 0]) if what == "log-sum-exp" else (output, up)
    first = torch.autograd.grad(of, leaves[:2], ups, create_graph=True)
    assert_close([*first, up], [*torch.autograd.grad(of, leaves[:2], ups), up])
    for one in first:
        with pytest.raises(InputError, match=r'"native".* no second derivative: pass backend="strips"'):
            torch.autograd.grad(one.sum(), leaves, retain_graph=True)


def test_the_gradients_of_large_scores_err_by_the_rounding_of_their_terms_alone():
    """A weight of 1 has the gradient up · v less the mean of its row, which cancel but for their rounding."""
    for case in sweep(itertools.product([1.0, 1e4, 1e8], [1, 200])):
        with case as (large, queries):
            q, k, v, up = drawn((1, 2, 2, queries, 200, 16, 16))
            expected = exact_gradients((q, k, v), up, scale=large)
            found, plain = (our_gradients((q, k, v), up, backend, scale=large) for backend in ("native", "strips"))
            term = 2**-22 * large * float((up @ v.mT).abs().max())
            rounding = term * float(k.abs().max()), term * float(q.abs().max()) * queries**0.5, 1e-6
            for ours, other, right, most in zip(found, plain, expected, rounding, strict=True):
                assert (ours - right).abs().max() <= 3 * (other - right).abs().max() + most


@pytest.mark.parametrize("kv_heads", [1, 2])
def test_gradients_are_the_same_bits_in_every_run(kv_heads, monkeypatch):
    """Tasks of one key–value head are added up in their order, whichever thread is first."""
    *given, up = drawn((1, 2, kv_heads, 500, 500, 32, 32))
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        expected = our_gradients(given, up, mask=masks.Causal())
        for at in range(6):
            if at == 3:
                monkeypatch.setattr(threads, "_region", lambda: None)
            found = our_gradients(given, up, mask=masks.Causal())
            assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
    finally:
        torch.set_num_threads(before)
    assert_close(expected, exact_gradients(given, up, mask=masks.Causal()))


@pytest.mark.parametrize("parts", [1, 3, 8, 100])
def test_the_tiles_of_a_head_may_be_divided_among_any_number_of_tasks(parts, monkeypatch):
    monkeypatch.setattr(calls, "_parts_of", lambda _sides, tiles: min(parts, tiles))
    *given, up = drawn((2, 4, 2, 260, 330, 20, 36))
    seen = MASKS["documents"](2, 4, 260, 330)
    assert_close(our_gradients(given, up, mask=seen), exact_gradients(given, up, mask=seen))


def test_many_threads_may_differentiate_at_once():
    inputs = [drawn((1, 4, 4, 200, 200, 64, 64), seed=seed) for seed in range(4)]
    expected = [our_gradients(one[:3], one[3], mask=masks.Causal()) for one in inputs]
    with ThreadPoolExecutor(4) as executor:
        found = list(executor.map(lambda one: our_gradients(one[:3], one[3], mask=masks.Causal()), 4 * inputs))
    for ours, other in zip(found, 4 * expected, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(ours, other, strict=True))


@pytest.mark.usefixtures("no_strips")
def test_tensors_of_any_strides_have_the_same_gradients():
    *given, up = drawn((2, 4, 2, 100, 130, 32, 32))
    expected = exact_gradients(given, up, mask=masks.Causal())
    turned = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (*given, up)]
    columns = [x.mT.contiguous().mT for x in (*given, up)]
    for *other, other_up in (turned, columns):
        assert_close(our_gradients(other, other_up, mask=masks.Causal()), expected)
    one = torch.ones(()).expand(up.shape)
    assert_close(our_gradients(given, one), exact_gradients(given, one))


@pytest.mark.usefixtures("no_strips")
def test_what_lies_behind_the_inputs_is_not_read_into_the_gradients():
    room = torch.full((4, 2, 200, 32), torch.nan)
    inputs = [room[at, :, :67] for at in range(4)]
    for x, values in zip(inputs, drawn((1, 2, 2, 67, 67, 32, 32)), strict=True):
        x.copy_(values[0])
    *given, up = (x[None] for x in inputs)
    assert_close(our_gradients(given, up), exact_gradients(given, up))


def test_a_number_that_is_none_stays_in_its_row():
    q, k, v, up = drawn((1, 1, 1, 140, 140, 16, 16))
    q[0, 0, 100] = torch.nan
    dq = our_gradients((q, k, v), up, mask=masks.Document(torch.arange(140) // 70))[0]
    assert dq[0, 0].isnan().any(-1).nonzero().tolist() == [[100]]


def test_the_error_in_bfloat16_is_at_most_that_of_pytorch():
    *given, up = drawn(SHAPES["whole blocks"], torch.bfloat16)
    exact = exact_gradients(given, up, mask=masks.Causal())
    ours = our_gradients(given, up, mask=masks.Causal())
    leaves = [x.detach().requires_grad_() for x in given]
    theirs = torch.autograd.grad(scaled_dot_product_attention(*leaves, is_causal=True), leaves, up)
    for one, other, expected in zip(ours, theirs, exact, strict=True):
        assert one.dtype == torch.bfloat16
        assert (one - expected).abs().mean() <= 1.05 * (other - expected).abs().mean()
