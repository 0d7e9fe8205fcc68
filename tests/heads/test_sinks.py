"""Sinks are told by what keys receive, wherever they stand."""

import dataclasses
import itertools

import numpy as np
import pytest

from regard.heads.patterns import find_sinks, is_causal
from sweeps import sweep
from web.cases import SINK, attention, layer_of


def found(weights: np.ndarray, **named) -> list[int]:
    return [sink.key for sink in find_sinks(layer_of(weights, **named))]


def test_a_sink_is_found_where_it_stands() -> None:
    for case in sweep(itertools.product([0, 3, SINK, 150], [True, False])):
        with case as (place, causal):
            assert found(attention(2, 300, 300, causal=causal, sinks=(place,))) == [place]


def test_sinks_that_share_the_weight_are_all_found() -> None:
    assert found(attention(4, 400, 400, causal=True, sinks=(2, 50, 51))) == [2, 50, 51]


def test_even_attention_has_no_sink() -> None:
    for case in sweep(itertools.product([True, False], [2, 12, 40, 60, 90, 200])):
        with case as (causal, count):
            seen = np.tril(np.ones((1, count, count))) if causal else np.ones((1, count, count))
            assert found(seen / seen.sum(-1, keepdims=True)) == []


def test_a_key_that_only_the_last_queries_see_is_none() -> None:
    looks_at_itself = np.eye(100)[None]
    assert found(looks_at_itself) == []
    previous = np.eye(100, k=-1)[None]
    previous[0, 0, 0] = 1
    assert found(previous) == []


def test_the_share_is_that_of_the_queries_that_can_see_the_key() -> None:
    weights = attention(3, 300, 300, causal=True, sinks=(SINK,), seed=9)
    (sink,) = find_sinks(layer_of(weights))
    assert sink.share == pytest.approx(weights[:, SINK:, SINK].mean(), rel=1e-5)


def test_a_key_of_a_short_text_must_stand_out_of_an_even_share() -> None:
    weights = np.full((1, 10, 10), 0.7 / 9)
    weights[:, :, 4] = 0.3  # three times an even share, and six times 0.05
    assert found(weights) == []
    weights[:] = 0.5 / 9
    weights[:, :, 4] = 0.5
    assert found(weights) == [4]


def test_a_layer_is_causal_where_no_query_looks_behind_itself() -> None:
    assert is_causal(layer_of(attention(1, 20, 20, causal=True)))
    assert not is_causal(layer_of(attention(1, 20, 20, causal=False)))
    assert not is_causal(layer_of(attention(1, 20, 20, causal=True), kind="cross"))


def test_numbers_that_are_none_make_no_sink() -> None:
    layer = layer_of(attention(1, 50, 50, causal=True, sinks=(1,)))
    broken = dataclasses.replace(layer, received=np.full_like(layer.received, np.nan))
    assert find_sinks(broken) == ()
