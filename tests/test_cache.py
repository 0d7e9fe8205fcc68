"""What was read before is what would be read again, whatever the steps, and a window forgets what no one sees."""

import copy
from itertools import product

import numpy as np
import pytest
import torch

from regard import masks, normalizers, positions, scores
from regard.cache import Cache, CrossAttentionCache, KVCache
from regard.errors import InputError
from regard.models import Transformer, TransformerConfig, output_heads
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


def attention(window=None, sinks=0, masked=None, **more):
    torch.manual_seed(0)
    mask = masks.Causal()
    if window is not None:
        mask = mask & (masks.Window(window) | masks.Sinks(sinks) if sinks else masks.Window(window))
    return MultiHeadAttention(16, 4, num_kv_heads=2, mask=mask if masked is None else masked, **more).eval()


def streaming(layer, x, window, sinks):
    """StreamingLLM as a dense formula, in float64: keys by their positions in the text, a mask of three booleans."""
    layer = copy.deepcopy(layer).double()
    q, k, v = (
        projection(x.double()).unflatten(-1, (-1, 4)).transpose(1, 2)
        for projection in (layer.q_proj, layer.k_proj, layer.v_proj)
    )
    k, v = (keys.repeat_interleave(2, 1) for keys in (k, v))
    at = torch.arange(x.shape[1], dtype=torch.float64)
    if layer.rotary is not None:
        turn = torch.exp(1j * at[:, None] * torch.tensor([1.0, 0.01], dtype=torch.float64))
        q, k = (torch.complex(*vectors.chunk(2, -1)) * turn for vectors in (q, k))
        q, k = (torch.cat([vectors.real, vectors.imag], -1) for vectors in (q, k))
    distance = at[:, None] - at
    logits = q @ k.mT / 2
    if layer.attn_bias is not None:
        logits = logits - torch.tensor([1 / 4, 1 / 16, 1 / 64, 1 / 256], dtype=torch.float64)[:, None, None] * distance
    sees = (distance >= 0) & ((distance < window) | (at < sinks))
    heads = logits.masked_fill(~sees, -torch.inf).softmax(-1) @ v
    return layer.out_proj(heads.transpose(1, 2).flatten(-2)).to(x.dtype)


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


@torch.no_grad()
def test_angles_by_the_length_of_a_text_are_those_of_the_whole_text_up_to_the_length_of_training():
    """Beyond it keys stay as they were turned, by the frequencies of the length at their step (base · λ^(d/(d−2)))."""
    layer, x = attention(rotary=positions.RoPE(4, scaling=positions.DynamicNTK(2.0, 6))), randn(1, 9, 16)
    cache = KVCache()
    found = torch.cat([layer(one, cache=cache) for one in x.split([2, 1, 3, 1, 1, 1], 1)], 1)
    torch.testing.assert_close(found[:, :6], layer(x[:, :6]), rtol=0, atol=1e-6)
    plain, kept = attention(rotary=None), KVCache()
    plain.load_state_dict(layer.state_dict())
    plain(x, cache=kept)
    before, turned = kept.held[0].double().numpy(), cache.held[0].double().numpy()
    for place in range(9):
        slower = 1.0 if place < 6 else 2 * (place + 1) / 6 - 1
        for pair, frequency in enumerate((1.0, 1 / (100 * slower))):
            angle, pairs = place * frequency, [pair, pair + 2]
            turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
            expected = np.einsum("ij,...j->...i", turn, before[:, :, place, pairs])
            np.testing.assert_allclose(turned[:, :, place, pairs], expected, atol=1e-5)


