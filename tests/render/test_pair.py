"""One head over two texts: printed exactly at 80 columns, drawn as a figure, and written as a page."""

import html
import io
import itertools
import re
from pathlib import Path

import numpy as np
import pytest
from rich.cells import cell_len
from rich.console import Console

from regard.errors import InputError
from regard.heads.change_loss_and_pairs import HeadChange
from regard.heads.scores import HeadScores
from regard.render.figure import pair_figure, save_pair_figure
from regard.render.head_lists_text import change_lines
from regard.render.pair_page import pair_card, pair_page, write_pair_page
from regard.render.pair_text import pair_picture
from sweeps import sweep


def change(values=((0.5, 0.25),)):
    scores = HeadScores("made by hand", {}, 13)
    return HeadChange(("text 1", "text 2"), np.array(values), scores, scores, 13, "they are alike")


def printed(pair, *, width=80, changed=None):
    console = Console(width=width, color_system=None, file=io.StringIO(), legacy_windows=False)
    console.print(pair_picture(pair, changed or change(), width=width))
    return console.file.getvalue()


ENGLISH = """\
  The animal didn't cross the street because it was too tired
        ▲                       ▲            ┯┯
        │                       ╰──── ② ─────╯│
        ╰──────────────── ① ──────────────────╯

  The animal didn't cross the street because it was too wide
        ▲                       ▲            ┯┯
        │                       ╰──── ② ─────╯│
        ╰──────────────── ① ──────────────────╯

layer 0 head 0 from it, in the first text and in the second
                        text 1             text 2             change
    [CLS]               0.01 ▏           ▏ 0.01 ▏           ▏ +0.00
    The                 0.01 ▏           ▏ 0.01 ▏           ▏ +0.00
  ① animal              0.60 ███████▎    ▏ 0.50 ██████      ▏ -0.10
    didn't              0.01 ▏           ▏ 0.01 ▏           ▏ +0.00
    cross               0.01 ▏           ▏ 0.01 ▏           ▏ +0.00
    the                 0.01 ▏           ▏ 0.01 ▏           ▏ +0.00
  ② street              0.10 █▎          ▏ 0.20 ██▍         ▏ +0.10
    because             0.01 ▏           ▏ 0.01 ▏           ▏ +0.00
    it                  0.01 ▏           ▏ 0.01 ▏           ▏ +0.00
    tired / wide        0.01 ▏           ▏ 0.01 ▏           ▏ +0.00

From it, layer 0 head 0 gives, in the first text and in the second, animal 0.60
and 0.50, street 0.10 and 0.20: it weighs animal more in both. The other words
give animal 0.01 and 0.01 on average.

Of the 2 heads, 2 give animal and street together at least 0.10 from it in each
text: 1 weigh animal more in both, 0 weigh street more in both, and 1 flips:
  0.1: animal 0.30, street 0.20 → animal 0.20, street 0.30

Over all rows these heads have changed most: 0.0 (0.50), 0.1 (0.25); 0 is the
same, 1 no key in common (regard compare).

A weight says where a head looks. It does not show that the model has understood
the sentence.
"""


def test_two_texts_at_80_cells(english_pair):
    assert printed(english_pair) == ENGLISH


def test_no_line_is_wider_than_asked(request):
    for case in sweep(itertools.product([60, 80, 132], ["english_pair", "chinese_pair"])):
        with case as (width, name):
            text = printed(request.getfixturevalue(name), width=width)
            assert max(map(cell_len, text.splitlines())) <= width


def test_a_pronoun_within_a_token_and_texts_that_are_the_same_up_to_it_are_said_so(chinese_pair):
    text = " ".join(printed(chinese_pair).split())
    assert "layer 0 head 0 from 它 (in 因為它)" in text
    assert "餓 / 跑" in text
    assert "Nothing differs at 它 (in 因為它): the model reads from left to right" in text
    assert "flip" not in text


def test_rows_that_cannot_be_compared_are_left_out(english_pair):
    scores = HeadScores("made by hand", {}, 13)
    unlike = HeadChange(("text 1", "text 2"), np.array([[0.5, 0.25]]), scores, scores, 0, "they have other lengths")
    assert "Over all rows" not in printed(english_pair, changed=unlike)


def test_a_comparison_names_both_models():
    scores = [HeadScores(name, {}, 13) for name in ("a model", "another")]
    for second, heading in ((0, "a model, one and two: compared"), (1, "a model and another, one and two: compared")):
        found = HeadChange(("one", "two"), np.array([[0.5]]), scores[0], scores[second], 13, "they are alike")
        assert str(next(iter(change_lines(found)))).startswith(heading)


def test_a_terminal_of_fewer_than_60_cells_is_refused(english_pair):
    with pytest.raises(InputError, match="`width` must be at least 60 cells for two texts, got 59"):
        printed(english_pair, width=59)


def test_the_page_holds_both_pages_with_the_same_head_and_says_what_moved(english_pair, tmp_path: Path):
    made = pair_page(english_pair, change(), titles=("tired <b>", "wide"))
    write_pair_page(english_pair, change(), tmp_path / "pair.html", titles=("tired <b>", "wide"))
    assert (tmp_path / "pair.html").read_text(encoding="utf-8") == made
    assert "<b>" not in made
    frames = [html.unescape(one) for one in re.findall(r'srcdoc="([^"]*)"', made)]
    assert len(frames) == 2
    for frame, word, weight in zip(frames, ("tired", "wide"), ("0.60", "0.50"), strict=True):
        assert f"→ <bdi>animal</bdi> {weight}" in frame
        assert f'"{word}"' in frame
        assert '"layer":0,"head":0,"layer2":null,"head2":null}' in frame
    outside = re.sub(r'srcdoc="[^"]*"', "", made)
    assert "1 flips:" in outside
    assert "0.1: animal 0.30, street 0.20 → animal 0.20, street 0.30" in outside
    assert "It does not show that the model has understood the sentence." in outside
    assert "http" not in re.sub(r"http-equiv|http://www\.w3\.org", "", outside)


def test_a_notebook_gets_both_cards_without_scripts(english_pair):
    made = pair_card(english_pair, change())
    assert "<script" not in made
    assert made.count(": <bdi>it</bdi> → <bdi>animal</bdi> ") == 2
    assert "It does not show that the model has understood" in made
    assert len(made.encode()) < 300_000


def test_the_figure_has_both_sentences_and_both_maps_on_one_scale(english_pair, tmp_path: Path):
    figure = pair_figure(english_pair, change())
    maps = [axes for axes in figure.axes if axes.images and axes.images[0].get_array().shape == (13, 13)]
    assert [axes.images[0].get_clim() for axes in maps] == [(0.0, pytest.approx(0.6))] * 2
    np.testing.assert_allclose(maps[1].images[0].get_array()[8, 2], 0.5, atol=1e-6)
    written = " ".join(text.get_text() for axes in figure.axes for text in axes.texts)
    for words in ("it → animal 0.60", "it → street 0.20", "1 flips", "has understood"):
        assert words in " ".join(written.split()) or words in written
    save_pair_figure(english_pair, change(), tmp_path / "pair.png")
    assert (tmp_path / "pair.png").read_bytes().startswith(b"\x89PNG")
