"""PyTorch's own attention: the fused function, nn.MultiheadAttention and a whole encoder layer."""

from itertools import product

import torch
from torch import nn
from torch.nn import functional

import regard
from regard import masks
from sweeps import sweep

N = 150  # two blocks


def _randn(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def test_the_fused_function():
    for case in sweep(
        product(["auto", "sdpa", "strips", "reference"], [4, 2, 1], ["plain", "causal", "mask", "bias", "scale"])
    ):
        with case as (backend, kv_heads, how):
            q, k, v = _randn(2, 4, N, 8), _randn(2, kv_heads, N, 8, seed=1), _randn(2, kv_heads, N, 8, seed=2)
            q, k, v = (x.requires_grad_() for x in (q, k, v))
            seen = torch.rand(2, 1, N, N, generator=torch.Generator().manual_seed(3)) < 0.5
            bias = _randn(2, 4, N, N, seed=4)
            theirs, ours = {
                "plain": ({}, {}),
                "causal": ({"is_causal": True}, {"mask": masks.Causal()}),
                "mask": ({"attn_mask": seen}, {"mask": seen}),
                "bias": ({"attn_mask": bias}, {"bias": bias}),
                "scale": ({"scale": 0.8}, {"scale": 0.8}),
            }[how]
            outputs = (
                functional.scaled_dot_product_attention(q, k, v, enable_gqa=kv_heads < 4, **theirs),
                regard.attention(q, k, v, backend=backend, **ours),
            )
            results = [(out, *torch.autograd.grad(out.square().sum(), (q, k, v))) for out in outputs]
            for one, other in zip(*results, strict=True):
                torch.testing.assert_close(other, one, rtol=0, atol=1e-10)


def _by_heads(x, heads):
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def _multihead(module, q, k, v, **options):
    """nn.MultiheadAttention with its own projections around regard.attention."""
    heads, bias = module.num_heads, module.in_proj_bias.chunk(3)
    maps = module.in_proj_weight.chunk(3)
    q, k, v = (_by_heads(functional.linear(x, w, b), heads) for x, w, b in zip((q, k, v), maps, bias, strict=True))
    answer = regard.attention(q, k, v, **options)
    out = answer[0] if isinstance(answer, tuple) else answer
    return module.out_proj(out.transpose(1, 2).flatten(2)), answer


def test_multihead_attention():
    for case in sweep(
        product(
            ["auto", "sdpa", "strips", "reference"],
            ["plain", "causal", "padding", "causal and padding", "other keys"],
        )
    ):
        with case as (backend, how):
            torch.manual_seed(0)
            module = nn.MultiheadAttention(32, 4, batch_first=True, dtype=torch.float64).eval()
            nn.init.normal_(module.in_proj_bias)
            x = _randn(2, N, 32)
            y = _randn(2, 61, 32, seed=1) if how == "other keys" else x
            ignored = torch.zeros(2, N, dtype=torch.bool)
            ignored[0, 100:], ignored[1, 140:] = True, True
            theirs, mask = {
                "causal": ({"attn_mask": torch.ones(N, N).triu(1).bool()}, masks.Causal()),
                "padding": ({"key_padding_mask": ignored}, masks.from_key_padding_mask(ignored)),
                "causal and padding": (
                    {"attn_mask": torch.ones(N, N).triu(1).bool(), "key_padding_mask": ignored},
                    masks.Causal() & masks.Padding(~ignored),
                ),
            }.get(how, ({}, None))
            expected, _ = module(x, y, y, need_weights=False, **theirs)
            torch.testing.assert_close(
                _multihead(module, x, y, y, mask=mask, backend=backend)[0], expected, rtol=0, atol=1e-10
            )


def test_the_weights_of_multihead_attention():
    torch.manual_seed(0)
    module = nn.MultiheadAttention(32, 4, batch_first=True, dtype=torch.float64).eval()
    x = _randn(2, N, 32)
    expected, weights = module(x, x, x, average_attn_weights=False)
    ours, (_, our_weights) = _multihead(module, x, x, x, return_weights=True)
    torch.testing.assert_close(ours, expected, rtol=0, atol=1e-10)
    torch.testing.assert_close(our_weights, weights, rtol=0, atol=1e-10)


def test_gradients_of_the_parameters_of_multihead_attention():
    for case in sweep(["auto", "sdpa", "strips", "reference"]):
        with case as backend:
            torch.manual_seed(0)
            module = nn.MultiheadAttention(32, 4, batch_first=True, dtype=torch.float64)
            x, seen = _randn(2, N, 32), torch.ones(N, N).triu(1).bool()
            outputs = (
                module(x, x, x, attn_mask=seen, need_weights=False)[0],
                _multihead(module, x, x, x, mask=masks.Causal(), backend=backend)[0],
            )
            theirs, ours = (torch.autograd.grad(one.square().sum(), tuple(module.parameters())) for one in outputs)
            for one, other in zip(theirs, ours, strict=True):
                torch.testing.assert_close(other, one, rtol=1e-9, atol=1e-9)


def test_an_encoder_layer():
    for case in sweep(["auto", "sdpa", "strips", "reference"]):
        with case as backend:
            torch.manual_seed(0)
            layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, norm_first=True, dtype=torch.float64).eval()
            x = _randn(2, N, 32)
            with torch.no_grad():
                normed = layer.norm1(x)
                after = x + _multihead(layer.self_attn, normed, normed, normed, mask=masks.Causal(), backend=backend)[0]
                ours = after + layer.linear2(torch.relu(layer.linear1(layer.norm2(after))))
                expected = layer(x, src_mask=nn.Transformer.generate_square_subsequent_mask(N, dtype=torch.float64))
            torch.testing.assert_close(ours, expected, rtol=0, atol=1e-10)
