"""Tables, lists, files and figures of heads say what the numbers are, at 80 cells, in English and Chinese."""

import csv
import json
from pathlib import Path
from xml.etree import ElementTree

import matplotlib
import numpy as np
import pytest
from rich.cells import cell_len
from rich.console import Console

from regard.errors import InputError
from regard.heads.change_loss_and_pairs import HeadChange, Loss, Lost, PairScores, WordPair
from regard.heads.scores import HeadScores
from regard.render.csv_and_npz_files import head_rows, loss_rows, write_csv, write_json
from regard.render.head_figure import Panel, head_figure, save_head_figure, score_panels
from regard.render.head_lists_text import change_lines, loss_lines, pair_score_lines
from regard.render.head_table_text import head_table
from sweeps import sweep

NAN = float("nan")


def made(*, causal: bool = True, heads: int = 3) -> HeadScores:
    shape = (2, heads)
    zero = np.zeros(shape)
    found = {
        "previous": zero.copy(),
        "next": np.full(shape, NAN) if causal else zero.copy(),
        "self": zero.copy(),
        "duplicate_token": zero.copy(),
        "induction": zero.copy(),
        "first": zero.copy(),
        "special_tokens": np.full(shape, NAN) if causal else zero.copy(),
        "separators": zero.copy(),
        "entropy": zero + 1.5,
        "distance": zero + 12.5,
        "confidence": zero + 0.25,
    }
    found["sink"] = found["first"]
    found["previous"][0, 1], found["first"][1], found["induction"][1, 0] = 0.95, 0.6, 0.75
    return HeadScores("made", found, 40, "4 × 2 × 32 random tokens")


def shown(*drawn, width: int = 80) -> list[str]:
    console = Console(width=width, color_system=None, highlight=False, emoji=False)
    with console.capture() as captured:
        for one in drawn:
            console.print(one)
    return captured.get().splitlines()


EXPECTED = """\
made: 2 layers × 3 = 6 heads, on 40 tokens of text, and 4 × 2 × 32 random tokens

  what heads look at   heads   strongest, as layer.head and share of weight
F first token              2   1.0 0.60   1.1 0.60
P previous token           1   0.1 0.95   0.0 0.00
I induction                1   1.0 0.75   0.0 0.00
N next token               0   –  a causal model cannot see it
O own position             0   0.0 0.00   0.1 0.00
D same token before        0   0.0 0.00   0.1 0.00
C special tokens           0   –  the text has none
S separators               0   0.0 0.00   0.1 0.00
· none of these            2   no rule takes more than half of the weight
  sink rate                    50% of heads give the first position over 0.3
  entropy (nats)               median 1.50; most: 0.0 1.50   0.1 1.50
  distance (tokens)            median 12.5; most: 0.0 12.5   0.1 12.5
  confidence                   median 0.25; most: 0.0 0.25   0.1 0.25
  first position (sink)        median 0.30; most: 1.0 0.60   1.1 0.60

     head 0 1 2
  layer 0 · P ·
  layer 1 I F F

Heads by induction:
  head    prev next self same indu frst spec sepa entr dist conf sink
  1.0     0.00    – 0.00 0.00 0.75 0.60    – 0.00 1.50 12.5 0.25 0.60  I
  0.0     0.00    – 0.00 0.00 0.00 0.00    – 0.00 1.50 12.5 0.25 0.00  ·

A weight alone is not an explanation (Jain & Wallace 2019, arXiv:1902.10186;
Wiegreffe & Pinter 2019, arXiv:1908.04626): --ablate shows what the model loses
without a head."""


def test_the_table_of_scores_at_80_cells() -> None:
    assert "\n".join(shown(head_table(made(), sort="induction", top=2))) == EXPECTED


def test_an_encoder_is_said_to_have_no_induction_where_it_has_none() -> None:
    scores = made(causal=False)
    scores.scores["induction"][:] = 0.02
    (line,) = [one for one in shown(head_table(scores)) if one.startswith("I ")]
    assert line == "I induction                0   –  it reads both ways, so none (0.02 at most)"


