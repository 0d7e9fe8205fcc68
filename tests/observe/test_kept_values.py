"""keep="qkv": the kept weights times the kept values are the heads that the model gives its output projection."""

import itertools

import numpy as np
import pytest
import torch
import transformers
from torch import nn

import regard
from oracles import causal, dense, f64
from regard.errors import AtlasError, ObservationError
from regard.masks import Causal, Window

N, DIM, WIDE = 24, 8, 6


def randn(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def of_heads(array, heads: int, *, is_bits: bool = False) -> np.ndarray:
    """One for each head, of what heads share, in float64; bfloat16 is the upper half of float32."""
    wide = (array.astype(np.uint32) << 16).view(np.float32) if is_bits else array
    return np.repeat(np.asarray(wide, np.float64), heads // array.shape[1], 1)


def outputs(layer) -> np.ndarray:
    """Σ_j p_ij v_j of each head (batch, heads, queries, width), from what a record keeps of a layer."""
    kept = layer.qk
    whole = slice(0, layer.queries), slice(0, layer.keys)
    weights = [[kept.tile(at, head, *whole) for head in range(layer.heads)] for at in range(layer.batch)]
    return np.array(weights, np.float64) @ of_heads(kept.arrays["v"], layer.heads, is_bits=kept.brain)


def both(seen, tmp_path):
    """The layers that were kept, and those that come back from a file."""
    seen.save(tmp_path / "it.atlas")
    return zip(seen.layers, regard.load_atlas(tmp_path / "it.atlas").layers, strict=True)


# --- real architectures: the oracle is what enters the module's own output projection

SMALL = {"hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 2, "vocab_size": 50}


def bert():
    config = transformers.BertConfig(**SMALL, intermediate_size=48, attn_implementation="sdpa")
    return transformers.BertModel(config), "attention.output.dense", "attention.self"


def gpt2():
    config = transformers.GPT2Config(n_embd=32, n_head=4, n_layer=2, vocab_size=50, attn_implementation="sdpa")
    return transformers.GPT2LMHeadModel(config), "attn.c_proj", "attn"


def llama():
    config = transformers.LlamaConfig(
        **SMALL, num_key_value_heads=2, intermediate_size=48, attn_implementation="sdpa", pad_token_id=0
    )
    return transformers.LlamaForCausalLM(config), "self_attn.o_proj", "self_attn"


def bart():
    config = transformers.BartConfig(
        vocab_size=50,
        d_model=32,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=48,
        decoder_ffn_dim=48,
        attn_implementation="sdpa",
    )
    return transformers.BartModel(config), "out_proj", ""


def watched(make, run, keep="qkv", **options):
    """What a model's output projections took in, by the name of the layer that owns them, and what was seen."""
    torch.manual_seed(0)
    model, projection, owner = make()
    model.eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    entered: dict[str, list[torch.Tensor]] = {}
    for name, module in model.named_modules():
        if name.endswith(projection):
            site = (name.removesuffix(projection) + owner).rstrip(".")
            module.register_forward_pre_hook(
                lambda _, args, site=site: entered.setdefault(site, []).append(args[0].detach())
            )
    with torch.no_grad(), regard.watch(model, keep=keep, **options) as seen:
        run(model)
    return {name: torch.cat(parts, 1) for name, parts in entered.items()}, seen


IDS = torch.randint(5, 50, (2, 11), generator=torch.Generator().manual_seed(1))
LEFT = torch.tensor([[0, 0, 0] + [1] * 8, [1] * 11])
RIGHT = LEFT.flip(1)


def check(entered, seen, tmp_path, shown=slice(None)):
    for pair in both(seen, tmp_path):
        for layer in pair:
            heads = outputs(layer)
            joined = heads.swapaxes(1, 2).reshape(layer.batch, layer.queries, -1)
            np.testing.assert_allclose(joined[shown], f64(entered[layer.name])[shown], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("make", [bert, gpt2, llama], ids=lambda make: make.__name__)
def test_weights_times_values_are_what_the_output_projection_takes(make, tmp_path):
    check(*watched(make, lambda model: model(input_ids=IDS)), tmp_path)


@pytest.mark.parametrize(("make", "mask"), [(bert, RIGHT), (llama, LEFT)], ids=["bert", "llama"])
def test_so_they_are_in_a_padded_batch(make, mask, tmp_path):
    entered, seen = watched(make, lambda model: model(input_ids=IDS, attention_mask=mask))
    check(entered, seen, tmp_path, shown=mask.bool().numpy())  # what rows of padding give is nobody's


def test_so_they_are_across_two_texts(tmp_path):
    entered, seen = watched(bart, lambda model: model(input_ids=IDS, decoder_input_ids=IDS[:, :5]))
    assert [layer.kind for layer in seen.layers] == ["self", "self", "cross"]
    check(entered, seen, tmp_path)


@pytest.mark.parametrize("beams", [1, 3])
def test_so_they_are_of_a_generation(beams, tmp_path):
    """Of several beams too: whose rows follow the beams, as the last one's text does."""

    def run(model):
        options = {"max_new_tokens": 6, "min_new_tokens": 6, "do_sample": False, "num_beams": beams}
        model.generate(input_ids=IDS[:1], attention_mask=torch.ones(1, 11, dtype=torch.long), **options)

    entered, seen = watched(llama, run)
    if beams == 1:
        check(entered, seen, tmp_path)
        return
    for pair in both(seen, tmp_path):
        for layer in pair:
            last = f64(entered[layer.name])[:, -1]  # nothing reorders the beams before it is computed
            np.testing.assert_allclose(outputs(layer)[:, :, -1].reshape(len(last), -1), last, rtol=1e-4, atol=1e-4)


def test_values_of_grouped_heads_are_kept_once_for_a_group():
    _, seen = watched(llama, lambda model: model(input_ids=IDS))
    for layer in seen.layers:
        assert layer.qk.arrays["k"].shape == layer.qk.arrays["v"].shape == (2, 2, 11, 8)


def test_chosen_heads_keep_their_own_values():
    entered, seen = watched(llama, lambda model: model(input_ids=IDS), heads=["0.1", "0.2"])
    (layer,) = seen.layers
    found = outputs(layer)
    every = f64(entered[layer.name]).reshape(2, 11, 4, 8).swapaxes(1, 2)
    np.testing.assert_allclose(found[:, [1, 2]], every[:, [1, 2]], rtol=1e-4, atol=1e-4)
    assert not found[:, [0, 3]].any()


# --- calls by hand: the oracle is a softmax in float64


class Call(nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.options = options

    def forward(self, q, k, v):
        return regard.attention(q, k, v, **self.options)


def test_values_have_a_width_of_their_own_and_the_models_type(tmp_path):
    for dtype, tolerance in ((torch.float64, 1e-12), (torch.float32, 1e-5), (torch.bfloat16, 1e-5)):
        q, k = randn(2, 4, N, DIM, seed=1, dtype=dtype), randn(2, 2, N, DIM, seed=2, dtype=dtype)
        v = randn(2, 2, N, WIDE, seed=3, dtype=dtype)
        with regard.watch(model := Call(mask=Causal()), keep="qkv") as seen:
            model(q, k, v)
        assert seen.layers[0].qk.arrays["v"].itemsize == dtype.itemsize
        weights = dense(q, k, k, visible=causal(N, N)).weights
        expected = weights @ np.repeat(f64(v), 2, 1)
        for pair in both(seen, tmp_path):
            for layer in pair:
                np.testing.assert_allclose(outputs(layer), expected, rtol=tolerance, atol=tolerance)


def stepped(edges, window=None):
    """Queries in steps; a sliding cache has those keys alone that a window lets see."""
    q, k, v = randn(2, 4, N, DIM, seed=1), randn(2, 2, N, DIM, seed=2), randn(2, 2, N, WIDE, seed=3)
    mask = Causal() & Window(window) if window else Causal()
    with regard.watch(model := Call(mask=mask), keep="qkv") as seen:
        for start, end in itertools.pairwise(edges):
            first = max(0, start - window + 1) if window else 0
            model(q[:, :, start:end], k[:, :, first:end], v[:, :, first:end])
    return seen, q, k, v


def test_decoding_keeps_each_value_once(tmp_path):
    for edges in ([0, 1, 2, 3, 20, N], [0, 18, *range(19, N + 1)]):
        seen, q, k, v = stepped(edges)
        for layer in next(iter(both(seen, tmp_path))):
            np.testing.assert_array_equal(layer.qk.arrays["v"], f64(v))
            expected = dense(q, k, k, visible=causal(N, N)).weights @ np.repeat(f64(v), 2, 1)
            np.testing.assert_allclose(outputs(layer), expected, rtol=1e-10, atol=1e-12)


def test_a_cache_that_drops_values_keeps_them_here():
    seen, _, _, v = stepped([0, 12, 13, 14, 19, N], window=5)
    np.testing.assert_array_equal(seen.layers[0].qk.arrays["v"], f64(v))


def test_a_static_cache_may_be_written_over_afterwards():
    q, k, v = randn(1, 2, 12, DIM, seed=1), randn(1, 2, 12, DIM, seed=2), randn(1, 2, 12, WIDE, seed=3)
    keys, values = torch.zeros(1, 2, 20, DIM, dtype=torch.float64), torch.zeros(1, 2, 20, WIDE, dtype=torch.float64)

    class Static(nn.Module):
        def forward(self, start, end):
            keys[:, :, start:end], values[:, :, start:end] = k[:, :, start:end], v[:, :, start:end]
            mask = torch.arange(20) <= torch.arange(start, end)[:, None]
            return nn.functional.scaled_dot_product_attention(q[:, :, start:end], keys, values, attn_mask=mask)

    with regard.watch(model := Static(), keep="qkv") as seen:
        for start, end in [(0, 9), (9, 10), (10, 11), (11, 12)]:
            model(start, end)
    values.zero_()  # for another text
    np.testing.assert_array_equal(seen.layers[0].qk.arrays["v"][:, :, :12], f64(v))


# --- what it costs, and what is refused


def test_qk_costs_not_a_byte_more_than_without_values(tmp_path):
    q, k, v = randn(2, 4, N, DIM, seed=1), randn(2, 2, N, DIM, seed=2), randn(2, 2, N, WIDE, seed=3)
    needed = 8 * (q.numel() + k.numel() + 2 * 4 * N)
    for keep, count in (("qk", needed), ("qkv", needed + 8 * v.numel())):
        with regard.watch(model := Call(mask=Causal()), keep=keep, max_bytes=count) as seen:
            model(q, k, v)
        kept = seen.layers[0].qk
        assert kept.nbytes == count
        assert ("v" in kept.arrays) == kept.has_values == (keep == "qkv")
        with (
            pytest.raises(ObservationError, match=rf'keep="{keep}" needs .* raise `max_bytes`'),
            regard.watch(model, keep=keep, max_bytes=count - 1),
        ):
            model(q, k, v)
        seen.save(tmp_path / f"{keep}.atlas")
    sizes = [(tmp_path / f"{keep}.atlas").stat().st_size for keep in ("qk", "qkv")]
    assert sizes[1] - sizes[0] >= 8 * v.numel()


def test_a_file_with_values_has_a_version_of_its_own(tmp_path):
    import json

    import safetensors

    q = randn(1, 2, N, DIM)
    for keep, version in (("qk", 5), ("qkv", 7)):
        with regard.watch(model := Call(), keep=keep) as seen:
            model(q, q, q)
        seen.save(tmp_path / "it.atlas")
        with safetensors.safe_open(tmp_path / "it.atlas", "np") as file:
            assert json.loads(file.metadata()["regard"])["version"] == version


def test_values_that_do_not_fit_their_keys_are_damage(tmp_path):
    import dataclasses

    from regard.record.atlas import read_atlas, save_atlas

    q = randn(1, 2, N, DIM)
    with regard.watch(model := Call(), keep="qkv") as seen:
        model(q, q, q)
    layer = seen.layers[0]
    good = layer.qk.arrays["v"]
    for wrong in (good[:, :, 1:], good[0], good.astype(np.float32), np.repeat(good, 3, 1)[:, :3]):
        kept = dataclasses.replace(layer.qk, arrays={**layer.qk.arrays, "v": np.ascontiguousarray(wrong)})
        record = dataclasses.replace(seen.record, layers=(dataclasses.replace(layer, qk=kept),))
        save_atlas((record,), tmp_path / "it.atlas")
        with pytest.raises(AtlasError, match="values"):
            read_atlas(tmp_path / "it.atlas")


def test_keys_after_the_place_of_the_query_have_their_values_too(tmp_path):
    """A chunk that looks ahead: queries 4 and 5 of 12 positions, bound to their place, see three keys after them."""
    q, k, v = randn(1, 4, 2, DIM, seed=1), randn(1, 2, 12, DIM, seed=2), randn(1, 2, 12, WIDE, seed=3)
    with regard.watch(model := Call(mask=Window(left=2, right=3).bind(2, 12, q_offset=4)), keep="qkv") as seen:
        model(q, k, v)
    i, j = np.arange(4, 6)[:, None], np.arange(12)
    expected = dense(q, k, k, visible=(i - j <= 2) & (j - i <= 3)).weights @ np.repeat(f64(v), 2, 1)
    for pair in both(seen, tmp_path):
        for layer in pair:
            np.testing.assert_allclose(outputs(layer), expected, atol=1e-12)
