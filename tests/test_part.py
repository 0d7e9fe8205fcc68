"""A part of a call: each of its answers is the rectangle of a dense one, by NumPy or plain indexing."""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor

from oracles import f64
from regard import masks, positions, scores
from regard.dropout import Dropout
from regard.errors import InputError
from regard.part import Part, product
from regard.positions.base import with_leading
from sweeps import sweep

BATCH, HEADS, GROUP, QUERIES, KEYS, DIM, WIDTH = 3, 6, 2, 11, 13, 4, 5
OFFSET = 2  # the position of the first query
SCALE = 0.3
DEVICE = torch.device("cpu")

HEAD = np.arange(HEADS)[:, None, None]
ROW, COLUMN = OFFSET + np.arange(QUERIES)[:, None], np.arange(KEYS)  # positions


def place(batch=(0, BATCH), heads=(0, HEADS), rows=(0, QUERIES), spans=((0, KEYS),)) -> Part:
    return Part(
        *(slice(*side) for side in (batch, heads, rows)), tuple(slice(*one) for one in spans), OFFSET, (BATCH, HEADS)
    )


PLACES = {
    "everything": place(),
    "rows and keys": place(rows=(3, 8), spans=((5, 12),)),
    "several spans": place(rows=(2, 9), spans=((1, 3), (5, 9), (12, 13))),
    "a slab": place(batch=(1, 3), heads=(2, 6), rows=(4, 11)),
    "one head of a group": place(heads=(3, 4), spans=((0, 2), (4, 5))),
    "a group of the last sequence": place(batch=(2, 3), heads=(4, 6), rows=(10, 11), spans=((3, 13),)),
    "all sequences, some heads": place(heads=(0, 2), rows=(0, 1), spans=((6, 7), (8, 10))),
    "some sequences, all heads": place(batch=(1, 2), rows=(5, 6), spans=((2, 3), (11, 13))),
}


def columns_of(part: Part) -> np.ndarray:
    return np.concatenate([COLUMN[span] for span in part.spans])


def rectangle(whole: np.ndarray, part: Part) -> np.ndarray:
    """What a dense answer (1 or batch, 1 or heads, queries, keys) has at a place."""
    whole = np.broadcast_to(whole, (BATCH, HEADS, QUERIES, KEYS))
    return whole[part.batch, part.heads, part.rows][..., columns_of(part)]


def check(found: Tensor, whole: np.ndarray, part: Part) -> None:
    expected = rectangle(whole, part)
    assert found.shape[2:] == expected.shape[2:]
    np.testing.assert_allclose(np.broadcast_to(f64(found), expected.shape), expected, rtol=1e-12, atol=1e-13)


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


REAL = (COLUMN >= [[0], [3], [5]]) & (COLUMN < [[13], [12], [8]])  # (batch, keys)
SOME = np.random.default_rng(1).random((BATCH, HEADS, QUERIES, KEYS)) < 0.5
MASKS = {
    "Causal and Window": (masks.Causal() & masks.Window(4), (COLUMN <= ROW) & (ROW - COLUMN < 4)),
    "Padding": (masks.Padding(torch.tensor(REAL)), REAL[:, None, None]),
    "of heads": (masks.MaskMod(lambda b, h, i, j: (i + j) % (h + 2) != 0), (ROW + COLUMN) % (HEAD + 2) != 0),
    "Dense": (masks.Dense(torch.tensor(SOME)), SOME),
}


def test_visible_pairs_are_those_of_the_whole_mask():
    for case in sweep(itertools.product(MASKS, PLACES)):
        with case as (name, where):
            mask, visible = MASKS[name]
            bound = mask.bind(QUERIES, KEYS, q_offset=OFFSET)
            check(PLACES[where].visible(bound, DEVICE), visible, PLACES[where])


def test_no_mask_and_one_that_hides_nothing_here_are_none():
    bound = masks.Causal().bind(QUERIES, KEYS, q_offset=OFFSET)
    assert place().visible(None, DEVICE) is None
    assert replace(place(rows=(9, 11), spans=((0, 4),)), is_masked=False).visible(bound, DEVICE) is None


