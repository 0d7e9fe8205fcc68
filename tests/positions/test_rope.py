"""RoPE against complex numbers, against Llama, GPT-J and GPT-NeoX, and through attention."""

from itertools import product

import pytest
import torch

from regard import attention, masks, positions
from regard.cache import KVCache
from regard.errors import InputError
from regard.nn import MultiHeadAttention
from regard.positions import RoPE, Rotary
from sweeps import sweep

LAYOUTS = ["halves", "interleaved"]
SCALINGS = [
    None,
    positions.LinearScaling(3.0),
    positions.NTK(4.0),
    positions.DynamicNTK(2.0, original_max_position_embeddings=10),
    positions.YaRN(4.0, original_max_position_embeddings=64, beta_fast=8),
    positions.Proportional(0.7, factor=2.0),
    positions.Llama3(4.0, original_max_position_embeddings=64),
]


def _turned(x, at, frequencies, layout):
    """Su et al. 2021 as complex numbers: pair · exp(i p ω)."""
    x = x.double()
    pairs = x.unflatten(-1, (2, -1)).transpose(-2, -1) if layout == "halves" else x.unflatten(-1, (-1, 2))
    numbers = torch.view_as_complex(pairs.contiguous()) * torch.exp(1j * at.double()[:, None] * frequencies.double())
    pairs = torch.view_as_real(numbers)
    return pairs.transpose(-2, -1).flatten(-2) if layout == "halves" else pairs.flatten(-2)


