"""Encoder and decoder blocks against PyTorch's layers with the same tensors, and their own formula."""

from itertools import product

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import regard
from regard import masks, positions
from regard.errors import InputError
from regard.nn import DecoderBlock, EncoderBlock, FeedForward, MultiHeadAttention, SlidingWindowAttention
from sweeps import sweep

B, N, M, W = 2, 6, 9, 16


def randn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def close(ours, theirs, atol=1e-6):
    torch.testing.assert_close(ours, theirs, atol=atol, rtol=0)


def shaken(layer):
    """PyTorch begins with zeros and ones in biases and norms, which would hide what was not copied."""
    torch.manual_seed(3)
    for name, one in layer.named_parameters():
        if one.ndim == 1:
            nn.init.normal_(one, mean=float("norm" in name), std=0.3)
    return layer


def added(flags):
    return torch.zeros(flags.shape).masked_fill(flags, float("-inf"))


PADDING = torch.arange(N) >= torch.tensor([[N], [4]])
MEMORY_PADDING = torch.arange(M) >= torch.tensor([[5], [M]])
CAUSAL = torch.ones(N, N).triu(1).bool()
SEEN = torch.ones(N, M).tril(3).bool()
NUMBERS = randn(N, N, seed=4)
SHOWN = masks.from_key_padding_mask(PADDING)
ENCODER_SAID = {
    "nothing": ({}, {}),
    "pairs": ({"src_mask": CAUSAL}, {"mask": ~CAUSAL}),
    "floats": ({"src_mask": added(CAUSAL)}, {"mask": masks.Causal()}),
    "numbers": ({"src_mask": NUMBERS}, {"attn_bias": NUMBERS}),
    "causal": ({"src_mask": CAUSAL, "is_causal": True}, {"mask": masks.Causal()}),
    "padding": ({"src_key_padding_mask": PADDING}, {"mask": SHOWN}),
    "padding as floats": ({"src_key_padding_mask": added(PADDING)}, {"mask": SHOWN}),
    "both": ({"src_mask": CAUSAL, "src_key_padding_mask": PADDING}, {"mask": SHOWN & masks.Causal()}),
}
DECODER_SAID = {
    "nothing": ({}, {}),
    "causal": ({"tgt_mask": CAUSAL, "tgt_is_causal": True}, {"mask": masks.Causal()}),
    "numbers": ({"tgt_mask": NUMBERS}, {"attn_bias": NUMBERS}),
    "padding": ({"tgt_key_padding_mask": PADDING}, {"mask": SHOWN}),
    "memory pairs": ({"memory_mask": ~SEEN}, {"cross_attn_mask": SEEN}),
    "memory numbers": ({"memory_mask": randn(N, M, seed=5)}, {"cross_attn_bias": randn(N, M, seed=5)}),
    "all": (
        {"tgt_mask": added(CAUSAL), "tgt_key_padding_mask": added(PADDING), "memory_key_padding_mask": MEMORY_PADDING},
        {"mask": SHOWN & masks.Causal(), "cross_attn_mask": masks.from_key_padding_mask(MEMORY_PADDING)},
    ),
}  # fmt: skip
MADE = {
    "post-norm": {},
    "pre-norm": {"norm_first": True, "activation": "gelu"},
    "without biases": {"bias": False, "activation": functional.gelu},
    "another eps": {"layer_norm_eps": 0.1, "activation": nn.ReLU()},
}


def test_an_encoder_block_agrees_with_pytorch_s_layer():
    for case in sweep(product(ENCODER_SAID, MADE, [True, False])):
        with case as (said, made, training):
            theirs = shaken(nn.TransformerEncoderLayer(W, 4, 24, dropout=0.0, batch_first=True, **MADE[made])).train(
                training
            )
            ours, x = EncoderBlock.from_torch(theirs), randn(B, N, W)
            assert ours.training is training
            theirs_said, ours_said = ENCODER_SAID[said]
            real = slice(None) if "padding" not in said else ~PADDING  # PyTorch's fast path gives 0 for padding
            close(ours(x, **ours_said)[real], theirs(x, **theirs_said)[real])
            if said != "numbers":  # PyTorch's fast path takes any number for "hidden" there, and gives NaN
                with torch.no_grad():
                    close(ours(x, **ours_said)[real], theirs(x, **theirs_said)[real])