@dataclass(frozen=True, eq=False)
class Slopes(positions.Bias):
    slope: Tensor  # (batch, heads)

    def __call__(self, batch: Tensor, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return self.slope[batch, head] * (i - j)


SLOPES, TENSOR = drawn(BATCH, HEADS), drawn(BATCH, HEADS, QUERIES, KEYS, seed=1)
LINES = 2.0 ** -np.array([2, 4, 6, 8, 1, 3])  # ALiBi of 6 heads
BIASES = {
    "ALiBi": (positions.ALiBi(HEADS), -LINES[:, None, None] * (ROW - COLUMN)),
    "tensor": (positions.DenseBias(TENSOR), TENSOR.numpy()),
    "tensor of keys": (positions.DenseBias(TENSOR[:, :1, :1]), TENSOR[:, :1, :1].numpy()),
    "tensor of heads and queries": (positions.DenseBias(TENSOR[:1, :, :, :1]), TENSOR[:1, :, :, :1].numpy()),
    "one's own": (Slopes(SLOPES), SLOPES.numpy()[..., None, None] * (ROW - COLUMN)),
}


def test_numbers_of_a_bias_are_those_of_the_whole():
    i, j = torch.tensor(ROW[:, 0]), torch.tensor(COLUMN)
    for case in sweep(itertools.product(BIASES, PLACES)):
        with case as (name, where):
            bias, numbers = BIASES[name]
            bias = with_leading(bias.resolve(QUERIES, KEYS, OFFSET), BATCH, HEADS, i, j)
            check(PLACES[where].numbers(bias, DEVICE), numbers, PLACES[where])


def test_keys_positions_and_their_number_are_those_of_the_spans():
    x = drawn(BATCH, HEADS // GROUP, KEYS, DIM)
    for case in sweep(PLACES):
        with case as where:
            part = PLACES[where]
            assert part.columns == len(columns_of(part))
            assert part.i(DEVICE).tolist() == ROW[part.rows, 0].tolist()
            assert torch.equal(part.cut(x), x[:, :, torch.tensor(columns_of(part))])
    assert PLACES["a slab"].cut(x).data_ptr() == x.data_ptr()  # one span is a view


GAIN = drawn(BATCH, HEADS, seed=2)


@dataclass(frozen=True, eq=False)
class Looked(scores.Score):
    """Looks up by sequence and head."""

    gain: Tensor  # (batch, heads)

    def tile(self, q, k, i, j, batch, head):
        return self.gain[batch[:, None], head][..., None, None] * (q @ k.mT) + (i[:, None] - 2 * j)

    def value_term(self, weights, i, j, batch, head):
        at = self.gain[batch[:, None], head][..., None, None] * (i[:, None] - 2 * j)
        return (weights * at).sum(-1, keepdim=True).expand(*weights.shape[:3], WIDTH)


@dataclass(frozen=True, eq=False)
class Held(scores.Score):
    """Holds numbers by sequence or head, and is not told which are asked about."""

    gain: Tensor  # (1 or batch, 1 or heads)

    def tile(self, q, k, i, j):
        return self.gain[..., None, None] * (q @ k.mT) + (i[:, None] - 2 * j)

    def value_term(self, weights, i, j):
        at = self.gain[..., None, None] * (i[:, None] - 2 * j)
        return (weights * at).sum(-1, keepdim=True).expand(*weights.shape[:3], WIDTH)


@dataclass(frozen=True, eq=False)
class Cut(scores.Score):
    """Says which of its fields is by head."""

    per_head: ClassVar[Mapping[str, int]] = {"gain": 1}
    gain: Tensor  # (heads,)

    def tile(self, q, k, i, j):
        return self.gain[:, None, None] * (q @ k.mT) + (i[:, None] - 2 * j)


@dataclass(frozen=True)
class Bare(scores.Score):
    def tile(self, q, k, i, j):
        return q @ k.mT + (i[:, None] - 2 * j)


SCORES = {
    "ScaledDot": (scores.ScaledDot(), 1.0, 0.0),
    "batch and head": (Looked(GAIN), GAIN.numpy(), 1.0),
    "holds by sequence and head": (Held(GAIN), GAIN.numpy(), 1.0),
    "holds by head": (Held(GAIN[:1]), GAIN[:1].numpy(), 1.0),
    "holds by sequence": (Held(GAIN[:, :1]), GAIN[:, :1].numpy(), 1.0),
    "per_head": (Cut(GAIN[0]), GAIN[:1].numpy(), 1.0),
    "holds nothing": (Bare(), 1.0, 1.0),
}


def sides(part: Part, x: Tensor, group: int) -> Tensor:
    """The sequences and heads of a part."""
    heads = slice(part.heads.start // group, -(-part.heads.stop // group))
    return x[part.batch, heads]


def test_scores_are_those_of_all_queries_and_keys():
    q, k = drawn(BATCH, HEADS, QUERIES, DIM), drawn(BATCH, HEADS // GROUP, KEYS, DIM, seed=1)
    products = np.einsum("bhid,bhjd->bhij", q.numpy(), k.numpy().repeat(GROUP, 1))
    for case in sweep(itertools.product(SCORES, PLACES)):
        with case as (name, where):
            part, (score, gain, far) = PLACES[where], SCORES[name]
            found = part.scores(score, SCALE, sides(part, q, 1)[:, :, part.rows], part.cut(sides(part, k, GROUP)))
            assert found.shape == rectangle(products, part).shape
            gain = np.reshape(gain, (*np.shape(gain), 1, 1))
            check(found, SCALE * (gain * products + far * (ROW - 2 * COLUMN)), part)


@dataclass(frozen=True)
class Outside(scores.Score):
    """Reads numbers of each head that it does not hold."""

    def tile(self, q, k, i, j):
        return GAIN[0, :, None, None] * (q @ k.mT)


def test_a_score_of_another_shape_is_refused_with_the_way_out():
    part = PLACES["one head of a group"]
    q, k = drawn(BATCH, 1, QUERIES, DIM), drawn(BATCH, 1, part.columns, DIM)
    with pytest.raises(InputError, match=r"Outside\.tile .*`batch` and `head`"):
        part.scores(Outside(), SCALE, q, k)


TABLE = drawn(HEADS, 7, WIDTH, seed=3)
KEY_TABLE = drawn(7, DIM)
LOOKED_UP = f64(TABLE)[:, np.clip(COLUMN - ROW, -3, 3) + 3]  # (heads, queries, keys, width)
FAR = np.broadcast_to((ROW - 2 * COLUMN)[..., None], (QUERIES, KEYS, WIDTH))
TERMS = {
    "Shaw": (scores.Shaw(KEY_TABLE, TABLE[2]), LOOKED_UP[None, 2:3]),
    "Shaw, tables of heads": (scores.Shaw(KEY_TABLE, TABLE), LOOKED_UP[None]),
    "batch and head": (Looked(GAIN), GAIN.numpy()[..., None, None, None] * FAR),
    "holds by head": (Held(GAIN[:1]), GAIN[:1].numpy()[..., None, None, None] * FAR),
    "holds by sequence": (Held(GAIN[:, :1]), GAIN[:, :1].numpy()[..., None, None, None] * FAR),
}


def test_value_terms_are_sums_over_the_keys_of_the_part():
    weights = drawn(BATCH, HEADS, QUERIES, KEYS)
    for case in sweep(itertools.product(TERMS, PLACES)):
        with case as (name, where):
            part, (score, terms) = PLACES[where], TERMS[name]
            own = rectangle(weights.numpy(), part)
            terms = np.broadcast_to(terms, (BATCH, HEADS, QUERIES, KEYS, WIDTH))
            terms = terms[part.batch, part.heads, part.rows][:, :, :, columns_of(part)]
            found = part.value_term(score, torch.tensor(own), WIDTH)
            assert found is not None
            np.testing.assert_allclose(found.numpy(), np.einsum("bhij,bhijd->bhid", own, terms), rtol=1e-11, atol=1e-12)
    for score in (scores.ScaledDot(), scores.Shaw(KEY_TABLE), Bare()):
        assert place().value_term(score, weights, WIDTH) is None


def test_dropout_keeps_in_a_part_what_it_keeps_in_everything():
    dropout = Dropout(0.4, torch.tensor(12345))
    whole = dropout.keep(slice(0, BATCH), slice(0, HEADS), torch.arange(QUERIES), torch.arange(KEYS)).numpy()
    assert 0.5 < whole.mean() < 0.7
    for case in sweep(PLACES):
        with case as where:
            assert np.array_equal(PLACES[where].kept(dropout), rectangle(whole, PLACES[where]))


@pytest.mark.parametrize("kv_heads", [6, 3, 2, 1])
def test_a_product_has_the_columns_of_the_groups_head(kv_heads):
    x, y = drawn(2, 6, 5, 4), drawn(2, kv_heads, 4, 7, seed=1)
    expected = np.einsum("bhid,bhdj->bhij", x, y.numpy().repeat(6 // kv_heads, 1))
    np.testing.assert_allclose(product(x, y), expected, rtol=1e-12, atol=1e-13)
