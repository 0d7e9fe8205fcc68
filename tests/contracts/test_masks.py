"""Every mask answers alike for pairs and for rectangles, alone and combined, and shows its matrix in its docstring."""

import doctest
import inspect
import itertools

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import regard
from oracles import Largest
from regard import masks, normalizers, positions, scores
from regard.errors import InputError
from regard.masks.rectangles import EMPTY, FULL, PARTIAL, edges
from sweeps import sweep

BATCH, HEADS, KEYS = 2, 3, 150  # more keys than two cells of Dense
SEEN = np.random.default_rng(0).random((BATCH, HEADS, 90, KEYS)) < 0.5
SEEN[:, :, :70, :70], SEEN[:, :, :64, 64:], SEEN[:, :, 64:, 128:] = True, False, True
REAL = np.ones((BATCH, KEYS), bool)
REAL[0, 100:], REAL[1, :30] = False, False
GRID = np.ogrid[:BATCH, :HEADS, :1, :1]


def _near(shape, sizes, i, j):
    """Cell j is one of the `size` cells nearest to cell i on every axis (NATTEN's window), found by sorting."""
    seen = np.ones(np.broadcast_shapes(i.shape, j.shape), bool)
    for cells, size, at, key in zip(shape, sizes, np.unravel_index(i, shape), np.unravel_index(j, shape), strict=True):
        nearest = [np.argsort(abs(np.arange(cells) - c), kind="stable")[:size] for c in range(cells)]
        seen &= np.array([[k in near for k in range(cells)] for near in nearest])[at, key]
    return seen


CENTER = np.random.default_rng(1).random((BATCH, 90)) * 170 - 10
TOKENS = np.random.default_rng(2).random((BATCH, KEYS)) < 0.1
TOKENS[0, 64:80] = True
RANDOM = masks.RandomBlocks(2, block=16, seed=3, heads=HEADS)
DRAWN = RANDOM.bind(1, KEYS).mask.plan.numpy()
PACKED = np.repeat([[7, 3, 5, -1], [-1, 0, 1, 2]], [40, 1, 99, 10], axis=1)
PACKED_QUERIES = np.repeat([3, 7, -2, 9, 5], [5, 30, 10, 5, 40])