def test_a_decoder_block_agrees_with_pytorch_s_layer():
    for case in sweep(product(DECODER_SAID, MADE, [True, False])):
        with case as (said, made, training):
            theirs = shaken(nn.TransformerDecoderLayer(W, 4, 24, dropout=0.0, batch_first=True, **MADE[made])).train(
                training
            )
            ours, x, memory = DecoderBlock.from_torch(theirs), randn(B, N, W), randn(B, M, W, seed=1)
            theirs_said, ours_said = DECODER_SAID[said]
            close(ours(x, memory, **ours_said), theirs(x, memory, **theirs_said))
            close(ours(x, memory, need_weights=True, **ours_said)[0], theirs(x, memory, **theirs_said))


def test_from_torch_keeps_dropout_and_type_and_refuses_what_it_cannot_keep():
    layer = nn.TransformerEncoderLayer(W, 4, 24, dropout=0.25, dtype=torch.float64)
    ours = EncoderBlock.from_torch(layer)
    assert {ours.dropout, ours.attention.dropout, ours.feed_forward.dropout} == {0.25}
    assert ours.feed_forward.up_proj.weight.dtype == torch.float64
    layer.dropout1.p = 0.5
    with pytest.raises(InputError, match=r"one probability everywhere, got \[0.25, 0.5\]"):
        EncoderBlock.from_torch(layer)
    with pytest.raises(InputError, match="ReLU or the exact GELU, got silu"):
        EncoderBlock.from_torch(nn.TransformerEncoderLayer(W, 4, 24, activation=functional.silu))
    with pytest.raises(InputError, match=r"must be an nn\.TransformerDecoderLayer, got TransformerEncoderLayer"):
        DecoderBlock.from_torch(layer)


@pytest.mark.parametrize("norm_first", [False, True], ids=["post", "pre"])
def test_a_block_with_rms_norms_and_swiglu_is_its_formula(norm_first):
    torch.manual_seed(0)
    block = EncoderBlock(
        W, 4, 24, norm="rms", norm_first=norm_first, layer_norm_eps=1e-3, activation="swiglu", bias=False,
        attention={"num_kv_heads": 2, "rotary": positions.RoPE(4), "mask": masks.Causal()},
    )  # fmt: skip
    for norm in block.norms:
        nn.init.normal_(norm.weight, mean=1.0)
    x = randn(B, N, W)

    def rms(x, norm):
        return x / (x.square().mean(-1, keepdim=True) + 1e-3).sqrt() * norm.weight

    def mapped(x):
        part = block.feed_forward
        gate = x @ part.gate_proj.weight.T
        return (gate * gate.sigmoid() * (x @ part.up_proj.weight.T)) @ part.down_proj.weight.T

    first, second = block.norms
    if norm_first:
        y = x + block.attention(rms(x, first))
        expected = y + mapped(rms(y, second))
    else:
        y = rms(x + block.attention(x), first)
        expected = rms(y + mapped(y), second)
    close(block(x), expected)
    assert not any(name.endswith("bias") for name, _ in block.named_parameters())
    changed = x.clone()
    changed[:, 3:] = 0
    close(block(changed)[:, :3], block(x)[:, :3])


def test_a_decoder_block_never_sees_later_positions_unless_it_is_told_to():
    torch.manual_seed(0)
    x, memory = randn(B, N, W), randn(B, M, 7, seed=1)
    block = DecoderBlock(W, 4, 24, memory_dim=7, cross_attention={"num_kv_heads": 1})
    output, own, cross = block(x, memory, need_weights=True)
    assert (own.triu(1) == 0).all()
    assert cross.shape == (B, 4, N, M)
    assert (cross > 0).all()
    open_block = DecoderBlock(W, 4, 24, memory_dim=7, cross_attention={"num_kv_heads": 1}, attention={"mask": None})
    open_block.load_state_dict(block.state_dict())
    assert (open_block(x, memory, need_weights=True)[1] > 0).all()
    close(open_block(x, memory, mask=masks.Causal()), output)


def test_an_attention_of_another_kind_can_stand_in_a_block():
    attention = MultiHeadAttention(W, 2, score=regard.scores.Cosine())
    assert EncoderBlock(W, 4, 24, attention=attention).attention is attention
    assert DecoderBlock(W, 4, 24, attention=attention).attention is attention


