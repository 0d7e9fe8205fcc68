"""Encoder, Decoder and EncoderDecoder compute what PyTorch's TransformerEncoder, TransformerDecoder, Transformer do."""

from itertools import product

import pytest
import torch
from torch import nn as torch_nn

from regard import masks
from regard.errors import InputError
from regard.nn import Decoder, DecoderBlock, Encoder, EncoderBlock, EncoderDecoder, PositionalEncoding
from sweeps import sweep

N, M, W = 5, 7, 8
PADDING = torch.arange(N)[None] >= torch.tensor([[N], [3]])
MEMORY_PADDING = torch.arange(M)[None] >= torch.tensor([[4], [M]])
LATER = torch.ones(N, N, dtype=torch.bool).triu(1)


def randn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


X, MEMORY = randn(2, N, W), randn(2, M, W, seed=1)


def shaken(module):
    module = module.double().eval()
    for number, one in enumerate(module.parameters()):
        one.data.copy_(0.4 * randn(*one.shape, seed=number))
    return module


def encoder(norm_first, batch_first=True, activation="relu", bias=True):
    layer = torch_nn.TransformerEncoderLayer(
        W, 2, 16, 0.1, activation, batch_first=batch_first, norm_first=norm_first, bias=bias
    )
    norm = torch_nn.LayerNorm(W) if norm_first else None
    return shaken(torch_nn.TransformerEncoder(layer, 2, norm, enable_nested_tensor=False))


def decoder(norm_first, activation="relu"):
    layer = torch_nn.TransformerDecoderLayer(W, 2, 16, 0.1, activation, batch_first=True, norm_first=norm_first)
    return shaken(torch_nn.TransformerDecoder(layer, 2, torch_nn.LayerNorm(W) if norm_first else None))


SAID = {
    "nothing": ({}, {}),
    "padding": ({"src_key_padding_mask": PADDING}, {"key_padding_mask": PADDING}),
    "causal": ({"mask": LATER, "is_causal": True}, {"is_causal": True}),
    "both": ({"mask": LATER, "src_key_padding_mask": PADDING}, {"mask": masks.Causal(), "key_padding_mask": PADDING}),
}


def test_an_encoder_is_pytorch_s():
    for case in sweep(product([False, True], SAID)):
        with case as (norm_first, said):
            theirs_said, ours_said = SAID[said]
            theirs = encoder(
                norm_first, activation="gelu", bias=not norm_first
            ).train()  # whose fast path would add zeros
            for one in theirs.modules():
                if isinstance(one, torch_nn.Dropout | torch_nn.MultiheadAttention):
                    setattr(one, "p" if isinstance(one, torch_nn.Dropout) else "dropout", 0.0)
            ours = Encoder.from_torch(theirs)
            expected = theirs(X, **theirs_said)
            torch.testing.assert_close(ours(X, **ours_said), expected)
            output, weights = ours(X, need_weights=True, **ours_said)
            torch.testing.assert_close(output, expected)
            assert [tuple(one.shape) for one in weights] == [(2, 2, N, N)] * 2
            torch.testing.assert_close(ours.to_torch()(X, **theirs_said), expected)


def test_an_encoder_with_the_length_first_is_turned_round():
    theirs = encoder(False, batch_first=False)
    torch.testing.assert_close(Encoder.from_torch(theirs)(X), theirs(X.transpose(0, 1)).transpose(0, 1))


DECODED = {
    "nothing": ({}, {}),
    "causal": ({"tgt_mask": LATER, "tgt_is_causal": True}, {"is_causal": True}),
    "all": (
        {"tgt_mask": LATER, "tgt_key_padding_mask": PADDING, "memory_key_padding_mask": MEMORY_PADDING},
        {"mask": masks.Causal(), "key_padding_mask": PADDING, "memory_key_padding_mask": MEMORY_PADDING},
    ),
}


