"""What is printed, to the character, at 80 columns without colour; and what a hostile text cannot do to it."""

import dataclasses
import io
import itertools
import re

import pytest
from rich.cells import cell_len
from rich.console import Console

from regard.errors import InputError
from regard.record.highlight import Focus, Look
from regard.render.figure import focus_figure
from regard.render.notebook import card
from regard.render.page import page
from regard.render.terminal import picture, share_bar
from sweeps import sweep


def printed(case, *, width: int = 80, colour: str | None = None) -> str:
    console = Console(
        width=width, color_system=colour, force_terminal=colour is not None, file=io.StringIO(), legacy_windows=False
    )
    console.print(picture(case.record, case.focus, width=width))
    return console.file.getvalue()


ENGLISH = """\
  The animal didn't cross the street because it was too tired
        ▲                       ▲            ┯┯
        │                       ╰──── ② ─────╯│
        ╰──────────────── ① ──────────────────╯

  ① layer 5 head 11: it → animal  0.60 ████████████        ▏
  ② layer 5 head 3:  it → street  0.60 ████████████        ▏

① layer 5 head 11: rows look at columns, each cell is one weight
                  1  2  3  4  5  6  7  8  9  10 11 12 13
   1 [CLS]        ░░░░░░   ░░░         ▒▒▒░░░░░░░░░░░░
   2 The             ░░░░░░▒▒▒░░░   ░░░░░░   ░░░      ░░░
   3 animal       ▒▒▒            ░░░░░░   ░░░   ▒▒▒   ░░░
   4 didn't       ░░░   ░░░░░░░░░   ░░░░░░   ░░░░░░   ░░░
   5 cross        ░░░▒▒▒░░░      ░░░   ░░░   ░░░░░░   ░░░
   6 the                ▒▒▒▒▒▒      ▒▒▒░░░      ░░░░░░░░░
   7 street       ░░░░░░░░░   ░░░░░░░░░         ░░░░░░▓▓▓
   8 because      ░░░         ▓▓▓   ░░░      ░░░░░░░░░░░░
▶  9 it                 ███   ░░░         ░░░      ░░░
  10 was          ░░░   ░░░░░░░░░   ░░░░░░▒▒▒   ░░░
  11 too          ░░░░░░   ░░░   ░░░░░░▒▒▒   ▒▒▒   ░░░
  12 tired        ░░░      ░░░         ▒▒▒   ▒▒▒
  13 [SEP]                    ▒▒▒   ▒▒▒         ░░░░░░▒▒▒
  blank below 0.05   ░ from 0.05   ▒ from 0.15   ▓ from 0.30   █ from 0.45

Of the 72 heads, 12 look mostly at [CLS]/[SEP], 12 at the previous token, 12 at
the next, 12 at the token itself, 12 spread over all tokens alike and 12 follow
no such rule.
"""

CHINESE = """\
  貓追老鼠，因為它餓了
  ▲    ▲        ┯┯
  │    ╰── ② ───╯│
  ╰───── ① ──────╯

  ① layer 5 head 2: 它 → 貓    0.60 ████████████        ▏
  ② layer 4 head 7: 它 → 老鼠  0.60 ████████████        ▏
"""

CROSS = """\
     the animal is tired .
         ━━┯┯━━
╭──────────╯│
│ ╭─────────╯
│ │
│ │  Das Tier ist müde .
│ │       ▲        ▲
╰─┼─── ① ─╯        │
  ╰─────────── ② ──╯
"""


def test_english_sentence_map_and_habits_at_80_cells(english) -> None:
    assert printed(english) == ENGLISH


def test_the_statistics_of_a_head_are_under_its_line(measured) -> None:
    largest = measured.record.layers[5].statistics["largest"]
    lines = printed(measured).splitlines()
    for mark, head in (("①", 11), ("②", 3)):
        at = next(at for at, line in enumerate(lines) if line.startswith(f"  {mark} layer 5"))
        assert lines[at + 1] == f"    largest {largest[0, head, 1:-1].mean():.3g} · shared 0.125"  # not [CLS], [SEP]


def test_chinese_arcs_end_under_their_wide_characters(chinese) -> None:
    assert printed(chinese).startswith(CHINESE)


def test_cross_attention_draws_both_sentences_and_names_the_columns(cross) -> None:
    text = printed(cross)
    assert text.startswith(CROSS)
    assert "columns: 1 [CLS] 2 Das 3 Tier 4 ist 5 müde 6 . 7 [SEP]" in text


def test_no_line_is_wider_than_asked(request: pytest.FixtureRequest) -> None:
    for case in sweep(
        itertools.product(
            [40, 57, 80, 132], ["english", "chinese", "cross", "hostile", "pieces", "nameless", "long_text"]
        )
    ):
        with case as (width, name):
            text = printed(request.getfixturevalue(name), width=width)
            assert max(map(cell_len, text.splitlines())) <= width


def test_a_narrow_console_wins_over_the_width_asked_for(english) -> None:
    console = Console(width=60, color_system=None, file=io.StringIO())
    console.print(picture(english.record, english.focus, width=80))
    assert max(map(cell_len, console.file.getvalue().splitlines())) <= 60


def test_a_hostile_text_cannot_steer_the_terminal(hostile) -> None:
    for case in sweep([None, "truecolor"]):
        with case as colour:
            text = printed(hostile, colour=colour)
            bare = re.sub(r"\x1b\[[0-9;]*m", "", text)  # rich's own colours
            assert not set(bare) & {chr(code) for code in (*range(10), *range(11, 32), 127)}
            assert "\u202e" not in bare
            assert "\u2028" not in bare
            assert r"\x1b[31mred\x07" in bare


