"""What was read before is what would be read again, whatever the steps, and a window forgets what no one sees."""

import copy
from itertools import product

import pytest
import torch

from regard import masks, normalizers, positions
from regard.cache import Cache, CrossAttentionCache, KVCache
from regard.errors import InputError
from regard.nn import DecoderBlock, MultiHeadAttention
from sweeps import sweep


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def randn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def attention(window=None, **more):
    torch.manual_seed(0)
    mask = masks.Causal() if window is None else masks.Causal() & masks.Window(window)
    return MultiHeadAttention(16, 4, num_kv_heads=2, mask=mask, **more).eval()


PARTS = {
    "plain": {},
    "rotary": {"rotary": positions.RoPE(4)},
    "rotary, interleaved": {"rotary": positions.RoPE(4, interleaved=True, rotary_dim=2)},
    "ALiBi": {"attn_bias": positions.ALiBi(4)},
    "norms": {"q_norm": torch.nn.RMSNorm(4), "k_norm": torch.nn.RMSNorm(4)},
}


@pytest.mark.parametrize("window", [None, 3])
def test_only_new_keys_are_turned(window, monkeypatch):
    """The cache keeps keys as they were turned; a step turns its own query and key, whatever the length of the text."""
    rows, turn = [], positions.RoPE.turn
    monkeypatch.setattr(
        positions.RoPE, "turn", lambda rope, x, *angles: rows.append(x.shape[-2]) or turn(rope, x, *angles)
    )
    layer, x = attention(window, rotary=positions.RoPE(4)), randn(1, 9, 16)
    with torch.no_grad():
        whole = layer(x)
        rows.clear()
        entry = KVCache(window)
        parts = [layer(x[:, a:b], cache=entry) for a, b in ((0, 5), (5, 6), (6, 7), (7, 9))]
    torch.testing.assert_close(torch.cat(parts, 1), whole)
    assert rows == [5, 1, 1, 2]


def test_steps_with_a_cache_are_the_whole_text_at_once():
    for case in sweep(product(PARTS, [None, 1, 8, 50], [[1] * 40, [7, 1, 1, 1, 30], [2, 38]], [False, True])):
        with case as (part, window, steps, grad):
            layer, x = attention(window, **PARTS[part]), randn(2, 40, 16)
            with torch.set_grad_enabled(grad):
                cache = KVCache(window)
                found = torch.cat([layer(one, cache=cache) for one in x.split(steps, 1)], 1)
            torch.testing.assert_close(found, layer(x), rtol=0, atol=1e-6)
            assert cache.length == 40


def test_gradients_flow_through_a_cache():
    for case in sweep(["x", "q_proj", "k_proj", "v_proj"]):
        with case as trained:
            layer, x = attention(rotary=positions.RoPE(4)).requires_grad_(False), randn(2, 6, 16)
            leaf = x.requires_grad_() if trained == "x" else getattr(layer, trained).weight.requires_grad_()
            cache, rows = KVCache(), torch.tensor([1, 0])
            found = [layer(one, cache=cache) for one in x.split([3, 1, 2], 1)]
            cache.reorder(rows)
            found.append(layer(x[rows, :1], cache=copy.deepcopy(cache)))
            (ours,) = torch.autograd.grad(torch.cat(found, 1).square().sum(), leaf)
            at_once = torch.cat([layer(x), layer(torch.cat([x[rows], x[rows, :1]], 1))[:, -1:]], 1)
            (expected,) = torch.autograd.grad(at_once.square().sum(), leaf)
            torch.testing.assert_close(ours, expected, rtol=0, atol=1e-4)


def test_a_cache_begun_in_inference_mode_goes_on_outside_of_it():
    layer, x = attention(rotary=positions.RoPE(4)), randn(1, 6, 16)
    cache = KVCache()
    with torch.inference_mode():
        layer(x[:, :4], cache=cache)
    with torch.no_grad():
        found = layer(x[:, 4:], cache=cache)
    torch.testing.assert_close(found, layer(x)[:, 4:], rtol=0, atol=1e-6)
    layer(x).sum().backward()  # the angles that were made in that mode are none of its tensors


@pytest.mark.parametrize("grad", [False, True])
def test_selected_rows_go_on_as_if_they_had_been_read_alone(grad):
    layer, x = attention(3), randn(3, 9, 16)
    rows = torch.tensor([2, 2, 0])
    with torch.set_grad_enabled(grad):
        cache = KVCache(3)
        layer(x[:, :5], cache=cache)
        cache.reorder(rows)
        found = layer(x[rows, 5:], cache=cache)
    torch.testing.assert_close(found, layer(x[rows])[:, 5:], rtol=0, atol=1e-6)


@torch.no_grad()
def test_a_window_keeps_no_more_than_it_must():
    cache, one = KVCache(window=10), randn(1, 2, 1, 4)
    for _ in range(1000):
        keys, _ = cache.update(one, one)
    assert keys.shape[2] == 10
    assert cache.first == 990
    assert keys.untyped_storage().nbytes() <= 64 * 2 * 4 * 4


@torch.no_grad()
def test_a_text_costs_no_copy_for_each_token():
    cache, one = KVCache(), randn(1, 1, 1, 4)
    places = set()
    for _ in range(1000):
        keys, _ = cache.update(one, one)
        places.add(keys.untyped_storage().data_ptr())
    assert keys.shape[2] == 1000
    assert len(places) < 10  # it doubles: 64, 128, 256, 512, 1024