def test_what_a_cache_cannot_do_is_refused_with_the_way_out():
    cases = [
        (lambda: KVCache(0), "`window` counts positions, .* at least 1, got 0"),
        (lambda: KVCache(sinks=2), "`sinks` are kept beside a window, got 2: give window= too"),
        (lambda: KVCache(4, sinks=-1), "`sinks` counts the first positions and must be .* at least 0, got -1"),
        (lambda: attention()(randn(1, 2, 16), cache=KVCache(4)), r"last 4 positions, .* shows others: .*Window\(4\)"),
        (lambda: attention(5)(randn(1, 2, 16), cache=KVCache(4)), "last 4 positions, .* shows others"),
        (
            lambda: attention(masked=masks.Causal() & masks.Strided(3))(randn(1, 2, 16), cache=KVCache(4)),
            "last 4 positions, .* shows others",
        ),
        (
            lambda: attention(4, sinks=2)(randn(1, 2, 16), cache=KVCache(4)),
            r"shows others: .*make cache.KVCache\(window, sinks=2\) with the mask's window and sinks",
        ),
        (
            lambda: attention(4, sinks=3)(randn(1, 2, 16), cache=KVCache(4, sinks=2)),
            r"the last 4 positions and the first 2, .* shows others: .*Sinks\(3\)\), and make .*sinks=3",
        ),
        (lambda: attention(5, sinks=2)(randn(1, 2, 16), cache=KVCache(4, sinks=2)), "shows others"),
        (
            lambda: attention(masked=masks.Causal() & (masks.Window(4) | masks.Sinks(2) & masks.Strided(2)))(
                randn(1, 2, 16), cache=KVCache(4, sinks=2)
            ),
            r"first 2, and the mask .* at some distances only: use cache.KVCache\(\) without a window",
        ),
        (
            lambda: attention(4, sinks=2, score=scores.Shaw(torch.zeros(3, 4)))(
                randn(1, 2, 16), cache=KVCache(4, sinks=2)
            ),
            r"`score` Shaw may depend on positions, and with sinks=2 .*use cache.KVCache\(\) without a window",
        ),
        (
            lambda: MultiHeadAttention(8, 2, mask=masks.Prefix(2))(randn(1, 2, 8), cache=KVCache(4)),
            "counts from the beginning of the text: use cache.KVCache",
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


def test_a_window_with_sinks_is_streaming_llm():
    parts = {name: PARTS[name] for name in ("plain", "rotary", "ALiBi")}
    steps = [[1] * 30, [2, 11, 1, 1, 3, 12], [20, 1, 9], [1, 1, 28]]
    for case in sweep(product(parts, [(5, 2), (5, 1), (1, 3), (40, 2), (3, 0)], steps, [False, True])):
        with case as (part, (window, sinks), lengths, grad):
            layer, x = attention(window, sinks, **PARTS[part]), randn(2, 30, 16)
            cache = KVCache(window, sinks=sinks)
            with torch.set_grad_enabled(grad):
                outputs = [layer(chunk, cache=cache) for chunk in x.split(lengths, 1)]
            expected = streaming(layer, x, window, sinks)
            torch.testing.assert_close(torch.cat(outputs, 1), expected, rtol=0, atol=1e-5)
            torch.testing.assert_close(layer(x), expected, rtol=0, atol=1e-5)


@torch.no_grad()
def test_a_cache_that_keeps_more_than_the_mask_shows_changes_nothing():
    x = randn(1, 20, 16)
    for case in sweep([((4, 0), (4, 2)), ((4, 1), (4, 3)), ((4, 2), (6, 2)), ((4, 0), (7, 1))]):
        with case as ((window, sinks), (kept_window, kept_sinks)):
            layer, cache = attention(window, sinks, rotary=positions.RoPE(4)), KVCache(kept_window, sinks=kept_sinks)
            outputs = [layer(chunk, cache=cache) for chunk in x.split([5, *[1] * 12, 3], 1)]
            torch.testing.assert_close(torch.cat(outputs, 1), streaming(layer, x, window, sinks), rtol=0, atol=1e-5)


@torch.no_grad()
def test_a_window_with_sinks_keeps_the_first_and_the_last_positions():
    cache = KVCache(window=5, sinks=2)
    for start, stop in ((0, 9), (9, 10), (10, 11), (11, 13)):
        x = torch.arange(start, stop, dtype=torch.float32).reshape(1, 1, -1, 1)
        keys, values = cache.update(x, -x)
        first_seen = max(0, start - 4)  # by the first of the new queries
        expected = sorted({0, 1} | set(range(first_seen, stop)))
        assert keys.flatten().tolist() == expected, (start, stop)
        assert torch.equal(values, -keys)
    x = torch.zeros(1, 1, 1, 1)
    for _ in range(1000):
        assert cache.reach(1) == cache.update(x, x)[0].shape[2] == 7
    assert (cache.first, cache.length) == (1008, 1013)
    assert cache.held[0].untyped_storage().nbytes() <= 64 * 4


@pytest.mark.parametrize("grad", [False, True])
def test_selected_rows_and_copies_keep_their_sinks(grad):
    layer, x = attention(4, 2, rotary=positions.RoPE(4)), randn(3, 14, 16)
    rows = torch.tensor([2, 2, 0])
    with torch.set_grad_enabled(grad):
        cache = KVCache(4, sinks=2)
        layer(x[:, :9], cache=cache)
        layer(x[:, 9:10], cache=cache)
        other = copy.deepcopy(cache)
        cache.reorder(rows)
        ours = layer(x[rows, 10:], cache=cache)
        copied = torch.cat([layer(x[:, at : at + 1], cache=other) for at in range(10, 14)], 1)
    expected = streaming(layer, x, 4, 2)[:, 10:]
    torch.testing.assert_close(ours, expected[rows], rtol=0, atol=1e-5)
    torch.testing.assert_close(copied, expected, rtol=0, atol=1e-5)


def test_gradients_flow_through_a_cache_with_sinks():
    layer, x = attention(4, 2, rotary=positions.RoPE(4)), randn(1, 12, 16)
    leaf, cache = x.clone().requires_grad_(), KVCache(4, sinks=2)
    outputs = torch.cat([layer(chunk, cache=cache) for chunk in leaf.split([7, 1, 1, 3], 1)], 1)
    (ours,) = torch.autograd.grad(outputs.square().sum(), leaf)
    (expected,) = torch.autograd.grad(streaming(layer, leaf, 4, 2).square().sum(), leaf)
    torch.testing.assert_close(ours, expected, rtol=0, atol=1e-4)


def test_a_cache_does_not_write_into_tensors_of_others():
    """Without gradients it overwrites what it has dropped, but only in buffers that it has made itself."""
    k, more = randn(1, 2, 9, 4), randn(1, 2, 1, 4, seed=1)
    for case in sweep(["crop", "sinks"]):
        with case as what:
            own = k.clone()
            cache = KVCache() if what == "crop" else KVCache(3, sinks=2)
            cache.update(own, own)
            if what == "crop":
                cache.crop(-2)
            with torch.no_grad():
                cache.update(more, more)
            assert torch.equal(own, k)


def test_cropping_leaves_what_transformers_leaves():
    theirs_of = pytest.importorskip("transformers").DynamicCache
    for case in sweep(product([-1, -4, -8], [False, True])):
        with case as (length, grad):
            k, v = randn(1, 2, 8, 4), randn(1, 2, 8, 3, seed=1)
            theirs, ours = theirs_of(), KVCache()
            with torch.set_grad_enabled(grad):
                theirs.update(k, v, 0)
                ours.update(k, v)
                theirs.crop(length)
                ours.crop(length)
                new = randn(1, 2, 2, 4, seed=2), randn(1, 2, 2, 3, seed=3)
                for found, expected in zip(ours.update(*new), theirs.update(*new, 0), strict=True):
                    assert torch.equal(found, expected)
            assert ours.length == theirs.get_seq_length()


def test_after_a_crop_a_text_continues_as_if_the_removed_tokens_had_never_been():
    """Against a cache that never had them, for every kind of cache, mode and number of removed tokens."""
    kinds = [(None, 0), (4, 0), (1, 0), (4, 2), (1, 2), (50, 1)]
    for case in sweep(product(kinds, [False, True], [(6, 4), (1, 1), (3, 1), (9, 8)], [True, False])):
        with case as ((window, sinks), grad, (added, removed), negative):
            layer, x = attention(window, sinks, rotary=positions.RoPE(4)), randn(2, 20, 16)
            with torch.set_grad_enabled(grad):
                cache, fresh = KVCache(window, sinks=sinks), KVCache(window, sinks=sinks)
                for entry in (cache, fresh):
                    layer(x[:, :8], cache=entry)
                layer(randn(2, added, 16, seed=5), cache=cache)
                cache.crop(-removed if negative else 8 + added - removed)
                kept = 8 + added - removed
                if kept > 8:
                    layer(randn(2, added, 16, seed=5)[:, : kept - 8], cache=fresh)
                assert (cache.length, cache.reach(3)) == (fresh.length, fresh.reach(3))
                chunks = x[:, 8:].split([1, 3, 1, 7], 1)
                for chunk in chunks:
                    torch.testing.assert_close(layer(chunk, cache=cache), layer(chunk, cache=fresh), rtol=0, atol=1e-6)


def test_a_cache_cropped_into_its_sinks_continues_from_there():
    layer, x = attention(4, 3, rotary=positions.RoPE(4)), randn(1, 20, 16)
    for case in sweep(product([1, 2, 3], [False, True])):
        with case as (length, grad), torch.set_grad_enabled(grad):
            cache = KVCache(4, sinks=3)
            for token in x.split(1, 1):
                layer(token, cache=cache)
            cache.crop(length)
            again = torch.cat([x[:, :length], randn(1, 9, 16, seed=4)], 1)
            outputs = torch.cat([layer(chunk, cache=cache) for chunk in again[:, length:].split([1, 7, 1], 1)], 1)
            torch.testing.assert_close(outputs, streaming(layer, again, 4, 3)[:, length:], rtol=0, atol=1e-5)


def test_a_crop_that_cannot_be_is_refused_and_changes_nothing():
    def filled(window=None, steps=(8,)):
        cache = KVCache(window)
        for n in steps:
            cache.update(randn(1, 2, n, 4), randn(1, 2, n, 4))
        return cache

    cases = [
        (filled(), -9, "at least −8, as many positions as there are, got -9"),
        (filled(), 0, "must not be 0, .*make a new cache"),
        (filled(), True, "must be an integer, got True"),
        (filled(), 2.0, "must be an integer, got 2.0"),
        (
            filled(3, (8, 1)),
            7,
            r"at least 8, got 7: .*from 6 on, and a query at position 7 sees those from 5 on; .*copy",
        ),
        (filled(3, (8, 1)), -4, "at least 8, got 5"),
    ]
    for case in sweep(cases):
        with case as (cache, length, words):
            before = cache.length, *(tensor.clone() for tensor in cache.held)
            with pytest.raises(InputError, match=words):
                cache.crop(length)
            assert cache.length == before[0]
            assert all(map(torch.equal, cache.held, before[1:]))
    same = filled()
    same.crop(8)
    same.crop(100)
    assert same.length == 8
    KVCache().crop(0)


def _model(**options):
    torch.manual_seed(0)
    head = output_heads.LanguageModel()
    sizes = {"hidden_size": 16, "num_attention_heads": 4, "intermediate_size": 32, "decoder_layers": 2}
    return Transformer(TransformerConfig(vocab_size=11, **sizes, output_head=head, dropout=0.0, **options)).eval()


@torch.no_grad()
def test_a_model_continues_after_a_crop_as_if_it_had_not_read_the_tokens():
    """A sequence of speculative decoding: draft, reject some, continue; with padding, windows, and an encoder."""
    kinds = {
        "RoPE": {"positions": positions.RoPE(4)},
        "sinusoids": {},
        "a window": {"positions": positions.RoPE(4), "sliding_window": 3},
        "T5's bias": {"position_bias": "t5"},
        "an encoder": {"encoder_layers": 1},
    }
    ids = torch.randint(1, 11, (2, 12), generator=torch.Generator().manual_seed(0))
    padding = torch.ones(2, 12, dtype=torch.bool)
    padding[0, :2] = False
    for case in sweep(product(kinds, [None, padding])):
        with case as (kind, mask):
            model = _model(**kinds[kind])
            source = model.encode(ids) if model.encoder is not None else None

            def run(tokens, cache, mask, model=model, source=source):
                if source is None:
                    return model(tokens, attention_mask=mask, past_key_values=cache).logits
                return model.decode(tokens, source, decoder_attention_mask=mask, past_key_values=cache).logits

            whole = run(ids, None, mask)
            cache, cut = model.cache(), (lambda n, mask=mask: None if mask is None else mask[:, :n])
            run(ids[:, :5], cache, cut(5))
            drafted = torch.cat([ids[:, 5:7], (ids[:, 7:9] + 1) % 11], 1)  # two right, two wrong
            run(drafted, cache, cut(9))
            cache.crop(-2)
            assert cache.length == 7
            continued = torch.cat([run(ids[:, 7:8], cache, cut(8)), run(ids[:, 8:], cache, mask)], 1)
            torch.testing.assert_close(continued, whole[:, 7:], rtol=0, atol=1e-5)


@torch.no_grad()
def test_a_cropped_cache_of_a_model_is_cropped_in_all_layers_or_in_none():
    model = _model(positions=positions.RoPE(4), sliding_window=3, layer_types=["full_attention", "sliding_attention"])
    cache = model.cache()
    for token in torch.arange(8)[None].split(1, 1):
        model(token, past_key_values=cache)
    with pytest.raises(InputError, match="`length` of crop must be at least 7, got 5"):
        cache.crop(5)
    assert [entry.length for entry, _ in cache.layers] == [8, 8]
    cache.crop(7)
    assert [entry.length for entry, _ in cache.layers] == [7, 7]


@torch.no_grad()
def test_cross_attention_is_not_cropped():
    cache = Cache(((KVCache(), CrossAttentionCache()),))
    cache.layers[0][0].update(*(torch.zeros(2, 1, 5, 4),) * 2)
    cache.layers[0][1].update(*(torch.zeros(2, 1, 7, 4),) * 2)
    cache.attention_mask = torch.tensor([[False, True, True, True, True], [True] * 5])
    cache.crop(3)
    assert (cache.length, cache.layers[0][1].length) == (3, 7)
    assert cache.attention_mask.tolist() == [[False, True, True], [True] * 3]
    cache.crop(-3)  # as new: even another batch can begin
    assert cache.extend_mask(None, 5, 2, device="cpu") is None
    cache.layers[0][0].update(*(torch.zeros(5, 1, 2, 4),) * 2)