# For every mask: some of its values, each with the rule written once more in numpy (query position i, key position j).
# A new mask needs one entry here; everything below then holds for it too.
EXAMPLES = {
    "Axial": [
        (masks.Axial((10, 15), axis=1), lambda b, h, i, j: i // 15 == j // 15),
        (masks.Axial((10, 15), axis=0), lambda b, h, i, j: i % 15 == j % 15),
        (masks.Axial((5, 5, 6), axis=-2), lambda b, h, i, j: (i // 30 == j // 30) & (i % 6 == j % 6)),
    ],
    "BlockLocal": [
        (masks.BlockLocal(16), lambda b, h, i, j: i // 16 == j // 16),
        (masks.BlockLocal(7, look_backward=1, look_forward=2), lambda b, h, i, j: abs(j // 7 - i // 7 - 0.5) <= 1.5),
    ],
    "Causal": [(masks.Causal(), lambda b, h, i, j: j <= i)],
    "Dense": [
        (masks.Dense(torch.tensor(SEEN)), lambda b, h, i, j: SEEN[b, h, i - (KEYS - 90), j]),
        (masks.Dense(torch.tensor(SEEN[:1, :1, :1])), lambda b, h, i, j: SEEN[0, 0, 0, j] & (i >= 0)),
        (
            masks.Dense(torch.tensor(SEEN[0, 0, :, 80:81])),
            lambda b, h, i, j: SEEN[0, 0, i - (KEYS - 90), 80] & (j >= 0),
        ),
    ],
    "DilatedWindow": [
        (masks.DilatedWindow(5, dilation=3), lambda b, h, i, j: np.isin(i - j, [0, 3, 6, 9, 12])),
        (masks.DilatedWindow(left=2, right=4), lambda b, h, i, j: np.isin(j - i, [-4, -2, 0, 2, 4, 6, 8])),
        (masks.DilatedWindow(9, dilation=1), lambda b, h, i, j: (i - j >= 0) & (i - j < 9)),
    ],
    "Document": [
        (
            masks.Document(torch.tensor(PACKED)),
            lambda b, h, i, j: (PACKED[b, i] == PACKED[b, j]) & (PACKED[b, i] >= 0),
        ),
        (
            masks.Document(torch.tensor(PACKED[0]), query_ids=torch.tensor(PACKED_QUERIES)),
            lambda b, h, i, j: (PACKED_QUERIES[i - 60] == PACKED[0, j]) & (PACKED[0, j] >= 0),
        ),
        (
            masks.Document(torch.arange(KEYS) % 4),
            lambda b, h, i, j: i % 4 == j % 4,
        ),
        (
            masks.Document.from_cu_seqlens(torch.tensor([0, 70, 150]), within=masks.Window(20) & masks.Causal()),
            lambda b, h, i, j: (i - j >= 0) & (i - j < 20) & ((i < 70) == (j < 70)),
        ),
    ],
    "Global": [
        (
            masks.Global((0, 1, 2, 3, 100, 149)),
            lambda b, h, i, j: (np.isin(i, [0, 1, 2, 3, 100, 149])) | (j < 4) | (j == 100) | (j == 149),
        ),
        (masks.Global(torch.tensor(TOKENS)), lambda b, h, i, j: TOKENS[b, i] | TOKENS[b, j]),
    ],
    "LocalMonotonic": [
        (masks.LocalMonotonic(10), lambda b, h, i, j: abs(i - 60 - j) <= 10),
        (masks.LocalMonotonic(3, first=100), lambda b, h, i, j: abs(np.minimum(i + 40, 149) - j) <= 3),
    ],
    "LocalPredictive": [
        (
            masks.LocalPredictive(torch.tensor(CENTER), radius=12),
            lambda b, h, i, j: abs(np.floor(CENTER[b, i - 60]) - j) <= 12,
        ),
        (
            masks.LocalPredictive(torch.tensor(np.sort(CENTER[:1])), radius=30),
            lambda b, h, i, j: abs(np.floor(np.sort(CENTER[0])[i - 60]) - j) <= 30,
        ),
    ],
    "Neighborhood": [
        (masks.Neighborhood((10, 15), (3, 7)), lambda b, h, i, j: _near((10, 15), (3, 7), i, j)),
        (masks.Neighborhood((5, 5, 6), (5, 1, 3)), lambda b, h, i, j: _near((5, 5, 6), (5, 1, 3), i, j)),
        (
            masks.Neighborhood((5, 5, 6), 3, boundary="crop"),
            lambda b, h, i, j: (
                (abs(i // 30 - j // 30) <= 1) & (abs(i // 6 % 5 - j // 6 % 5) <= 1) & (abs(i % 6 - j % 6) <= 1)
            ),
        ),
        (masks.Neighborhood((150,), 31), lambda b, h, i, j: _near((150,), (31,), i, j)),
        (masks.Neighborhood((150,), 301, boundary="crop"), lambda b, h, i, j: i + j >= 0),
    ],
    "MaskMod": [
        (masks.MaskMod(lambda b, h, i, j: (i * 7 + j) % 5 < b + h), lambda b, h, i, j: (i * 7 + j) % 5 < b + h)
    ],
    "Padding": [(masks.Padding(torch.tensor(REAL)), lambda b, h, i, j: REAL[b, j] & (i >= 0))],
    "Prefix": [
        (masks.Prefix(100), lambda b, h, i, j: (j < 100) & (i >= 0)),
        (masks.Prefix(torch.tensor([0, 90])), lambda b, h, i, j: (j < 90 * b) & (i >= 0)),
    ],
    "RandomBlocks": [
        (RANDOM, lambda b, h, i, j: (DRAWN[h, i // 16] == (j // 16)[..., None]).any(-1)),
        (masks.RandomBlocks(10, block=16), lambda b, h, i, j: i + j >= 0),
    ],
    "Sinks": [(masks.Sinks(4), lambda b, h, i, j: (j < 4) & (i >= 0))],
    "Strided": [
        (masks.Strided(8), lambda b, h, i, j: i % 8 == j % 8),
        (masks.Strided(1), lambda b, h, i, j: i + j >= 0),
    ],
    "Window": [
        (masks.Window(20), lambda b, h, i, j: (i - j >= 0) & (i - j < 20)),
        (masks.Window(left=3, right=40), lambda b, h, i, j: (i - j <= 3) & (j - i <= 40)),
        (masks.Window(1), lambda b, h, i, j: i == j),
    ],
}
EXACT = (
    "BlockLocal",
    "Causal",
    "DilatedWindow",
    "Global",
    "LocalMonotonic",
    "Padding",
    "Prefix",
    "RandomBlocks",
    "Sinks",
    "Strided",
    "Window",
)
COMPOSED = ("bigbird", "longformer", "prefix_lm", "sparse_transformer")
ALL = {f"{name}-{n}": example for name, many in EXAMPLES.items() for n, example in enumerate(many)}

leaves = st.sampled_from([pair for many in EXAMPLES.values() for pair in many])


def _both(one, other):
    parts = repr((one[0], other[0]))
    # Together these two count the keys of each sentence: tests/masks/test_local.py.
    assume(not ("LocalMonotonic" in parts and "Padding" in parts))
    return one[0] & other[0], lambda *at: one[1](*at) & other[1](*at)


def _either(one, other):
    return one[0] | other[0], lambda *at: one[1](*at) | other[1](*at)


def _not(one):
    return ~one[0], lambda *at: ~one[1](*at)


combined = st.recursive(
    leaves,
    lambda some: st.one_of(st.builds(_both, some, some), st.builds(_either, some, some), st.builds(_not, some)),
    max_leaves=4,
)
cuts = st.lists(st.integers(1, 89), max_size=6, unique=True).map(lambda inner: torch.tensor([0, *sorted(inner), 90]))
key_cuts = st.lists(st.integers(1, KEYS - 1), max_size=6, unique=True).map(
    lambda inner: torch.tensor([0, *sorted(inner), KEYS])
)


def _matrix(rule, queries=90, keys=KEYS):
    i, j = np.arange(keys - queries, keys)[:, None], np.arange(keys)
    return np.broadcast_to(rule(GRID[0], GRID[1], i, j), (BATCH, HEADS, queries, keys))


def _truth(seen, rows, columns):
    """EMPTY, PARTIAL or FULL of each rectangle, counted."""
    kinds = np.empty((BATCH, HEADS, len(rows) - 1, len(columns) - 1), int)
    for r in range(len(rows) - 1):
        for c in range(len(columns) - 1):
            part = seen[:, :, rows[r] : rows[r + 1], columns[c] : columns[c + 1]]
            kinds[:, :, r, c] = PARTIAL + part.all((2, 3)) - ~part.any((2, 3))
    return kinds


def _classes(module):
    members = {name: getattr(module, name) for name in module.__all__}
    return {name: one for name, one in members.items() if inspect.isclass(one)}


def test_every_exported_mask_is_tested_here():
    subclasses = {
        name for name, one in _classes(masks).items() if issubclass(one, masks.Mask) and one is not masks.Mask
    }
    assert subclasses == set(EXAMPLES)


def test_a_mask_is_its_rule():
    for case in sweep(ALL):
        with case as name:
            mask, rule = ALL[name]
            dense = mask.bind(90, KEYS).dense(BATCH, HEADS)
            assert dense.dtype == torch.bool
            np.testing.assert_array_equal(dense.expand(BATCH, HEADS, 90, KEYS).numpy(), _matrix(rule))


@settings(max_examples=80, deadline=None)
@given(combined, cuts, key_cuts)
def test_blocks_promise_nothing_that_pairs_do_not_keep(pair, rows, columns):
    mask, rule = pair
    bound, seen = mask.bind(90, KEYS), _matrix(rule)
    np.testing.assert_array_equal(bound.dense(BATCH, HEADS).expand(BATCH, HEADS, -1, -1).numpy(), seen)
    kinds = bound.blocks(rows, columns).expand(BATCH, HEADS, len(rows) - 1, len(columns) - 1).numpy()
    truth = _truth(seen, rows.tolist(), columns.tolist())
    assert set(np.unique(kinds)) <= {EMPTY, PARTIAL, FULL}
    assert (truth[kinds == EMPTY] == EMPTY).all()
    assert (truth[kinds == FULL] == FULL).all()


@settings(max_examples=40, deadline=None)
@given(st.sampled_from([pair for name in EXACT for pair in EXAMPLES[name]]), cuts, key_cuts)
def test_interval_masks_know_their_blocks_exactly(pair, rows, columns):
    kinds = pair[0].bind(90, KEYS).blocks(rows, columns)
    truth = _truth(_matrix(pair[1]), rows.tolist(), columns.tolist())
    np.testing.assert_array_equal(kinds.expand(truth.shape).numpy(), truth)


def test_interval_masks_are_exact_to_the_last_pair():
    for case in sweep(itertools.product([name for name in ALL if name.split("-")[0] in EXACT], [1, 2, 7])):
        with case as (name, size):
            mask, rule = ALL[name]
            rows, columns = edges(90, size), edges(KEYS, size)
            seen = np.pad(_matrix(rule), [(0, 0), (0, 0), (0, -90 % size), (0, -KEYS % size)], mode="edge")
            cells = seen.reshape(BATCH, HEADS, len(rows) - 1, size, len(columns) - 1, size)
            truth = PARTIAL + cells.all((3, 5)) - ~cells.any((3, 5))
            kinds = mask.bind(90, KEYS).blocks(rows, columns).expand(truth.shape).numpy()
            whole = np.s_[:, :, : 90 // size, : KEYS // size]  # the last, ragged ones are drawn at random above
            np.testing.assert_array_equal(kinds[whole], truth[whole])


def test_a_dense_mask_knows_whole_cells_exactly():
    bound = EXAMPLES["Dense"][0][0].bind(90, KEYS)
    rows, columns = edges(90, 64), edges(KEYS, 64)
    truth = _truth(SEEN, rows.tolist(), columns.tolist())
    assert {EMPTY, FULL, PARTIAL} == set(np.unique(truth))
    np.testing.assert_array_equal(bound.blocks(rows, columns).numpy(), truth)


def test_a_tile_is_a_part_of_the_whole():
    for case in sweep(ALL):
        with case as name:
            mask, rule = ALL[name]
            part = mask.bind(90, KEYS).tile(
                slice(7, 40), slice(60, 131), batch=slice(1, 2), heads=slice(1, 3), device=torch.device("cpu")
            )
            np.testing.assert_array_equal(part.expand(1, 2, 33, 71).numpy(), _matrix(rule)[1:2, 1:3, 7:40, 60:131])


def test_small_integers_are_positions_too():
    for case in sweep(ALL):
        with case as name:
            mask, rule = ALL[name]
            bound = mask.bind(90, KEYS)
            places = np.ogrid[:BATCH, :HEADS, 60:KEYS, :KEYS]
            seen = bound.mask(*(torch.tensor(place, dtype=torch.int32) for place in places))
            np.testing.assert_array_equal(seen.expand(BATCH, HEADS, 90, KEYS).numpy(), _matrix(rule))


def test_a_mask_that_calls_itself_relative_is_the_same_along_diagonals():
    for case in sweep(ALL):
        with case as name:
            mask, rule = ALL[name]
            seen = _matrix(rule)
            alike = (seen[..., 1:, 1:] == seen[..., :-1, :-1]).all()
            assert alike or not mask.relative


def test_what_depends_on_the_distance_alone_says_so():
    relative = {name for name, many in EXAMPLES.items() for mask, _ in many if mask.relative}
    assert relative == {"Causal", "DilatedWindow", "Strided", "Window"}
    both = masks.Causal(align="start") & ~masks.Strided(2)
    assert all(mask.relative for mask in (both, both.bind(3, 5).mask, both | masks.Window(2)))
    assert not any(mask.relative for mask in (both | masks.Sinks(1), ~masks.Sinks(1)))


def test_queries_are_the_last_positions():
    for case in sweep([1, 2, 5, 9]):
        with case as queries:
            whole = masks.Causal().bind(5, 5).dense()[0, 0]
            placed = masks.Causal().bind(queries, 5).dense()[0, 0]
            assert placed.shape == (queries, 5)
            assert torch.equal(placed[-min(queries, 5) :], whole[-min(queries, 5) :])
            assert not placed[: max(0, queries - 5)].any()  # before the first key there is nothing to see


def test_query_start_puts_the_queries_elsewhere():
    assert masks.Causal().bind(2, 6, q_offset=1).dense()[0, 0].int().tolist() == [
        [1, 1, 0, 0, 0, 0],
        [1, 1, 1, 0, 0, 0],
    ]


def test_window_sees_itself_and_size_minus_one_before():
    assert masks.Window(3).bind(6, 6).dense()[0, 0].sum(1).tolist() == [1, 2, 3, 3, 3, 3]


def test_causal_never_sees_a_later_key():
    assert not masks.Causal().bind(50, 50).dense()[0, 0].triu(1).any()


def test_masks_of_different_batches_do_not_combine():
    for case in sweep(["&", "|"]):
        with case as how:
            two, three = (masks.Padding(torch.ones(batch, 4, dtype=torch.bool)) for batch in (2, 3))
            pair = two & three if how == "&" else two | three
            with pytest.raises(InputError, match="equal sizes or 1, got batch 2 and 3"):
                _ = pair.leading


ONES = torch.ones(2, 3, 4, dtype=torch.bool)
# What is wrong with each mask, and the words of the refusal that name the argument and the way out.
REFUSED = {
    "a window of nothing": (lambda: masks.Window(), r"a size or `left=` and `right=`.*Window\(512\)"),
    "a window of both": (lambda: masks.Window(4, left=1), "a size or `left=` and `right=`"),
    "a window without itself": (lambda: masks.Window(0), "`size` .*at least 1, got 0"),
    "a window to nowhere": (lambda: masks.Window(left=-1), "0 or more, got -1 and 0"),
    "another end": (lambda: masks.Causal(align="left"), '`align` must be "end" or "start", got \'left\''),
    "half a token": (lambda: masks.Padding(torch.full((2, 3), 0.5)), "`attention_mask` .*zeros .* and ones .*0.5"),
    "padding without a batch": (lambda: masks.Padding(ONES[0, 0]), r"must be \(batch, keys\), got \(4,\)"),
    "padding of other keys": (lambda: masks.Padding(ONES[0]).bind(1, 5), "each of 5 keys, got 4"),
    "numbers": (lambda: masks.Dense(torch.ones(3, 3)), "must be boolean, True = may see, got torch.float32"),
    "no heads": (lambda: masks.Dense(ONES), r"got \(2, 3, 4\): write mask\[:, None\]"),
    "other keys": (lambda: masks.Dense(ONES[0]).bind(3, 5), r"3 queries × 5 keys .* shape \(3, 4\)"),
}


def test_a_wrong_mask_is_refused_with_the_way_out():
    for case in sweep(REFUSED):
        with case as name:
            make, words = REFUSED[name]
            with pytest.raises(InputError, match=words):
                make()


def test_planning_a_million_tokens_takes_little_memory_a_row():
    bound = (masks.Causal() & masks.Window(4096)).bind(1_000_000, 1_000_000)
    columns = edges(1_000_000, 128)
    with Largest() as largest:
        for row in (0, 500_096, 999_936):
            kinds = bound.blocks(torch.tensor([row, min(row + 128, 1_000_000)]), columns)[0, 0, 0]
            assert int((kinds != EMPTY).sum()) <= 4096 // 128 + 1
    assert largest.bytes <= 64 * len(columns)  # a few numbers a block, nothing a pair


def test_the_share_of_visible_blocks_is_counted_without_holding_all_of_them():
    bound = masks.Causal().bind(200_000, 200_000)
    blocks = -(-200_000 // 128)
    with Largest() as largest:
        share = bound.share_visible()
    assert share == pytest.approx((blocks + 1) / (2 * blocks), rel=1e-12)
    assert largest.bytes < blocks * blocks / 4


CONVERTERS = [name for name in masks.__all__ if name.startswith(("from_", "to_"))]


def test_the_docstring_shows_the_mask_by_example():
    for case in sweep([*EXAMPLES, *COMPOSED, *CONVERTERS, "pack", "unpack"]):
        with case as name:
            examples = doctest.DocTestParser().get_examples(inspect.getdoc(getattr(masks, name)))
            assert any("tensor([[" in example.want for example in examples)


def test_every_public_name_exists_and_says_what_it_is():
    for case in sweep([regard, masks, scores, normalizers, positions], name=lambda module: module.__name__):
        with case as module:
            for name in module.__all__:
                one = getattr(module, name)
                assert isinstance(one, int) or inspect.getdoc(one), name