def test_a_memory_is_projected_once():
    torch.manual_seed(0)
    block, x, memory = DecoderBlock(16, 4, 32).eval(), randn(2, 5, 16), randn(2, 7, 16, seed=1)
    calls = []
    block.cross_attention.k_proj.register_forward_hook(lambda *_: calls.append(1))
    entries = KVCache(), CrossAttentionCache()
    found = torch.cat([block(one, memory, cache=entries) for one in x.split([2, 1, 2], 1)], 1)
    assert len(calls) == 1
    torch.testing.assert_close(found, block(x, memory), rtol=0, atol=1e-6)


def test_a_copied_cache_goes_its_own_way():
    layer, x = attention(), randn(1, 6, 16)
    with torch.no_grad():
        cache = KVCache()
        layer(x[:, :4], cache=cache)
        other = copy.deepcopy(cache)
        layer(x[:, :2], cache=other)
        found = layer(x[:, 4:], cache=cache)
    torch.testing.assert_close(found, layer(x)[:, 4:], rtol=0, atol=1e-6)


def test_padding_is_known_from_the_first_that_is_padded():
    cache = Cache(((KVCache(), None),))
    assert cache.extend_mask(None, 2, 3, device="cpu") is None
    cache.layers[0][0].update(*(torch.zeros(2, 1, 3, 4),) * 2)
    cache.attention_mask = cache.extend_mask(torch.tensor([[True], [False]]), 2, 1, device="cpu")
    assert cache.attention_mask.tolist() == [[True, True, True, True], [True, True, True, False]]
    with pytest.raises(InputError, match=r"the cache holds 2 texts, and 3 are continued: cache.reorder\(rows\)"):
        cache.extend_mask(None, 3, 1, device="cpu")
    cache.reorder(torch.tensor([1]))
    assert cache.attention_mask.tolist() == [[True, True, True, False]]


@torch.no_grad()
def test_the_bytes_of_a_cache_are_those_of_its_buffers():
    cache = Cache(((KVCache(), CrossAttentionCache()),))
    cache.layers[0][0].update(*(torch.zeros(2, 3, 5, 4),) * 2)
    assert cache.bytes == 2 * (2 * 3 * 64 * 4) * 4
    cache.layers[0][1].update(*(torch.zeros(2, 3, 7, 4),) * 2)
    assert cache.bytes == 2 * (2 * 3 * 64 * 4) * 4 + 2 * (2 * 3 * 7 * 4) * 4


def test_what_a_cache_cannot_do_is_refused_with_the_way_out():
    cases = [
        (lambda: KVCache(0), "`window` counts positions, .* at least 1, got 0"),
        (
            lambda: attention()(randn(1, 2, 16), cache=KVCache(4)),
            r"keeps 4 positions, .* shows one 4 before .*Window\(4\)",
        ),
        (lambda: attention(5)(randn(1, 2, 16), cache=KVCache(4)), "keeps 4 positions, .* shows one 4 before"),
        (
            lambda: MultiHeadAttention(8, 2, mask=masks.Prefix(2))(randn(1, 2, 8), cache=KVCache(4)),
            "counts from the beginning of the text: use cache.KVCache",
        ),
        (
            lambda: attention(rotary=positions.RoPE(4, scaling=positions.DynamicNTK(2.0, 8)))(
                randn(1, 2, 16), cache=KVCache()
            ),
            r"DynamicNTK turns all keys anew .*fix DynamicNTK\(..., length=...\)",
        ),
        (
            lambda: attention(normalizer=normalizers.Sigmoid())(randn(1, 2, 16), cache=KVCache()),
            r"a cache has more keys in each step: fix Sigmoid\(shift=...\)",
        ),
        (
            lambda: attention(rotary=positions.RoPE(4))(randn(1, 2, 16), cache=CrossAttentionCache()),
            "`rotary` turns queries and keys of one text",
        ),
    ]
    for case in sweep(cases):
        with case as (call, words), pytest.raises(InputError, match=words):
            call()


def test_another_batch_is_refused():
    layer, cache = attention(), KVCache()
    layer(randn(2, 3, 16), cache=cache)
    with pytest.raises(
        InputError, match=r"the cache holds keys of shape \(2, 2, 4\), and .* have \(3, 2, 4\): .*reorder"
    ):
        layer(randn(3, 1, 16), cache=cache)
    assert cache.length == 3  # nothing was added


def test_a_sigmoid_with_a_shift_gives_in_steps_what_it_gives_at_once():
    module, x = MultiHeadAttention(16, 2, mask=masks.Causal(), normalizer=normalizers.Sigmoid(-2.0)), randn(1, 7, 16)
    cache = KVCache()
    steps = torch.cat([module(one, cache=cache) for one in x.split([3, 1, 1, 2], 1)], 1)
    torch.testing.assert_close(steps, module(x))
    across = MultiHeadAttention(16, 2, normalizer=normalizers.Sigmoid())  # keys do not grow there
    known, memory = CrossAttentionCache(), randn(1, 5, 16)
    steps = torch.cat([across(one, memory, cache=known) for one in x.split([3, 4], 1)], 1)
    torch.testing.assert_close(steps, across(x, memory))
