"""Performer: the formulas of performer-pytorch written out, unbiased features, prefix sums and their memory.

test_packages.py compares with the package itself.
"""

import copy
from itertools import pairwise, product

import numpy as np
import pytest
import torch

import regard
from oracles import Largest, dense, f64
from regard.approximations import (
    Approximate,
    PerformerAttention,
    performer_attention,
    positive_features,
    random_features,
)
from regard.errors import InputError
from sweeps import sweep


def randn(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def written_out(q, k, v, w, eps, *, visible=None):
    """performer-pytorch 1.1.4: softmax_kernel and linear_attention, all pairs at hand, in numpy."""
    q, k, v, w = f64(q), f64(k), f64(v), f64(w)
    small = q.shape[-1] ** -0.25
    dash_q, dash_k = small * q @ w.T, small * k @ w.T
    diag_q, diag_k = (0.5 * small**2 * (x**2).sum(-1, keepdims=True) for x in (q, k))
    root = len(w) ** -0.5
    left = root * (np.exp(dash_q - diag_q - dash_q.max(-1, keepdims=True)) + eps)
    right = root * (np.exp(dash_k - diag_k - dash_k.max((-1, -2), keepdims=True)) + eps)
    pairs = left @ right.swapaxes(-1, -2)
    if visible is not None:
        pairs = pairs * visible
    return pairs @ v / pairs.sum(-1, keepdims=True)


def test_equals_the_formulas_of_performer_pytorch():
    for case in sweep([0.0, 1e-4, 1e-2]):
        with case as eps:
            q, k, v, w = randn(2, 3, 5, 8), randn(2, 3, 7, 8, seed=1), randn(2, 3, 7, 6, seed=2), randn(12, 8, seed=3)
            ours = performer_attention(q, k, v, w, eps=eps).output
            np.testing.assert_allclose(f64(ours), written_out(q, k, v, w, eps), atol=1e-12)


def test_causal_sums_see_the_past_and_the_present():
    for case in sweep([1, 128, 129, 300]):
        with case as tokens:
            q, k, v, w = (randn(1, 2, tokens, 8, seed=seed) for seed in range(4))
            ours = performer_attention(
                q, k, v, w[0, 0, :1].repeat(3, 1) * randn(3, 1, seed=5), causal=True, eps=0.0
            ).output
            w = w[0, 0, :1].repeat(3, 1) * randn(3, 1, seed=5)
            np.testing.assert_allclose(f64(ours), written_out(q, k, v, w, 0.0, visible=np.tri(tokens)), atol=1e-10)


def test_later_keys_change_nothing_before_them_not_even_through_eps():
    q, k, v, w = randn(200, 8), randn(200, 8, seed=1), randn(200, 4, seed=2), randn(16, 8, seed=3)
    before = performer_attention(q, k, v, w, causal=True, eps=1e-2).output
    k, v = k.clone(), v.clone()
    k[150:], v[150:] = 20 * k[150:], -v[150:]
    after = performer_attention(q, k, v, w, causal=True, eps=1e-2).output
    torch.testing.assert_close(after[:150], before[:150], atol=1e-13, rtol=0)
    assert (after[150:] - before[150:]).abs().min() > 0


@pytest.mark.parametrize("causal", [False, True])
def test_padding_is_as_if_it_were_not_there(causal):
    q, k, v, w = randn(1, 2, 9, 8), randn(1, 2, 9, 8, seed=1), randn(1, 2, 9, 4, seed=2), randn(16, 8, seed=3)
    k[:, :, 6:] *= 30
    v[:, :, 6:] = 1e6
    real = torch.arange(9)[None, None] < 6
    ours = performer_attention(q, k, v, w, causal=causal, key_padding_mask=~real).output[:, :, :6]
    short = performer_attention(*(x[:, :, :6] for x in (q, k, v)), w, causal=causal).output
    torch.testing.assert_close(ours, short)


@pytest.mark.parametrize("causal", [False, True])
def test_a_query_that_sees_no_key_gives_zero_and_finite_gradients(causal):
    q, k, v, w = (randn(1, 1, 4, 8, seed=seed).requires_grad_() for seed in range(4))
    real = torch.tensor([[[False, False, True, True]]]) if causal else torch.zeros(1, 1, 4, dtype=torch.bool)
    out = performer_attention(q, k, v, w[0, 0], causal=causal, key_padding_mask=~real).output
    assert (out[0, 0, :2] == 0).all()
    assert causal == bool((out[0, 0, 2:] != 0).all())
    out.sum().backward()
    assert all(x.grad is None or x.grad.isfinite().all() for x in (q, k, v, w))


@pytest.mark.parametrize("causal", [False, True])
def test_gradients_are_those_of_finite_differences(causal):
    q, k, v, w = (randn(1, 1, n, 4, seed=seed).requires_grad_() for seed, n in enumerate((5, 5, 5, 6)))

    def run(q, k, v, w):
        return performer_attention(q, k, v, w[0, 0], causal=causal, eps=0.0).output

    assert torch.autograd.gradcheck(run, (q, k, v, w))


def test_causal_gradients_cross_chunks():
    q, k, v = (randn(1, 1, 300, 4, seed=seed).requires_grad_() for seed in range(3))
    w, up = randn(6, 4, seed=3), randn(1, 1, 300, 4, seed=4)
    ours = torch.autograd.grad(performer_attention(q, k, v, w, causal=True, eps=0.0).output, (q, k, v), up)
    (log_q, half_q), (log_k, half_k) = positive_features(q, w), positive_features(k, w)
    pairs = ((log_q - half_q).exp() @ (log_k - half_k).exp().transpose(-2, -1)).tril()
    theirs = torch.autograd.grad(pairs @ v / pairs.sum(-1, keepdim=True), (q, k, v), up)
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, atol=1e-10, rtol=1e-8)


