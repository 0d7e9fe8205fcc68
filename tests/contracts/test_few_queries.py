"""One to three queries, anywhere before or among many keys, see what their mask leaves and nothing else.

The keys that a mask hides from all hold numbers that would drown the others. Sizes are those at which few queries go
other ways than many: keys that nobody sees are not read, and the native kernels read the others as they lie.
"""

import inspect
import itertools

import numpy as np
import pytest
import torch

import regard
from drawn_masks import FAMILIES, Place, combined
from oracles import dense
from regard import masks
from regard.backends.flex import Flex
from regard.backends.selection import named
from regard.problem import Problem
from sweeps import sweep
from tiers import slow_but

KEYS, FEW = 16_500, 300  # keys for which those that are seen are looked for, and keys for which they are not
BLOCK = 16  # keys that are read together where one of them is seen
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
def test_the_default_sees_what_the_mask_leaves_of_many_keys(queries):
    for case in sweep(FAMILIES):
        with case as family:
            for seed in range(2 if queries == 1 else 1):
                place, (q, k, v) = draw(seed, KEYS, queries)
                mask, seen = FAMILIES[family](place)
                k, v = spoiled(place, k, v, seen)
                bound = mask.bind(queries, KEYS, q_offset=place.start)
                assert_is(
                    regard.attention(q, k, v, mask=bound), dense(q, k, v, visible=seen).output, f"{family}, {place}"
                )


def hears_nothing(place, seen):
    """Keys of blocks of which none is seen, wherever they are."""
    whole = np.pad(np.broadcast_to(seen, (place.queries, place.keys)).any(0), (0, -place.keys % BLOCK))
    return torch.tensor(np.repeat(~whole.reshape(-1, BLOCK).any(1), BLOCK)[: place.keys])


@pytest.mark.parametrize("name", ["auto", "sdpa", "strips", "native"])
def test_the_causal_mask_ends_what_is_read(name):
    for case in sweep(itertools.product([1, 2, 3], ["bound", "aligned at the start"], [0, 5_000, 16_383, 16_499])):
        with case as (queries, how, ahead):
            place, (q, k, v) = draw(ahead, KEYS, queries)
            seen = np.arange(KEYS) <= np.arange(queries)[:, None] + (ahead if how == "bound" else 0)
            mask = masks.Causal() if how == "bound" else masks.Causal(align="start")
            outside = hears_nothing(place, seen)[:, None]
            bound = mask.bind(queries, KEYS, q_offset=ahead)
            k, v = spoiled(place, k, v, seen)
            expected = dense(q, k, v, visible=seen).output
            k, v = (x.masked_fill(outside, torch.nan) for x in (k, v))
            found, again = (regard.attention(q, k, v, mask=bound, backend=name) for _ in range(2))
            assert_is(found, expected, "output")
            assert torch.equal(again, found)


def test_without_a_mask_all_keys_are_read():
    for case in sweep(itertools.product(["auto", "sdpa", "strips", "native"], [1, 2, 3])):
        with case as (name, queries):
            _, (q, k, v) = draw(0, KEYS, queries, anywhere=False)
            assert_is(regard.attention(q, k, v, backend=name), dense(q, k, v).output, "output")


NAMED = [one for name, one in named().items() if name != "flex"]


BACKENDS = {backend.name: backend for backend in (*NAMED, Flex(compiles=False))}
FLEX_TOO = ("Causal", "Dense", "Document", "Window")  # uncompiled it takes a quarter of a second for each
FAMILIES_OF = {
    **dict.fromkeys((backend.name for backend in NAMED), tuple(FAMILIES)),
    "flex": FLEX_TOO,
    "flex, the others": tuple(family for family in FAMILIES if family not in FLEX_TOO),
}


@pytest.mark.parametrize("name", slow_but([name for name in FAMILIES_OF if "others" not in name], FAMILIES_OF))
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile:UserWarning")
def test_every_backend_sees_what_the_mask_leaves(name):
    backend = BACKENDS[name.split(",")[0]]
    for case in sweep(itertools.product(FAMILIES_OF[name], range(1 if backend.name == "flex" else 4))):
        with case as (family, seed):
            place, (q, k, v) = draw(seed, FEW, seed % 3 + 1, batch=2)
            mask, seen = combined(place, [family]) if seed < 2 else combined(place, [family, "Causal", "Window"])
            k, v = spoiled(place, k, v, seen)
            problem = Problem.of(q, k, v, mask=mask.bind(place.queries, FEW, q_offset=place.start))
            assert backend.refuses(problem) is None
            with torch.no_grad():
                found = backend(problem).output
            assert_is(found, dense(q, k, v, visible=seen).output, f"{family}, seed {seed}")


