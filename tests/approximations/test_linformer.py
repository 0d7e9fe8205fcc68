"""Linformer: its formula written out, all sharings, short and padded inputs, and exactness at full rank.

test_packages.py compares with the package `linformer`.
"""

import copy
from itertools import product

import numpy as np
import pytest
import torch

from oracles import dense, f64
from regard.approximations import Approximate, Compression, LinformerAttention
from regard.errors import InputError
from regard.masks import Causal
from sweeps import sweep

SHARINGS = ["none", "headwise", "key-value"]


def randn(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def made(sharing="none", *, bias=True, length=9, rank=3):
    torch.manual_seed(0)
    return LinformerAttention(12, 4, Compression(length, rank, num_heads=4, sharing=sharing), bias=bias).double()


def written_out(module, x):
    """As the authors' code has it: compress the input, then project; head by head, in numpy."""
    x, heads = f64(x), []
    rows = {name: f64(one) for name, one in module.named_parameters()}
    e, f = rows["compression.e"], rows.get("compression.f", rows["compression.e"])
    bias = {name: rows.get(f"{name}.bias", np.zeros(12)) for name in ("query", "key", "value")}
    for h in range(4):
        part, at = slice(3 * h, 3 * h + 3), h if len(e) > 1 else 0
        q = x @ rows["query.weight"][part].T + bias["query"][part]
        k = (e[at, :, : x.shape[1]] @ x) @ rows["key.weight"][part].T + bias["key"][part]
        v = (f[at, :, : x.shape[1]] @ x) @ rows["value.weight"][part].T + bias["value"][part]
        heads.append(dense(q[:, None], k[:, None], v[:, None]).output[:, 0])
    return np.concatenate(heads, -1) @ rows["output.weight"].T + rows["output.bias"]


def test_equals_the_formula_and_shorter_inputs_use_the_first_columns():
    for case in sweep(product([9, 6, 1], [True, False], SHARINGS)):
        with case as (tokens, bias, sharing):
            module, x = made(sharing, bias=bias), randn(2, tokens, 12)
            np.testing.assert_allclose(f64(module(x).output), written_out(module, x), atol=1e-12)


def test_padded_keys_are_zeroed_before_they_are_compressed():
    for case in sweep(SHARINGS):
        with case as sharing:
            module, x = made(sharing), randn(2, 9, 12)
            real = torch.arange(9)[None] < torch.tensor([[9], [4]])
            x[1, 4:] = 1e9
            output = module(x, key_padding_mask=~real).output
            np.testing.assert_allclose(f64(output[0]), written_out(module, x[:1])[0], atol=1e-12)
            np.testing.assert_allclose(f64(output[1, :4]), written_out(module, x[1:, :4])[0], atol=1e-12)


def test_with_all_positions_kept_apart_it_is_exact():
    module, x = made("headwise", length=9, rank=9), randn(2, 9, 12)
    with torch.no_grad():
        module.compression.e[:] = module.compression.f[:] = torch.eye(9)[torch.randperm(9)]
    q, k, v = (layer(x).view(2, 9, 4, 3).transpose(1, 2) for layer in (module.query, module.key, module.value))
    exact = torch.from_numpy(dense(q, k, v).output).transpose(1, 2).flatten(-2)
    assert module(x).error(module.output(exact)) < 1e-14


def test_layerwise_is_one_compression_for_several_layers():
    shared = Compression(9, 3, num_heads=4, sharing="key-value")
    layers = torch.nn.Sequential(*(LinformerAttention(12, 4, shared) for _ in range(3)))
    assert sum(one is shared.e for one in layers.parameters()) == 1
    assert [tuple(one.shape) for one in shared.parameters()] == [(1, 3, 9)]
    twin = copy.deepcopy(layers)
    assert twin[0].compression.e is twin[2].compression.e


def test_a_random_rank_has_an_error_of_one_over_its_root_whatever_the_length():
    def error(rank, length):
        q, k, v = (randn(1, 1, length, 16, seed=seed) for seed in range(3))
        weights, v = dense(q, k, v).weights[0, 0], f64(v)[0, 0]
        compression = Compression(length, rank, sharing="key-value").double()
        with torch.no_grad():
            compression.e.copy_(randn(1, rank, length, seed=5) * rank**-0.5)
        right, left = (
            f64(one)[0, 0]
            for one in compression(torch.from_numpy(v)[None, None], torch.from_numpy(weights.T)[None, None])
        )
        apart = left.T @ right - weights @ v
        return np.sqrt(np.mean((apart / np.linalg.norm(weights, axis=1)[:, None] / np.linalg.norm(v, axis=0)) ** 2))

    for rank in (16, 64):
        for length in (128, 512):
            assert 0.8 < error(rank, length) * rank**0.5 < 1.25


def test_cross_attention_compresses_the_source():
    module, x, source = made(), randn(2, 4, 12), randn(2, 7, 12, seed=1)
    torch.testing.assert_close(module(x, source).output, module(torch.cat([x, x], 1), source).output[:, :4])
    assert isinstance(module(x, source), Approximate)


def test_it_survives_copies_files_and_dtypes(tmp_path_factory):
    for case in sweep(SHARINGS):
        with case as sharing:
            tmp_path = tmp_path_factory.mktemp("case")
            module, other, x = made(sharing), made(sharing), randn(2, 9, 12)
            twin = copy.deepcopy(module)
            with torch.no_grad():
                for one in other.parameters():
                    one.zero_()
            torch.save(module.state_dict(), tmp_path / "state.pt")
            other.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
            for one in (twin, other):
                assert torch.equal(one(x).output, module(x).output)
            assert module.to(torch.bfloat16)(x.bfloat16()).output.dtype == torch.bfloat16


def test_anything_but_a_batch_of_sequences_is_refused():
    for case in sweep([(3, 12), (2, 4, 3, 12), (2, 0, 12), (2, 3, 11)]):
        with case as shape:
            # Four sequences of four heads, or one sequence with as many tokens as heads, would else pass for something.
            module = LinformerAttention(12, 4, Compression(9, 3, sharing="headwise")).double()
            with pytest.raises(InputError, match=r"must be \(batch, tokens, 12\) with a token at least.*x\[None\]"):
                module(randn(*shape))


def test_a_sequence_of_nothing_but_padding_gives_the_output_bias_alone():
    module, x = made(), randn(2, 9, 12)
    real = torch.tensor([[True] * 9, [False] * 9])
    output = module(x, key_padding_mask=~real).output
    assert torch.equal(output[1], module.output.bias.expand(9, 12))
    torch.testing.assert_close(output[:1], module(x[:1]).output)


def test_refusals_name_the_way_out():
    module, x = made(), randn(1, 9, 12)
    with pytest.raises(
        InputError, match=r"no mask over pairs, causal or other, got Causal.*PerformerAttention\(causal"
    ):
        module(x, mask=Causal())
    with pytest.raises(InputError, match="for up to 9 keys, got 10: make it with length=10"):
        module(randn(1, 10, 12))
    with pytest.raises(InputError, match='share it with sharing="headwise"'):
        LinformerAttention(12, 3, Compression(9, 3, num_heads=4)).double()(x)
    with pytest.raises(InputError, match="`embed_dim` must be a multiple of `num_heads`, got 10 and 4"):
        LinformerAttention(10, 4, Compression(9, 3))
    with pytest.raises(InputError, match="`key_padding_mask` must be boolean"):
        module(x, key_padding_mask=torch.ones(1, 9))
    with pytest.raises(InputError, match="for layerwise sharing give one"):
        Compression(9, 3, sharing="layerwise")
    with pytest.raises(InputError, match="`num_heads` must be an integer of at least 1, got True"):
        Compression(9, 3, num_heads=True)
    with pytest.raises(InputError, match=r"must be a Compression, got int: Compression\(length, rank, num_heads=4\)"):
        LinformerAttention(12, 4, 3)
    with pytest.raises(InputError, match=r"a sequence for each of 2 in `x`, got 3: write source\.expand"):
        module(randn(2, 9, 12), randn(3, 9, 12))
    with pytest.raises(InputError, match="`rank` must be an integer of at least 1, got 0"):
        Compression(9, 0)
