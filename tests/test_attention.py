"""The door: shapes, options, types and refusals of regard.attention, against dense formulas and PyTorch's own."""

import math
import warnings
from itertools import product

import numpy as np
import pytest
import torch
from torch.nn import functional

import regard
from backend_lists import GENERAL
from oracles import causal, dense, f64
from regard import masks
from regard.errors import InputError
from regard.masks import Causal, Padding, Window
from regard.normalizers import Softmax
from regard.positions import ALiBi, RoPE
from regard.scores import Dot, ScaledDot
from sweeps import sweep

NAMES = [backend.name for backend in GENERAL]


def randn(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def near(tensor, array, atol=1e-12):
    np.testing.assert_allclose(f64(tensor), array, atol=atol, rtol=0)


# --- shapes


def test_leading_dimensions_stay_as_they_came():
    for case in sweep(product([(), (2,), (2, 3), (2, 2, 3), (2, 1, 2, 3)], [4, 7, 1])):
        with case as (lead, value_width):
            q, k, v = randn(*lead, 5, 4), randn(*lead, 6, 4, seed=1), randn(*lead, 6, value_width, seed=2)
            out, weights, lse = regard.attention(q, k, v, mask=Causal(), return_weights=True, return_lse=True)
            assert out.shape == (*lead, 5, value_width)
            assert weights.shape == (*lead, 5, 6)
            assert lse.shape == (*lead, 5)
            heads = (-1, lead[-1] if len(lead) > 1 else 1)
            expected = dense(*(x.reshape(*heads, *x.shape[-2:]) for x in (q, k, v)), visible=causal(5, 6))
            near(out, expected.output.reshape(out.shape))
            near(weights, expected.weights.reshape(weights.shape))
            near(lse, expected.lse.reshape(lse.shape))


def test_query_head_h_reads_its_group():
    for case in sweep([1, 2, 3, 6]):
        with case as kv_heads:
            q, k, v = randn(2, 6, 5, 4), randn(2, kv_heads, 5, 4, seed=1), randn(2, kv_heads, 5, 3, seed=2)
            grouped = regard.attention(q, k, v)
            for h in range(6):
                kv = h // (6 // kv_heads)
                torch.testing.assert_close(grouped[:, h], regard.attention(q[:, h], k[:, kv], v[:, kv]))


def test_a_three_by_three_by_hand():
    # Scores 0, ln 2 and ln 3 give weights 1/6, 2/6 and 3/6; causal, 1; 1/3 and 2/3; and all three.
    q = torch.ones(3, 1, dtype=torch.float64)
    k = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64).log()[:, None]
    v = torch.tensor([[6.0], [12.0], [18.0]], dtype=torch.float64)
    out, weights, lse = regard.attention(q, k, v, mask=Causal(), return_weights=True, return_lse=True)
    near(weights, np.array([[1, 0, 0], [1 / 3, 2 / 3, 0], [1 / 6, 2 / 6, 3 / 6]]))
    near(out, np.array([[6], [10], [14]]))
    near(lse, np.log([1, 3, 6]))


# --- options


def test_the_scale_of_the_caller_wins():
    q, k, v = randn(1, 1, 4, 16), randn(1, 1, 4, 16, seed=1), randn(1, 1, 4, 2, seed=2)
    near(regard.attention(q, k, v), dense(q, k, v, scale=1 / 4).output)
    near(regard.attention(q, k, v, score=Dot()), dense(q, k, v, scale=1).output)
    for score in (None, Dot(), ScaledDot()):
        near(regard.attention(q, k, v, score=score, scale=0.3), dense(q, k, v, scale=0.3).output)


def test_softcap_comes_after_the_scale_and_before_the_bias():
    q, k, v = 9 * randn(1, 2, 4, 8), randn(1, 2, 4, 8, seed=1), randn(1, 2, 4, 2, seed=2)
    bias = 5 * randn(2, 4, 4, seed=3)[None]
    ours = regard.attention(q, k, v, score=ScaledDot(softcap=2.0), bias=bias, scale=0.7, mask=Causal())
    near(ours, dense(q, k, v, softcap=2.0, bias=bias, scale=0.7, visible=causal(4, 4)).output)


def test_a_sink_takes_weight_and_gives_no_value():
    x, sink = randn(1, 2, 3, 4), torch.tensor([0.5, 3.0], dtype=torch.float64)
    _, weights = regard.attention(x, x, x, normalizer=Softmax(sink), return_weights=True)
    # A sink is a further key of score `sink` with a value of 0.
    scores = torch.cat([x @ x.mT / 2, sink[:, None, None].expand(1, 2, 3, 1)], -1)
    torch.testing.assert_close(weights, scores.softmax(-1)[..., :-1])
    assert (weights.sum(-1) < 1).all()


