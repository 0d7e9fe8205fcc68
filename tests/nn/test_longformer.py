"""Longformer: transformers' LongformerSelfAttention with copied weights, outputs and gradients, and a dense formula."""

from itertools import product

import numpy as np
import pytest
import torch

from oracles import dense, f64
from regard.errors import InputError
from regard.nn import LongformerAttention
from sweeps import sweep

PAIRS = {
    "q_proj": "query",
    "k_proj": "key",
    "v_proj": "value",
    "q_global": "query_global",
    "k_global": "key_global",
    "v_global": "value_global",
}


def randn(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def without_output_layer(module):
    with torch.no_grad():
        module.out_proj.weight.copy_(torch.eye(module.embed_dim))
        module.out_proj.bias.zero_()
    return module


PLACES = {"none": [[], []], "first": [[0], [0]], "many": [[0, 5, 6, 20], [3]], "window edge": [[4], [8, 31]]}


def both(flags, padded):
    """transformers' attention and ours with its tensors, which tokens are global and real, and what it is told."""
    transformers = pytest.importorskip("transformers")
    from transformers.models.longformer.modeling_longformer import LongformerSelfAttention

    torch.manual_seed(0)
    config = transformers.LongformerConfig(
        hidden_size=24, num_attention_heads=3, attention_window=[8], attention_probs_dropout_prob=0.0
    )
    theirs = LongformerSelfAttention(config, 0)
    ours = without_output_layer(LongformerAttention(24, 3, window=8))
    for mine, other in PAIRS.items():
        getattr(ours, mine).load_state_dict(getattr(theirs, other).state_dict())
    real = torch.arange(32)[None] < torch.tensor([[32], [21 if padded else 32]])
    seeing_all = torch.zeros(2, 32, dtype=torch.bool)
    for row, one in enumerate(PLACES[flags]):
        seeing_all[row, one] = True
    seeing_all &= real
    state = torch.zeros(2, 32).masked_fill(~real, -10000.0).masked_fill(seeing_all, 10000.0)
    told = {
        "attention_mask": state,
        "is_index_masked": state < 0,
        "is_index_global_attn": state > 0,
        "is_global_attn": bool((state > 0).any()),
    }
    return theirs, ours, seeing_all, real, told


def test_equals_transformers_with_gradients():
    for case in sweep(product(PLACES, [False, True])):
        with case as (flags, padded):
            theirs, ours, seeing_all, real, told = both(flags, padded)
            x = randn(2, 32, 24).requires_grad_()
            up = randn(2, 32, 24, seed=1) * real[..., None]
            expected = theirs(x, **told)[0]
            output = ours(x, global_attention_mask=seeing_all, key_padding_mask=~real)
            torch.testing.assert_close(output, expected, atol=1e-5, rtol=0)
            assert (output[~real] == 0).all()

            names = [name for name in PAIRS if flags != "none" or "proj" in name]
            mine = [p for name in names for p in getattr(ours, name).parameters()]
            other = [p for name in names for p in getattr(theirs, PAIRS[name]).parameters()]
            for got, wanted in zip(
                torch.autograd.grad(output, [x, *mine], up), torch.autograd.grad(expected, [x, *other], up), strict=True
            ):
                torch.testing.assert_close(got, wanted, atol=1e-5, rtol=1e-5)


def spread(local, rows, flags):
    """Their weights on global keys, on a window, and of global rows, as one dense matrix."""
    batch, n, heads, _ = local.shape
    out = torch.zeros(batch, heads, n, n)
    columns = local.shape[-1] - 9
    for b in range(batch):
        places = flags[b].nonzero().flatten().tolist()
        for i in range(n):
            for slot, place in enumerate(places):
                out[b, :, i, place] += local[b, i, :, slot]
            for step in range(9):
                if 0 <= i + step - 4 < n:
                    out[b, :, i, i + step - 4] += local[b, i, :, columns + step]
        for slot, place in enumerate(places):
            out[b, :, place] = rows[b, :, slot]
    return out


def test_weights_are_those_of_transformers_spread_out():
    for case in sweep(product(PLACES, [False, True])):
        with case as (flags, padded):
            theirs, ours, seeing_all, real, told = both(flags, padded)
            x = randn(2, 32, 24)
            output, weights = ours(x, global_attention_mask=seeing_all, key_padding_mask=~real, need_weights=True)
            _, local, *rows = theirs.eval()(x, **told, output_attentions=True)
            expected = spread(local, rows[0] if rows else None, seeing_all)
            torch.testing.assert_close(weights, expected, atol=1e-6, rtol=0)
            torch.testing.assert_close(weights.sum(-1), real[:, None].expand(2, 3, 32).float())
            torch.testing.assert_close(
                output, ours(x, global_attention_mask=seeing_all, key_padding_mask=~real), atol=1e-6, rtol=0
            )


def test_weights_are_those_before_dropout_and_refused_beyond_max_bytes():
    torch.manual_seed(0)
    module, x = LongformerAttention(8, 2, window=4, dropout=0.5), randn(1, 40, 8)
    flags = torch.arange(40)[None] == 3
    trained, weights = module(x, global_attention_mask=flags, need_weights=True)
    torch.testing.assert_close(weights.sum(-1), torch.ones(1, 2, 40))
    output, same = module.eval()(x, global_attention_mask=flags, need_weights=True)
    assert torch.equal(weights, same)
    assert (trained - output).abs().max() > 1e-3
    with pytest.raises(InputError, match=r"weights to return need 12\.5 KiB .*limit of 12\.0 KiB: raise `max_bytes`"):
        module(x, need_weights=True, max_bytes=12 * 1024)
    long = torch.zeros(1, 16500, 8)
    with pytest.raises(InputError, match=r"more than the limit of 2\.0 GiB"):
        module(long, need_weights=True)


@pytest.mark.parametrize("shape", [(6, 8), (2, 3, 6, 8)], ids=str)
def test_anything_but_a_batch_of_sequences_is_refused(shape):
    # Heads were taken for tokens here, in silence.
    with pytest.raises(InputError, match=r"`x` must be \(batch, tokens, 8\), got .*x\[None\] .* x\.flatten\(0, -3\)"):
        LongformerAttention(8, 2, window=4)(torch.zeros(shape))


def test_any_length_serves_and_every_row_is_the_dense_formula():
    torch.manual_seed(0)
    module = LongformerAttention(8, 2, window=4).double()
    x, flags = randn(1, 13, 8, dtype=torch.float64), torch.zeros(1, 13, dtype=torch.bool)
    flags[0, [2, 9]] = True
    split = {name: getattr(module, name)(x).view(1, 13, 2, 4).transpose(1, 2) for name in PAIRS}
    distance = np.abs(np.arange(13)[:, None] - np.arange(13))
    local = dense(split["q_proj"], split["k_proj"], split["v_proj"], visible=(distance <= 2) | flags.numpy()[0]).output
    everything = dense(split["q_global"], split["k_global"], split["v_global"]).output
    rows = np.where(flags.numpy()[:, None, :, None], everything, local).swapaxes(1, 2).reshape(1, 13, 8)
    expected = module.out_proj(torch.from_numpy(rows))
    np.testing.assert_allclose(f64(module(x, global_attention_mask=flags)), f64(expected), atol=1e-12)


def test_padding_is_never_global():
    module, x = LongformerAttention(8, 2, window=2), randn(1, 6, 8)
    real, flags = torch.arange(6)[None] < 4, torch.arange(6)[None] == 5
    torch.testing.assert_close(module(x, global_attention_mask=flags, key_padding_mask=~real)[:, :4], module(x[:, :4]))


def test_refusals_name_the_way_out():
    with pytest.raises(InputError, match="must be even, got 5: take 6"):
        LongformerAttention(8, 2, window=5)
    with pytest.raises(InputError, match="`embed_dim` must be a multiple of `num_heads`, got 8 and 3"):
        LongformerAttention(8, 3, window=4)
    module, x = LongformerAttention(8, 2, window=4), torch.zeros(1, 6, 8)
    with pytest.raises(InputError, match=r"`key_padding_mask` must be boolean .*attention_mask == 0"):
        module(x, key_padding_mask=torch.ones(1, 6))
    with pytest.raises(
        InputError, match=r"`global_attention_mask` must be boolean .*write global_attention_mask\.bool\(\)"
    ):
        module(x, global_attention_mask=torch.ones(1, 6))
    with pytest.raises(InputError, match=r"`global_attention_mask` must be boolean .* got list"):
        module(x, global_attention_mask=[0])
    with pytest.raises(InputError, match=r"must be \(..., length, 8\)"):
        module(torch.zeros(1, 6, 9))
