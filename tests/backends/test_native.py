"""backend="native": what its own ways add to the contracts, which tests/contracts checks together with the others'."""

import itertools
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.functional import scaled_dot_product_attention

import regard
from measured_kernels import LIBRARIES, use_library
from regard import masks, scores
from regard.backends.native import Native, library, mask_tables, threads
from regard.errors import InputError
from regard.positions import Gaussian
from regard.problem import Problem
from sweeps import sweep

# batch, heads, key–value heads, queries, keys, width, value width
SHAPES = {
    "many queries": (1, 4, 2, 300, 517, 64, 64),
    "narrow": (2, 2, 2, 130, 200, 24, 20),
    "wide values": (1, 2, 1, 65, 129, 30, 144),
    "one query": (2, 6, 2, 1, 1500, 64, 64),
    "a few queries": (1, 4, 4, 3, 333, 32, 48),
    "one query, odd width": (1, 2, 2, 1, 700, 20, 24),
}
MASKS = {
    "all": lambda n, m: None,
    "causal": lambda n, m: masks.Causal(),
    "window": lambda n, m: masks.Causal() & masks.Window(100),
    "two documents": lambda n, m: (
        masks.Document(torch.arange(m) // 90, torch.arange(m)[m - n :] // 90) if n <= m else None
    ),
    "a tensor": lambda n, m: torch.rand(n, m, generator=torch.Generator().manual_seed(4)) < 0.5,
}


def drawn(shape, dtype=torch.float32, seed=0):
    b, h, kv, n, m, d, dv = shape
    generator = torch.Generator().manual_seed(seed)
    sizes = (b, h, n, d), (b, kv, m, d), (b, kv, m, dv)
    return tuple(torch.randn(*one, generator=generator).to(dtype) for one in sizes)


def formula(q, k, v, mask):
    """PyTorch's own attention in float64."""
    group = q.shape[1] // k.shape[1]
    q, k, v = q.double(), k.double().repeat_interleave(group, 1), v.double().repeat_interleave(group, 1)
    s = q @ k.mT / q.shape[-1] ** 0.5
    if mask is not None:
        seen = mask if isinstance(mask, torch.Tensor) else mask.bind(q.shape[2], k.shape[2]).dense()
        s = s.masked_fill(~seen, -torch.inf)
    return s.softmax(-1) @ v, s.logsumexp(-1)


def test_it_is_as_exact_as_the_fused_kernel():
    for case in sweep(itertools.product(SHAPES, MASKS)):
        with case as (shape, mask):
            n, m = SHAPES[shape][3:5]
            seen = MASKS[mask](n, m)
            q, k, v = drawn(SHAPES[shape])
            output, lse = regard.attention(q, k, v, mask=seen, backend="native", return_lse=True)
            expected, total = formula(q, k, v, seen)
            torch.testing.assert_close(output.double(), expected, rtol=0, atol=3e-6)
            torch.testing.assert_close(lse.double(), total, rtol=0, atol=3e-6)


@pytest.mark.parametrize("mask", ["all", "causal"])
@pytest.mark.parametrize("shape", ["many queries", "one query"])
def test_its_error_in_bfloat16_is_at_most_half_as_large_again_as_that_of_pytorch(shape, mask):
    n, m = SHAPES[shape][3:5]
    seen = MASKS[mask](n, m)
    q, k, v = drawn(SHAPES[shape], torch.bfloat16)
    exact = formula(q, k, v, seen)[0]
    dense = None if seen is None else seen.bind(n, m).dense()
    theirs = scaled_dot_product_attention(q, k, v, attn_mask=dense, enable_gqa=True)
    ours = regard.attention(q, k, v, mask=seen, backend="native")
    assert ours.dtype == torch.bfloat16
    errors = [(one.double() - exact).abs() for one in (ours, theirs)]
    assert errors[0].mean() <= 1.5 * errors[1].mean()
    assert errors[0].max() <= 1.5 * errors[1].max()


def test_a_call_that_is_known_takes_other_strides_and_other_numbers():
    q, k, v = drawn((1, 4, 2, 100, 100, 32, 32))
    for _ in range(2):  # the second is known by its sizes
        whole = regard.attention(q, k, v, mask=masks.Causal(), backend="native")
    turned = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v)]
    assert turned[0].stride() != q.stride()
    assert torch.equal(regard.attention(*turned, mask=masks.Causal(), backend="native"), whole)
    doubled = regard.attention(q, k, 2 * v, mask=masks.Causal(), backend="native")
    torch.testing.assert_close(doubled, 2 * whole)
    q.requires_grad_()
    regard.attention(q, k, v, mask=masks.Causal(), backend="native").sum().backward()
    assert (q.grad != 0).any()