def test_a_decoder_is_pytorch_s():
    for case in sweep(product([False, True], DECODED)):
        with case as (norm_first, said):
            theirs_said, ours_said = DECODED[said]
            theirs = decoder(norm_first)
            ours, expected = Decoder.from_torch(theirs), theirs(X, MEMORY, **theirs_said)
            torch.testing.assert_close(ours(X, MEMORY, **ours_said), expected)
            output, own, cross = ours(X, MEMORY, need_weights=True, **ours_said)
            torch.testing.assert_close(output, expected)
            assert [tuple(one.shape) for one in (*own, *cross)] == [(2, 2, N, N)] * 2 + [(2, 2, N, M)] * 2
            torch.testing.assert_close(ours.to_torch()(X, MEMORY, **theirs_said), expected)


@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True")  # as nn.Transformer makes it
@pytest.mark.parametrize("norm_first", [False, True])
def test_both_are_pytorch_s_transformer(norm_first):
    theirs = shaken(
        torch_nn.Transformer(W, 2, 2, 1, 16, 0.1, batch_first=True, norm_first=norm_first, activation="gelu")
    )
    theirs.encoder.use_nested_tensor = False
    padding = {"src_key_padding_mask": MEMORY_PADDING, "tgt_key_padding_mask": PADDING}
    padding["memory_key_padding_mask"] = MEMORY_PADDING
    expected = theirs(MEMORY, X, tgt_mask=LATER, tgt_is_causal=True, **padding)
    ours = EncoderDecoder.from_torch(theirs)
    real = ~PADDING  # rows of padding are no one's business
    torch.testing.assert_close(ours(MEMORY, X, tgt_is_causal=True, **padding)[real], expected[real])
    again = ours.to_torch()
    torch.testing.assert_close(again(MEMORY, X, tgt_mask=LATER, tgt_is_causal=True, **padding)[real], expected[real])
    assert again.state_dict().keys() == theirs.state_dict().keys()


def test_refusals_name_the_way_out():
    cases = [
        (lambda: Encoder([]), "a list of blocks, one at least, got list"),
        (
            lambda: Encoder(EncoderBlock(W, 2, 16)),
            r"got EncoderBlock: write \[EncoderBlock\(...\) for _ in range\(6\)\]",
        ),
        (lambda: Encoder(EncoderBlock(W, 2, 16), num_layers=6), "no argument `num_layers`: give the blocks"),
        (lambda: Encoder.from_torch(decoder(False)), "must be an nn.TransformerEncoder, got TransformerDecoder"),
        (
            lambda: EncoderBlock(W, 2, 16, norm="rms").to_torch(),
            "nn.TransformerEncoderLayer has no `norm` as given here",
        ),
        (lambda: EncoderBlock(W, 2, 16, activation="swiglu").to_torch(), "has no `activation` as given here"),
        (lambda: DecoderBlock(W, 2, 16, memory_dim=6).to_torch(), "has no `memory_dim` as given here"),
        (lambda: DecoderBlock(W, 2, 16).to_torch(), "has no `mask` as given here: .* pass the mask at each call"),
        (lambda: Encoder([torch_nn.Linear(W, W)]).to_torch(), "`layers` must be an EncoderBlock, got Linear"),
    ]
    for case in sweep(cases):
        with case as (call, words), pytest.raises(InputError, match=words):
            call()


def test_a_block_goes_to_pytorch_and_back():
    block = EncoderBlock(W, 2, 16, dropout=0.25, norm_first=True, layer_norm_eps=1e-3, bias=False).double().eval()
    layer = block.to_torch()
    torch.testing.assert_close(layer(X), block(X))
    again = EncoderBlock.from_torch(layer)
    torch.testing.assert_close(again.state_dict(), block.state_dict())
    assert (again.dropout, again.norm_first, again.norms[0].eps) == (0.25, True, 1e-3)


def test_the_positions_of_a_module_of_meta_are_computed_when_it_gets_memory():
    module = PositionalEncoding(5, max_len=9)
    with torch.device("meta"):
        other = PositionalEncoding(5, max_len=9)
    assert other.to(torch.float64).table.is_meta
    other.to_empty(device="cpu")
    assert other.table.dtype == torch.float64
    torch.testing.assert_close(other.table, module.table.double())
    assert other.to(torch.float16).to(torch.float32).table.eq(module.table.half().float()).all()
