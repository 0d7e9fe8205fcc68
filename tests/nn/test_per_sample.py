"""Opacus repeats a module's call for each sample: where that would be another call, it is refused with the way out."""

import pytest
import torch
from torch import nn

from regard import normalizers, positions, scores
from regard.errors import InputError
from regard.nn import AdditiveAttention, AttentionPooling, BilinearAttention, LearnedPositions, MultiHeadAttention
from sweeps import sweep

X = torch.randn(3, 6, 16)
VALUES = {
    "attn_bias": (positions.T5Bias(nn.Parameter(torch.randn(32, 4)), bidirectional=True), r"`table` in .*\(T5Bias\)"),
    "normalizer": (normalizers.Softmax(nn.Parameter(torch.zeros(4))), "`sink` in"),
    "score": (scores.Bilinear(nn.Parameter(torch.eye(4))), "`weight` in"),
}
CALLS = {
    "two tensors": (lambda: AdditiveAttention(16), (X, X), {}, "without arguments after the first"),
    "by name": (lambda: BilinearAttention(16), (X,), {"key": X}, "without `key`"),
    "padding": (
        lambda: AttentionPooling(16),
        (X,),
        {"key_padding_mask": torch.zeros(3, 6).bool()},
        "`key_padding_mask`",
    ),
    "weights": (lambda: AttentionPooling(16), (X,), {"need_weights": True}, "without `need_weights`"),
    "dropout": (lambda: LearnedPositions(16, 6, dropout=0.5), (X,), {}, "without the places that are dropped"),
}


def prepared(module):
    """Prepare what has parameters of its own as opacus.grad_sample.functorch.prepare_layer (1.6) does."""
    for part in module.modules():
        if any(parameter.requires_grad for parameter in part.parameters(recurse=False)) and type(part) is not nn.Linear:
            part.ft_compute_sample_grad = None
    return module


def test_a_learned_value_is_refused_unless_it_is_frozen_or_not_trained():
    for case in sweep(VALUES):
        with case as name:
            value, words = VALUES[name]
            module = prepared(MultiHeadAttention(16, 4, **{name: value}))
            with pytest.raises(InputError, match=rf'{words}.*requires_grad_\(False\).*grad_sample_mode="no_op"'):
                module(X)
            module.eval()(X)
            with torch.no_grad():
                module.train()(X)
            frozen = MultiHeadAttention(16, 4, **{name: value})
            getattr(frozen, name).requires_grad_(False)
            prepared(frozen)(X)


def test_a_call_that_its_first_argument_does_not_decide_is_refused():
    for case in sweep(CALLS):
        with case as name:
            make, inputs, options, words = CALLS[name]
            module = prepared(make())
            with pytest.raises(InputError, match=rf"Opacus .*{words}.*vmap"):
                module(*inputs, **options)
            module.eval()(*inputs, **options)


def test_a_call_that_its_first_argument_decides_is_computed():
    for module in (AttentionPooling(16), LearnedPositions(16, 6)):
        expected = module(X)
        assert torch.equal(prepared(module)(X), expected)
    prepared(AttentionPooling(16))(X, backend="reference", key_padding_mask=None)
