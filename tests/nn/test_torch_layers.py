"""PyTorch's attention and Transformer layers with the same tensors, over all they can be and every mask they take."""

from itertools import product, zip_longest

import pytest
import torch
from torch import nn
from torch.nn import functional

from regard import masks
from regard.nn import DecoderBlock, EncoderBlock, MultiHeadAttention
from sweeps import sweep

B, H, N, M, W = 2, 4, 6, 9, 16


def randn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def hidden(*shape, seed):
    """True = hidden, as PyTorch has it; no row is hidden whole."""
    flags = torch.rand(*shape, generator=torch.Generator().manual_seed(seed)) < 0.4
    flags[..., 0] = False
    return flags


def added(flags):
    return torch.zeros(flags.shape).masked_fill(flags, float("-inf"))


def seen(flags):
    """What (batch · heads, queries, keys) hides, as it broadcasts here."""
    return ~flags.unflatten(0, (B, H))


def shaken(layer):
    """PyTorch begins with zeros and ones in biases and norms, which would hide what was not copied."""
    torch.manual_seed(3)
    for name, one in layer.named_parameters():
        if one.ndim == 1:
            nn.init.normal_(one, mean=float("norm" in name), std=0.3)
    return layer


def pairs_said(keys, seed):
    """Every kind of mask over pairs: what PyTorch is given, and what says the same here as mask and as bias."""
    flags, each, numbers = hidden(N, keys, seed=seed), hidden(B * H, N, keys, seed=seed + 1), randn(N, keys, seed=seed)
    said = {
        "none": (None, None, None),
        "bool": (flags, ~flags, None),
        "bool of each head": (each, seen(each), None),
        "floats that hide": (added(flags), ~flags, None),
        "floats that hide of each head": (added(each), seen(each), None),
        "numbers": (numbers, None, numbers),
    }
    of_heads = randn(B * H, N, keys, seed=seed)
    return said | {"numbers of each head": (of_heads, None, of_heads.unflatten(0, (B, H)))}


def padding_said(keys, seed, kind):
    """Every kind of padding; its flags, which floats that hide are made of where the pairs' mask is of floats."""
    flags = hidden(B, keys, seed=seed)
    return {
        "no padding": (None, None),
        "padding": (flags if kind in (None, torch.bool) else added(flags), masks.from_key_padding_mask(flags)),
    }


def together(mask, padding):
    mask = masks.Dense(mask) if isinstance(mask, torch.Tensor) else mask
    both = [one for one in (mask, padding) if one is not None]
    return both[0] & both[1] if len(both) == 2 else both[0] if both else None


def kinds(keys, seed):
    """All pairs of a mask and a padding: for PyTorch, and for us."""
    for name, (mask, ours, bias) in pairs_said(keys, seed).items():
        for more, (padding, real) in padding_said(keys, seed + 2, None if mask is None else mask.dtype).items():
            yield f"{name}, {more}", (mask, padding), (together(ours, real), bias)
    flags = torch.ones(N, keys).triu(1).bool()
    yield "causal", (flags, None), (masks.Causal(align="start"), None)


SELF, CROSS = ({name: (theirs, ours) for name, theirs, ours in kinds(keys, keys)} for keys in (N, M))
# Half of all combinations: each three of the four options are met in every way.
MADE = [
    (first, activation, bias, first ^ bias ^ (activation == "relu"))
    for first, activation, bias in product([False, True], ["relu", "gelu"], [False, True])
]
training = pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])


def close(ours, theirs, what=""):
    torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=0, msg=lambda said: f"{what}: {said}")


def turned(x, batch_first):
    return x if batch_first else x.transpose(0, 1)


def test_multi_head_attention():
    for case in sweep(product(["self", "cross"], [True, False], [True, False], [True, False])):
        with case as (kind, bias, batch_first, training):
            theirs = shaken(nn.MultiheadAttention(W, H, bias=bias, batch_first=batch_first)).train(training)
            ours, x, y = MultiHeadAttention.from_torch(theirs), randn(B, N, W), randn(B, M, W, seed=1)
            # Self-attention with one and the same tensor takes PyTorch's fast path in eval mode.
            given = (x, x, x) if kind == "self" else (x, y, y)
            turned_x, turned_y = turned(x, batch_first), turned(y, batch_first)
            their_given = (turned_x,) * 3 if kind == "self" else (turned_x, turned_y, turned_y)
            for what, ((mask, padding), (mine, added_to)) in (SELF if kind == "self" else CROSS).items():
                said = {"attn_mask": mask, "key_padding_mask": padding, "is_causal": what == "causal"}
                output, weights = ours(*given, mask=mine, attn_bias=added_to, need_weights=True)
                expected, expected_weights = theirs(*their_given, average_attn_weights=False, **said)
                close(output, turned(expected, batch_first), what)
                close(weights, expected_weights, what)
                if "numbers" in what and not training and kind == "self":
                    continue  # the fast path takes any number for "hidden"
                with torch.no_grad():
                    close(
                        ours(*given, mask=mine, attn_bias=added_to),
                        turned(theirs(*their_given, need_weights=False, **said)[0], batch_first),
                        f"{what}, without weights",
                    )


def test_encoder_layer():
    for case in sweep(product(MADE, [True, False])):
        with case as ((norm_first, activation, bias, batch_first), training):
            options = {"norm_first": norm_first, "activation": activation, "bias": bias, "batch_first": batch_first}
            theirs = shaken(nn.TransformerEncoderLayer(W, H, 24, dropout=0.0, **options)).train(training)
            ours, x = EncoderBlock.from_torch(theirs), randn(B, N, W)
            for what, ((mask, padding), (mine, added_to)) in SELF.items():
                said = {"src_mask": mask, "src_key_padding_mask": padding, "is_causal": what == "causal"}
                expected = turned(theirs(turned(x, batch_first), **said), batch_first)
                close(ours(x, mask=mine, attn_bias=added_to), expected, what)


def test_decoder_layer():
    for case in sweep(product(MADE, [True, False])):
        with case as ((norm_first, activation, bias, batch_first), training):
            options = {"norm_first": norm_first, "activation": activation, "bias": bias, "batch_first": batch_first}
            theirs = shaken(nn.TransformerDecoderLayer(W, H, 24, dropout=0.0, **options)).train(training)
            ours, x, memory = DecoderBlock.from_torch(theirs), randn(B, N, W), randn(B, M, W, seed=1)
            both = zip_longest(SELF.items(), reversed(CROSS.items()))
            for (what, ((mask, padding), (mine, added_to))), (
                on,
                ((cross, cross_padding), (cross_mine, cross_added)),
            ) in both:
                said = {
                    "tgt_mask": mask,
                    "tgt_key_padding_mask": padding,
                    "tgt_is_causal": what == "causal",
                    "memory_mask": cross,
                    "memory_key_padding_mask": cross_padding,
                    "memory_is_causal": on == "causal",
                }
                expected = turned(theirs(turned(x, batch_first), turned(memory, batch_first), **said), batch_first)
                output = ours(
                    x, memory, mask=mine, cross_attn_mask=cross_mine, attn_bias=added_to, cross_attn_bias=cross_added
                )
                close(output, expected, f"{what}; memory {on}")


def test_activations_are_functions_or_modules():
    for case in sweep([functional.relu, functional.gelu, nn.ReLU(), nn.GELU()]):
        with case as activation:
            theirs = shaken(nn.TransformerEncoderLayer(W, H, 24, dropout=0.0, activation=activation, batch_first=True))
            x = randn(B, N, W)
            close(EncoderBlock.from_torch(theirs)(x), theirs(x))