def test_the_grid_of_wide_layers_fits() -> None:
    for case in sweep([12, 25, 64]):
        with case as heads:
            lines = shown(head_table(made(heads=heads)))
            assert max(map(cell_len, lines)) <= 80
            (row,) = [one for one in lines if one.startswith("  layer 1")]
            assert row.replace(" ", "") == "layer1I" + "F" * (heads - 1)


def test_a_table_refuses_what_it_cannot_show() -> None:
    for asked, said in (({"sort": "beauty"}, "`sort` must be"), ({"top": 0}, "`top` must be"), ({"width": 60}, "80")):
        with pytest.raises(InputError, match=said):
            head_table(made(), **asked)


def scores() -> PairScores:
    weights = np.array([[[0.2, 0.8]], [[0.4, 0.6]]])
    pairs = (
        WordPair("it", "animal", weights, 0.071, missing=3, later=1),
        WordPair("它", "貓", weights / 2, 0.1, missing=4),
    )
    return PairScores("made", pairs, 6, 1)


def test_pairs_of_two_languages_stand_side_by_side_in_columns() -> None:
    lines = shown(*pair_score_lines(scores()))
    assert lines[:8] == [
        "made: 6 sentences, 1 of them without both words of a pair",
        "  it → animal: 2 sentences (3 lack a word, 1 have the second word only later);",
        "an even head would give 0.07",
        "  它 → 貓: 2 sentences (4 lack a word); an even head would give 0.10",
        "",
        "  head   it>animal         它>貓",
        "  0.1    0.70 ± 0.14       0.35 ± 0.07",
        "  0.0    0.30 ± 0.14       0.15 ± 0.07",
    ]
    assert "The same head is the strongest for all pairs: 0.1." in lines
    assert "not an explanation" in " ".join(lines)
    assert max(map(cell_len, lines)) <= 80


def test_different_strongest_heads_are_named_with_the_best_for_all() -> None:
    one, other = scores().pairs
    pairs = (one, WordPair("它", "貓", other.weights[..., ::-1], 0.1))
    text = " ".join(shown(*pair_score_lines(PairScores("made", pairs, 6, 0))))
    assert "Strongest for it>animal: 0.1, 它>貓: 0.0. Strongest for all of them: 0.0, at least 0.30." in text


def lost() -> Lost:
    losses = Loss("loss on the text", 3.0, 3.25, (3.1, 3.5)), Loss("loss on their second copy", 2.5, 9.0, (2.75, 2.5))
    sets = ((0, 0), (0, 1)), ((1, 0), (1, 1))
    return Lost("made", ((0, 2), (1, 2)), "zero", losses, "4 × 2 × 32 random tokens", sets)


def test_what_is_lost_stands_beside_random_sets_and_the_caveat() -> None:
    lines = shown(*loss_lines(lost()))
    assert lines[0] == "made without heads 0.2, 1.2 (output set to 0)"
    assert "  loss on the text              3.000    3.250  +0.250   +0.300  +0.500" in lines
    assert "  loss on their second copy     2.500    9.000  +6.500   +0.125  +0.250" in lines
    text = " ".join(lines)
    assert "Of the 2 random sets, 2 cost less (loss on their second copy); the dearest was 0.0, 0.1." in text
    assert "A weight alone is not an explanation" in text
    assert "1902.10186" in text
    assert "1908.04626" in text


def test_without_random_sets_nothing_is_said_of_them() -> None:
    text = " ".join(shown(*loss_lines(Lost("made", ((0, 1),), "mean", (Loss("change", 0.0, 0.125),)))))
    assert "made without head 0.1 (output set to its mean over all positions)" in text
    assert "random" not in text
    assert "1 − cosine" in text