MASKED = {
    "window": (masks.Causal() & masks.Window(40), lambda i, j: (i - j >= 0) & (i - j < 40)),
    "sinks and window": (
        masks.Causal() & (masks.Window(40) | masks.Sinks(4)),
        lambda i, j: (i >= j) & ((i - j < 40) | (j < 4)),
    ),
    "dilated": (masks.DilatedWindow(30, dilation=3), lambda i, j: (i >= j) & (i - j <= 87) & ((i - j) % 3 == 0)),
    "causal": (masks.Causal(), lambda i, j: i >= j),
    "block local": (masks.BlockLocal(64), lambda i, j: i // 64 == j // 64),
}


def turned(x, positions):
    """RoPE by complex numbers: pairs (i, i + d/2), ω = 10000^(−2i/d)."""
    x = x.double().numpy()
    half = x.shape[-1] // 2
    turn = np.exp(1j * positions[:, None] * 10000.0 ** (-np.arange(half) / half))
    both = (x[..., :half] + 1j * x[..., half:]) * turn
    return torch.tensor(np.concatenate([both.real, both.imag], -1))


def options(name, place, rng):
    """What is passed beside the mask, and what the formula is given for it."""
    heads, distance = place.heads, place.i - place.j
    if name == "alibi":
        return {"bias": regard.positions.ALiBi(heads)}, {
            "bias": -(2.0 ** (-8 * np.arange(1, heads + 1) / heads))[:, None, None] * distance
        }
    if name == "tensor":
        values = torch.tensor(rng.standard_normal((1, heads, place.queries, place.keys)), dtype=torch.float32)
        return {"bias": values.requires_grad_()}, {"bias": values}
    if name == "sink and softcap":
        sink = torch.tensor(rng.standard_normal(heads), dtype=torch.float32)
        asked = {"normalizer": regard.normalizers.Softmax(sink), "score": regard.scores.ScaledDot(2.0)}
        return asked, {"sink": sink, "softcap": 2.0}
    return ({"rotary": regard.positions.RoPE(4)} if name == "rotary" else {}), {}


def reads_all(name, extra):
    """Whether a backend refuses what is passed beside the mask."""
    return name == "sdpa" and extra == "sink and softcap"


@pytest.mark.parametrize("name", ["auto", "sdpa", "strips", "native"])
@pytest.mark.parametrize("kind", MASKED)
def test_keys_that_few_queries_do_not_see_are_not_read(kind, name):
    """Those before and after what is seen hold NaN; gradients and the log-sum-exp are those of the formula."""
    extras = [one for one in ("nothing", "alibi", "tensor", "sink and softcap", "rotary") if not reads_all(name, one)]
    for case in sweep([*itertools.product(extras, [(1, 0), (3, 1)]), ("nothing", (16, 2))]):
        with case as (extra, (queries, seed)):
            place, (q, k, v) = draw(seed, 5_000, queries)
            seen = np.broadcast_to(MASKED[kind][1](place.i, place.j), (queries, 5_000))
            first, last = np.flatnonzero(~hears_nothing(place, seen))[[0, -1]]
            outside = (torch.arange(5_000) < first) | (torch.arange(5_000) > last)
            asked, formula = options(extra, place, place.rng)
            exact = [turned(q, place.i[:, 0]), turned(k, place.j)] if extra == "rotary" else [q, k]
            up = torch.tensor(place.rng.standard_normal(q.shape), dtype=torch.float32)
            expected = dense(*exact, v, visible=seen, cotangent=up, **formula)
            k, v = (x.masked_fill(outside[:, None], torch.nan) for x in (k, v))
            for x in (q, k, v):
                x.requires_grad_()
            bound = MASKED[kind][0].bind(queries, 5_000, q_offset=place.start)
            output = regard.attention(q, k, v, mask=bound, backend=name, **asked)
            assert_is(output.detach(), expected.output, f"{kind}: output")
            if name != "sdpa":
                _, lse = regard.attention(q, k, v, mask=bound, backend=name, return_lse=True, **asked)
                assert_is(lse.detach(), expected.lse, f"{kind}: lse")
            output.backward(up)
            assert_is(v.grad, expected.v, f"{kind}: gradient of v")
            if extra != "rotary":
                assert_is(q.grad, expected.q, f"{kind}: gradient of q")
                assert_is(k.grad, expected.k, f"{kind}: gradient of k")
            if extra == "tensor":
                assert_is(asked["bias"].grad, expected.bias, f"{kind}: gradient of the bias")


def test_a_window_over_many_keys_reads_those_in_the_window():
    """What is said of the work counts blocks of 128 keys, and of the memory a byte of the mask for each key read."""
    _, (q, k, v) = draw(0, 8_192, 1, anywhere=False)
    shown = [regard.explain(q, k, v, mask=MASKED[kind][0]) for kind in ("window", "sinks and window")]
    assert [one.backend for one in shown] == ["sdpa", "sdpa"]
    assert [one.flops for one in shown] == [2 * 4 * 128 * 8, 2 * 4 * 256 * 8]
    assert all(one.bytes <= 128 for one in shown)


def test_what_a_mask_keeps_is_found_anew_where_it_is_another():
    """A mask is remembered by its value, and by its tensors and their versions."""
    _, (q, k, v) = draw(0, 5_000, 1, anywhere=False)
    real = torch.ones(1, 5_000, dtype=torch.bool)
    mask = masks.Causal() & masks.Padding(real)
    first = regard.attention(q, k, v, mask=mask)
    assert_is(first, dense(q, k, v).output, "all")
    real[:, 100:] = False
    again = masks.Causal() & masks.Padding(real)
    assert_is(regard.attention(q, k, v, mask=again), dense(q, k[:, :, :100], v[:, :, :100]).output, "the first hundred")