def test_what_is_known_is_known_for_one_backend_alone():
    q, k, v = drawn((1, 2, 2, 48, 48, 16, 16))
    ours = [regard.attention(q, k, v, backend=name) for name in ("native", "sdpa", "native", "reference", "auto")]
    assert torch.equal(ours[0], ours[2])
    assert torch.equal(ours[1], scaled_dot_product_attention(q, k, v))
    with pytest.raises(InputError, match=r"one of .*sdpa"):
        regard.attention(q, k, v, backend="nobody")


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("shape", ["many queries", "one query"])
def test_threads_of_its_own_do_as_those_of_pytorch(shape, count, monkeypatch):
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    q, k, v = drawn(SHAPES[shape])
    try:
        ours = regard.attention(q, k, v, backend="native")
        assert threads._region() is not None, "PyTorch's OpenMP is not found here"
        monkeypatch.setattr(threads, "_region", lambda: None)
        assert torch.equal(regard.attention(q, k, v, backend="native"), ours)
    finally:
        torch.set_num_threads(before)


def test_many_threads_may_call_at_once():
    q, k, v = drawn((1, 4, 4, 200, 200, 64, 64))
    mask = masks.Causal()
    expected = regard.attention(q, k, v, mask=mask, backend="native")
    with ThreadPoolExecutor(4) as executor:
        found = list(executor.map(lambda _: regard.attention(q, k, v, mask=mask, backend="native"), range(32)))
    assert all(torch.equal(one, expected) for one in found)


def test_a_number_that_is_none_stays_in_its_row():
    q, k, v = drawn((1, 1, 1, 70, 70, 16, 16))
    q[0, 0, 5] = torch.nan
    output = regard.attention(q, k, v, backend="native")
    assert output[0, 0, 5].isnan().all()
    assert not output[0, 0, :5].isnan().any()
    assert not output[0, 0, 6:].isnan().any()


def test_what_lies_behind_the_inputs_is_not_read_into_the_output():
    # Neither keys nor rows are a multiple of a block: what is beyond them in memory is NaN.
    room = torch.full((3, 2, 200, 32), torch.nan)
    q, k, v = (room[at, :, :67] for at in range(3))
    for at, x in enumerate((q, k, v)):
        x.copy_(drawn((1, 2, 2, 67, 67, 32, 32), seed=at)[at][0])
    expected = formula(q[None], k[None], v[None], None)[0][0]
    torch.testing.assert_close(regard.attention(q, k, v, backend="native").double(), expected, rtol=0, atol=3e-6)
    row = q[:, -1:]
    torch.testing.assert_close(
        regard.attention(row, k, v, backend="native").double(), expected[:, -1:], rtol=0, atol=3e-6
    )
    bias = torch.full((67, 80), torch.nan)[:, :67]
    bias.copy_(torch.zeros(67, 67))
    torch.testing.assert_close(
        regard.attention(q, k, v, bias=bias, backend="native").double(), expected, rtol=0, atol=3e-6
    )


def test_blocks_that_are_alike_share_what_is_seen():
    x = torch.zeros(1, 1, 4096, 8)
    mask = masks.Causal() & masks.Window(512)
    problem = Problem.of(x, x, x, mask=mask)
    found = mask_tables.tables_for(problem)
    assert len(found.visible) == 2  # the diagonal, and the window's lower end
    assert found.nbytes < 64 * 1024
    assert mask_tables.tables_for(Problem.of(x, x, x, mask=masks.Causal() & masks.Window(512))) is found
    assert mask_tables.bytes_of_tables(problem) >= found.visible.nbytes


ADDITIVE = scores.Additive(torch.ones(2, 4), torch.ones(2, 4), torch.ones(2))
REFUSED = {
    "weights": ({"return_weights": True}, "all weights"),
    "additive": ({"score": ADDITIVE}, "dot product alone, not Additive"),
    "a factor": ({"weight_factor": Gaussian(torch.zeros(1, 40), radius=2)}, "no factor on the weights"),
    "bytes": ({"bias": torch.randn(40, 40), "max_bytes": 6000}, "6.2 KiB, more than the limit of 5.9 KiB"),
}