def test_a_bias_broadcasts_over_the_scores():
    for case in sweep(product([(5, 6), (1, 6), (1, 3, 5, 6), (2, 1, 1, 6), (2, 3, 5, 1)], NAMES)):
        with case as (shape, backend):
            q, k, v, bias = (
                randn(2, 3, 5, 4),
                randn(2, 3, 6, 4, seed=1),
                randn(2, 3, 6, 4, seed=2),
                randn(*shape, seed=3),
            )
            ours = regard.attention(q, k, v, bias=bias, backend=backend)
            torch.testing.assert_close(ours, functional.scaled_dot_product_attention(q, k, v, attn_mask=bias))


def test_a_bias_of_another_float_type_is_converted():
    x, bias = randn(1, 1, 4, 3, dtype=torch.float32), randn(4, 4, seed=1, dtype=torch.float64)
    assert regard.attention(x, x, x, bias=bias).dtype == torch.float32
    near(regard.attention(x, x, x, bias=bias), dense(x, x, x, bias=bias).output, atol=1e-6)


def test_a_boolean_tensor_is_a_mask():
    x, seen = randn(2, 3, 5, 4), torch.rand(2, 1, 5, 5, generator=torch.Generator().manual_seed(5)) < 0.5
    near(regard.attention(x, x, x, mask=seen), dense(x, x, x, visible=seen.numpy()).output)
    near(regard.attention(x, x, x, mask=seen[0, 0]), dense(x, x, x, visible=seen[0, 0].numpy()).output)


def test_results_have_the_type_of_the_inputs_and_lse_at_least_float32():
    for case in sweep([torch.float64, torch.float32, torch.float16, torch.bfloat16]):
        with case as dtype:
            x = randn(1, 2, 4, 3, dtype=torch.float32).to(dtype)
            out, weights, lse = regard.attention(x, x, x, return_weights=True, return_lse=True)
            assert out.dtype == weights.dtype == dtype
            assert lse.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
            near(lse, dense(x, x, x).lse, atol=1e-12 if dtype == torch.float64 else 1e-6)


def test_half_types_accumulate_in_float32():
    for case in sweep(product([torch.float16, torch.bfloat16], NAMES)):
        with case as (dtype, backend):
            n = 4096
            x, ones = torch.zeros(1, 1, n, 8, dtype=dtype), torch.ones(1, 1, n, 8, dtype=dtype)
            out = regard.attention(x[:, :, :2], x, ones, backend=backend)  # 4096 weights of 1/4096 of ones
            near(out, np.ones((1, 1, 2, 8)), atol=torch.finfo(dtype).eps)


def test_two_halves_merge_by_lse_into_the_whole():
    q, k, v = randn(2, 4, 5, 8), randn(2, 2, 9, 8, seed=1), randn(2, 2, 9, 3, seed=2)
    whole, lse = regard.attention(q, k, v, return_lse=True)
    parts = [regard.attention(q, k[:, :, at], v[:, :, at], return_lse=True) for at in (slice(0, 4), slice(4, 9))]
    merged = torch.logaddexp(parts[0][1], parts[1][1])
    torch.testing.assert_close(merged, lse)
    torch.testing.assert_close(sum(out * (part - merged).exp()[..., None] for out, part in parts), whole)


def test_what_was_asked_for_comes_in_this_order():
    x = randn(3, 2)
    assert isinstance(regard.attention(x, x, x), torch.Tensor)
    assert [one.shape for one in regard.attention(x, x, x, return_weights=True)] == [(3, 2), (3, 3)]
    assert [one.shape for one in regard.attention(x, x, x, return_lse=True)] == [(3, 2), (3,)]
    assert [one.shape for one in regard.attention(x, x, x, return_lse=True, return_weights=True)] == [
        (3, 2),
        (3, 3),
        (3,),
    ]


def test_weights_beyond_max_bytes_are_refused_with_bytes_and_the_way_round():
    x = torch.zeros(2, 3, 16, 4)
    regard.attention(x, x, x, return_weights=True, max_bytes=6144)
    with pytest.raises(InputError) as refused:
        regard.attention(x, x, x, return_weights=True, max_bytes=6143)
    assert str(refused.value) == (
        "the weights to return need 6.0 KiB for 2 × 3 × 16 × 16 weights, more than the limit of 6.0 KiB: "
        "raise `max_bytes`, pass fewer queries, or use regard.watch, which keeps summaries instead"
    )


