"""Pooling and excerpts against the slow way."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.record.tiles import pooled
from regard.record.tokens import Token
from regard.render.heatmap_data import head_map
from regard.render.labels import shown_words, visible
from regard.render.line_breaking import excerpt


@given(st.integers(1, 20), st.integers(1, 20), st.integers(1, 7), st.integers(1, 7))
def test_each_cell_is_the_largest_of_its_rectangle(rows: int, columns: int, down: int, across: int) -> None:
    values = np.random.default_rng(rows * 31 + columns).random((rows, columns), dtype=np.float32)
    cells = pooled(values, down, across, "max")
    assert cells.shape == (-(-rows // down), -(-columns // across))
    for (i, j), cell in np.ndenumerate(cells):
        assert cell == values[i * down : (i + 1) * down, j * across : (j + 1) * across].max()


def test_a_pooled_layer_counts_its_bins_in_tokens(long_text) -> None:
    seen = head_map(long_text.record.layers[5], 1, 0, rows=40, columns=40)
    assert (seen.query_bin, seen.key_bin) == (16, 16)
    assert seen.values.shape == (32, 32)
    assert seen.values[101 // 16, 21 // 16] == pytest.approx(0.6)


def test_a_small_layer_is_exact(english) -> None:
    seen = head_map(english.record.layers[5], 11, 0, rows=40, columns=40)
    assert seen.exact
    np.testing.assert_array_equal(seen.values, english.record.weights(layer=5, head=11)[0])


@given(st.integers(1, 300), st.lists(st.integers(0, 299), min_size=1, max_size=4), st.integers(1, 80))
def test_an_excerpt_shows_every_anchor_once_and_in_order(count: int, anchors: list[int], limit: int) -> None:
    anchors = [anchor % count for anchor in anchors]
    shown = [word for stretch in excerpt(count, anchors, limit) for word in stretch]
    assert shown == sorted(set(shown))
    assert set(anchors) <= set(shown) <= set(range(count))
    assert len(shown) <= max(limit, 3 * len(anchors)) + 2 * len(anchors)


@pytest.mark.slow
@given(st.text())
def test_visible_text_holds_nothing_that_moves_the_cursor(text: str) -> None:
    shown = visible(text)
    assert shown
    assert not any(ord(sign) < 32 or 127 <= ord(sign) < 160 or sign in "\u2028\u2029\u202e\u2066" for sign in shown)
    assert "\ud800" not in shown


def test_letters_of_all_scripts_stay_as_they_are() -> None:
    assert visible("naïve 貓 می\u200cخواهم 👩\u200d🚀") == "naïve 貓 می\u200cخواهم 👩\u200d🚀"


def test_a_piece_of_white_space_is_left_out_of_its_word_and_stands_apart_alone() -> None:
    tokens = (Token("␣"), Token("␣", word=0), Token("貓", word=0, space=True), Token("a", word=1))
    assert [(word.text, word.special, space) for word, space in shown_words(tokens)] == [
        ("␣", True, False),
        ("貓", False, False),
        ("a", False, False),
    ]
