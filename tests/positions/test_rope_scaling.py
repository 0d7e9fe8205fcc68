"""Stretched RoPE against transformers' frequencies, and what their configurations say."""

from itertools import product
from types import SimpleNamespace

import pytest
import torch

from regard.errors import InputError
from regard.positions import NTK, DynamicNTK, LinearScaling, Llama3, RoPE, YaRN
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
        (lambda: _wrong(rope_scaling={"type": "longrope"}), "must be one of default, linear, .* got 'longrope'"),
        (lambda: _wrong(rope_parameters={"rope_type": "proportional"}), "got 'proportional'"),
        (
            lambda: _wrong(rope_scaling={"type": "default", "mrope_section": [1, 1, 2]}),
            "type 'default' has parameters that are not understood: mrope_section",
        ),
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
