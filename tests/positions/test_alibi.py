"""ALiBi against the slopes in the paper and the biases of Bloom and MPT."""

import pytest
import torch

from regard import attention, masks
from regard.errors import InputError
from regard.positions import ALiBi, alibi_slopes
from sweeps import sweep


def test_slopes_written_out():
    cases = [
        (1, [2**-8]),
        (3, [2**-4, 2**-8, 2**-2]),
        (6, [0.25, 0.0625, 0.015625, 0.00390625, 0.5, 0.125]),
        (8, [2**-1, 2**-2, 2**-3, 2**-4, 2**-5, 2**-6, 2**-7, 2**-8]),
    ]
    for case in sweep(cases):
        with case as (heads, slopes):
            assert alibi_slopes(heads).tolist() == slopes


def test_slopes_are_those_of_press():
    for case in sweep(range(1, 41)):
        with case as heads:

            def press(n):  # the authors' get_slopes, in words of the paper: a geometric sequence from its own ratio
                if n & (n - 1) == 0:
                    ratio = 2 ** (-8 / n)
                    return [ratio**m for m in range(1, n + 1)]
                power = 1 << (n.bit_length() - 1)
                return press(power) + press(2 * power)[::2][: n - power]

            torch.testing.assert_close(alibi_slopes(heads), torch.tensor(press(heads)), rtol=2e-7, atol=0)


def test_it_is_blooms_up_to_a_constant_in_each_row():
    for case in sweep([2, 5, 8, 12, 16, 71]):
        with case as heads:
            bloom = pytest.importorskip("transformers.models.bloom.modeling_bloom")
            theirs = bloom.build_alibi_tensor(torch.ones(1, 20, dtype=torch.long), heads, torch.float32)[:, 0]
            at = torch.arange(20)
            ours = ALiBi(heads).tile(slice(0, 1), slice(0, heads), at, at)[0]
            torch.testing.assert_close(ours - ours[:, :, :1], theirs[:, None].expand(-1, 20, -1), rtol=1e-6, atol=2e-6)


def test_it_is_mpts_for_the_last_query():
    for case in sweep([2, 5, 8, 12, 16, 71]):
        with case as heads:
            mpt = pytest.importorskip("transformers.models.mpt.modeling_mpt")
            theirs = mpt.build_mpt_alibi_tensor(heads, 20)
            ours = ALiBi(heads).tile(slice(0, 1), slice(0, heads), torch.tensor([19]), torch.arange(20))[0]
            torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=0)


def test_blooms_and_ours_give_the_same_weights():
    torch.manual_seed(0)
    bloom = pytest.importorskip("transformers.models.bloom.modeling_bloom")
    q, k, v = (torch.randn(2, 6, 11, 8) for _ in range(3))
    theirs = bloom.build_alibi_tensor(torch.ones(2, 11, dtype=torch.long), 6, torch.float32).view(2, 6, 1, 11)
    ours = attention(q, k, v, bias=ALiBi(6), mask=masks.Causal())
    torch.testing.assert_close(ours, attention(q, k, v, bias=theirs, mask=masks.Causal()))


def test_queries_are_the_last_positions():
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 4, 9, 8) for _ in range(3))
    whole = attention(q, k, v, bias=ALiBi(4, bidirectional=True))
    torch.testing.assert_close(attention(q[:, :, 6:], k, v, bias=ALiBi(4, bidirectional=True)), whole[:, :, 6:])


def test_later_keys_go_on_along_the_line_or_fall_off_again():
    at = torch.tensor([-2, -1, 0, 1, 2])
    assert ALiBi(1, torch.tensor([0.5])).diagonals(at).tolist() == [[1.0, 0.5, 0.0, -0.5, -1.0]]
    assert ALiBi(1, torch.tensor([0.5]), bidirectional=True).diagonals(at).tolist() == [[-1.0, -0.5, 0.0, -0.5, -1.0]]


def test_learned_slopes_learn_through_attention():
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 2, 5, 4, dtype=torch.float64) for _ in range(3))
    slopes = torch.tensor([0.3, 0.1], dtype=torch.float64, requires_grad=True)
    far = torch.arange(5.0, dtype=torch.float64)[:, None] - torch.arange(5)
    w = torch.softmax((q @ k.mT / 2 - slopes[:, None, None] * far).masked_fill(far < 0, -torch.inf), -1)
    (theirs,) = torch.autograd.grad((w @ v).square().sum(), slopes)
    (ours,) = torch.autograd.grad(attention(q, k, v, bias=ALiBi(2, slopes), mask=masks.Causal()).square().sum(), slopes)
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)


def test_narrow_slopes_do_not_round_distances():
    slopes = torch.tensor([1.0], dtype=torch.bfloat16)
    assert ALiBi(1, slopes).diagonals(torch.tensor([257])).tolist() == [[-257.0]]
    at = [torch.tensor(x) for x in (0, 0, 257, 0)]
    assert ALiBi(1, slopes)(*at).item() == -257.0


def test_slopes_are_made_where_the_distances_are():
    assert ALiBi(6).diagonals(torch.arange(3, device="meta")).device.type == "meta"
    assert alibi_slopes(6, device="meta").device.type == "meta"


def test_a_wrong_bias_says_what_is_right():
    cases = [
        (lambda: ALiBi(0), "`num_heads` counts heads and must be an integer of at least 1, got 0"),
        (lambda: ALiBi(2.0), "got 2.0"),
        (lambda: alibi_slopes(0), "`num_heads` counts heads"),
        (lambda: ALiBi(2, torch.ones(3)), r"one slope for each of 2 heads, got shape \(3,\)"),
        (
            lambda: ALiBi(2, torch.ones(2, dtype=torch.long)),
            "floating-point tensor with one slope a head, got torch.int64",
        ),
        (lambda: ALiBi(2, [1.0, 2.0]), "got list"),
        (lambda: ALiBi(2, bidirectional="left"), r"`bidirectional` must be True \(encoders\) or False .* got 'left'"),
    ]
    for case in sweep(cases):
        with case as (make, words), pytest.raises(InputError, match=words):
            make()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_slopes_are_not_rounded_to_a_narrow_default_dtype(dtype):
    torch.set_default_dtype(dtype)
    try:
        slopes = alibi_slopes(12)
    finally:
        torch.set_default_dtype(torch.float32)
    assert slopes.dtype == torch.float32
    expected = [2 ** (-8 * (h + 1) / 8) for h in range(8)] + [2 ** (-8 * (2 * h + 1) / 16) for h in range(4)]
    torch.testing.assert_close(slopes, torch.tensor(expected))