@pytest.mark.parametrize("kind", [EncoderBlock, DecoderBlock])
def test_dropout_is_in_three_places_and_for_training_only(kind):
    torch.manual_seed(0)
    given = (randn(B, N, W), randn(B, M, W))[: 1 if kind is EncoderBlock else 2]
    block = kind(W, 4, 24, dropout=0.5)
    calm = block.eval()(*given)
    assert torch.equal(calm, block(*given))
    block.train()
    attentions = [one for one in block.modules() if isinstance(one, MultiHeadAttention)]
    for quiet in ([], [block], [block, block.feed_forward], [block, *attentions], [block.feed_forward, *attentions]):
        for one in (block, block.feed_forward, *attentions):
            one.dropout = 0.0 if one in quiet else 0.5
        assert not torch.allclose(block(*given), calm)
    for one in (block, block.feed_forward, *attentions):
        one.dropout = 0.0
    assert torch.equal(block(*given), calm)


# Written out: ReLU, GELU by the error function, its approximation by tanh (as in GPT-2), SiLU.
FUNCTIONS = {
    "relu": lambda x: x * (x > 0),
    "gelu": lambda x: x * (1 + torch.erf(x / 2**0.5)) / 2,
    "gelu_tanh": lambda x: x * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3))) / 2,
    "silu": lambda x: x / (1 + (-x).exp()),
}
GATES = {"swiglu": "silu", "geglu": "gelu", "geglu_tanh": "gelu_tanh", "reglu": "relu"}


def test_feed_forward_is_its_formula():
    for case in sweep([*FUNCTIONS, *GATES]):
        with case as activation:
            torch.manual_seed(0)
            layer, x = FeedForward(5, 7, activation=activation).double(), randn(2, 3, 5).double()
            up = x @ layer.up_proj.weight.T + layer.up_proj.bias
            if activation in GATES:
                gate = x @ layer.gate_proj.weight.T + layer.gate_proj.bias
                up = FUNCTIONS[GATES[activation]](gate) * up
            else:
                up = FUNCTIONS[activation](up)
            torch.testing.assert_close(layer(x), up @ layer.down_proj.weight.T + layer.down_proj.bias)


def test_errors_of_blocks_say_the_way_out():
    with pytest.raises(InputError, match=r"`activation` must be one of 'relu', 'gelu', .*got 'selu'"):
        FeedForward(4, 4, activation="selu")
    with pytest.raises(InputError, match='`norm` must be "layer" or "rms", got \'batch\''):
        EncoderBlock(4, 2, 4, norm="batch")
    with pytest.raises(InputError, match=r"`x` must be \(..., length, 4\), .*`embed_dim=5`"):
        FeedForward(4, 4)(torch.zeros(2, 5))


def test_watching_sees_the_blocks_own_weights_cross_attention_included():
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder, self.decoder = EncoderBlock(W, 4, 24), DecoderBlock(W, 4, 24)

        def forward(self, x, y, **asked):
            return self.decoder(y, self.encoder(x, mask=masks.Padding(~MEMORY_PADDING)), **asked)

    torch.manual_seed(0)
    model, x, y = Both().eval(), randn(B, M, W), randn(B, N, W, seed=1)
    with torch.no_grad():
        plain, own, cross = model(x, y, need_weights=True)
        encoder = model.encoder(x, mask=masks.Padding(~MEMORY_PADDING), need_weights=True)[1]
        with regard.watch(model, keep="weights") as seen:
            output = model(x, y)
    close(output, plain)
    for layer, weights in zip(seen.layers, (encoder, own, cross), strict=True):
        np.testing.assert_allclose(seen.weights(layer=layer), weights, atol=1e-5)


def test_a_module_in_the_attentions_place_is_asked_in_its_own_way():
    block, x = EncoderBlock(8, 2, 12, attention=SlidingWindowAttention(8, 2, 3)).eval(), randn(1, 6, 8)
    own = EncoderBlock(8, 2, 12, attention={"mask": masks.Window(3)}).eval()
    own.load_state_dict(
        {name.replace("attention.attention.", "attention."): one for name, one in block.state_dict().items()}
    )
    torch.testing.assert_close(block(x), own(x))