# --- properties


def test_keys_may_be_permuted_with_their_values():
    for case in sweep(NAMES):
        with case as backend:
            q, k, v = randn(1, 2, 5, 4), randn(1, 2, 7, 4, seed=1), randn(1, 2, 7, 3, seed=2)
            order = torch.randperm(7, generator=torch.Generator().manual_seed(3))
            plain = regard.attention(q, k, v, backend=backend)
            torch.testing.assert_close(regard.attention(q, k[:, :, order], v[:, :, order], backend=backend), plain)


def test_large_and_small_scores_stay_finite():
    for case in sweep(product(NAMES, [1e-30, 1.0, 300.0, 1e4])):
        with case as (backend, size):
            x = size * randn(1, 1, 6, 4, dtype=torch.float32)
            out = regard.attention(x, x, x / size, backend=backend)
            near(out, dense(x, x, x / size).output, atol=1e-2 if size == 1e4 else 1e-4)


def test_without_a_visible_key_all_is_zero_and_gradients_are_finite():
    for case in sweep(NAMES):
        with case as backend:
            q, k, v = (randn(2, 2, 4, 3, seed=seed).requires_grad_() for seed in range(3))
            nothing = Padding(torch.tensor([[True, True, True, False], [False] * 4]))
            out = regard.attention(q, k, v, mask=nothing & Window(2), backend=backend)
            assert (out[1] == 0).all()
            assert (out[0, :, :3] != 0).all()
            out.sum().backward()
            for x in (q, k, v):
                assert x.grad.isfinite().all()
                assert (x.grad[1] == 0).all()
            assert v.grad[0, :, :3].abs().sum() > 0


def test_weights_of_a_row_that_sees_nothing_are_zero():
    x = randn(1, 1, 3, 2)
    out, weights, lse = regard.attention(
        x, x, x, mask=~Window(9) & ~Window(left=0, right=9), return_weights=True, return_lse=True
    )
    assert (weights == 0).all()
    assert (out == 0).all()
    assert (lse == -math.inf).all()


def test_without_grad_nothing_is_recorded():
    for case in sweep(NAMES):
        with case as backend:
            x = randn(1, 1, 4, 3).requires_grad_()
            with torch.no_grad():
                assert not regard.attention(x, x, x, backend=backend).requires_grad


def test_gradcheck_of_the_reference():
    q, k, v = randn(1, 2, 3, 2), randn(1, 1, 4, 2, seed=1), randn(1, 1, 4, 3, seed=2)
    bias, sink = randn(2, 3, 4, seed=3)[None], randn(2, seed=4)
    tensors = [x.requires_grad_() for x in (q, k, v, bias, sink)]

    def call(q, k, v, bias, sink):
        return regard.attention(
            q,
            k,
            v,
            bias=bias,
            normalizer=Softmax(sink),
            score=ScaledDot(softcap=3.0),
            mask=Causal(),
            return_weights=True,
            return_lse=True,
        )

    assert torch.autograd.gradcheck(call, tensors)
    assert torch.autograd.gradgradcheck(lambda *x: call(*x)[0], tensors)


# PyTorch maps its fused CPU kernel one by one, and says so.
@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")
def test_vmap_and_grad_of_torch_func():
    for case in sweep(product([one for one in NAMES if one != "strips"], [None, Causal(), Causal() & Window(2)])):
        with case as (backend, mask):
            q, k, v, bias = (
                randn(3, 2, 5, 4),
                randn(3, 2, 5, 4, seed=1),
                randn(3, 2, 5, 4, seed=2),
                randn(3, 5, 5, seed=3),
            )

            def call(q, k, v, bias=None):
                return regard.attention(q, k, v, mask=mask, bias=bias, backend=backend)

            mapped = torch.func.vmap(call)(q, k, v)
            torch.testing.assert_close(mapped, torch.stack([call(*one) for one in zip(q, k, v, strict=True)]))
            mapped = torch.func.vmap(call)(q, k, v, bias)
            torch.testing.assert_close(mapped, torch.stack([call(*one) for one in zip(q, k, v, bias, strict=True)]))
            gradient = torch.func.grad(lambda q, k=k, v=v: call(q[None], k[:1], v[:1]).sum())(q[0])
            visible = None if mask is None else mask.bind(5, 5).dense()[0, 0].numpy()
            near(gradient, dense(q[:1], k[:1], v[:1], visible=visible, cotangent=np.ones((1, 2, 5, 4))).q[0])


