"""Batches without padding, against what transformers hands to flash-attention and what attention makes of them."""

from itertools import pairwise

import pytest
import torch

import regard
from regard import masks
from regard.errors import InputError
from sweeps import sweep

REAL = torch.tensor([[1, 1, 1, 0, 0], [0, 1, 0, 1, 1], [0, 0, 0, 0, 0], [1, 1, 1, 1, 1]]).bool()
PADDING = masks.Padding(REAL)


def test_unpadding_is_what_transformers_gives_to_flash_attention():
    theirs = pytest.importorskip("transformers.modeling_flash_attention_utils")._get_unpad_data(REAL.int())
    ours = masks.unpad(PADDING)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other)  # dtypes too


def test_edges_of_sequences_are_cumulated_lengths():
    edges = masks.cu_seqlens_from_lengths(torch.tensor([3, 0, 2]))
    assert edges.tolist() == [0, 3, 3, 5]
    assert edges.dtype == torch.int32


def test_packing_and_unpacking_give_back_all_but_the_padding():
    for case in sweep([(), (4,), (2, 3)]):
        with case as rest:
            x = torch.randn(4, 5, *rest)
            packed = masks.pack(x, PADDING)
            assert packed.shape == (int(REAL.sum()), *rest)
            assert torch.equal(packed, x.flatten(0, 1)[masks.unpad(PADDING).indices])
            back = masks.unpack(packed, PADDING)
            assert torch.equal(back[REAL], x[REAL])
            assert not back[~REAL].any()


def test_attention_over_packed_sequences_is_that_over_padded_ones():
    x = torch.randn(4, 5, 8, generator=torch.Generator().manual_seed(0))
    packed, edges = masks.pack(x, PADDING), masks.unpad(PADDING).cu_seqlens.tolist()
    pieces = [packed[a:b] for a, b in pairwise(edges)]
    alone = torch.cat([regard.attention(piece, piece, piece) for piece in pieces if len(piece)])
    padded = regard.attention(x[:, None], x[:, None], x[:, None], mask=PADDING)[:, 0]
    torch.testing.assert_close(masks.unpack(alone, PADDING)[REAL], padded[REAL])


def test_gradients_pass_through_packing():
    x = torch.randn(4, 5, 2, dtype=torch.float64, requires_grad=True)
    factor = torch.arange(40.0, dtype=torch.float64).view(4, 5, 2)
    (masks.unpack(masks.pack(x, PADDING), PADDING) * factor).sum().backward()
    assert torch.equal(x.grad, factor * REAL[..., None])


def test_what_does_not_fit_is_refused():
    cases = [
        (lambda: masks.cu_seqlens_from_lengths(torch.tensor([2, -1])), r"integers of 0 or more, .* got .*-1"),
        (lambda: masks.cu_seqlens_from_lengths(torch.tensor([2.0])), "integers of 0 or more"),
        (lambda: masks.cu_seqlens_from_lengths(torch.tensor([[2]])), "one for each sequence"),
        (lambda: masks.cu_seqlens_from_lengths(torch.tensor([2**30, 2**30])), "got 2147483648 tokens: split"),
        (lambda: masks.pack(torch.zeros(4, 6), PADDING), r"of the padding, \(4, 5\), got \(4, 6\)"),
        (lambda: masks.unpack(torch.zeros(3), PADDING), "hold the 11 tokens that the padding leaves, got 3"),
    ]
    for case in sweep(cases):
        with case as (make, words), pytest.raises(InputError, match=words):
            make()


@pytest.mark.parametrize("shape", [(1, 3), (2, 1), (2, 3)])
def test_a_function_that_reads_sequences_or_heads_is_written_with_their_numbers_given(shape):
    """It declares none: without them, the matrix of the first sequence and head is that of no other."""
    table = torch.rand(*shape, 4, 4, generator=torch.Generator().manual_seed(0)) < 0.5
    own = masks.MaskMod(lambda b, h, i, j: table[b % shape[0], h % shape[1], i, j])
    plain = masks.MaskMod(lambda b, h, i, j: table[b if shape[0] > 1 else 0, h if shape[1] > 1 else 0, i, j])
    exact = masks.MaskMod(lambda b, h, i, j: table[b, h, i, j])
    for mask in (own, plain, exact):
        for write in (masks.to_dense_mask, masks.to_mha_attn_mask):
            with pytest.raises(InputError, match=r"batch|num_heads"):
                write(mask.bind(4, 4))
    found = masks.to_dense_mask(exact.bind(4, 4), batch=shape[0], num_heads=shape[1])
    assert torch.equal(found.bool(), table)