@pytest.mark.parametrize("causal", [False, True])
def test_no_tensor_grows_faster_than_the_sequence_forward_or_backward(causal):
    def largest(tokens):
        q, k, v = (randn(1, 1, tokens, 16, seed=seed, dtype=torch.float32).requires_grad_() for seed in range(3))
        with Largest() as seen:
            performer_attention(q, k, v, randn(32, 16, dtype=torch.float32), causal=causal).output.sum().backward()
        return seen.bytes

    # The features, 32 floats a token, and a chunk's 128 × 128 triangle are the largest.
    assert largest(4096) == 4096 * 32 * 4
    assert largest(1024) == 1024 * 32 * 4


# --- features


def blocks(draws):
    """As many independent draws of 8 features of width 8."""
    generator = torch.Generator().manual_seed(0)
    return random_features(8 * draws, 8, generator=generator, dtype=torch.float64).view(draws, 8, 8)


def test_products_of_features_are_unbiased():
    q, k = 0.5 * randn(1, 8), 0.5 * randn(1, 8, seed=1)
    (log_q, half_q), (log_k, half_k) = (positive_features(x, blocks(20000).flatten(0, 1)) for x in (q, k))
    draws = (log_q - half_q + log_k - half_k).exp().view(-1, 8).mean(1) / (q @ k.T / 8**0.5).exp().squeeze()
    # Plain QR is many standard errors away.
    error = draws.std() / len(draws) ** 0.5
    assert abs(draws.mean() - 1) < 4 * error
    assert error < 0.01


def test_directions_are_uniform_whatever_the_sign_of_r():
    # Without the signs of R the diagonal of Q has a mean of −0.3 at width 8.
    w = blocks(20000)
    assert (w.mean(0).abs() < 5 / 20000**0.5).all()
    assert abs(float(w.square().mean()) - 1) < 0.02


def test_features_are_orthogonal_in_blocks_and_the_last_block_may_be_short():
    w = random_features(13, 5, dtype=torch.float64)
    for block in w.split(5):
        products = block @ block.T
        torch.testing.assert_close(products, products.diagonal().diag(), atol=1e-12, rtol=0)
    assert w.shape == (13, 5)


def test_the_error_falls_with_the_features():
    q, k, v = (randn(256, 32, seed=seed) * size for seed, size in enumerate((0.4, 0.4, 1.0)))
    exact = torch.from_numpy(dense(q[None, None], k[None, None], v[None, None]).output)[0, 0]
    errors = []
    for count in (16, 64, 256, 1024):
        draws = [random_features(count, 32, generator=torch.Generator().manual_seed(seed)) for seed in range(8)]
        errors.append(np.mean([performer_attention(q, k, v, w.double()).error(exact) for w in draws]))
    # As 1/√m: four times the features halve it.
    assert all(0.4 < less / more < 0.65 for more, less in pairwise(errors))


# --- the module


def test_the_module_projects_and_splits_heads():
    torch.manual_seed(0)
    module = PerformerAttention(12, num_heads=3, num_features=20, eps=0.0).double()
    x = randn(2, 6, 12)
    q, k, v = (layer(x).view(2, 6, 3, 4).transpose(1, 2) for layer in (module.query, module.key, module.value))
    heads = torch.from_numpy(written_out(q, k, v, module.features, 0.0))
    torch.testing.assert_close(module(x).output, module.output(heads.transpose(1, 2).reshape(2, 6, 12)))
    real = torch.arange(6)[None].expand(2, 6) < 4
    torch.testing.assert_close(module(x, key_padding_mask=~real).output, module(x, x[:, :4]).output)


def test_features_are_redrawn_on_request_only_and_travel_with_the_module(tmp_path):
    module = PerformerAttention(8, num_heads=2, num_features=6, generator=torch.Generator().manual_seed(1))
    x, first = torch.randn(1, 5, 8), module.features.clone()
    module.train()(x)
    assert torch.equal(module.features, first)
    twin = copy.deepcopy(module)
    torch.save(module.state_dict(), tmp_path / "state.pt")
    other = PerformerAttention(8, num_heads=2, num_features=6)
    other.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    for one in (twin, other):
        assert torch.equal(one(x).output, module(x).output)
    module.redraw(torch.Generator().manual_seed(2))
    assert not torch.equal(module.features, first)
    assert torch.equal(twin.features, first)
    module.redraw(torch.Generator().manual_seed(1))
    assert torch.equal(module.features, first)
    assert module.to(torch.bfloat16)(x.bfloat16()).output.dtype == torch.bfloat16


