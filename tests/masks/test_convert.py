"""The masks people have become ours, against what PyTorch makes of the original."""

from itertools import product

import pytest
import torch
from torch.nn import functional

import regard
from regard import masks
from regard.errors import InputError
from sweeps import sweep

FLAGS = torch.tensor([[1, 1, 1, 0, 0], [1, 0, 1, 1, 1]])
MATRIX = (torch.rand(2, 3, 5, 5, generator=torch.Generator().manual_seed(0)) < 0.6) | torch.eye(5, dtype=torch.bool)
Q, K, V = (torch.randn(2, 3, 5, 4, generator=torch.Generator().manual_seed(seed)) for seed in range(3))
X = torch.randn(2, 5, 12, generator=torch.Generator().manual_seed(4))


def _multihead(x, **given):
    """What nn.MultiheadAttention makes of a mask, and a function that makes the same of ours."""
    torch.manual_seed(0)
    layer = torch.nn.MultiheadAttention(12, 3, batch_first=True)
    theirs, _ = layer(x, x, x, need_weights=False, **given)
    q, k, v = functional.linear(x, layer.in_proj_weight, layer.in_proj_bias).unflatten(-1, (3, 3, 4)).unbind(2)

    def ours(mask):
        heads = regard.attention(*(y.transpose(1, 2) for y in (q, k, v)), mask=mask)
        return layer.out_proj(heads.transpose(1, 2).flatten(-2))

    return theirs, ours


def test_flags_of_tokens_hide_the_padding():
    for case in sweep(
        product(
            [torch.int64, torch.int32, torch.uint8, torch.float32, torch.float16, torch.bool], [(2, 5), (2, 1, 1, 5)]
        )
    ):
        with case as (dtype, shape):
            ours = regard.attention(Q, K, V, mask=masks.from_attention_mask(FLAGS.to(dtype).reshape(shape)))
            theirs = functional.scaled_dot_product_attention(Q, K, V, attn_mask=FLAGS.bool()[:, None, None])
            torch.testing.assert_close(ours, theirs)


def test_a_matrix_of_ones_hides_its_zeros():
    for case in sweep(
        product(
            [torch.int64, torch.float32, torch.bool],
            [(slice(2), slice(3)), (slice(1), slice(3)), (slice(2), slice(1)), (slice(1), slice(1))],
        )
    ):
        with case as (dtype, part):
            matrix = MATRIX[part]
            ours = regard.attention(Q, K, V, mask=masks.from_attention_mask(matrix.to(dtype)))
            torch.testing.assert_close(ours, functional.scaled_dot_product_attention(Q, K, V, attn_mask=matrix))


def test_one_matrix_for_all_is_written_with_two_more_dimensions():
    ours = regard.attention(Q, K, V, mask=masks.from_attention_mask(MATRIX[0, 0].int()[None, None]))
    torch.testing.assert_close(ours, functional.scaled_dot_product_attention(Q, K, V, attn_mask=MATRIX[0, 0]))


def test_what_is_no_mask_of_zeros_and_ones_is_refused_with_the_way_out():
    cases = [
        (
            torch.tensor([[0.0, -torch.inf]]),
            "got -inf: .* is added to the scores: pass it as `bias=`",
        ),
        (torch.tensor([[0.0, torch.finfo(torch.float32).min]]), "pass it as `bias=`"),
        (torch.tensor([[1, 2]]), "got 2: pass zeros and ones"),
        (torch.tensor([[1.0, torch.nan]]), "got nan: pass zeros and ones"),
        (torch.ones(2, 5, 5), r"must be \(batch, keys\) or .* got \(2, 5, 5\): write mask\[:, None\]"),
        (torch.ones(5), r"got \(5,\)"),
    ]
    for case in sweep(cases):
        with case as (mask, words), pytest.raises(InputError, match=words):
            masks.from_attention_mask(mask)


def test_key_padding_mask_hides_what_multihead_attention_hides():
    hidden = torch.tensor([[False, False, False, True, True], [False, True, False, False, False]])
    theirs, ours = _multihead(X, key_padding_mask=hidden)
    torch.testing.assert_close(ours(masks.from_key_padding_mask(hidden)), theirs)


@pytest.mark.parametrize("mask", [torch.zeros(2, 3), torch.zeros(3, dtype=torch.bool)])
def test_a_key_padding_mask_is_boolean_and_has_a_row_a_sequence(mask):
    with pytest.raises(InputError, match=r"boolean tensor \(batch, keys\), True = padding, got"):
        masks.from_key_padding_mask(mask)


MANY = ~MATRIX.flatten(0, 1)
ATTN_MASKS = {
    "one": ~MATRIX[0, 0],
    "one a head": MANY,
}


@pytest.mark.parametrize("hidden", ATTN_MASKS.values(), ids=ATTN_MASKS.keys())
def test_attn_mask_hides_what_multihead_attention_hides(hidden):
    theirs, ours = _multihead(X, attn_mask=hidden)
    torch.testing.assert_close(ours(masks.from_mha_attn_mask(hidden, num_heads=3)), theirs)


