"""Heads made to have one habit are called by it, from exact weights and from the strongest keys alike."""

import dataclasses
import re

import numpy as np
import pytest

from regard.heads.patterns import head_patterns
from regard.record.records import Layer, Record
from regard.render.labels import describe
from sweeps import sweep

MADE = ("previous", "next", "self", "special_tokens", "other", "spread")


def test_each_made_head_is_called_by_its_habit(english) -> None:
    assert head_patterns(english.record, 0) == MADE * 2


def test_the_strongest_keys_are_enough_for_heads_that_look_at_one(long_text) -> None:
    assert head_patterns(long_text.record, 0)[:4] == MADE[:4]


def test_first_token_where_nothing_is_special(nameless) -> None:
    layer = nameless.record.layers[0]
    weights = np.zeros_like(layer.mean)
    weights[..., 0] = 1
    bare = Record((dataclasses.replace(layer, mean=weights, entropy=np.zeros_like(layer.entropy)),))
    assert head_patterns(bare, 0) == ("first",) * 3


def test_even_causal_rows_are_spread_though_their_entropy_is_below_ln_of_all_keys() -> None:
    count = 12
    weights = np.tril(np.ones((count, count), np.float32))
    weights /= weights.sum(-1, keepdims=True)
    entropy = -np.where(weights > 0, weights * np.log(np.where(weights > 0, weights, 1)), 0).sum(-1)
    order = np.argsort(-weights, axis=-1, kind="stable")[:, :8].astype(np.int32)
    best = np.take_along_axis(weights, order, -1)
    template = dataclasses.replace(
        _layer(weights), top_keys=np.where(best > 0, order, -1)[None, None], top_weights=best[None, None],
        entropy=entropy[None, None].astype(np.float32),
    )  # fmt: skip
    assert head_patterns(Record((template,)), 0) == ("spread",)


def _layer(weights: np.ndarray):
    full = weights[None, None]
    none, keys = (np.zeros((1, 1, side), np.float32) for side in weights.shape)
    return Layer(
        "a", "self", "text", "text", 1, 1, full, full, none[..., None].astype(np.int32), none[..., None], none, keys
    )


def test_queries_behind_a_cache_are_the_last_positions() -> None:
    """Three queries on ten keys stand at 7, 8 and 9."""
    for case in sweep([(-1, "previous"), (0, "self")]):
        with case as (step, habit):
            assert head_patterns(Record((_layer(np.eye(10, k=step, dtype=np.float32)[7:]),)), 0) == (habit,)


def test_even_rows_behind_a_cache_are_spread() -> None:
    weights = np.tril(np.ones((6, 6), np.float32))[3:] / np.arange(4, 7, dtype=np.float32)[:, None]
    entropy = np.log(np.arange(4, 7, dtype=np.float32))[None, None]
    top = np.tile(np.arange(4, dtype=np.int32), (1, 1, 3, 1))
    layer = dataclasses.replace(_layer(weights), entropy=entropy, top_keys=top)
    assert head_patterns(Record((layer,)), 0) == ("spread",)


def test_cross_attention_has_no_previous_next_or_self(cross) -> None:
    named = {habit for layer in range(3) for habit in head_patterns(cross.record, layer)}
    assert named == {"special_tokens", "spread", "other"}


def test_the_counts_of_the_sentence_add_up_to_all_heads(request: pytest.FixtureRequest) -> None:
    for case in sweep(["english", "chinese", "cross", "pieces", "nameless"]):
        with case as name:
            record = request.getfixturevalue(name).record
            total, *counts = map(int, re.findall(r"\b\d+\b", describe(record)))
            assert total == sum(layer.heads for layer in record) == sum(counts)


def test_one_head_takes_a_singular_verb(pieces) -> None:
    assert describe(pieces.record) == "Of the 2 heads, 1 looks mostly at the previous token and 1 at the next."