def test_a_result_is_no_tensor():
    result = performer_attention(*(torch.zeros(2, 4) for _ in range(3)), random_features(8, 4))
    assert isinstance(result, Approximate)
    with pytest.raises(TypeError):
        result + torch.zeros(2, 4)
    with pytest.raises(TypeError):
        regard.attention(*(torch.zeros(2, 4) for _ in range(3))) @ result
    with pytest.raises(InputError, match="`expected` must have the shape of the output"):
        result.error(torch.zeros(3, 4))


def test_anything_but_a_batch_of_sequences_is_refused():
    for case in sweep(product([(3, 16), (2, 3, 5, 16), (2, 0, 16), (2, 3, 15)], [False, True])):
        with case as (shape, causal):
            # 4 heads of width 4: heads and widths could be taken for one another without an error.
            module = PerformerAttention(16, num_heads=4, num_features=6, causal=causal)
            with pytest.raises(InputError, match=r"must be \(batch, tokens, 16\) with a token at least.*x\[None\]"):
                module(torch.zeros(shape))


def test_flags_never_make_a_batch_larger():
    for case in sweep([(2, 5), (5,), (1, 4), (1, 1, 5)]):
        with case as flags:
            module, x = PerformerAttention(8, num_heads=2, num_features=6), torch.zeros(1, 5, 8)
            with pytest.raises(InputError, match=r"`key_padding_mask` must be boolean \(1, 5\)"):
                module(x, key_padding_mask=torch.zeros(flags).bool())
            if flags in ((2, 5), (1, 4)):
                with pytest.raises(InputError, match=r"`key_padding_mask` must be .* and broadcast to \(1, 5\)"):
                    performer_attention(x, x, x, random_features(4, 8), key_padding_mask=torch.zeros(flags).bool())


def test_half_types_err_by_the_rounding_of_the_output_alone():
    for case in sweep(product([False, True], [torch.float16, torch.bfloat16])):
        with case as (causal, dtype):
            q, k, v = ((size * randn(1, 1, 2048, 16, seed=seed)).to(dtype) for seed, size in enumerate((0.4, 0.4, 1.0)))
            w = random_features(64, 16, dtype=torch.float64)
            exact = performer_attention(q.double(), k.double(), v.double(), w, causal=causal).output
            rounding = (exact.to(dtype).double() - exact).norm()
            ours = performer_attention(q, k, v, w, causal=causal).output
            assert ours.dtype == dtype
            assert (ours.double() - exact).norm() < 1.05 * rounding
            with torch.autocast("cpu", dtype):
                wide = performer_attention(q.float(), k.float(), v.float(), w, causal=causal).output
            torch.testing.assert_close(wide.double(), exact, atol=1e-5, rtol=0)


def test_refusals_name_the_way_out():
    x, w = torch.zeros(1, 2, 5, 4), random_features(8, 4)
    with pytest.raises(InputError, match="`embed_dim` must be a multiple of `num_heads`, got 10 and 4"):
        PerformerAttention(10, num_heads=4)
    with pytest.raises(InputError, match="causal sums need a query for each key"):
        performer_attention(x[:, :, :3], x, x, w, causal=True)
    with pytest.raises(InputError, match="repeat_interleave"):
        performer_attention(x, x[:, :1], x[:, :1], w)
    with pytest.raises(InputError, match="`key_padding_mask` must be boolean with a flag for each of 5 keys"):
        performer_attention(x, x, x, w, key_padding_mask=torch.ones(1, 1, 5))
    for eps in (-1.0, float("nan"), float("inf")):
        with pytest.raises(InputError, match="`eps` must be 0 or more and finite, got"):
            performer_attention(x, x, x, w, eps=eps)
        with pytest.raises(InputError, match="`eps` must be 0 or more and finite, got"):
            PerformerAttention(8, num_heads=2, eps=eps)
    with pytest.raises(InputError, match=r"one floating-point type, got torch\.float32, torch\.float64 and"):
        performer_attention(x, x.double(), x, w)
    with pytest.raises(InputError, match=r"one floating-point type, got torch\.int64"):
        performer_attention(x.long(), x.long(), x.long(), w)
    with pytest.raises(InputError, match=r"neither of them 0, got q \(4,\).*: write q\[None\]"):
        performer_attention(x[0, 0, 0], x[0, 0], x[0, 0], w)
    with pytest.raises(InputError, match="a sequence for each of 2 in `x`, got 1"):
        PerformerAttention(8, num_heads=2)(torch.zeros(2, 5, 8), torch.zeros(1, 5, 8))
    with pytest.raises(InputError, match=r"draw them with random_features\(num_features, 4\)"):
        performer_attention(x, x, x, random_features(8, 5))
    with pytest.raises(InputError, match="`num_features` must be an integer of at least 1"):
        random_features(0, 4)
