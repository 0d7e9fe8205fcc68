"""Stretched RoPE against transformers' frequencies, and what their configurations say."""

from itertools import product
from types import SimpleNamespace

import pytest
import torch

from regard.cache import KVCache
from regard.errors import InputError
from regard.masks import Causal
from regard.models import Transformer, TransformerConfig
from regard.nn import MultiHeadAttention
from regard.positions import NTK, DynamicNTK, LinearScaling, Llama3, LongRoPE, Proportional, RoPE, YaRN
from sweeps import sweep

YARN = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 4096}
LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}  # fmt: skip
CASES = [
    ({"rope_type": "default"}, None, None),
    ({"rope_type": "linear", "factor": 4.0}, LinearScaling(4.0), None),
    ({"rope_type": "dynamic", "factor": 2.0}, DynamicNTK(2.0, 2048), None),
    ({"rope_type": "dynamic", "factor": 2.0}, DynamicNTK(2.0, 2048), 1000),
    ({"rope_type": "dynamic", "factor": 2.0}, DynamicNTK(2.0, 2048), 5000),
    (YARN, YaRN(8.0, 4096), None),
    ({**YARN, "attention_factor": 1.5}, YaRN(8.0, 4096, attention_factor=1.5), None),
    ({**YARN, "beta_fast": 20.0, "beta_slow": 2.0}, YaRN(8.0, 4096, beta_fast=20.0, beta_slow=2.0), None),
    ({**YARN, "truncate": False}, YaRN(8.0, 4096, truncate=False), None),
    ({**YARN, "factor": 40.0, "mscale": 1.0, "mscale_all_dim": 1.0}, YaRN(40.0, 4096, attention_factor=1.0), None),
    ({**YARN, "original_max_position_embeddings": 6}, YaRN(8.0, 6), None),  # a ramp without width
    (LLAMA3, Llama3(), None),
    ({**LLAMA3, "factor": 32.0, "low_freq_factor": 2.0}, Llama3(32.0, low_freq_factor=2.0), None),
]


def _config(rope, **more):
    llama = pytest.importorskip("transformers.models.llama.modeling_llama")
    more = {"head_dim": 128, "max_position_embeddings": 2048, **more}
    return llama.LlamaConfig(
        hidden_size=512, num_attention_heads=4, rope_parameters={"rope_theta": 500000.0, **rope}, **more
    )


def test_frequencies_are_those_of_transformers():
    for case in sweep(product(CASES, [1.0, 0.25])):
        with case as ((rope, scaling, length), part):
            utils = pytest.importorskip("transformers.modeling_rope_utils")
            config = _config({**rope, "partial_rotary_factor": part})
            turn = RoPE.from_transformers(config, interleaved=False)
            width = 128 if part == 1 else 32
            assert turn == RoPE(128, base=500000.0, rotary_dim=None if part == 1 else 32, scaling=scaling)
            if scaling is None:
                theirs, factor = 1.0 / 500000.0 ** (torch.arange(0, width, 2).double() / width), 1.0
            else:
                theirs, factor = utils.ROPE_INIT_FUNCTIONS[rope["rope_type"]](config, "cpu", seq_len=length)
            ours = turn.frequencies
            plain = RoPE(128, base=500000.0, rotary_dim=width).frequencies
            if scaling is not None:
                ours, our_factor = scaling(plain, 500000.0, length or 1)
                assert our_factor == pytest.approx(factor, rel=1e-12)
                if length is None:
                    assert torch.equal(turn.frequencies, ours)
            torch.testing.assert_close(ours, theirs.float(), rtol=5e-7, atol=0)


def test_the_whole_rotation_is_that_of_transformers():
    for case in sweep(CASES):
        with case as (rope, _, length):
            llama = pytest.importorskip("transformers.models.llama.modeling_llama")
            torch.manual_seed(0)
            config = _config(rope)
            x, at = torch.randn(1, 2, 9, 128), torch.arange(9) + (length or 2048) - 9
            theirs, _ = llama.apply_rotary_pos_emb(x, x, *llama.LlamaRotaryEmbedding(config)(x, at[None]))
            ours = RoPE.from_transformers(config, interleaved=False).rotate(x, at)
            # Frequencies that differ in their last bit are multiplied by positions of some thousand.
            torch.testing.assert_close(ours, theirs, rtol=0, atol=2e-3 if length == 5000 else 1e-6)


