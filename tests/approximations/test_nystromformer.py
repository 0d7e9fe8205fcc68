"""Nyströmformer: transformers' module, the formula written out, exactness with a landmark a token, padding."""

import copy
from itertools import pairwise, product

import numpy as np
import pytest
import torch

from oracles import dense, f64
from regard.approximations import Approximate, NystromformerAttention, nystromformer_attention
from regard.errors import InputError
from regard.masks import Causal
from sweeps import sweep


def randn(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def made(**options):
    torch.manual_seed(0)
    return NystromformerAttention(12, 4, **{"num_landmarks": 5, **options}).double()


def theirs_and_ours(n, kernel=None):
    """Transformers' self-attention and ours, with the same random weights."""
    modeling = pytest.importorskip("transformers.models.nystromformer.modeling_nystromformer")
    torch.manual_seed(0)
    config = modeling.NystromformerConfig(
        hidden_size=12, num_attention_heads=4, segment_means_seq_len=n, num_landmarks=5, conv_kernel_size=kernel or 3
    )
    theirs = modeling.NystromformerSelfAttention(config).double().eval()
    if kernel is None:  # which their config refuses and their module knows
        theirs.conv_kernel_size = None
        del theirs.conv
    ours = NystromformerAttention(12, 4, num_landmarks=5, conv_kernel_size=kernel).double()
    missing, unexpected = ours.load_state_dict(theirs.state_dict(), strict=False)
    assert (sorted(missing), unexpected) == (["output.bias", "output.weight"], [])
    with torch.no_grad():
        ours.output.weight.copy_(torch.eye(12))
        ours.output.bias.zero_()
    return theirs, ours


def test_it_is_the_module_of_transformers():
    for case in sweep(product([5, 20, 60], [None, 3, 65])):
        with case as (n, kernel):
            theirs, ours = theirs_and_ours(n, kernel)
            x = randn(3, n, 12).requires_grad_()
            expected, result = theirs(x)[0], ours(x)
            torch.testing.assert_close(result.output, expected, atol=1e-10, rtol=0)
            assert ("exact" in result.method) == (n == 5)
            leaves = [x, *theirs.parameters()]
            cotangent = randn(3, n, 12, seed=1)
            wanted = torch.autograd.grad(expected, leaves, cotangent)
            named = dict(ours.named_parameters())
            given = torch.autograd.grad(
                result.output, [x, *(named[name] for name, _ in theirs.named_parameters())], cotangent
            )
            for mine, their in zip(given, wanted, strict=True):
                torch.testing.assert_close(mine, their, atol=1e-8, rtol=1e-8)


def test_the_coefficient_of_each_matrix_is_the_other_option_of_transformers():
    theirs, ours = theirs_and_ours(20)
    theirs.init_option = "exact"  # from a config transformers 5 fails at config["inv_init_coeff_option"]
    x = randn(3, 20, 12)
    assert (ours(x).output - theirs(x)[0]).abs().max() > 1e-6
    ours.inv_coeff_init_option = True
    torch.testing.assert_close(ours(x).output, theirs(x)[0], atol=1e-10, rtol=0)


def written_out(q, k, v, edges):
    """Three softmaxes and numpy's pseudo-inverse, segments being given by their edges."""
    q, k, v = f64(q), f64(k), f64(v)
    means = [np.stack([x[a:b].mean(0) for a, b in pairwise(edges)]) for x in (q, k)]

    def softmax(a, b):
        e = np.exp(a @ b.T / q.shape[1] ** 0.5)
        return e / e.sum(1, keepdims=True)

    return softmax(q, means[1]) @ np.linalg.pinv(softmax(*means)) @ softmax(means[0], k) @ v


def test_it_is_the_formula_and_the_last_segments_are_longer():
    for case in sweep([[0, 2, 4, 6], [0, 2, 4, 7], [0, 2, 5, 8], [0, 1, 2, 4]]):
        with case as edges:
            tokens = edges[-1]
            q, k, v = randn(tokens, 4), randn(tokens, 4, seed=1), randn(tokens, 3, seed=2)
            ours = nystromformer_attention(q, k, v, 3, pinv_iterations=40).output
            np.testing.assert_allclose(f64(ours), written_out(q, k, v, edges), atol=1e-9)
            shown = torch.zeros(tokens, dtype=torch.bool)  # nobody is padding: the other path
            same = nystromformer_attention(q, k, v, 3, pinv_iterations=40, key_padding_mask=shown).output
            torch.testing.assert_close(same, ours, atol=1e-11, rtol=0)


def test_with_a_landmark_for_each_token_it_is_exact():
    for case in sweep([9, 10, 64]):
        with case as landmarks:
            q, k, v = randn(2, 3, 9, 4), randn(2, 3, 9, 4, seed=1), randn(2, 3, 9, 5, seed=2)
            result = nystromformer_attention(q, k, v, landmarks)
            assert result.error(torch.from_numpy(dense(q, k, v).output)) < 1e-14
            assert isinstance(result, Approximate)


def test_more_landmarks_are_nearer_where_tokens_resemble_their_neighbours():
    smooth = randn(3, 1, 1, 300, 16).unfold(3, 45, 1).sum(-1) / 45**0.5
    exact = torch.from_numpy(dense(*smooth).output)
    errors = [nystromformer_attention(*smooth, count).error(exact) for count in (4, 16, 64)]
    assert errors[0] > 1.5 * errors[1] > 1.5**2 * errors[2]


def test_padding_is_as_if_it_were_not_there():
    for case in sweep(product(["right", "left", "scattered"], [None, 3], [14, 11, 7, 5, 4, 1])):
        with case as (side, kernel, length):
            if side == "scattered" and kernel:
                continue  # a convolution meets the neighbours in the row
            module, x = made(conv_kernel_size=kernel, inv_coeff_init_option=True), randn(2, 14, 12)
            padding = torch.zeros(2, 14, dtype=torch.bool)
            order = {"right": torch.arange(14), "left": torch.arange(13, -1, -1), "scattered": torch.randperm(14)}[side]
            padding[1, order[length:]] = True
            x[padding] = 1e4
            output = module(x, key_padding_mask=padding).output
            torch.testing.assert_close(output[0], module(x[:1]).output[0], atol=1e-10, rtol=0)
            alone = module(x[1:, ~padding[1]]).output[0]
            torch.testing.assert_close(output[1, ~padding[1]], alone, atol=1e-10, rtol=0)


def test_a_sequence_without_a_pseudo_inverse_changes_nothing_in_its_neighbours():
    for case in sweep([0, 1, 4, 5]):
        with case as length:
            q, k, v = (4 * randn(2, 14, 4, seed=seed) for seed in range(3))
            q[1], k[1] = 20 * q[1], -20 * q[1]  # a greater column sum
            padding = torch.arange(14) >= torch.tensor([[14], [length]])
            alone = nystromformer_attention(q[0], k[0], v[0], 5).output
            both = nystromformer_attention(q, k, v, 5, key_padding_mask=padding).output
            torch.testing.assert_close(both[0], alone, atol=1e-11, rtol=0)


def test_nothing_but_padding_gives_zero_and_finite_gradients():
    q, k, v = (randn(2, 3, 9, 4, seed=seed).requires_grad_() for seed in range(3))
    padding = torch.tensor([[[True] * 9], [[False] * 9]])
    output = nystromformer_attention(q, k, v, 4, key_padding_mask=padding).output
    assert (output[0] == 0).all()
    assert (output[1] != 0).all()
    output.sum().backward()
    assert all(one.grad.isfinite().all() and (one.grad[0] == 0).all() for one in (q, k, v))
    module, x = made(conv_kernel_size=3), randn(2, 9, 12)
    output = module(x, key_padding_mask=torch.tensor([[True] * 9, [False] * 9])).output
    assert torch.equal(output[0], module.output.bias.expand(9, 12))


@pytest.mark.parametrize("padded", [False, True])
def test_gradients_are_those_of_small_steps(padded):
    inputs = [randn(2, 7, 3, seed=seed).requires_grad_() for seed in range(3)]
    padding = torch.arange(7) >= torch.tensor([[7], [5]]) if padded else None
    assert torch.autograd.gradcheck(
        lambda *x: nystromformer_attention(*x, 3, key_padding_mask=padding).output, inputs, fast_mode=True
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_types_and_autocast_are_computed_in_float32(dtype):
    q, k, v = (randn(2, 20, 8, seed=seed, dtype=torch.float32).to(dtype) for seed in range(3))
    wide = nystromformer_attention(q.float(), k.float(), v.float(), 4).output
    assert torch.equal(nystromformer_attention(q, k, v, 4).output, wide.to(dtype))
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(nystromformer_attention(q.float(), k.float(), v.float(), 4).output, wide)


def test_it_survives_copies_files_and_dtypes(tmp_path):
    module, other, x = made(conv_kernel_size=3), made(conv_kernel_size=3), randn(2, 14, 12)
    twin = copy.deepcopy(module)
    with torch.no_grad():
        for one in other.parameters():
            one.zero_()
    torch.save(module.state_dict(), tmp_path / "state.pt")
    other.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    for one in (twin, other):
        assert torch.equal(one(x).output, module(x).output)
    assert module.to(torch.bfloat16)(x.bfloat16()).output.dtype == torch.bfloat16


def test_refusals_name_the_way_out():
    module, x = made(), randn(1, 9, 12)
    with pytest.raises(
        InputError, match=r"no mask over pairs, causal or other, got Causal.*PerformerAttention\(causal"
    ):
        module(x, mask=Causal())
    with pytest.raises(InputError, match=r"`x` must be \(batch, tokens, 12\)"):
        module(x[0])
    with pytest.raises(InputError, match=r"`key_padding_mask` must be boolean .* write attention_mask == 0"):
        module(x, key_padding_mask=torch.zeros(1, 9))
    with pytest.raises(InputError, match=r"self-attention; for a source of another length use performer_attention"):
        nystromformer_attention(x, x[:, :5], x[:, :5], 2)
    with pytest.raises(InputError, match=r"one floating-point type, got torch\.float64, torch\.float32"):
        nystromformer_attention(x, x.float(), x, 2)
    with pytest.raises(InputError, match=r"must be \(..., tokens, width\), neither of them 0"):
        nystromformer_attention(x[:, :0], x[:, :0], x[:, :0], 2)
    with pytest.raises(InputError, match="`num_landmarks` must be an integer of at least 1, got 0"):
        nystromformer_attention(x, x, x, 0)
    with pytest.raises(InputError, match="`pinv_iterations` must be an integer of at least 1, got True"):
        made(pinv_iterations=True)
    with pytest.raises(InputError, match="`conv_kernel_size` must be odd, so that a token is in the middle, got 64"):
        made(conv_kernel_size=64)
    with pytest.raises(InputError, match="got 10 and 4"):
        NystromformerAttention(10, 4)
