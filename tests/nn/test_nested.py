"""Nested tensors: modules take jagged ones as attention does, and refuse strided ones."""

import pytest
import torch

from regard import nn
from regard.errors import InputError
from sweeps import sweep

LENGTHS = (3, 5)
ROWS = [torch.randn(length, 16, generator=torch.Generator().manual_seed(length)) for length in LENGTHS]


def block():
    return nn.EncoderBlock(16, 4, 32)


JAGGED = {  # modules that take jagged tensors, and how many
    "MultiHeadAttention": (lambda: nn.MultiHeadAttention(16, 4), 1),
    "memory": (lambda: nn.MultiHeadAttention(16, 4), 2),
    "SlidingWindowAttention": (lambda: nn.SlidingWindowAttention(16, 4, 2), 1),
    "LongformerAttention": (lambda: nn.LongformerAttention(16, 4, 2), 1),
    "AxialAttention": (lambda: nn.AxialAttention(16, 4, num_axes=1), 1),
    "AdditiveAttention": (lambda: nn.AdditiveAttention(16), 2),
    "BilinearAttention": (lambda: nn.BilinearAttention(16), 2),
    "EncoderBlock": (block, 1),
    "DecoderBlock": (lambda: nn.DecoderBlock(16, 4, 32), 2),
    "Encoder": (lambda: nn.Encoder([block()]), 1),
    "Decoder": (lambda: nn.Decoder([nn.DecoderBlock(16, 4, 32)]), 2),
    "EncoderDecoder": (
        lambda: nn.EncoderDecoder(nn.Encoder([block()]), nn.Decoder([nn.DecoderBlock(16, 4, 32)])),
        2,
    ),
    "FeedForward": (lambda: nn.FeedForward(16, 8), 1),
}
PLAIN = {
    "NeighborhoodAttention": (lambda: nn.NeighborhoodAttention(16, 4, 3), 1),
    "AttentionPooling": (lambda: nn.AttentionPooling(16), 1),
    "LocalAttention": (lambda: nn.LocalAttention(16, 2), 2),
    "PositionalEncoding": (lambda: nn.PositionalEncoding(16), 1),
    "LearnedPositions": (lambda: nn.LearnedPositions(16, 9), 1),
    "Elman": (lambda: nn.Elman(16, 8), 1),
}


def nested(layout):
    return torch.nested.nested_tensor(ROWS, layout=layout)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_strided_ones_are_refused_with_the_layout_to_take():
    for case in sweep(JAGGED):
        with case as name:
            make, count = JAGGED[name]
            with pytest.raises(InputError, match=r"must be jagged .* layout torch\.strided: .* layout=torch\.jagged"):
                make()(*[nested(torch.strided)] * count)
    with pytest.raises(InputError, match="`key` must be jagged"):
        nn.MultiHeadAttention(16, 4)(torch.randn(2, 3, 16), key=nested(torch.strided))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_modules_that_need_one_length_say_how_to_pad():
    for case in sweep(PLAIN):
        with case as name:
            make, count = PLAIN[name]
            for layout in (torch.strided, torch.jagged):
                with pytest.raises(InputError, match=rf"in {name}, got a nested one: pad it with .*to_padded_tensor"):
                    make()(*[nested(layout)] * count)
    with pytest.raises(InputError, match="`memory` must be a plain tensor in AttentionDecoderCell"):
        nn.AttentionDecoderCell(16, 8, 16)(torch.randn(2, 16), nested(torch.jagged))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_jagged_ones_are_computed_one_by_one():
    for case in sweep(JAGGED):
        with case as name:
            make, count = JAGGED[name]
            torch.manual_seed(0)
            module = make()
            for output, row in zip(module(*[nested(torch.jagged)] * count).unbind(), ROWS, strict=True):
                torch.testing.assert_close(output, module(*[row[None]] * count)[0])