def test_inputs_stay_as_they_were():
    q, k, v, bias = randn(2, 5, 4), randn(2, 5, 4, seed=1), randn(2, 5, 4, seed=2), randn(5, 5, seed=3)
    before = [x.clone() for x in (q, k, v, bias)]
    for backend in NAMES:
        regard.attention(q, k, v, bias=bias, mask=Window(2), backend=backend)
    assert all(torch.equal(x, y) for x, y in zip((q, k, v, bias), before, strict=True))


def test_multihead_attention_is_this_attention():
    torch.manual_seed(0)
    layer = torch.nn.MultiheadAttention(12, 3, batch_first=True).double()
    x = randn(2, 5, 12)
    theirs, their_weights = layer(x, x, x, average_attn_weights=False)
    q, k, v = functional.linear(x, layer.in_proj_weight, layer.in_proj_bias).unflatten(-1, (3, 3, 4)).unbind(2)
    out, weights = regard.attention(*(y.transpose(1, 2) for y in (q, k, v)), return_weights=True)
    torch.testing.assert_close(layer.out_proj(out.transpose(1, 2).flatten(-2)), theirs)
    torch.testing.assert_close(weights, their_weights)


# --- refusals

X = torch.zeros(2, 4, 5, 8)
FLAGS = torch.ones(5, 5)
SEEN = FLAGS.bool()


