"""One to three queries, anywhere before or among many keys, see what their mask leaves and nothing else.

The keys that a mask hides from all hold numbers that would drown the others. Sizes are those at which few queries go
other ways than many: pieces of keys side by side, ranges of keys, and the numba backend's reading of keys as they lie.
"""

import inspect
from unittest import mock

import numpy as np
import pytest
import torch

import regard
from drawn_masks import FAMILIES, Place, combined
from oracles import dense
from regard import masks
from regard.backends import split
from regard.backends.choice import named
from regard.backends.flex import Flex
from regard.problem import Problem

KEYS, FEW = 16_500, 300  # keys for which pieces are chosen, and keys for which they are not
HUGE = 1e4


def draw(seed, keys, queries, *, batch=1, heads=4, kv_heads=2, dim=4, anywhere=True):
    """A place in a call, and its q, k and v."""
    rng = np.random.default_rng(seed)
    start = int(rng.integers(0, keys - queries + 1)) if anywhere else keys - queries
    place = Place(rng, batch, heads, queries, keys, start)
    sizes = ((batch, heads, queries, dim), (batch, kv_heads, keys, dim), (batch, kv_heads, keys, dim))
    return place, [torch.tensor(rng.standard_normal(size), dtype=torch.float32) for size in sizes]


def spoiled(place, k, v, seen, value=HUGE):
    """Keys and values with a value wherever no query of the group sees them."""
    whole = np.broadcast_to(seen, (place.batch, place.heads, place.queries, place.keys)).any(2)
    hidden = ~torch.tensor(whole.reshape(place.batch, k.shape[1], -1, place.keys).any(2))[..., None]
    return k.masked_fill(hidden, value), v.masked_fill(hidden, value)


def assert_is(found, expected, what):
    error = np.abs(found.double().numpy() - expected).max()
    assert error <= 2e-5 * max(1.0, np.abs(expected).max()), f"{what} is off by {error:.2e}"


def test_every_exported_mask_is_drawn():
    exported = [getattr(masks, name) for name in masks.__all__]
    kinds = {one.__name__ for one in exported if inspect.isclass(one) and issubclass(one, masks.Mask)}
    assert kinds - {"Mask"} == set(FAMILIES)


@pytest.mark.parametrize("queries", [1, 2, 3])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_default_sees_what_the_mask_leaves_of_many_keys(family, queries):
    for seed in range(3):
        place, (q, k, v) = draw(seed, KEYS, queries)
        mask, seen = FAMILIES[family](place)
        k, v = spoiled(place, k, v, seen)
        bound = mask.bind(queries, KEYS, query_start=place.start)
        assert_is(regard.attention(q, k, v, mask=bound), dense(q, k, v, visible=seen).output, f"{family}, {place}")


@pytest.mark.parametrize("queries", [1, 2, 3])
@pytest.mark.parametrize("ahead", [0, 5_000, 16_383, 16_499])
@pytest.mark.parametrize("how", ["bound", "aligned at the start"])
def test_pieces_hide_what_the_causal_mask_hides(how, ahead, queries):
    place, (q, k, v) = draw(ahead, KEYS, queries)
    seen = np.arange(KEYS) <= np.arange(queries)[:, None] + (ahead if how == "bound" else 0)
    mask = masks.Causal() if how == "bound" else masks.Causal(align="start")
    k, v = spoiled(place, k, v, seen, torch.nan)
    with mock.patch.object(split, "_in_pieces", wraps=split._in_pieces) as pieces:
        bound = mask.bind(queries, KEYS, query_start=ahead)
        found = regard.attention(q, k, v, mask=bound, backend="split")
        again = regard.attention(q, k, v, mask=bound, backend="split")
    assert pieces.call_count == 2
    expected = dense(q, k.nan_to_num(0.0), v.nan_to_num(0.0), visible=seen).output
    assert_is(found, expected, "output")
    assert torch.equal(again, found)


@pytest.mark.parametrize("queries", [1, 2, 3])
def test_the_default_takes_pieces_and_hides_in_them(queries):
    place, (q, k, v) = draw(0, KEYS, queries, anywhere=False)
    with mock.patch.object(split, "_in_pieces", wraps=split._in_pieces) as pieces:
        for start in (KEYS - queries, KEYS - queries - 1, KEYS - 100):
            seen = np.arange(KEYS) <= np.arange(queries)[:, None] + start
            spoiled_k, spoiled_v = spoiled(place, k, v, seen)
            bound = masks.Causal().bind(queries, KEYS, query_start=start)
            found = regard.attention(q, spoiled_k, spoiled_v, mask=bound)
            assert_is(found, dense(q, spoiled_k, spoiled_v, visible=seen).output, f"start {start}")
        assert_is(regard.attention(q, k, v), dense(q, k, v).output, "no mask")
    assert pieces.call_count == 4


NAMED = [one for name, one in named().items() if name not in ("flex", "triton", "split")]


@pytest.mark.parametrize("backend", [*NAMED, Flex(compiles=False)], ids=lambda one: one.name)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile:UserWarning")
def test_every_backend_sees_what_the_mask_leaves(family, backend):
    for seed in range(1 if backend.name == "flex" else 6):
        place, (q, k, v) = draw(seed, FEW, seed % 3 + 1, batch=2)
        mask, seen = combined(place, [family]) if seed < 3 else combined(place, [family, "Causal", "Window"])
        k, v = spoiled(place, k, v, seen)
        problem = Problem.of(q, k, v, mask=mask.bind(place.queries, FEW, query_start=place.start))
        assert backend.refuses(problem) is None
        with torch.no_grad():
            found = backend(problem).output
        assert_is(found, dense(q, k, v, visible=seen).output, f"{family}, seed {seed}")
