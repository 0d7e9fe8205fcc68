"""What is drawn, exported and concluded of a record with chosen heads or queries: nothing of what was not recorded."""

import csv
import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from interpret.test_watch_chosen import IDS, made, watched
from regard.errors import InputError, ObservationError
from regard.heads.patterns import find_sinks, head_patterns
from regard.interpret.export import export
from regard.record.highlight import choose_focus
from regard.record.records import Record
from regard.record.tiles import Matrix
from regard.record.tokens import Token
from regard.render.figure import heatmap_figure
from regard.render.figure_panels import head_mosaic
from regard.render.labels import describe, size
from regard.render.page.record_data import inline_json, pack, record_json
from regard.web.head_tiles import HeadTiles
from web.cases import SINK, attention, layer_of

WORDS = [f"w{number}" for number in range(20)]
HEADS = ["2.1", "2.3"]


@pytest.fixture(scope="module")
def records() -> tuple[Record, Record]:
    """A whole record, and one of two heads of the last layer."""
    asked = {"tokens": WORDS, "statistics": ("distance",), "keep": "weights"}
    return tuple(watched(made(), IDS[:1], **asked, **heads).record for heads in ({}, {"heads": HEADS}))


def test_one_head_that_was_not_recorded_is_refused_everywhere(records: Any, tmp_path: Path) -> None:
    _, some = records
    for asked in (
        lambda: Matrix(some.layers[0], 0),
        lambda: HeadTiles(some.layers[0], 2),
        lambda: heatmap_figure(some, layer=2, head=0),
        lambda: choose_focus(some, layer=2, head=0),
        lambda: export(some, tmp_path / "a.csv", "distance", layer=2, head=0),
        lambda: export(some, tmp_path / "a.csv", "top", layer=2, head=0),
    ):
        with pytest.raises(InputError, match=r"`head` must be one that was chosen for recording, 1, 3 of layer"):
            asked()
    assert Matrix(some.layers[0], 3).weight(9, 4) == some.weights(layer=2, head=3)[0, 9, 4]


def test_files_hold_the_chosen_heads_by_their_numbers(records: Any, tmp_path: Path) -> None:
    whole, some = records
    expected = whole.statistic("distance", layer=2)[0]
    export(some, tmp_path / "a.csv", "distance", layer=2)
    rows = list(csv.reader((tmp_path / "a.csv").read_text().splitlines()))
    assert [name[-1] for name in rows[0][1:]] == ["1", "3"]
    assert np.allclose(np.array([row[1:] for row in rows[1:]], float), expected[[1, 3]].T, rtol=1e-5)
    export(some, tmp_path / "one.csv", "distance", layer=2, head=1)
    one = [float(row[1]) for row in list(csv.reader((tmp_path / "one.csv").read_text().splitlines()))[1:]]
    assert np.allclose(one, expected[1], rtol=1e-5)
    export(some, tmp_path / "a.npz", "weights", layer=2)
    assert np.array_equal(np.load(tmp_path / "a.npz")["weights"], whole.weights(layer=2)[0, [1, 3]])
    export(some, tmp_path / "top.npz", "top", layer=2)
    assert np.array_equal(np.load(tmp_path / "top.npz")["weights"], whole.layer(2).top_weights[0, [1, 3]])
    export(some, tmp_path / "top.csv", "top")
    assert {row["head"] for row in csv.DictReader((tmp_path / "top.csv").read_text().splitlines())} == {"1", "3"}


def test_grids_and_sentences_leave_the_others_out(records: Any) -> None:
    whole, some = records
    shown = ~np.isnan(head_mosaic(some, 0)).all(0)
    per_head = [bool(part.any()) for part in np.array_split(shown, 4)]
    assert per_head == [False, True, False, True]
    assert size(some) == "LlamaForCausalLM: 1 layer, 2 of 4 heads, 20 tokens"
    assert size(whole) == "LlamaForCausalLM: 3 layers, 12 heads, 20 tokens"
    patterns = head_patterns(whole, 2)
    assert head_patterns(some, 2) == ("", patterns[1], "", patterns[3])
    assert describe(some).startswith("Of the 2 heads, ")
    assert record_json(some)["layers"][0]["heads"] == (1, 3)
    assert record_json(whole)["layers"][0]["heads"] == (0, 1, 2, 3)
    inline = inline_json(some, choose_focus(some), pack(some, 0))["layers"][0]
    assert [bool(one) for one in inline["statistics"]] == [False, True, False, True]


@pytest.mark.parametrize("causal", [True, False])
def test_sinks_are_those_of_the_recorded_heads_and_queries(causal: bool) -> None:
    """Two heads that rest on a token, in a record of a tenth of the queries."""
    weights = attention(2, 300, 300, causal=causal, sinks=(SINK,), seed=3)
    rows, heads = slice(200, 230), (1, 14)
    made = np.zeros((16, 300, 300))
    made[heads, rows] = weights[:, rows]
    layer = dataclasses.replace(layer_of(made), head_numbers=heads)
    (sink,) = find_sinks(layer)
    assert sink.key == SINK
    assert sink.share == pytest.approx(weights[:, rows, SINK].mean(), rel=1e-5)
    habits = head_patterns(Record((layer,)), 0)
    assert {habits[one] for one in range(16) if one not in heads} == {""}
    assert [habits[one] for one in heads] == list(head_patterns(Record((layer_of(weights[:, rows], kind="cross"),)), 0))


def test_words_whose_queries_were_not_recorded_are_not_ranked() -> None:
    last = watched(made(), IDS[:1], tokens=WORDS, queries="last")
    assert last.rank_heads("w19", "w3")[0].weight > 0
    with pytest.raises(
        ObservationError, match="'w7' has no weight in any head: it was not among the watched `queries`"
    ):
        last.rank_heads("w7", "w3")


def test_the_figure_of_a_record_with_chosen_heads_is_of_these() -> None:
    weights = attention(4, 12, 12, causal=False, seed=5)
    weights[2, 7, 3] = 0.9  # not recorded
    weights[1, 7, 4] = 0.8
    layer = layer_of(weights)
    tokens = {"text": (tuple(Token(f"word{at}", space=True) for at in range(12)),)}
    (look, *_), head = choose_focus(Record((layer,), tokens), token="word7").looks, 2
    assert (look.head, look.target) == (head, 3)
    focus = choose_focus(Record((dataclasses.replace(layer, head_numbers=(1, 3)),), tokens), token="word7")
    assert (focus.looks[0].head, focus.looks[0].target) == (1, 4)
    assert {one.head for one in focus.looks} <= {1, 3}