def test_markup_is_text(hostile) -> None:
    assert "[red]x → $x^2$" in printed(hostile, colour="truecolor").replace("\x1b[0m", "")


def test_colour_changes_no_character(english) -> None:
    assert re.sub(r"\x1b\[[0-9;]*m", "", printed(english, colour="truecolor")) == printed(english)


def test_the_two_heads_have_two_colours(english) -> None:
    text = printed(english, colour="truecolor")
    colours = {re.findall(r"38;2;(\d+;\d+;\d+)m[^\x1b]*" + mark, text)[0] for mark in ("①", "②")}
    assert len(colours) == 2


def test_a_long_text_shows_the_surroundings_of_word_and_targets_only(long_text) -> None:
    sentence = printed(long_text).split("①  layer")[0].split("  ① layer")[0]
    assert {"animal", "it", "street"} <= set(sentence.split())
    assert "…" in sentence
    assert "cross200" not in sentence
    assert len(sentence.splitlines()) <= 16


def test_a_long_map_is_pooled_and_says_so(long_text) -> None:
    text = printed(long_text)
    assert "each cell is 20 × 20 tokens, largest weight" in text
    assert len(re.findall(r"^[▶ ] +\d+ \S+ .*[░▒▓█]", text, re.M)) <= 40


def test_words_in_pieces_are_one_word_and_several_marked_rows(pieces) -> None:
    text = printed(pieces)
    assert "unbelievable tokenizer" in text
    assert re.findall(r"▶ (\d) (\S+)", text) == [("5", "token"), ("6", "izer")]


def test_bar_is_as_long_as_the_weight() -> None:
    assert [share_bar(weight, 4) for weight in (0, 0.25, 0.53, 1, 1.7)] == ["    ", "█   ", "██▏ ", "████", "████"]


def test_arcs_to_both_sides_leave_the_word_without_crossing(english) -> None:
    focus = Focus(english.focus.queries, english.focus.keys, 6, (Look(5, 3, 2, 0.5), Look(5, 1, 11, 0.2)))
    drawn = printed(english._replace(focus=focus)).split("\n\n")[0]
    assert "┼" not in drawn
    assert drawn.count("▲") == 2


UNFIT = [
    (Focus((), (), 0, (Look(0, 0, 0, 0.1),)), r"`focus.word` must be from 0 to -1, got 0"),
    (None, r"`focus.looks` must hold at least one head"),
    ("head", r"heads from 0 to 11, got 12"),
    ("target", r"words from 0 to 12, got 99"),
    ("batch_index", r"`focus.sequence` must be from 0 to 0, got 1"),
]


def test_a_focus_that_does_not_fit_is_refused(english) -> None:
    for case in sweep(UNFIT):
        with case as (focus, words):
            whole = english.focus
            made = {
                None: Focus(whole.queries, whole.keys, 8, ()),
                "head": Focus(whole.queries, whole.keys, 8, (Look(0, 12, 0, 0.1),)),
                "target": Focus(whole.queries, whole.keys, 8, (Look(0, 0, 99, 0.1),)),
                "batch_index": Focus(whole.queries, whole.keys, 8, whole.looks, 1),
            }
            with pytest.raises(InputError, match=words):
                picture(english.record, made.get(focus, focus))


def test_a_width_below_40_is_refused(english) -> None:
    with pytest.raises(InputError, match="`width` must be at least 40 cells, got 39"):
        picture(english.record, english.focus, width=39)


def test_arcs_to_one_side_lie_inside_one_another(english) -> None:
    for case in sweep([(1, 3), (3, 1), (8, 11), (11, 8)]):
        with case as targets:
            looks = tuple(Look(5, head, target, 0.5) for head, target in enumerate(targets))
            focus = Focus(english.focus.queries, english.focus.keys, 6, looks)
            assert "┼" not in printed(english._replace(focus=focus)).split("\n\n")[0]


NOTE = "No finding on another word is sharp: this is the clearest."


def test_where_no_look_is_sharp_all_pictures_say_so(english) -> None:
    focus = dataclasses.replace(english.focus, note=NOTE)
    assert f"\n  {NOTE}\n\n①" in printed(english._replace(focus=focus), width=100)
    assert NOTE in card(english.record, focus)
    assert NOTE in page(english.record, focus)
    figure = focus_figure(english.record, focus)
    written = [text.get_text() for axes in figure.axes for text in axes.texts]
    assert any(" ".join(text.split()).startswith(f"{NOTE} Of the 72 heads") for text in written)
    whole = focus_figure(english.record, english.focus)
    assert any(text.get_text().startswith("Of the 72 heads") for axes in whole.axes for text in axes.texts)


def test_the_part_of_a_word_that_is_meant_is_marked_and_named(chinese) -> None:
    words = list(chinese.focus.queries)
    text = [
        dataclasses.replace(one, text="因為它") if one.text == "它" else one for one in chinese.record.stream("text")
    ]
    record = dataclasses.replace(chinese.record, tokens={"text": (tuple(text),)})
    words[6] = dataclasses.replace(words[6], text="因為它")
    focus = dataclasses.replace(chinese.focus, queries=tuple(words), keys=tuple(words), part="它")
    drawn = printed(chinese._replace(record=record, focus=focus))
    assert drawn.splitlines()[1].rstrip().endswith("┯┯")
    assert cell_len(drawn.splitlines()[1].rstrip()) == 2 + cell_len("貓追老鼠，因為因為它")
    assert "它 (in 因為它) → 貓" in drawn
    assert "<bdi>它 (in 因為它)</bdi> → " in card(record, focus)