def test_it_says_what_it_does_not_compute():
    x = drawn((1, 1, 1, 40, 40, 4, 4))[0]
    for case in sweep(REFUSED):
        with case as name:
            options, reason = REFUSED[name]
            assert reason in Native().refuses(Problem.of(x, x, x, **options))
            with pytest.raises(InputError, match=f"the backend 'native' cannot run this call: .*{reason}"):
                regard.attention(x, x, x, backend="native", **options)
    assert Native().refuses(Problem.of(x, x, x, score=scores.Cosine())) is None


def test_wide_floats_are_refused():
    x = torch.zeros(1, 1, 4, 4)
    refusal = Native().refuses(Problem.of(*[x.double()] * 3))
    assert "float32" in refusal
    assert "float64" in refusal


def test_without_kernels_it_says_how_to_get_them(monkeypatch):
    x = torch.zeros(1, 1, 4, 4)
    monkeypatch.setattr(library, "_loaded", lambda: library._Loaded(None, "there are none here: run this"))
    with pytest.raises(InputError, match="there are none here: run this"):
        regard.attention(x, x, x, backend="native")
    with regard.use_backend("native"):
        assert torch.equal(regard.attention(x, x, x), x)
        assert "native refused: there are none here" in str(regard.explain(x, x, x))


def test_numba_names_native():
    x = torch.zeros(1, 1, 4, 4)
    with pytest.raises(InputError, match='backend="native"'):
        regard.attention(x, x, x, backend="numba")
    with pytest.raises(InputError, match='"native"'), regard.use_backend("numba"):
        pass


@pytest.mark.parametrize("name", LIBRARIES)
def test_each_library_that_the_processor_runs_computes_the_same(monkeypatch, name):
    use_library(monkeypatch, name)
    seen = masks.Causal()
    for shape in SHAPES.values():
        for dtype, most in ((torch.float32, 3e-6), (torch.bfloat16, 2e-2)):
            q, k, v = drawn(shape, dtype)
            ours = regard.attention(q, k, v, mask=seen, backend="native")
            assert (ours.double() - formula(q, k, v, seen)[0]).abs().max() <= most
        leaves = [x.float().requires_grad_() for x in (q, k, v)]
        wide = [x.detach().double().requires_grad_() for x in leaves]
        found = torch.autograd.grad(regard.attention(*leaves, mask=seen, backend="native").sum(), leaves)
        expected = torch.autograd.grad(formula(*wide, seen)[0].sum(), wide)
        assert all((one - other).abs().max() <= 1e-5 for one, other in zip(found, expected, strict=True))


def exact(q, k, v, *, scale=None, softcap=None, bias=None, seen=None):
    """The formula in float64, with parts."""
    q, k, v = q.double(), k.double(), v.double()
    s = q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
    s = s if softcap is None else softcap * torch.tanh(s / softcap)
    s = s if bias is None else s + bias.double()
    return (s if seen is None else s.masked_fill(~seen, -torch.inf)).softmax(-1) @ v


def off(q, k, v, **asked):
    ours = regard.attention(
        q, k, v, scale=asked.get("scale"), score=scores.ScaledDot(asked.get("softcap")), bias=asked.get("bias"),
        mask=asked.get("seen"), backend="native",
    )  # fmt: skip
    return float((ours.double() - exact(q, k, v, **asked)).abs().max())


def test_scores_may_be_huge_and_nothing():
    for case in sweep(itertools.product([1e8, 1e12, -1e10, 1e20, 1e-46, -1e-46, 0.0], [100, 1])):
        with case as (scale, queries):
            q, k, v = drawn((1, 2, 2, queries, 100, 16, 16))
            seen = torch.rand(queries, 100, generator=torch.Generator().manual_seed(0)) < 0.6
            assert off(q, k, v, scale=scale, seen=seen) < 1e-6


def test_a_softcap_is_as_exact_however_large():
    for case in sweep([0.1, 1.0, 50.0, 1e4, 1e8]):
        with case as softcap:
            assert off(*drawn((1, 2, 2, 70, 100, 16, 16)), softcap=softcap) < 2e-6
            q, k, v = drawn((1, 2, 2, 70, 100, 16, 16), seed=1)
            assert off(100 * q, k, v, softcap=softcap) < 2e-5


