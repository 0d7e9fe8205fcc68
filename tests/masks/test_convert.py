"""The masks people have become ours, against what PyTorch makes of the original."""

import pytest
import torch
from torch.nn import functional

import regard
from regard import masks
from regard.errors import InputError

FLAGS = torch.tensor([[1, 1, 1, 0, 0], [1, 0, 1, 1, 1]])
MATRIX = (torch.rand(2, 3, 5, 5, generator=torch.Generator().manual_seed(0)) < 0.6) | torch.eye(5, dtype=torch.bool)
Q, K, V = (torch.randn(2, 3, 5, 4, generator=torch.Generator().manual_seed(seed)) for seed in range(3))


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8, torch.float32, torch.float16, torch.bool])
@pytest.mark.parametrize("shape", [(2, 5), (2, 1, 1, 5)])
def test_flags_of_tokens_hide_the_padding(dtype, shape):
    ours = regard.attention(Q, K, V, mask=masks.from_zeros_and_ones(FLAGS.to(dtype).reshape(shape)))
    theirs = functional.scaled_dot_product_attention(Q, K, V, attn_mask=FLAGS.bool()[:, None, None])
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("dtype", [torch.int64, torch.float32, torch.bool])
@pytest.mark.parametrize(
    "part", [(slice(2), slice(3)), (slice(1), slice(3)), (slice(2), slice(1)), (slice(1), slice(1))]
)
def test_a_matrix_of_ones_hides_its_zeros(dtype, part):
    matrix = MATRIX[part]
    ours = regard.attention(Q, K, V, mask=masks.from_zeros_and_ones(matrix.to(dtype)))
    torch.testing.assert_close(ours, functional.scaled_dot_product_attention(Q, K, V, attn_mask=matrix))


def test_one_matrix_for_all_is_written_with_two_more_dimensions():
    ours = regard.attention(Q, K, V, mask=masks.from_zeros_and_ones(MATRIX[0, 0].int()[None, None]))
    torch.testing.assert_close(ours, functional.scaled_dot_product_attention(Q, K, V, attn_mask=MATRIX[0, 0]))


@pytest.mark.parametrize(
    ("mask", "words"),
    [
        (
            torch.tensor([[0.0, -torch.inf]]),
            "got -inf: .* is added to the scores: pass it as `bias=`",
        ),
        (torch.tensor([[0.0, torch.finfo(torch.float32).min]]), "pass it as `bias=`"),
        (torch.tensor([[1, 2]]), "got 2: pass zeros and ones"),
        (torch.tensor([[1.0, torch.nan]]), "got nan: pass zeros and ones"),
        (torch.ones(2, 5, 5), r"must be \(batch, keys\) or .* got \(2, 5, 5\): write mask\[:, None\]"),
        (torch.ones(5), r"got \(5,\)"),
    ],
)
def test_what_is_no_mask_of_zeros_and_ones_is_refused_with_the_way_out(mask, words):
    with pytest.raises(InputError, match=words):
        masks.from_zeros_and_ones(mask)


def test_key_padding_mask_hides_what_multihead_attention_hides():
    torch.manual_seed(0)
    layer = torch.nn.MultiheadAttention(12, 3, batch_first=True)
    x = torch.randn(2, 5, 12)
    hidden = torch.tensor([[False, False, False, True, True], [False, True, False, False, False]])
    theirs, _ = layer(x, x, x, key_padding_mask=hidden, need_weights=False)
    q, k, v = functional.linear(x, layer.in_proj_weight, layer.in_proj_bias).unflatten(-1, (3, 3, 4)).unbind(2)
    ours = regard.attention(*(y.transpose(1, 2) for y in (q, k, v)), mask=masks.from_key_padding_mask(hidden))
    torch.testing.assert_close(layer.out_proj(ours.transpose(1, 2).flatten(-2)), theirs)


@pytest.mark.parametrize("mask", [torch.zeros(2, 3), torch.zeros(3, dtype=torch.bool)])
def test_a_key_padding_mask_is_boolean_and_has_a_row_a_sequence(mask):
    with pytest.raises(InputError, match=r"boolean tensor \(batch, keys\), True = padding, got"):
        masks.from_key_padding_mask(mask)