def test_ntk_slows_the_slowest_pair_by_the_factor_and_the_fastest_not_at_all():
    plain, slowed = RoPE(64).frequencies, RoPE(64, scaling=NTK(8.0)).frequencies
    assert slowed[0] == plain[0]
    torch.testing.assert_close(slowed[-1] * 8, plain[-1])
    torch.testing.assert_close(slowed, RoPE(64, base=10000.0 * 8 ** (64 / 62)).frequencies, rtol=2e-6, atol=0)
    assert RoPE(2, scaling=NTK(8.0)).frequencies.tolist() == [1.0]


def test_dynamic_ntk_is_not_felt_within_the_original_length():
    x = torch.randn(10, 8)
    turn = RoPE(8, scaling=DynamicNTK(4.0, original_max_position_embeddings=10))
    for length in (5, 10):
        at = torch.arange(length)
        assert torch.equal(turn.rotate(x[:length], at), RoPE(8).rotate(x[:length], at))
    twice = RoPE(8, scaling=NTK(5.0))  # 4 · 20/10 − 3
    at = torch.arange(10, 20)
    torch.testing.assert_close(turn.rotate(x, at), twice.rotate(x, at))


def test_old_names_are_read_too():
    old = SimpleNamespace(
        hidden_size=256, num_attention_heads=4, max_position_embeddings=4096, rope_theta=10000.0, head_dim=None,
        rope_scaling={"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024, "finetuned": True},
        partial_rotary_factor=0.5,
    )  # fmt: skip
    assert RoPE.from_transformers(old, interleaved=False) == RoPE(64, rotary_dim=32, scaling=YaRN(4.0, 1024))
    old.rope_scaling["factor"] = None
    assert RoPE.from_transformers(old, interleaved=False).scaling == YaRN(4.0, 1024)
    old.rope_scaling = None
    assert RoPE.from_transformers(old, interleaved=True) == RoPE(64, interleaved=True, rotary_dim=32)
    neox = SimpleNamespace(hidden_size=64, num_attention_heads=4, rotary_pct=0.25, rotary_emb_base=5000)
    assert RoPE.from_transformers(neox, interleaved=False) == RoPE(16, base=5000.0, rotary_dim=4)


def test_layers_that_differ_are_read_one_type_at_a_time():
    gemma = pytest.importorskip("transformers.models.gemma3.configuration_gemma3")
    config = gemma.Gemma3TextConfig(head_dim=64)
    bases = {
        kind: RoPE.from_transformers(config, interleaved=False, layer_type=kind).base
        for kind in ("full_attention", "sliding_attention")
    }
    assert bases == {"full_attention": 1_000_000.0, "sliding_attention": 10_000.0}
    with pytest.raises(InputError, match=r"`layer_type` must be one of .*full_attention"):
        RoPE.from_transformers(config, interleaved=False)
    with pytest.raises(InputError, match=r"full_attention.*got 'chunked'"):
        RoPE.from_transformers(config, interleaved=False, layer_type="chunked")


def _wrong(kind=None, **fields):
    fields = {"head_dim": 8, "max_position_embeddings": 64, "rope_theta": 100.0, **fields}
    return RoPE.from_transformers(SimpleNamespace(**fields), interleaved=False, layer_type=kind)


def test_what_is_not_understood_is_refused_by_name():
    cases = [
        (lambda: _wrong(rope_scaling={"type": "spiral"}), "must be one of default, linear, .* got 'spiral'"),
        (lambda: _wrong(rope_scaling={"type": "longrope", "short_factor": [1.0] * 4}), "needs `long_factor`"),
        (
            lambda: _wrong(rope_scaling={"type": "longrope", "short_factor": [1.0] * 3, "long_factor": [1.0] * 3}),
            "a number for each of the 4 pairs that are turned, got 3: rotary_dim=6",
        ),
        (
            lambda: _wrong(rope_scaling={"type": "default", "mrope_section": [1, 1, 2]}),
            r"`mrope_section`, .* known for .*qwen2_vl.*, got 'None': build RoPE\(..., mrope_section=...\) yourself",
        ),
        (lambda: LongRoPE(4.0, (1.0,), (1.0, 2.0), 8), "for each pair, got 1 and 2"),
        (lambda: LongRoPE(4.0, (1.0,), (0.0,), 8), "`long_factor` must be a finite number above 0 for each pair, got"),
        (
            lambda: LongRoPE(4.0, 1.0, (1.0,), 8),
            "`short_factor` must be a finite number above 0 for each pair, got 1.0",
        ),
        (lambda: LongRoPE(4.0, (1.0,), (1.0,), 1), "`original_max_position_embeddings` .* at least 2, got 1"),
        (lambda: LongRoPE(4.0, (1.0,), (1.0,), 8, attention_factor=0.0), "`attention_factor` .* above 0, got 0.0"),
        (lambda: LongRoPE(4.0, (1.0,), (1.0,), 8, length=0), "`length` .* at least 1, got 0"),
        (lambda: Proportional(1.5), "`partial_rotary_factor` .* a number from 0 to 1, got 1.5"),
        (lambda: Proportional(0.5, 0.1), "`factor` .* at least 1, got 0.1"),
        (lambda: _wrong(rope_scaling={"type": "dynamic", "alpha": 8.0}), "not understood: alpha"),
        (lambda: _wrong(rope_scaling={"type": "linear"}), "type 'linear' needs `factor`"),
        (lambda: _wrong(rope_theta=None), "no `rope_theta`: does the model use RoPE at all"),
        (lambda: _wrong(head_dim=None), "neither `head_dim` nor `hidden_size`"),
        (lambda: _wrong(rope_parameters={"a": {"rope_type": "linear"}, "b": None}), "`layer_type` must be one of a$"),
        (lambda: _wrong(kind="a", rope_scaling=None), r"all layers are alike: leave it out\), got 'a'"),
        (lambda: LinearScaling(0.5), "`factor` .* at least 1, got 0.5"),
        (lambda: NTK(float("nan")), "finite number at least 1, got nan"),
        (lambda: DynamicNTK(2.0, 0), "`original_max_position_embeddings` .* above 0, got 0"),
        (lambda: DynamicNTK(2.0, 5, length=0), "`length` .* at least 1, got 0"),
        (lambda: YaRN(2.0, 5.5), "`original_max_position_embeddings` .* got 5.5"),
        (lambda: YaRN(2.0, 5, beta_fast=1.0), "`beta_fast` .* above 1, got 1.0"),
        (lambda: YaRN(2.0, 5, beta_slow=0), "`beta_slow` .* above 0, got 0"),
        (lambda: YaRN(2.0, 5, attention_factor=-1.0), "`attention_factor` .* above 0, got -1.0"),
        (
            lambda: Llama3(low_freq_factor=4.0),
            "`high_freq_factor` counts turns, more than `low_freq_factor`, .* above 4, got 4.0",
        ),
        (lambda: Llama3(original_max_position_embeddings=True), "`original_max_position_embeddings` .* got True"),
    ]
    for case in sweep(cases):
        with case as (make, words), pytest.raises(InputError, match=words):
            make()


def _longrope(pairs, **more):
    short = [1.0 + 0.05 * pair for pair in range(pairs)]
    long = [1.0 + 0.5 * pair for pair in range(pairs)]
    return {"rope_type": "longrope", "short_factor": short, "long_factor": long} | more


def test_every_type_of_transformers_is_read():
    utils = pytest.importorskip("transformers.modeling_rope_utils")
    more = {
        "factor": 2.0, "original_max_position_embeddings": 1024, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "short_factor": [1.0] * 64, "long_factor": [2.0] * 64,
    }  # fmt: skip
    for case in sweep(utils.ROPE_INIT_FUNCTIONS):
        with case as kind:
            turn = RoPE.from_transformers(_config({**more, "rope_type": kind}), interleaved=False)
            theirs, factor = utils.ROPE_INIT_FUNCTIONS[kind](_config({**more, "rope_type": kind}), "cpu", seq_len=9)
            plain = RoPE(128, base=500000.0).frequencies
            ours, our_factor = turn.scaling(plain, 500000.0, 9)
            assert our_factor == pytest.approx(factor, rel=1e-12)
            torch.testing.assert_close(ours, theirs, rtol=5e-7, atol=0)


def test_longrope_is_that_of_transformers():
    """Factors by the length; the attention factor by s, from the lengths, or explicit; a part of the head."""
    phi3 = pytest.importorskip("transformers.models.phi3.modeling_phi3")
    utils = pytest.importorskip("transformers.modeling_rope_utils")
    options = [{}, {"factor": 32.0}, {"attention_factor": 1.7}, {"factor": 4.0, "attention_factor": 1.25}]
    for case in sweep(product(options, [1.0, 0.75], [10, 64, 65, 200])):
        with case as (more, part, length):
            config = phi3.Phi3Config(
                hidden_size=64, num_attention_heads=4, pad_token_id=0, max_position_embeddings=512,
                original_max_position_embeddings=64, rope_parameters=_longrope(int(16 * part) // 2, **more)
                | {"rope_theta": 1e4, "partial_rotary_factor": part},
            )  # fmt: skip
            turn = RoPE.from_transformers(config, interleaved=False)
            theirs, factor = utils.ROPE_INIT_FUNCTIONS["longrope"](config, "cpu", seq_len=length)
            width = int(16 * part)
            assert (turn.dim, turn.rotary_dim) == (16, None if part == 1 else width)
            ours, our_factor = turn.scaling(RoPE(width).frequencies, 1e4, length)
            assert our_factor == pytest.approx(factor, rel=1e-12)
            torch.testing.assert_close(ours, theirs, rtol=5e-7, atol=0)
            x, at = torch.randn(2, 4, length, 16), torch.arange(length)
            rotated, _ = phi3.apply_rotary_pos_emb(x, x, *phi3.Phi3RotaryEmbedding(config)(x, at[None]))
            torch.testing.assert_close(turn.rotate(x, at), rotated, rtol=0, atol=2e-4)


def test_longrope_of_older_files():
    """Phi-3 and Phi-4-mini as their files have it: lengths beside the parameters, and the type "su" before 4.43."""
    for case in sweep(["longrope", "su", "yarn"]):
        with case as kind:
            old = SimpleNamespace(
                hidden_size=3072, num_attention_heads=24, max_position_embeddings=131072, rope_theta=10000.0,
                original_max_position_embeddings=4096, partial_rotary_factor=0.75, model_type="phi3",
                rope_scaling={"type": kind, "short_factor": [1.0] * 48, "long_factor": [1.5] * 48},
            )  # fmt: skip
            assert RoPE.from_transformers(old, interleaved=False) == RoPE(
                128, rotary_dim=96, scaling=LongRoPE(32.0, (1.0,) * 48, (1.5,) * 48, 4096)
            )


def _tiny_phi3():
    """A random Phi-3 with an original length of 12."""
    phi3 = pytest.importorskip("transformers.models.phi3.modeling_phi3")
    torch.manual_seed(0)
    config = phi3.Phi3Config(
        vocab_size=20, hidden_size=32, intermediate_size=16, num_hidden_layers=1, num_attention_heads=4, pad_token_id=0,
        eos_token_id=0, bos_token_id=0, num_key_value_heads=2, max_position_embeddings=64,
        original_max_position_embeddings=12, rope_parameters=_longrope(3)
        | {"rope_theta": 1e4, "partial_rotary_factor": 0.75}, attn_implementation="eager",
    )  # fmt: skip
    model = phi3.Phi3Model(config).eval()
    for weight in model.parameters():
        if weight.ndim == 2:
            torch.nn.init.normal_(weight, std=0.4)  # transformers' 0.02 would hide differences
    return model


def _as_regard(theirs):
    """The attention of the first layer, with its weights."""
    attention, (q, kv) = theirs.layers[0].self_attn, (32, 16)
    turn = RoPE.from_transformers(theirs.config, interleaved=False)
    ours = MultiHeadAttention(32, 4, num_kv_heads=2, mask=Causal(), rotary=turn, bias=False).eval()
    weights = attention.qkv_proj.weight.split([q, kv, kv])
    for module, weight in zip((ours.q_proj, ours.k_proj, ours.v_proj), weights, strict=True):
        module.weight.data = weight.data
    ours.out_proj.weight.data = attention.o_proj.weight.data
    return ours


def _inputs_and_outputs(theirs, ids, cache=None):
    seen = []
    hook = theirs.layers[0].self_attn.register_forward_hook(
        lambda _, args, kwargs, output: seen.append((kwargs["hidden_states"], output[0])), with_kwargs=True
    )
    theirs(ids, past_key_values=cache)
    hook.remove()
    return seen[0]


@torch.no_grad()
def test_attention_of_phi3_at_lengths_below_and_beyond_the_original():
    theirs = _tiny_phi3()
    ours = _as_regard(theirs)
    for case in sweep([5, 12, 13, 40]):
        with case as length:
            hidden, expected = _inputs_and_outputs(theirs, torch.arange(length)[None] % 20)
            torch.testing.assert_close(ours(hidden), expected, rtol=0, atol=1e-5)


@torch.no_grad()
def test_attention_of_phi3_with_a_cache_that_grows_beyond_the_original_length():
    """Keys that a cache has keep the short factors; queries and keys after that have the long ones."""
    transformers = pytest.importorskip("transformers")
    theirs = _tiny_phi3()
    ours, cache, their_cache = _as_regard(theirs), KVCache(), transformers.DynamicCache()
    ids, outputs = torch.arange(20)[None], []
    for chunk in ids.split([8, 3, 1, 1, 1, 6], 1):
        hidden, expected = _inputs_and_outputs(theirs, chunk, their_cache)
        outputs.append(ours(hidden, cache=cache))
        torch.testing.assert_close(outputs[-1], expected, rtol=0, atol=1e-5)
    hidden, expected = _inputs_and_outputs(theirs, ids)
    assert (torch.cat(outputs, 1) - expected)[:, 12:].abs().max() > 0.1  # not those of the whole text at once
    torch.testing.assert_close(torch.cat(outputs, 1)[:, :12], ours(hidden[:, :12]), rtol=0, atol=1e-5)


def test_longrope_turns_each_text_of_a_batch_by_its_own_length():
    turn = RoPE(8, scaling=LongRoPE(4.0, (1.0,) * 4, (1.0, 2.0, 3.0, 4.0), 4))
    at = torch.tensor([[0, 0, 0, 1, 2, 3, 4, 5, 6], [0, 1, 2, 0, 1, 2, 3, 0, 0]])
    x = torch.randn(2, 3, 9, 8, dtype=torch.float64)
    turned = turn.at(at).rotate(x, torch.arange(9))
    sharpened = (1 + 1) ** 0.5  # √(1 + ln 4 / ln 4)
    for row, start, stop, divisors in ((0, 2, 9, [1.0, 2.0, 3.0, 4.0]), (1, 0, 3, [1.0] * 4), (1, 3, 7, [1.0] * 4)):
        with_divisors = 10000.0 ** -(torch.arange(4, dtype=torch.float64) / 4) / torch.tensor(divisors).double()
        pairs = torch.complex(*x[row, :, start:stop].chunk(2, -1))
        pairs = pairs * torch.exp(1j * torch.arange(stop - start).double()[:, None] * with_divisors) * sharpened
        expected = torch.cat([pairs.real, pairs.imag], -1)
        torch.testing.assert_close(turned[row, :, start:stop], expected)


@torch.no_grad()
def test_a_model_with_longrope_does_not_feel_the_padding_and_the_length_of_other_texts():
    """Of each text of a batch, with a cache and without: what it is alone."""
    torch.manual_seed(0)
    turn = RoPE(4, scaling=LongRoPE(4.0, (1.0, 1.0), (1.5, 9.0), 6))
    config = TransformerConfig(
        vocab_size=11, hidden_size=16, num_attention_heads=4, intermediate_size=32, decoder_layers=2, positions=turn
    )
    model = Transformer(config).eval()
    ids = torch.randint(0, 11, (2, 9))
    mask = torch.ones(2, 9, dtype=torch.bool)
    mask[0, :4] = False  # 5 tokens, short; the other has 9, long
    alone = [model(row[keep][None]).last_hidden_state[0] for row, keep in zip(ids, mask, strict=True)]
    cache = model.cache()
    together = {
        "at once": model(ids, attention_mask=mask).last_hidden_state,
        "with a cache": model(ids, attention_mask=mask, past_key_values=cache).last_hidden_state,
    }
    for states in together.values():
        for row, keep, expected in zip(states, mask, alone, strict=True):
            torch.testing.assert_close(row[keep], expected, rtol=0, atol=1e-5)
    longer = torch.randint(0, 11, (2, 1))
    step = model(longer, past_key_values=cache).last_hidden_state  # 6 and 10 tokens: still short, still long
    for row in range(2):
        text = torch.cat([ids[row][mask[row]], longer[row]])[None]
        torch.testing.assert_close(step[row], model(text).last_hidden_state[0, -1:], rtol=0, atol=1e-5)


def test_proportional_rope_is_gemma_4s():
    gemma = pytest.importorskip("transformers.models.gemma4.modeling_gemma4")
    config = gemma.Gemma4TextConfig(
        num_hidden_layers=6, hidden_size=64, num_attention_heads=2, head_dim=16, global_head_dim=32
    )
    module = gemma.Gemma4TextRotaryEmbedding(config)
    for case in sweep([("full_attention", 32), ("sliding_attention", 16)]):
        with case as (kind, width):
            x, at = torch.randn(1, 2, 9, width), torch.arange(40, 49)
            cos, sin = module(x, at[None], kind)
            theirs = gemma.apply_rotary_pos_emb(x, cos, sin, unsqueeze_dim=1)
            turn = RoPE.from_transformers(config, interleaved=False, layer_type=kind)
            torch.testing.assert_close(turn.rotate(x, at), theirs, rtol=0, atol=1e-5)
            if kind == "full_attention":
                assert turn == RoPE(32, base=1e6, scaling=Proportional(0.25))