SHAPES_AND_TYPES = {
    "no tensor": ((np.zeros((5, 8)), X, X), "`q` must be a tensor, got ndarray"),
    "integers": ((X.int(), X, X), r"`q` must be of a floating-point type, got torch.int32: .* q.float\(\)"),
    "a narrow type": ((X.to(torch.float8_e4m3fn),) * 3, r"float16, bfloat16 or wider, got torch\.float8"),
    "single queries": ((X[0, 0], X[0], X[0]), "equally many dimensions"),
    "types": (
        (X, X.double(), X.half()),
        r"one dtype, got torch.float32, torch.float64 and torch.float16: .*to\(\)",
    ),
    "devices": ((X, X.to("meta"), X), r"one device, got cpu, meta and cpu: move with \.to\(\)"),
    "a vector": ((X[0, 0, 0], X, X), r"`q` must be \(length, width\), .* got shape \(8,\)"),
    "no width": ((X[..., :0], X[..., :0], X), r"`q` must have a width of at least 1, got q \(2, 4, 5, 0\)"),
    "dimensions": ((X[0], X, X), r"equally many dimensions, got q \(4, 5, 8\), k \(2, 4, 5, 8\), .* x\[None\]"),
    "widths": ((X, X[..., :7], X), r"`k` must have the width of `q` \(8\), got 7 in q .* k \(2, 4, 5, 7\)"),
    "keys and values": ((X, X, X[:, :, :4]), "`v` must have a value for each of 5 keys, got 4 in q"),
    "batch": ((X, X[:1], X[:1]), r"the same batch, got q \(2, 4, 5, 8\), k \(1, 4, 5, 8\).* repeat with x.expand"),
    "batch of three": ((X[0], X[0, :3], X[0, :3]), "the same batch, got"),
    "heads": ((X, X[:, :3], X[:, :3]), r"multiple of those of `k` \(grouped queries\), got 4 and 3"),
    "more kv heads": ((X[:, :2], X, X), "got 2 and 4"),
    "value heads": ((X, X, X[:, :2]), r"`v` must have as many heads as `k` \(4\), got 2"),
}
OPTIONS = {
    "scale nan": ({"scale": math.nan}, "`scale` must be a finite number, got nan"),
    "scale inf": ({"scale": -math.inf}, "`scale` must be a finite number, got -inf"),
    "scale learned": ({"scale": torch.tensor(0.5, requires_grad=True)}, "`scale` must be a number.*multiply it into q"),
    "scale text": ({"scale": "1"}, "`scale` must be a number, got str.*multiply it into q"),
    "scale flag": ({"scale": True}, "`scale` must be a number.*multiply it into q"),
    "max_bytes nan": ({"max_bytes": math.nan}, "`max_bytes` is a number of bytes, got nan"),
    "max_bytes text": ({"max_bytes": "2GB"}, "`max_bytes` is a number of bytes, got '2GB'"),
    "max_bytes negative": ({"max_bytes": -1}, "`max_bytes` is a number of bytes, got -1"),
    "return_weights none": ({"return_weights": None}, "`return_weights` must be True or False, got NoneType"),
    "return_weights tensor": ({"return_weights": torch.zeros(2)}, "`return_weights` must be True or False, got Tensor"),
    "return_lse text": ({"return_lse": "yes"}, "`return_lse` must be True or False, got str"),
    "backend list": ({"backend": ["sdpa"]}, r"`backend` must be .auto. or one of .*got \['sdpa'\]"),
    "dropout nan": ({"dropout": math.nan}, "`dropout` is a probability"),
    "rotary class": ({"rotary": RoPE}, r"`rotary` .*got the class RoPE: write RoPE\(...\)"),
    "score": ({"score": "dot"}, r"`score` must be a score of regard.scores, such as .* got 'dot'"),
    "score class": ({"score": ScaledDot}, r"`score` .* got the class ScaledDot: write ScaledDot\(...\)"),
    "score tensor": ({"score": torch.zeros(2, 2)}, "`score` must be a score of regard.scores.*got Tensor"),
    "normalizer": ({"normalizer": "softmax"}, "`normalizer` must be one of regard.normalizers, .* 'softmax'"),
    "normalizer array": ({"normalizer": np.ones(3)}, "`normalizer` must be .* got ndarray"),
    "normalizer class": ({"normalizer": Softmax}, r"got the class Softmax: write Softmax\(...\)"),
    "sink": ({"normalizer": Softmax(torch.zeros(3))}, r"one logit a head \(4,\), got \(3,\)"),
    "sink device": ({"normalizer": Softmax(torch.zeros(4, device="meta"))}, r"`sink` .* q \(cpu\), got meta"),
    "mask of numbers": ({"mask": FLAGS.int()}, "boolean, True = may see, got torch.int32: write masks.Padding"),
    "mask of floats": ({"mask": FLAGS}, "got torch.float32: .* `bias=` for numbers that are added"),
    "mask by name": ({"mask": "causal"}, "a mask of regard.masks or a boolean tensor, got 'causal'"),
    "mask class": (
        {"mask": Causal},
        "a mask of regard.masks or a boolean tensor, got the class Causal: write Causal\\(",
    ),
    "mask sparse": ({"mask": SEEN.to_sparse()}, r"layout torch.sparse_coo: convert it with .to_dense\(\)"),
    "mask array": ({"mask": np.ones((5, 5), bool)}, "got ndarray"),
    "mask function": (
        {"mask": lambda b, h, i, j: i >= j},
        r"got function: pass masks.MaskMod\(rule\), with rule\(batch, head, i, j\)",
    ),
    "mask size": ({"mask": SEEN[:, :4]}, r"5 queries × 5 keys .* got shape \(5, 4\)"),
    "mask of three": ({"mask": SEEN.expand(2, 5, 5)}, r"\(2, 5, 5\): write mask\[:, None\]"),
    "mask batch": (
        {"mask": SEEN.expand(3, 1, 5, 5)},
        "mask is for batch 3 and heads 1, but q has batch 2 and heads 4: give it a size of 1",
    ),
    "mask heads": ({"mask": SEEN.expand(1, 2, 5, 5)}, "mask is for batch 1 and heads 2"),
    "mask device": (
        {"mask": SEEN.to("meta")},
        r"`mask` must be on the device of q \(cpu\), got meta: move its tensors with \.to\(\)",
    ),
    "mask rule": ({"mask": masks.MaskMod(lambda b, h, i, j: i - j)}, "`mask` must give booleans, got torch.int64"),
    "mask of flags": ({"mask": SEEN[:2]}, r"\(2, 5\) may be .* \(batch, keys\): .* masks.Padding\(mask\) for flags"),
    "mask of integers": ({"mask": torch.ones(2, 5).long()}, "got torch.int64: write .*masks.from_attention_mask"),
    "padding": ({"mask": Padding(SEEN[:2, :4])}, "each of 5 keys, got 4"),
    "two batches": (
        {"mask": Padding(SEEN[:2]) & Padding(SEEN[:3])},
        "masks combine only for equal sizes or 1, got batch 2 and 3",
    ),
    "bias number": (
        {"bias": 1.0},
        r"`bias` must be a tensor or a bias of regard.positions, such as ALiBi\(num_heads=8\), got 1.0",
    ),
    "bias class": ({"bias": ALiBi}, r"got the class ALiBi: write ALiBi\(...\)"),
    "bias sparse": ({"bias": FLAGS.to_sparse()}, r"`bias` must be a dense tensor, got torch.sparse_coo"),
    "bias boolean": ({"bias": SEEN}, "floating-point type, got torch.bool: a boolean tensor is `mask=`"),
    "bias integers": ({"bias": FLAGS.long()}, "got torch.int64: .* masks.from_attention_mask"),
    "bias of three": ({"bias": torch.zeros(4, 5, 5)}, r"got \(4, 5, 5\): write bias\[None\] for one bias a head"),
    "bias size": ({"bias": torch.zeros(5, 6)}, r"broadcast to the scores of 5 queries × 5 keys, got \(5, 6\)"),
    "bias device": ({"bias": FLAGS.to("meta")}, r"`bias` must be on the device of q \(cpu\), got meta"),
    "zeros and ones": (
        {"bias": FLAGS.tril()},
        "only zeros and ones .* hides nothing: pass mask=masks.from_attention_mask",
    ),
    "zeros and ones a token": ({"bias": torch.tensor([1.0, 1, 1, 1, 0])[None]}, "only zeros and ones"),
}