@pytest.mark.parametrize("least", [torch.finfo(torch.float32).min, -1e30, torch.finfo(torch.float32).max])
def test_the_least_float_as_a_bias_hides_no_row_that_has_it_everywhere(least):
    q, k, v = drawn((1, 2, 2, 70, 75, 16, 16))
    bias = torch.zeros(70, 75)
    bias[:, 30:] = least
    bias[5] = least
    assert off(q, k, v, bias=bias) < 1e-6
    bias[6, 3] = -torch.inf
    assert off(q, k, v, bias=bias) < 1e-6


def test_every_end_of_the_keys_is_cut_off():
    for case in sweep([1, 15, 63, 64, 65, 127, 191]):
        with case as keys:
            for queries in (1, 7, 66, 130):
                q, k, v = drawn((1, 2, 2, queries, keys, 16, 16), seed=keys)
                assert off(q, k, v) < 2e-6
                assert off(q, k, v, bias=torch.randn(queries, keys, generator=torch.Generator().manual_seed(1))) < 2e-6


def test_a_window_that_is_cut_by_the_last_key_is_not_one_that_is_not():
    q, k, v = drawn((1, 1, 1, 200, 200, 16, 16))
    seen = masks.Window(left=5, right=70)
    ours = regard.attention(q, k, v, mask=seen, backend="native")
    torch.testing.assert_close(ours.double(), formula(q, k, v, seen)[0], rtol=0, atol=3e-6)


@dataclass(frozen=True)
class ByHead(masks.Mask):
    """A mask of one's own that tells heads apart, and says so by its answers alone."""

    def __call__(self, batch, head, i, j):
        return (i + j + head) % 2 == 0

    def blocks(self, rectangles):
        never = torch.zeros(rectangles.shape, dtype=torch.bool)
        return rectangles.answer(empty=never, full=never)


def test_tables_are_those_of_as_many_heads():
    for heads in (1, 4):
        q, k, v = drawn((1, heads, heads, 80, 80, 16, 16))
        i = torch.arange(80)
        seen = (i[:, None] + i + torch.arange(heads)[:, None, None]) % 2 == 0
        ours = regard.attention(q, k, v, mask=ByHead(), backend="native")
        torch.testing.assert_close(ours.double(), exact(q, k, v, seen=seen), rtol=0, atol=3e-6)


def test_a_rule_is_asked_as_it_is_now():
    answers = {"more": 0}
    rule = masks.MaskMod(lambda batch, head, i, j: (i + j + head + answers["more"]) % 2 == 0)
    q, k, v = drawn((1, 2, 2, 80, 80, 16, 16))
    for more in (0, 1):
        answers["more"] = more
        i = torch.arange(80)
        seen = (i[:, None] + i + torch.arange(2)[:, None, None] + more) % 2 == 0
        ours = regard.attention(q, k, v, mask=rule, backend="native")
        torch.testing.assert_close(ours.double(), exact(q, k, v, seen=seen), rtol=0, atol=3e-6)


def test_a_known_call_is_that_of_one_place():
    q, k, v = drawn((1, 1, 1, 100, 127, 16, 16))
    for start in (3, 20, 3):
        seen = masks.Causal().bind(100, 127, q_offset=start)
        ours = regard.attention(q, k, v, mask=seen, backend="native")
        torch.testing.assert_close(ours.double(), exact(q, k, v, seen=seen.dense()), rtol=0, atol=3e-6)


_AT_THE_END = """
import ctypes, mmap, torch, regard

page = mmap.PAGESIZE
room = mmap.mmap(-1, 16 * page)
start = ctypes.addressof(ctypes.c_char.from_buffer(room))
assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(start + 15 * page), page, 0) == 0

def at_the_end(*shape):
    count = torch.Size(shape).numel()
    one = torch.frombuffer(room, dtype=torch.float32, count=count, offset=15 * page - 4 * count)
    return one.copy_(torch.randn(count)).view(1, 1, *shape)

for queries, width in ((1, 20), (70, 20), (70, 32)):  # 32 is not padded, which would copy
    sizes = {"q": (queries, width), "k": (77, width), "v": (77, width), "bias": (queries, 77)}
    for last in sizes:
        made = {name: torch.randn(1, 1, *size) for name, size in sizes.items()}
        made[last] = at_the_end(*sizes[last])
        print(last, flush=True)
        regard.attention(made["q"], made["k"], made["v"], bias=made["bias"], backend="native")
        leaves = [made[name].requires_grad_() for name in "qkv"]
        output = regard.attention(*leaves, bias=made["bias"], backend="native")
        torch.autograd.grad(output, leaves, torch.ones_like(output))
"""