def test_pairs_are_multiplied_by_complex_numbers():
    for case in sweep(product(LAYOUTS, [2, 6, 64])):
        with case as (layout, dim):
            torch.manual_seed(0)
            x, at = torch.randn(2, 3, 7, dim, dtype=torch.float64), torch.arange(5, 12)
            frequencies = 500.0 ** -(torch.arange(0, dim, 2, dtype=torch.float64) / dim)
            ours = RoPE(dim, base=500.0, interleaved=layout == "interleaved").rotate(x, at)
            torch.testing.assert_close(ours, _turned(x, at, frequencies, layout), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_part_is_turned_as_a_vector_of_its_own_width(layout):
    torch.manual_seed(0)
    x, at = torch.randn(5, 16), torch.arange(5)
    ours = RoPE(16, interleaved=layout == "interleaved", rotary_dim=6).rotate(x, at)
    assert torch.equal(ours[:, :6], RoPE(6, interleaved=layout == "interleaved").rotate(x[:, :6], at))
    assert torch.equal(ours[:, 6:], x[:, 6:])


def test_it_is_llamas():
    llama = pytest.importorskip("transformers.models.llama.modeling_llama")
    torch.manual_seed(0)
    config = llama.LlamaConfig(hidden_size=64, num_attention_heads=4, max_position_embeddings=4096)
    q, k, at = torch.randn(2, 4, 9, 16), torch.randn(2, 2, 9, 16), torch.arange(3000, 3009)
    cos, sin = llama.LlamaRotaryEmbedding(config)(q, at[None])
    theirs = llama.apply_rotary_pos_emb(q, k, cos, sin)
    turn = RoPE.from_transformers(config, interleaved=False)
    for ours, their in zip((turn.rotate(q, at), turn.rotate(k, at)), theirs, strict=True):
        torch.testing.assert_close(ours, their, rtol=0, atol=1e-6)


def test_it_is_gpt_js():
    gptj = pytest.importorskip("transformers.models.gptj.modeling_gptj")
    torch.manual_seed(0)
    config = gptj.GPTJConfig(n_embd=64, n_head=2, rotary_dim=8)
    x, at = torch.randn(2, 9, 2, 32), torch.arange(100, 109)  # theirs is (batch, n, heads, d)
    sin, cos = gptj.create_sinusoidal_positions(200, 8)[at][None].chunk(2, -1)
    theirs = torch.cat([gptj.apply_rotary_pos_emb(x[..., :8], sin, cos), x[..., 8:]], -1)
    turn = RoPE.from_transformers(config, interleaved=True)
    assert (turn.dim, turn.rotary_dim) == (32, 8)
    torch.testing.assert_close(turn.rotate(x.transpose(1, 2), at).transpose(1, 2), theirs, rtol=0, atol=1e-5)


def test_it_is_gpt_neoxs():
    neox = pytest.importorskip("transformers.models.gpt_neox.modeling_gpt_neox")
    torch.manual_seed(0)
    config = neox.GPTNeoXConfig(hidden_size=64, num_attention_heads=2, rotary_pct=0.25, rotary_emb_base=5000)
    x, at = torch.randn(1, 2, 9, 32), torch.arange(40, 49)
    theirs, _ = neox.apply_rotary_pos_emb(x, x, *neox.GPTNeoXRotaryEmbedding(config)(x, at[None]))
    turn = RoPE.from_transformers(config, interleaved=False)
    assert (turn.dim, turn.rotary_dim, turn.base) == (32, 8, 5000.0)
    torch.testing.assert_close(turn.rotate(x, at), theirs, rtol=0, atol=1e-6)


def test_through_the_door_it_is_rotating_by_hand():
    longrope = positions.LongRoPE(4.0, (1.0, 1.5, 2.0), (2.0, 3.0, 5.0), original_max_position_embeddings=18)
    for case in sweep(product(LAYOUTS, [*SCALINGS, longrope])):
        with case as (layout, scaling):
            torch.manual_seed(0)
            q, k, v = torch.randn(2, 4, 5, 8), torch.randn(2, 2, 20, 8), torch.randn(2, 2, 20, 3)
            turn = RoPE(8, interleaved=layout == "interleaved", rotary_dim=6, scaling=scaling)
            by_hand = attention(
                turn.rotate(q, torch.arange(15, 20)), turn.rotate(k, torch.arange(20)), v, mask=masks.Causal()
            )
            torch.testing.assert_close(attention(q, k, v, rotary=turn, mask=masks.Causal()), by_hand, rtol=0, atol=1e-6)


def test_a_shift_of_all_positions_changes_no_score():
    for case in sweep(product(LAYOUTS, [one for one in SCALINGS if not isinstance(one, positions.DynamicNTK)])):
        with case as (layout, scaling):
            torch.manual_seed(0)
            q, k = (
                torch.randn(2, 3, 9, 8, dtype=torch.float64)[..., :9, :],
                torch.randn(2, 3, 9, 8, dtype=torch.float64),
            )
            turn, at = RoPE(8, interleaved=layout == "interleaved", scaling=scaling), torch.arange(9)
            here, there = (turn.rotate(q, at + by) @ turn.rotate(k, at + by).mT for by in (0, 12345))
            torch.testing.assert_close(there, here, rtol=0, atol=1e-10)
            elsewhere = turn.rotate(q, at + 1) @ turn.rotate(k, at).mT
            assert (elsewhere - here).abs().max() > 0.1


def test_lengths_stay_as_they_are():
    x = torch.randn(4, 6, dtype=torch.float64)
    turned = RoPE(6).rotate(x, torch.arange(4) + 7)
    torch.testing.assert_close(turned.norm(dim=-1), x.norm(dim=-1))
    torch.testing.assert_close(RoPE(6).rotate(x[:1], torch.tensor([0])), x[:1])


def test_turning_back_is_the_gradient():
    torch.manual_seed(0)
    x = torch.randn(3, 6, dtype=torch.float64, requires_grad=True)
    turn, at, up = RoPE(6, rotary_dim=4), torch.arange(3), torch.randn(3, 6, dtype=torch.float64)
    (gradient,) = torch.autograd.grad(turn.rotate(x, at), x, up)
    torch.testing.assert_close(gradient, turn.rotate(up, -at))
    assert torch.autograd.gradcheck(lambda x: turn.rotate(x, at), x)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_vectors_are_rounded_once(dtype):
    torch.manual_seed(0)
    x, at = torch.randn(50, 8).to(dtype), torch.arange(1000, 1050)
    ours = RoPE(8, rotary_dim=6).rotate(x, at)
    assert ours.dtype == dtype
    assert torch.equal(ours, RoPE(8, rotary_dim=6).rotate(x.float(), at).to(dtype))


def test_double_vectors_have_double_angles():
    x, at = torch.tensor([[1.0, 0.0, 0.0, 0.0]], dtype=torch.float64), torch.tensor([1_000_003])
    turned = RoPE(4, interleaved=False).rotate(x, at)[0]
    exact = torch.exp(1j * torch.tensor(1_000_003.0, dtype=torch.float64))
    torch.testing.assert_close(turned[[0, 2]], torch.stack([exact.real, exact.imag]), rtol=0, atol=1e-9)


def test_nothing_is_turned_into_nothing():
    assert RoPE(6).rotate(torch.zeros(2, 0, 6), torch.arange(0)).shape == (2, 0, 6)


def test_positions_may_be_short_integers():
    x, at = torch.randn(4, 6), torch.arange(4)
    assert torch.equal(RoPE(6).rotate(x, at.int()), RoPE(6).rotate(x, at))


def test_dynamic_ntk_turns_queries_and_keys_alike_wherever_the_queries_stand():
    turn = RoPE(8, scaling=positions.DynamicNTK(2.0, original_max_position_embeddings=10))
    fixed = turn.resolve(5, 40, 3)
    assert fixed == RoPE(8, scaling=positions.DynamicNTK(2.0, original_max_position_embeddings=10, length=40))
    assert fixed.resolve(1, 50, 49) == fixed
    x = torch.randn(40, 8)
    assert torch.equal(fixed.rotate(x, torch.arange(40))[3:8], fixed.rotate(x[3:8], torch.arange(3, 8)))
    assert not torch.equal(turn.rotate(x, torch.arange(40))[3:8], turn.rotate(x[3:8], torch.arange(3, 8)))
    assert RoPE(8).resolve(5, 40, 3) == RoPE(8)
    assert isinstance(turn, Rotary)


def test_a_wrong_rotation_says_what_is_right():
    cases = [
        (lambda: RoPE(7), r"`dim` must be even, .* got 7: rotary_dim=6 turns"),
        (lambda: RoPE(0), "`dim` is the width of a head and must be an integer of at least 2, got 0"),
        (lambda: RoPE(8, rotary_dim=3), "`rotary_dim` must be even, .* got 3: rotary_dim=2"),
        (lambda: RoPE(8, rotary_dim=10), r"`rotary_dim` must be at most the width of a head \(8\), got 10"),
        (lambda: RoPE(8, base=1.0), "`base` .* above 1, got 1.0"),
        (lambda: RoPE(8, base="x"), "got 'x'"),
        (lambda: RoPE(8, interleaved="neox"), "True or False, got 'neox'"),
        (lambda: RoPE(8, scaling=2.0), "`scaling` must be one of regard.positions, such as YaRN, or None, got 2.0"),
        (lambda: RoPE(8, mrope_section=(2, 2)), r"`mrope_section` must be three numbers .* \(4\), got \(2, 2\)"),
        (lambda: RoPE(8, mrope_section=(2, 2, 2)), r"is that of the pairs that are turned \(4\), got \(2, 2, 2\)"),
        (lambda: RoPE(8, mrope_section=3), "got 3"),
        (lambda: RoPE(8, mrope_interleaved=True), r"give mrope_section=\(t, h, w\) too"),
        (
            lambda: RoPE(8, mrope_section=(2, 1, 1), scaling=positions.DynamicNTK(2.0, 8)),
            "`mrope_section` and DynamicNTK do not go together: .*such as YaRN",
        ),
        (
            lambda: RoPE(8).at(torch.zeros(3, 1, 5, dtype=torch.int64)),
            r"must be integers \(batch, keys\), got .* \(3, 1, 5\): .* need RoPE\(..., mrope_section=\(t, h, w\)\)",
        ),
        (
            lambda: RoPE(8, mrope_section=(2, 1, 1)).at(torch.zeros(2, 1, 5, dtype=torch.int64)),
            r"integers \(batch, keys\) or \(3, batch, keys\), got torch.int64 of shape \(2, 1, 5\)",
        ),
        (lambda: RoPE(8).rotate(torch.zeros(3, 6), torch.arange(3)), r"width 8, got 6 in q: RoPE\(6\)"),
        (
            lambda: attention(*[torch.zeros(3, 6)] * 3, rotary=RoPE(8)),
            r"`rotary` is made for vectors of width 8, got 6",
        ),
    ]
    for case in sweep(cases):
        with case as (make, words), pytest.raises(InputError, match=words):
            make()


def test_dynamic_ntk_reads_the_length_of_each_text_from_its_positions():
    """A text ends where the next position is not larger; padding (0) and other rows change nothing."""
    turn = RoPE(8, scaling=positions.DynamicNTK(2.0, original_max_position_embeddings=4))
    at = torch.tensor([[0, 0, 0, 1, 2, 3, 4, 5, 6], [0, 1, 2, 0, 1, 2, 3, 4, 0]])
    x = torch.randn(2, 3, 9, 8, dtype=torch.float64)
    found = turn.at(at).rotate(x, torch.arange(9))
    for row, start, stop in ((0, 2, 9), (1, 0, 3), (1, 3, 8)):
        length = stop - start
        fixed = RoPE(8, scaling=positions.DynamicNTK(2.0, original_max_position_embeddings=4, length=length))
        alone = fixed.rotate(x[row : row + 1, :, start:stop], torch.arange(length))
        torch.testing.assert_close(found[row : row + 1, :, start:stop], alone)
    torch.testing.assert_close(turn.at(at).rotate(x[:, :, 5:], torch.arange(5, 9)), found[:, :, 5:])


def _three_positions():
    """Positions (3, batch, keys) of words, a picture of 2 × 3 patches, and words, as Qwen2-VL numbers them; shifted."""
    words = torch.arange(3).expand(3, 3)
    picture = 3 + torch.tensor([[0] * 6, [0, 0, 0, 1, 1, 1], [0, 1, 2, 0, 1, 2]])
    row = torch.cat([words, picture, 6 + words], 1)
    return torch.stack([row, row + torch.tensor([[0], [7], [30]])], 1)


def test_three_positions_turn_as_in_qwen_vl_and_glm_4v():
    theirs = {
        "qwen2_vl": ("Qwen2VL", [4, 2, 2], False, {}),
        "qwen2_5_vl": ("Qwen2_5_VL", [4, 2, 2], False, {}),
        "qwen3_vl": ("Qwen3VL", [4, 2, 2], False, {"mrope_interleaved": True}),
        "qwen3_vl_moe": ("Qwen3VLMoe", [2, 3, 3], False, {}),
        "glm4v": ("Glm4v", [2, 1, 1], True, {"partial_rotary_factor": 0.5}),
        "glm4v_moe": ("Glm4vMoe", [2, 1, 1], False, {"partial_rotary_factor": 0.5}),
    }
    at, x = _three_positions(), torch.randn(2, 4, 12, 16)
    for case in sweep(theirs.items()):
        with case as (kind, (name, section, interleaved, more)):
            module = pytest.importorskip(f"transformers.models.{kind}.modeling_{kind}")
            rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": section} | more
            config = getattr(module, f"{name}TextConfig")(
                hidden_size=64, num_attention_heads=4, head_dim=16, rope_parameters=rope
            )
            cos, sin = next(
                getattr(module, cls) for cls in dir(module) if cls.endswith("RotaryEmbedding") and "Vision" not in cls
            )(config)(x, at)
            expected, _ = module.apply_rotary_pos_emb(x, x, cos, sin)
            turn = RoPE.from_transformers(config, interleaved=interleaved)
            torch.testing.assert_close(turn.at(at).rotate(x, torch.arange(12)), expected, rtol=0, atol=1e-5)
            assert not torch.allclose(turn.at(at[0]).rotate(x, torch.arange(12)), expected)


def test_three_equal_positions_are_those_of_a_text():
    x, text = torch.randn(2, 4, 9, 16), torch.arange(9)
    for case in sweep(product([(4, 2, 2), (0, 8, 0)], [False, True])):
        with case as (section, alternating):
            turn = RoPE(16, mrope_section=section, mrope_interleaved=alternating)
            plain = RoPE(16).rotate(x, text)
            assert torch.equal(turn.rotate(x, text), plain)
            assert torch.equal(turn.at(text.expand(2, 9)).rotate(x, text), plain)
            assert torch.equal(turn.at(text.expand(3, 1, 9)).rotate(x, text), plain)


def test_three_positions_through_attention_and_a_cache():
    """The last queries of a call, and steps of a module with a cache, turn by their own positions."""
    turn, at = RoPE(4, mrope_section=(1, 0, 1)), _three_positions()
    q, k, v = torch.randn(2, 4, 5, 4), torch.randn(2, 4, 12, 4), torch.randn(2, 4, 12, 3)
    frequencies = torch.tensor([1.0, 0.01], dtype=torch.float64)
    angles = torch.stack([at[0], at[2]], -1).double() * frequencies  # the first pair by time, the second by column
    turned = (
        torch.complex(*vectors.double().chunk(2, -1)) * torch.exp(1j * angles[:, None, -vectors.shape[2] :])
        for vectors in (q, k)
    )
    q_by_hand, k_by_hand = (torch.cat([vectors.real, vectors.imag], -1).float() for vectors in turned)
    by_hand = attention(q_by_hand, k_by_hand, v, mask=masks.Causal())
    torch.testing.assert_close(attention(q, k, v, rotary=turn.at(at), mask=masks.Causal()), by_hand, rtol=0, atol=1e-5)
    module, x, cache = MultiHeadAttention(16, 4, rotary=turn, mask=masks.Causal()), torch.randn(2, 12, 16), KVCache()
    steps = [
        module(tokens, position_ids=ids, cache=cache)
        for tokens, ids in zip(x.split([9, 1, 2], 1), at.split([9, 1, 2], 2), strict=True)
    ]
    torch.testing.assert_close(torch.cat(steps, 1), module(x, position_ids=at), rtol=0, atol=1e-5)
