"""Arguments with names that mean something else in other libraries, and masks that might be read as their reverse."""

import inspect
from itertools import product

import pytest
import torch

from regard import approximations, masks, nn, positions, scores
from regard.errors import InputError
from sweeps import sweep

X = torch.zeros(2, 4, 8)


FLAGS = {
    ("MultiHeadAttention", "bias"): lambda wrong: nn.MultiHeadAttention(8, 2, bias=wrong),
    ("MultiHeadAttention", "out_bias"): lambda wrong: nn.MultiHeadAttention(8, 2, out_bias=wrong),
    ("FeedForward", "bias"): lambda wrong: nn.FeedForward(8, 16, bias=wrong),
    ("LongformerAttention", "bias"): lambda wrong: nn.LongformerAttention(8, 2, 2, bias=wrong),
    ("EncoderBlock", "norm_first"): lambda wrong: nn.EncoderBlock(8, 2, 16, norm_first=wrong),
    ("EncoderBlock", "bias"): lambda wrong: nn.EncoderBlock(8, 2, 16, bias=wrong),
    ("DecoderBlock", "norm_first"): lambda wrong: nn.DecoderBlock(8, 2, 16, norm_first=wrong),
    ("LinformerAttention", "bias"): lambda wrong: approximations.LinformerAttention(
        8, 2, approximations.Compression(4, 2), bias=wrong
    ),
    ("PerformerAttention", "bias"): lambda wrong: approximations.PerformerAttention(8, 2, bias=wrong),
    ("PerformerAttention", "causal"): lambda wrong: approximations.PerformerAttention(8, 2, causal=wrong),
    ("NystromformerAttention", "bias"): lambda wrong: approximations.NystromformerAttention(8, 2, bias=wrong),
    ("NystromformerAttention", "inv_coeff_init_option"): lambda wrong: approximations.NystromformerAttention(
        8, 2, inv_coeff_init_option=wrong
    ),
    ("nystromformer_attention", "inv_coeff_init_option"): lambda wrong: approximations.nystromformer_attention(
        X, X, X, 2, inv_coeff_init_option=wrong
    ),
}


def test_a_flag_is_no_number():
    for case in sweep(product(FLAGS, [0.1, 512, "no"])):
        with case as ((module, flag), wrong), pytest.raises(InputError, match=f"`{flag}` must be True or False"):
            FLAGS[module, flag](wrong)


@pytest.mark.parametrize("wrong", [True, False])
def test_a_bias_of_the_scores_is_no_flag_for_those_of_the_projections(wrong):
    with pytest.raises(InputError, match=f"added to the scores, got {wrong}: `bias={wrong}` says whether"):
        nn.MultiHeadAttention(8, 2, attn_bias=wrong)


def test_a_module_holds_values():
    cases = [
        ({"mask": masks.Causal}, r"got the class Causal: write Causal\(...\)"),
        ({"score": scores.ScaledDot}, r"got the class ScaledDot: write ScaledDot\(...\)"),
        ({"attn_bias": positions.ALiBi}, r"got the class ALiBi: write ALiBi\(...\)"),
        ({"mask": True}, "or a module that gives one, got True"),
        ({"rotary": 64}, "or a module that gives one, got 64"),
        ({"normalizer": "softmax"}, "or a module that gives one, got 'softmax'"),
    ]
    for case in sweep(cases):
        with case as (options, words), pytest.raises(InputError, match=words):
            nn.MultiHeadAttention(8, 2, **options)


def test_masks_are_given_by_name_alone():
    """A fourth argument would be read as PyTorch's key_padding_mask is, with the opposite meaning."""
    for name in nn.__all__:
        kind = getattr(nn, name)
        if not (isinstance(kind, type) and issubclass(kind, torch.nn.Module)):
            continue
        for parameter in inspect.signature(kind.forward).parameters.values():
            if "mask" in parameter.name or parameter.name == "key_padding_mask":
                assert parameter.kind is parameter.KEYWORD_ONLY, (name, parameter.name)
    with pytest.raises(TypeError, match="positional"):
        nn.MultiHeadAttention(8, 2)(X, X, X, torch.ones(2, 4, dtype=torch.bool))