def test_a_change_of_rows_and_one_of_scores_say_how_they_were_compared() -> None:
    scores = made()
    after = HeadScores("made", {**scores.scores, "self": scores.scores["self"] + 0.125}, 40)
    change = HeadChange(("a", "b"), np.array([[0.5, 0.25, 0.0]] * 2), scores, after, 10, "3 of 10 tokens are the same")
    lines = shown(*change_lines(change, top=2))
    assert lines[0] == "made, a and b: compared row by row, as 3 of 10 tokens are the same."
    assert "  0.0      0.50   3.47   own position 0.00 → 0.12" in lines
    by_scores = HeadChange(("a", "b"), change.change, scores, after, 0, "lengths differ")
    lines = shown(*change_lines(by_scores, top=2))
    assert lines[0] == "made, a and b: compared by the scores of the heads, as lengths differ."
    assert "  0.0      0.50   own position 0.00 → 0.12" in lines


def test_files_hold_every_head_and_null_for_no_number(tmp_path: Path) -> None:
    rows = head_rows({"next": np.array([[NAN, 0.5]])})
    write_json(tmp_path / "a.json", rows, model="貓")
    read = json.loads((tmp_path / "a.json").read_text(encoding="utf-8"))
    assert read == {
        "model": "貓",
        "table": [{"layer": 0, "head": 0, "next": None}, {"layer": 0, "head": 1, "next": 0.5}],
    }
    write_csv(tmp_path / "a.csv", rows)
    assert (tmp_path / "a.csv").read_text() == "layer,head,next\n0,0,\n0,1,0.5\n"
    write_csv(tmp_path / "b.csv", loss_rows(lost()))
    with (tmp_path / "b.csv").open(newline="") as file:
        assert [row["random"] for row in csv.DictReader(file)] == ["3.1 3.5", "2.75 2.5"]


def test_a_panel_holds_the_numbers_frames_the_largest_and_leaves_out_what_is_not_there() -> None:
    scores = made()
    panels = score_panels(scores)
    assert [one.title for one in panels[:2]] == ["previous token", "own position"]  # a causal model has no next
    figure = head_figure(panels, title="heads")
    axes = figure.axes[0]
    np.testing.assert_array_equal(axes.images[0].get_array(), scores.scores["previous"])
    assert axes.images[0].get_clim() == (0, 1)
    (frame,) = axes.patches
    assert (frame.get_x(), frame.get_y()) == (0.5, -0.5)
    texts = [text.get_text() for text in figure.findobj(matplotlib.text.Text)]
    assert "largest 0.95 at 0.1" in texts
    assert "largest 12.5 at 0.0" in texts


@pytest.mark.usefixtures("chinese_font")
@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_a_figure_with_chinese_words_is_written_whole_and_no_title_is_cut(tmp_path: Path, suffix: str) -> None:
    panels = [Panel("它>貓", np.array([[0.1, NAN]]))]
    title = "from word to word: the heads of a model with a long name"
    save_head_figure(panels, tmp_path / f"a{suffix}", title=title)  # a missing glyph is a warning: an error here
    assert [one.name for one in tmp_path.iterdir()] == [f"a{suffix}"]
    if suffix == ".svg":
        ElementTree.parse(tmp_path / "a.svg")
        first = (tmp_path / "a.svg").read_bytes()
        save_head_figure(panels, tmp_path / "a.svg", title=title)
        assert (tmp_path / "a.svg").read_bytes() == first
    figure = head_figure(panels, title=title)
    box = figure.texts[0].get_window_extent(figure.canvas.get_renderer())
    assert box.x1 < figure.bbox.x1


def test_a_figure_refuses_another_ending_and_nothing_to_draw(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"`path` must end in \.png or \.svg, got a\.pdf"):
        save_head_figure([Panel("a", np.zeros((1, 1)))], tmp_path / "a.pdf", title="a")
    with pytest.raises(InputError, match="at least one score"):
        head_figure([], title="a")
