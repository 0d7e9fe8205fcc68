"""Queries whose masks are bound to a place before the last key: what they see after the place belongs to the record.

Columns after it that no query sees are those of a static cache that are not used yet.
"""

import itertools

import torch
from torch import nn

import regard
from regard import masks
from sweeps import sweep

KEYS, PLACE = 12, 4
SEEING_ON = {
    "both sides": masks.Window(left=2, right=2),
    "all": masks.Padding(torch.ones(1, KEYS, dtype=torch.bool)),
    "a prefix": masks.prefix_lm(10),
    "later keys only": ~masks.Causal(),
}


class Attends(nn.Module):
    def forward(self, q, k, v, mask):
        return regard.attention(q, k, v, mask=mask)


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([Attends(), Attends()])

    def forward(self, q, k, v, first, second):
        return self.layers[1](self.layers[0](q, k, v, first), k, v, second)


def tensors(queries, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(1, 2, size, 8, generator=generator) for size in (queries, KEYS, KEYS)]


def formula(q, k, mask, place):
    """Weights in float64, by the pairs that the definitions of the masks name."""
    i, j = torch.arange(q.shape[2])[:, None] + place, torch.arange(KEYS)
    seen = {
        "both sides": (i - j).abs() <= 2,
        "all": j >= 0 * i,
        "a prefix": (j < 10) | (j <= i),
        "later keys only": j > i,
        "causal": j <= i,
    }[mask]
    scores = q.double() @ k.double().mT / q.shape[-1] ** 0.5
    return scores.masked_fill(~seen, -torch.inf).softmax(-1)


def test_keys_that_a_query_sees_after_its_place_are_recorded():
    for case in sweep(itertools.product(["weights", "maps", "qk"], [1, 2], SEEING_ON)):
        with case as (keep, queries, name):
            q, k, v = tensors(queries)
            model = Attends()
            with torch.no_grad(), regard.watch(model, keep=keep) as seen:
                model(q, k, v, SEEING_ON[name].bind(queries, KEYS, PLACE))
            expected = formula(q, k, name, PLACE)
            found = torch.as_tensor(seen.weights(layer=0)).double()
            last = found.shape[-1]
            assert not expected[..., last:].any()
            torch.testing.assert_close(found, expected[..., :last], rtol=0, atol=1e-6)


def test_so_are_those_of_later_steps_over_the_same_cache():
    for case in sweep(itertools.product(["weights", "qk"], SEEING_ON)):
        with case as (keep, name):
            model, places = Attends(), (PLACE, PLACE + 1, PLACE + 2)
            k, v = tensors(1)[1:]
            queries = [tensors(1, seed=at)[0] for at in places]
            with torch.no_grad(), regard.watch(model, keep=keep) as seen:
                for q, place in zip(queries, places, strict=True):
                    model(q, k, v, SEEING_ON[name].bind(1, KEYS, place))
            expected = torch.cat([formula(q, k, name, place) for q, place in zip(queries, places, strict=True)], 2)
            found = torch.as_tensor(seen.weights(layer=0)).double()
            last = found.shape[-1]
            assert not expected[..., last:].any()
            torch.testing.assert_close(found, expected[..., :last], rtol=0, atol=1e-6)


def test_columns_that_no_query_sees_are_left_out():
    q, k, v = tensors(1)
    model = Attends()
    with torch.no_grad(), regard.watch(model) as seen:
        model(q, k, v, masks.Causal().bind(1, KEYS, PLACE))
    assert seen.weights(layer=0).shape == (1, 2, 1, PLACE + 1)


def test_a_tap_delivers_them():
    for case in sweep(SEEING_ON):
        with case as name:
            q, k, v = tensors(1)
            model = Twice()
            first = masks.Causal().bind(1, KEYS, PLACE)
            inner = model.layers[0](q, k, v, first)
            with torch.no_grad(), regard.tap(model, heads=["0.0", "0.1", "1.0"]) as tap:
                model(q, k, v, first, SEEING_ON[name].bind(1, KEYS, PLACE))
            (row,) = tap.rows
            expected = torch.cat([formula(q, k, "causal", PLACE)[0, :, 0], formula(inner, k, name, PLACE)[0, :1, 0]])
            found = row.weights[0].double()
            last = found.shape[-1]
            assert not expected[..., last:].any()
            torch.testing.assert_close(found, expected[..., :last], rtol=0, atol=1e-6)


def test_distances_are_counted_from_the_place_also_beyond_the_keys():
    for case in sweep(itertools.product([1, 3, 12], [4, 10, 30])):
        with case as (queries, place):
            q, k, v = tensors(queries)
            model, mask = Attends(), masks.Padding(torch.ones(1, KEYS, dtype=torch.bool))
            with torch.no_grad(), regard.watch(model, statistics=["distance"]) as seen:
                model(q, k, v, mask.bind(queries, KEYS, place))
            away = (torch.arange(queries)[:, None] + place - torch.arange(KEYS)).abs()
            expected = (formula(q, k, "all", place) * away).sum(-1)
            torch.testing.assert_close(
                torch.as_tensor(seen.statistic("distance", layer=0)).double(), expected, rtol=1e-5, atol=1e-5
            )


def test_unused_columns_are_left_out_after_padding_on_the_left():
    """The first row, of padding, sees nothing: it does not show that its columns are those of a cache."""
    for case in sweep(itertools.product(["weights", "qk"], [0, 2])):
        with case as (keep, padding):
            q, k, v = tensors(6)
            seen_pairs = torch.ones(6, KEYS, dtype=torch.bool).tril()
            seen_pairs[:, :padding] = False

            def forward(q, k, v, mask):
                return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)

            model = Attends()
            model.forward = forward
            with torch.no_grad(), regard.watch(model, keep=keep) as seen:
                model(q, k, v, seen_pairs)
            found = torch.as_tensor(seen.weights(layer=0)).double()
            assert found.shape == (1, 2, 6, 6)
            scores = (q.double() @ k.double().mT / 8**0.5).masked_fill(~seen_pairs, -torch.inf)
            torch.testing.assert_close(found, scores.softmax(-1).nan_to_num(0.0)[..., :6], rtol=0, atol=1e-6)
