"""Cosine scores: the angle alone counts."""

import math
from itertools import product

import pytest
import torch

import regard
from regard.errors import InputError
from regard.scores import Cosine, Dot
from sweeps import sweep


def cosines(q, k):
    return torch.nn.functional.cosine_similarity(q.unsqueeze(-2), k.unsqueeze(-3), dim=-1)


def test_a_number_is_the_formula(agrees):
    for case in sweep(["reference", "sdpa", "auto"]):
        with case as backend:
            agrees(lambda: Cosine(0.3), lambda q, k, i, j: cosines(q, k) / 0.3, lambda *_: {}, backend)


def test_a_temperature_for_each_head_is_learned(agrees):
    for case in sweep(["reference", "sdpa", "auto"]):
        with case as backend:
            agrees(
                lambda t: Cosine(0.2 + t.square()),
                lambda q, k, i, j, t: cosines(q, k) / (0.2 + t.square())[:, None, None],
                lambda h, d, dk, dv: {"t": (h,)},
                backend,
            )


def test_softcap_and_scale_stay_where_they_are_in_the_equation():
    q, k, v = torch.randn(3, 2, 4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).unbind()
    scores = 2 * torch.tanh(3 * cosines(q, k) / 2)
    ours = regard.attention(q, k, v, score=Cosine(softcap=2.0), scale=3.0)
    torch.testing.assert_close(ours, scores.softmax(-1) @ v)
    assert Cosine(softcap=2.0).prepare(q[None], k[None], 0)[2] == Dot(softcap=2.0)


def test_the_length_of_a_vector_does_not_count():
    for case in sweep(product([1e-30, 1e-10, 1e30], ["reference", "sdpa"])):
        with case as (size, backend):
            q, k, v = torch.randn(3, 2, 4, 5, generator=torch.Generator().manual_seed(0)).unbind()
            plain = regard.attention(q, k, v, score=Cosine(), backend=backend)
            torch.testing.assert_close(regard.attention(size * q, k / size, v, score=Cosine(), backend=backend), plain)


@pytest.mark.parametrize("backend", ["reference", "sdpa"])
def test_a_vector_of_zeros_has_score_0_and_gradient_0(backend):
    q, k = torch.randn(2, 1, 3, 4, generator=torch.Generator().manual_seed(0)).unbind()
    q[:, 1], k[:, 2] = 0, 0
    q, k = q.requires_grad_(), k.requires_grad_()
    v = torch.eye(3)[None]
    out = regard.attention(q, k, v, score=Cosine(), backend=backend)  # the values show the weights
    torch.testing.assert_close(out[0, 1], torch.full((3,), 1 / 3))
    torch.testing.assert_close(out[0, 0].log() - out[0, 0, 2].log(), 10 * cosines(q, k)[0, 0])
    (out * torch.arange(3.0)).sum().backward()
    assert q.grad.isfinite().all()
    assert (q.grad[0, 1] == 0).all()
    assert (k.grad[0, 2] == 0).all()
    assert (q.grad[0, 0] != 0).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_narrow_types_are_normalized_in_float32(dtype):
    q = torch.randn(1, 1, 50, 64, generator=torch.Generator().manual_seed(0)).mul(3000).to(dtype)  # |q|² > 65504
    unit = Cosine().prepare(q, q, 0)[0]
    assert unit.dtype == dtype
    exact = q.double() / q.double().norm(dim=-1, keepdim=True)
    rounded_once = 0.501 * torch.finfo(dtype).eps
    torch.testing.assert_close(unit.double(), exact, rtol=rounded_once, atol=1e-7)


def test_a_number_is_positive_and_finite():
    for case in sweep([0.0, -1.0, math.inf, math.nan, True, "0.1", None]):
        with (
            case as temperature,
            pytest.raises(InputError, match=r"`temperature` must be a positive number or a tensor \(heads,\), got"),
        ):
            Cosine(temperature)


X = torch.zeros(2, 4, 5, 8)


def test_what_does_not_fit_is_refused():
    cases = [
        (
            lambda: Cosine(torch.ones(3)),
            r"`temperature` must have one entry for each head of q \(4\), got 3 in .*\(3,\)",
        ),
        (lambda: Cosine(torch.ones(4, 1)), r"`temperature` must be \(heads,\) and not empty, got shape \(4, 1\)"),
        (lambda: Cosine(torch.ones(4, dtype=torch.long)), r"floating-point type, got torch.int64: .*\.float\(\)"),
        (lambda: Cosine(torch.ones(4, device="meta")), r"on the device of q \(cpu\), got meta: move it with \.to\(\)"),
        (lambda: Cosine(softcap=-1.0), "`softcap` must be a positive number or None, got -1.0"),
    ]
    for case in sweep(cases):
        with case as (score, words), pytest.raises(InputError, match=words):
            regard.attention(X, X, X, score=score())


def test_widths_are_equal():
    with pytest.raises(InputError, match=r"`k` must have the width of `q` \(8\), got 7"):
        regard.attention(X, X[..., :7], X, score=Cosine())


def test_it_is_swin_v2_in_transformers():
    swin = pytest.importorskip("transformers.models.swinv2.modeling_swinv2")
    torch.manual_seed(0)
    config = swin.Swinv2Config(attention_probs_dropout_prob=0.0)
    layer = swin.Swinv2SelfAttention(config, dim=12, num_heads=3, window_size=[2, 2]).eval()
    torch.nn.init.zeros_(layer.continuous_position_bias_mlp[-1].weight)  # the same bias for all pairs: it cancels
    x = torch.randn(2, 4, 12)  # windows of 2 × 2
    q, k, v = (map_(x).unflatten(-1, (3, 4)).transpose(1, 2) for map_ in (layer.query, layer.key, layer.value))
    plain = regard.attention(q, k, v, score=Cosine()).transpose(1, 2).flatten(-2)
    torch.testing.assert_close(plain, layer(x)[0])  # where it begins
    torch.nn.init.uniform_(layer.logit_scale, 0.0, 3.0)
    learned = regard.attention(q, k, v, score=Cosine(1 / layer.logit_scale.exp().flatten()))
    torch.testing.assert_close(learned.transpose(1, 2).flatten(-2), layer(x)[0])
