"""Longformer: transformers' LongformerSelfAttention with copied weights, outputs and gradients, and a dense formula."""

import numpy as np
import pytest
import torch

from oracles import dense, f64
from regard.errors import InputError
from regard.nn import LongformerAttention

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
        module.out_proj.weight.copy_(torch.eye(module.width))
        module.out_proj.bias.zero_()
    return module


@pytest.mark.parametrize("flags", ["none", "first", "many", "window edge"])
@pytest.mark.parametrize("padded", [False, True])
def test_equals_transformers_with_gradients(flags, padded):
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
    places = {"none": [[], []], "first": [[0], [0]], "many": [[0, 5, 6, 20], [3]], "window edge": [[4], [8, 31]]}[flags]
    seeing_all = torch.zeros(2, 32, dtype=torch.bool)
    for row, one in enumerate(places):
        seeing_all[row, one] = True
    seeing_all &= real

    x = randn(2, 32, 24).requires_grad_()
    up = randn(2, 32, 24, seed=1) * real[..., None]
    state = torch.zeros(2, 32).masked_fill(~real, -10000.0).masked_fill(seeing_all, 10000.0)
    expected = theirs(
        x,
        attention_mask=state,
        is_index_masked=state < 0,
        is_index_global_attn=state > 0,
        is_global_attn=bool((state > 0).any()),
    )[0]
    output = ours(x, global_tokens=seeing_all, real=real)
    torch.testing.assert_close(output, expected, atol=1e-5, rtol=0)
    assert (output[~real] == 0).all()

    names = [name for name in PAIRS if flags != "none" or "proj" in name]
    mine = [p for name in names for p in getattr(ours, name).parameters()]
    other = [p for name in names for p in getattr(theirs, PAIRS[name]).parameters()]
    for got, wanted in zip(
        torch.autograd.grad(output, [x, *mine], up), torch.autograd.grad(expected, [x, *other], up), strict=True
    ):
        torch.testing.assert_close(got, wanted, atol=1e-5, rtol=1e-5)


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
    np.testing.assert_allclose(f64(module(x, global_tokens=flags)), f64(expected), atol=1e-12)


def test_padding_is_never_global():
    module, x = LongformerAttention(8, 2, window=2), randn(1, 6, 8)
    real, flags = torch.arange(6)[None] < 4, torch.arange(6)[None] == 5
    torch.testing.assert_close(module(x, global_tokens=flags, real=real)[:, :4], module(x[:, :4]))


def test_refusals_name_the_way_out():
    with pytest.raises(InputError, match="must be even, got 5: take 6"):
        LongformerAttention(8, 2, window=5)
    with pytest.raises(InputError, match="`width` must be a multiple of `heads`, got 8 and 3"):
        LongformerAttention(8, 3, window=4)
    module, x = LongformerAttention(8, 2, window=4), torch.zeros(1, 6, 8)
    with pytest.raises(InputError, match="must be boolean"):
        module(x, real=torch.ones(1, 6))
    with pytest.raises(InputError, match=r"must be \(..., length, 8\)"):
        module(torch.zeros(1, 6, 9))