def test_what_is_no_attn_mask_is_refused_with_the_way_out():
    cases = [
        (torch.zeros(5, 5), None, "must be boolean, True = hidden, got torch.float32: .* pass them as `bias=`"),
        (torch.tensor([[0, 1]]), None, "got torch.int64: .* masks.from_attention_mask converts zeros"),
        (MANY, None, r"shape \(6, 5, 5\) is \(batch · num_heads, .*: give `num_heads=`, a divisor of 6, got None"),
        (MANY, 4, "a divisor of 6, got 4"),
        (MANY[0, 0], None, r"or \(batch · num_heads, queries, keys\), got \(5,\)"),
        (MATRIX, 3, r"or \(batch · num_heads, queries, keys\), got \(2, 3, 5, 5\)"),
    ]
    for case in sweep(cases):
        with case as (mask, heads, words), pytest.raises(InputError, match=words):
            masks.from_mha_attn_mask(mask, num_heads=heads)


# And back.


def test_a_written_attn_mask_hides_the_same_in_multihead_attention():
    for case in sweep(
        product(
            [torch.bool, torch.float32],
            [{}, {"batch": 2, "num_heads": 3}],
            [masks.Causal(), masks.Window(left=2, right=1)],
        )
    ):
        with case as (dtype, asked, mask):
            written = masks.to_mha_attn_mask(mask.bind(5, 5), **asked, dtype=dtype)
            assert written.dtype == dtype
            assert written.shape == ((6, 5, 5) if asked else (5, 5))
            theirs, ours = _multihead(X, attn_mask=written)
            torch.testing.assert_close(ours(mask), theirs)


def test_a_written_attn_mask_differs_by_batch_and_head_as_the_mask_does():
    mask = masks.Dense(MATRIX) & masks.from_attention_mask(torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 1, 1]]))
    written = masks.to_mha_attn_mask(mask.bind(5, 5), batch=2, num_heads=3)
    theirs, ours = _multihead(X, attn_mask=written)
    torch.testing.assert_close(ours(mask), theirs)
    assert torch.equal(masks.from_mha_attn_mask(written, num_heads=3).visible, MATRIX)


def test_a_written_key_padding_mask_hides_the_same_in_multihead_attention():
    padding = masks.Padding(FLAGS.bool())
    theirs, ours = _multihead(X, key_padding_mask=masks.to_key_padding_mask(padding))
    torch.testing.assert_close(ours(padding), theirs)


def test_written_zeros_and_ones_hide_the_same_by_hand():
    for case in sweep([torch.int64, torch.float32, torch.bool]):
        with case as dtype:
            mask = masks.Causal() & masks.Padding(FLAGS.bool())
            written = masks.to_dense_mask(mask.bind(5, 5), num_heads=3, dtype=dtype)
            assert written.dtype == dtype
            assert written.shape == (2, 3, 5, 5)
            scores = (Q @ K.transpose(-2, -1) / 2).masked_fill(written == 0, -torch.inf)
            torch.testing.assert_close(regard.attention(Q, K, V, mask=mask), torch.softmax(scores, -1) @ V)


def test_a_written_attention_mask_is_what_a_tokenizer_gave():
    for made in (FLAGS, FLAGS.bool(), FLAGS.float()):
        assert torch.equal(masks.to_attention_mask(masks.Padding(made)), FLAGS.long())
    assert masks.to_attention_mask(masks.Padding(FLAGS), dtype=torch.bool).dtype == torch.bool


def test_a_written_mask_has_the_batch_of_the_mask():
    padding = masks.Padding(FLAGS.bool())
    assert masks.to_dense_mask(padding.bind(1, 5))[:, 0, 0].tolist() == FLAGS.tolist()
    rule = masks.MaskMod(lambda b, h, i, j: b >= j + i * 0)
    assert masks.to_dense_mask(rule.bind(1, 2), batch=2)[:, 0, 0].tolist() == [[1, 0], [1, 1]]


def test_a_mask_that_cannot_be_written_so_says_why():
    cases = [
        (lambda: masks.to_attention_mask(masks.Causal()), "can say Padding alone, got Causal: masks.to_dense_mask"),
        (
            lambda: masks.to_key_padding_mask(masks.Causal()),
            "can say Padding alone, got Causal: masks.to_mha_attn_mask",
        ),
        (
            lambda: masks.to_mha_attn_mask(masks.Dense(MATRIX).bind(5, 5)),
            "give `batch=` and `num_heads=`, got None and None",
        ),
        (lambda: masks.to_mha_attn_mask(masks.Causal().bind(5, 5), batch=2), "got 2 and None"),
        (lambda: masks.to_mha_attn_mask(masks.Dense(MATRIX).bind(5, 5), batch=2, num_heads=4), "of the mask, 3, got 4"),
        (lambda: masks.to_dense_mask(masks.Padding(FLAGS > 0).bind(5, 5), batch=1), "of the mask, 2, got 1"),
        (
            lambda: masks.to_mha_attn_mask(masks.Causal().bind(5, 5), dtype=torch.int64),
            "boolean or float, got torch.int64",
        ),
    ]
    for case in sweep(cases):
        with case as (make, words), pytest.raises(InputError, match=words):
            make()