REFUSED = {
    **{name: (inputs, {}, words) for name, (inputs, words) in SHAPES_AND_TYPES.items()},
    **{name: ((X, X, X), options, words) for name, (options, words) in OPTIONS.items()},
}


def test_what_breaks_a_rule_is_refused_with_rule_value_and_way_out():
    for case in sweep(product(REFUSED, [regard.attention, regard.explain])):
        with case as (label, door):
            inputs, options, words = REFUSED[label]
            with pytest.raises(InputError, match=words):
                door(*inputs, **options)


PARTS = {
    **{
        f"softcap {softcap}": (
            lambda softcap=softcap: ScaledDot(softcap=softcap),
            "`softcap` must be a positive number",
        )
        for softcap in (0.0, -1.0, math.inf, math.nan)
    },
    **{f"window {size}": (lambda size=size: Window(size), "must be an integer") for size in (2.5, True, "3")},
    "padding of twos": (lambda: Padding(torch.tensor([[1, 2]])), "got 2: pass zeros and ones"),
    "padding of biases": (lambda: Padding(torch.tensor([[0.0, -1e9]])), "pass it as `bias=`"),
    "padding of scores": (
        lambda: Padding(torch.ones(1, 1, 1, 3)),
        r"must be \(batch, keys\), got \(1, 1, 1, 3\): .* is masks.Dense",
    ),
    "length of a text": (lambda: Causal().bind(1, "3"), "`kv_len` counts positions and must be an integer, got '3'"),
}


def test_parts_refuse_what_they_cannot_be_made_of():
    for case in sweep(PARTS):
        with case as name:
            make, words = PARTS[name]
            with pytest.raises(InputError, match=words):
                make()


def test_what_may_be_a_bias_is_none_of_a_mask():
    for case in sweep(
        [torch.zeros(5, 5), torch.ones(5, 5), torch.eye(5).requires_grad_(), 0.5 * torch.eye(5), -torch.eye(5)]
    ):
        with case as bias:
            regard.attention(X, X, X, bias=bias)


def test_nothing_is_printed_and_nothing_warned(capsys):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        regard.attention(X, X, X, mask=Causal(), return_weights=True)
    assert capsys.readouterr() == ("", "")


def test_a_square_matrix_is_ambiguous_where_the_batch_is_as_large():
    q, matrix = randn(5, 1, 5, 4), torch.ones(5, 5, dtype=torch.bool).tril()
    with pytest.raises(InputError, match=r"\(5, 5\) may be \(queries, keys\) or, as q has a batch of 5"):
        regard.attention(q, q, q, mask=matrix)
    near(regard.attention(q, q, q, mask=matrix[None, None]), dense(q, q, q, visible=f64(matrix).astype(bool)).output)
    alone = q[:1]
    near(regard.attention(alone, alone, alone, mask=matrix), dense(alone, alone, alone, visible=causal(5, 5)).output)


def test_padding_takes_the_attention_mask_of_a_tokenizer_as_it_is():
    for case in sweep([torch.bool, torch.int64, torch.int32, torch.uint8, torch.float32]):
        with case as dtype:
            q, flags = randn(2, 1, 3, 4), torch.tensor([[1, 1, 0], [1, 0, 0]])
            ours = regard.attention(q, q, q, mask=Padding(flags.to(dtype)))
            near(ours, dense(q, q, q, visible=flags.bool().numpy()[:, None, None]).output)
