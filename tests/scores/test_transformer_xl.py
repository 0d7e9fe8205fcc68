"""Transformer-XL's scores, against its formula pair by pair and against XLNet in transformers."""

import math
from itertools import product

import numpy as np
import pytest
import torch

import regard
from regard.errors import InputError
from regard.masks import Causal
from regard.scores import ScaledDot, TransformerXL
from sweeps import sweep


def sinusoid(distance, width):
    """R of one distance: sines of all frequencies, then cosines."""
    rates = [10000 ** (-2 * t / width) for t in range((width + 1) // 2)]
    return ([math.sin(distance * rate) for rate in rates] + [math.cos(distance * rate) for rate in rates])[:width]


def formula(q, k, i, j, u, v, w):
    far = i - j
    table = torch.tensor([[sinusoid(int(p), w.shape[-1]) for p in row] for row in far], dtype=torch.float64)
    r = torch.einsum("hdm,ijm->hijd", w, table)
    content = torch.einsum("bhid,bhjd->bhij", q + u[:, None], k)
    position = torch.einsum("bhid,hijd->bhij", q + v[:, None], r)
    return (content + position) / q.shape[-1] ** 0.5


def test_it_is_the_formula(agrees):
    for case in sweep(product([8, 5, 1], ["reference", "auto"])):
        with case as (model_dim, backend):
            agrees(
                lambda u, v, w: TransformerXL(u, v, w),
                formula,
                lambda h, d, dk, dv: {"u": (h, d), "v": (h, d), "w": (h, d, model_dim)},
                backend,
            )


@pytest.mark.parametrize("memory", [0, 4])
def test_it_is_xlnets_core(memory):
    xlnet = pytest.importorskip("transformers.models.xlnet.modeling_xlnet")
    from transformers import XLNetConfig

    torch.manual_seed(0)
    batch, n = 2, 5
    config = XLNetConfig(vocab_size=11, d_model=12, n_layer=1, n_head=3, d_inner=8, dropout=0.0)
    model = xlnet.XLNetModel(config).eval()
    layer = model.layer[0].rel_attn
    for one in layer.parameters():
        torch.nn.init.normal_(one, std=12**-0.5)
    h, mems = torch.randn(n, batch, 12), torch.randn(memory, batch, 12)
    whole = torch.cat([mems, h])
    q, k, v = (torch.einsum("ibh,hnd->ibnd", x, w) for x, w in ((h, layer.q), (whole, layer.k), (whole, layer.v)))
    r = torch.einsum("ibh,hnd->ibnd", model.relative_positional_encoding(n, n + memory, bsz=batch), layer.r)
    hidden = ~torch.ones(n, n + memory).tril(memory).bool()[:, :, None, None].expand(-1, -1, batch, 1)
    theirs, shown = layer.rel_attn_core(q, k, v, r, attn_mask=hidden.float(), output_attentions=True)

    score = TransformerXL(layer.r_w_bias, layer.r_r_bias, layer.r.permute(1, 2, 0))
    inputs = (x.permute(1, 2, 0, 3) for x in (q, k, v))
    ours, weights = regard.attention(*inputs, score=score, mask=Causal(), return_weights=True)
    torch.testing.assert_close(ours.permute(2, 0, 1, 3), theirs, atol=1e-5, rtol=0)
    torch.testing.assert_close(weights.permute(2, 3, 0, 1), shown, atol=1e-5, rtol=0)


def test_all_queries_at_once_are_each_with_its_memory():
    rng = torch.Generator().manual_seed(0)
    q, k, v = torch.randn(3, 1, 2, 7, 4, dtype=torch.float64, generator=rng).unbind()
    u, w = torch.randn(2, 2, 4, dtype=torch.float64, generator=rng) / 2, torch.randn(2, 4, 6, generator=rng).double()
    score = TransformerXL(*u, w / 6**0.5)
    whole = regard.attention(q, k, v, score=score, mask=Causal())
    steps = [regard.attention(q[:, :, n - 1 : n], k[:, :, :n], v[:, :, :n], score=score) for n in range(1, 8)]
    torch.testing.assert_close(torch.cat(steps, 2), whole)


def test_distances_far_away_keep_their_digits():
    u, w = torch.zeros(1, 2), torch.tensor([[[1.0, 0.0], [0.0, 1.0]]])  # r = [sin p, cos p]
    q = torch.tensor([[[[1.0, 0.0]]]])
    far = TransformerXL(u, u, w).tile(q, 0 * q, torch.tensor([10_000_019]), torch.tensor([0]))
    np.testing.assert_allclose(far.item(), math.sin(10_000_019), atol=1e-6)


def test_without_biases_and_distances_it_is_scaled_dot_and_softcap_stays():
    q, k, v = torch.randn(3, 2, 4, 5, generator=torch.Generator().manual_seed(0)).unbind()
    zero = torch.zeros(1, 5)
    score = TransformerXL(zero, zero, torch.zeros(1, 5, 3), softcap=0.5)
    torch.testing.assert_close(
        regard.attention(q, k, v, score=score), regard.attention(q, k, v, score=ScaledDot(softcap=0.5))
    )
    assert score.prepare(q[:, None], k[:, None], 0)[2].softcap == 0.5


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_narrow_maps_multiply_wide_sinusoids(dtype):
    rng = torch.Generator().manual_seed(0)
    w = (torch.randn(1, 4, 64, generator=rng) / 8).to(dtype)
    zero, q = torch.zeros(1, 4), torch.eye(4)[None, None]
    at = torch.tensor([900, 901, 902, 903]), torch.arange(3)
    k = torch.zeros(1, 1, 3, 4)
    narrow = TransformerXL(zero, zero, w).tile(q, k, *at)
    torch.testing.assert_close(narrow, TransformerXL(zero, zero, w.float()).tile(q, k, *at))


X = torch.zeros(2, 4, 5, 8)
U, W = torch.zeros(4, 8), torch.zeros(4, 8, 6)


def test_what_does_not_fit_is_refused():
    cases = [
        (lambda: TransformerXL(U[0], U, W), r"`content_bias` must be \(heads, dim\) and not empty, got shape \(8,\)"),
        (lambda: TransformerXL(U, [1.0], W), r"`position_bias` must be a tensor \(heads, dim\), got list"),
        (
            lambda: TransformerXL(U, U, W[0]),
            r"`w_r` must be \(heads, dim, model_dim\) and not empty, got shape \(8, 6\)",
        ),
        (lambda: TransformerXL(U[:2], U, W), r"`content_bias` must have one entry for each head of q \(4\), got 2"),
        (
            lambda: TransformerXL(U, U[:, :7], W),
            r"`position_bias` must have the width of q \(8\) in dimension 1, got 7",
        ),
        (lambda: TransformerXL(U, U, W[:, :7]), r"`w_r` must have the width of q \(8\) in dimension 1, got 7"),
        (lambda: TransformerXL(U, U, W[:3]), r"`w_r` must have one entry for each head of q \(4\), got 3"),
        (lambda: TransformerXL(U, U, W.to("meta")), r"`w_r` must be on the device of q \(cpu\), got meta"),
        (lambda: TransformerXL(U, U, W.int()), r"`w_r` must be of a floating-point type, got torch.int32"),
        (lambda: TransformerXL(U, U, W, softcap=-1), "`softcap` must be a positive number or None, got -1"),
    ]
    for case in sweep(cases):
        with case as (score, words), pytest.raises(InputError, match=words):
            regard.attention(X, X, X, score=score())


def test_widths_are_equal():
    with pytest.raises(InputError, match=r"`k` must have the width of `q` \(8\), got 7"):
        regard.attention(X, X[..., :7], X, score=TransformerXL(U, U, W))
