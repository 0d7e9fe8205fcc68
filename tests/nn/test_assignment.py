"""Values are assigned to modules in modules, so that their tensors are trained, moved and saved."""

import pytest
import torch
from torch import nn

from regard import masks, normalizers, positions, scores
from regard.errors import InputError
from regard.nn import (
    AttentionDecoderCell,
    BigBirdAttention,
    Encoder,
    EncoderBlock,
    LongformerAttention,
    MultiHeadAttention,
    SlidingWindowAttention,
    ValueModule,
)
from sweeps import sweep

X = torch.randn(2, 5, 16)
VALUES = {
    "attn_bias": positions.T5Bias(nn.Parameter(torch.randn(32, 4)), bidirectional=True),
    "mask": masks.Causal(),
    "score": scores.Bilinear(nn.Parameter(torch.eye(4))),
    "normalizer": normalizers.Softmax(nn.Parameter(torch.zeros(4))),
    "rotary": positions.RoPE(4),
}


def test_a_value_is_refused_whether_the_place_is_empty_or_not_and_its_module_is_taken():
    for case in sweep(VALUES):
        with case as name:
            value = VALUES[name]
            for module in (MultiHeadAttention(16, 4), MultiHeadAttention(16, 4, **{name: value})):
                before = module(X)
                words = rf"`{name}` of MultiHeadAttention must be a module .* regard\.nn\.ValueModule\(value\)"
                with pytest.raises(InputError, match=words):
                    setattr(module, name, value)
                assert torch.equal(module(X), before)
                setattr(module, name, ValueModule(value))
                expected = MultiHeadAttention(16, 4, **{name: value})
                expected.load_state_dict(module.state_dict())
                assert torch.equal(module(X), expected(X))
                setattr(module, name, None)
                assert getattr(module, name) is None


def test_tensors_and_flags_are_refused_too():
    for value in (torch.zeros(5, 5), nn.Parameter(torch.zeros(5, 5)), True, positions.T5Bias):
        with pytest.raises(InputError, match="`attn_bias` of MultiHeadAttention must be a module"):
            MultiHeadAttention(16, 4).attn_bias = value


def test_a_module_around_an_attention_names_the_place_inside():
    cases = [
        (SlidingWindowAttention(16, 4, 2), "attn_bias", r"assign module\.attention\.attn_bias = "),
        (BigBirdAttention(16, 4), "mask", r"assign module\.attention\.mask = "),
        (Encoder([EncoderBlock(16, 4, 32)]), "rotary", r"assign module\.layers\.0\.attention\.rotary = "),
        (LongformerAttention(16, 4, 2), "mask", "the window and the global tokens are its mask"),
        (LongformerAttention(16, 4, 2), "score", "MultiHeadAttention and regard.attention take one"),
    ]
    for case in sweep(cases):
        with case as (module, name, words), pytest.raises(InputError, match=f"has no `{name}` to assign: .*{words}"):
            setattr(module, name, VALUES[name])


def test_the_score_of_a_decoder_cell_is_one_of_them():
    cell = AttentionDecoderCell(16, 16, attention=scores.Dot())
    with pytest.raises(InputError, match=r"`attention` of AttentionDecoderCell must be a module .*ValueModule"):
        cell.attention = scores.ScaledDot()
    cell.attention = ValueModule(scores.ScaledDot())


def test_attributes_of_a_subclass_are_its_own():
    class Mine(EncoderBlock):
        def __init__(self):
            super().__init__(16, 4, 32)
            self.mask = masks.Causal()

        def forward(self, x):
            return super().forward(x, mask=self.mask)

    module = Mine()
    module.rotary = positions.RoPE(4)
    assert isinstance(module.mask, masks.Causal)
    assert module(X).shape == X.shape