@pytest.mark.slow  # a process of its own, which a read beyond the end would kill
def test_nothing_is_read_beyond_the_end_of_an_input():
    """What follows the input may not be read: a page without rights, where a read would end the process."""
    command = [sys.executable, "-c", _AT_THE_END]
    run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert (run.returncode, run.stdout.split()) == (0, ["q", "k", "v", "bias"] * 3), run.stderr[-500:]


def test_tensors_without_memory_have_shapes_and_are_not_read():
    q, k, v = (x.to("meta") for x in drawn((1, 2, 2, 100, 120, 16, 24)))
    assert regard.attention(q, k, v, backend="native").shape == (1, 2, 100, 24)
    with FakeTensorMode(), regard.use_backend("native"):
        x = torch.zeros(1, 2, 100, 16)
        assert regard.attention(x, x, x).shape == x.shape
        with pytest.raises(InputError, match="it reads memory"):
            regard.attention(x, x, x, backend="native")


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")  # PyTorch's own use of it
def test_what_is_traced_is_not_run_with_numbers_that_nobody_traced():
    x = drawn((1, 2, 2, 40, 40, 16, 16))[0]
    regard.attention(x, x, x, backend="native")  # known from now on
    with pytest.raises(InputError, match="it reads memory"):
        make_fx(lambda one: regard.attention(one, one, one, backend="native"))(x)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, x)
        with pytest.raises(InputError, match="it has no forward-mode derivative"):
            regard.attention(dual, dual, dual, backend="native")


def test_a_negative_view_keeps_its_sign():
    q, k, v = drawn((1, 2, 2, 40, 40, 16, 16))
    torch.testing.assert_close(
        regard.attention(q, k, torch._neg_view(v), backend="native"), regard.attention(q, k, -v, backend="native")
    )


def test_compiled_code_calls_it_with_a_mask():
    torch._dynamo.reset()
    q, k, v = drawn((1, 2, 2, 70, 70, 16, 16))
    mask = masks.Causal() & masks.Window(9)
    compiled = torch.compile(lambda *x: 2 * regard.attention(*x, mask=mask, backend="native"), backend="eager")
    torch.testing.assert_close(compiled(q, k, v), 2 * regard.attention(q, k, v, mask=mask, backend="native"))


@pytest.mark.parametrize("large", [1.0, 1e4, 1e8])
def test_the_gradients_of_large_scores_are_as_exact_as_those_of_blocks(large):
    """The backward makes weights of scores and log-sum-exp again: both must be rounded as it rounds them."""
    q, k, v = (x.requires_grad_() for x in drawn((1, 2, 2, 200, 200, 16, 16)))
    up = drawn((1, 2, 2, 200, 200, 16, 16), seed=1)[0]
    exactly = [x.detach().double().requires_grad_() for x in (q, k, v)]
    (expected,) = torch.autograd.grad((exact(large * exactly[0], *exactly[1:]) * up).sum(), exactly[2])
    errors = {}
    for backend in ("native", "strips"):
        output = regard.attention(large * q, k, v, backend=backend)
        (found,) = torch.autograd.grad((output * up).sum(), v)
        errors[backend] = float((found - expected).abs().max())
    assert errors["native"] <= 3 * errors["strips"] + 1e-6


def test_a_row_that_sees_nothing_is_nothing_beside_one_that_is_no_number():
    q, k, v = drawn((1, 1, 1, 128, 128, 16, 16))
    q[0, 0, 64:] = torch.nan  # the tile that is computed first
    seen = torch.ones(128, 128, dtype=torch.bool)
    seen[:64] = False
    output = regard.attention(q, k, v, mask=seen, backend="native")
    assert (output[0, 0, :64] == 0).all()
    assert output[0, 0, 64:].isnan().all()


def test_heads_that_are_adjacent_in_memory_have_the_gradients_of_any_others():
    """Padding the width keeps such strides, and rows of the loops are contiguous."""
    import regard
    from regard import masks

    q, k, v = (torch.randn(2, 65, 12, 4).permute(0, 3, 1, 2).requires_grad_() for _ in range(3))
    found = {}
    for backend in ("native", "reference"):
        output = regard.attention(q, k, v, mask=masks.Causal(), backend=backend)
        found[backend] = (output, *torch.autograd.grad(output.square().sum(), (q, k, v)))
    for one, other in zip(*found.values(), strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)
