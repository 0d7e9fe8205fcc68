"""An alignment shows word weights that a reader can check by hand, with both texts on the axes, and hides nothing."""

import dataclasses
import itertools
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from matplotlib.transforms import Bbox

from regard.errors import InputError, ObservationError
from regard.record.records import Layer, Record
from regard.record.tokens import Token
from regard.render.alignment_figure import alignment_figure
from regard.render.mpl_figure import write_figure
from regard.render.word_alignment import align
from tiers import slow_but

ZEICHEN = (Token("Zei", word=0), Token("chen", word=0), Token("sind", word=1, space=True), Token("</s>", special=True))
TOKENS = (Token("<s>", special=True), Token("to", word=0), Token("kens", word=0))


def text(count: int) -> tuple[Token, ...]:
    return tuple(Token(f"w{number}", word=number, space=True) for number in range(count))


def make_layer(weights: np.ndarray, name: str, kind: str) -> Layer:
    weights = np.asarray(weights, np.float32)[None]
    streams = ("target", "source") if kind == "cross" else ("source", "source")
    top = np.argsort(-weights, axis=-1)[..., :8]
    kept = {"top_keys": top.astype(np.int32), "top_weights": np.take_along_axis(weights, top, -1)}
    nothing = np.zeros(weights.shape[:3], np.float32)
    return Layer(name, kind, *streams, 1, 1, weights, weights, **kept, entropy=nothing, received=weights.sum(-2))


def make_cross(streams: dict[str, tuple[Token, ...]], weights: np.ndarray) -> Record:
    """An encoder's layer, then a decoder's cross-attention with these weights (heads, target, source)."""
    length = len(streams["source"])
    layers = make_layer(np.eye(length)[None], "encoder.self", "self"), make_layer(weights, "decoder.cross", "cross")
    return Record(layers, {name: (stream,) for name, stream in streams.items()}, model="made by hand")


@pytest.fixture
def german() -> Record:
    """Two heads of one cross layer behind a self-attention, over words in pieces: the numbers are written down."""
    one = [[0.1, 0.2, 0.3, 0.4], [0.5, 0.5, 0.0, 0.0], [0.0, 0.25, 0.75, 0.0]]
    other = [[0.25, 0.25, 0.25, 0.25], [0.0, 0.0, 0.0, 1.0], [1.0, 0.0, 0.0, 0.0]]
    return make_cross({"source": ZEICHEN, "target": TOKENS}, [one, other])


def test_pieces_are_merged_by_mean_of_rows_and_sum_of_columns(german: Record) -> None:
    found = align(german, [(0, 0)])
    assert [word.text for word in found.source] == ["Zeichen", "sind", "</s>"]
    assert [word.text for word in found.target] == ["<s>", "tokens"]
    by_hand = [[0.3, 0.3, 0.4], [(1.0 + 0.25) / 2, 0.75 / 2, 0.0]]
    np.testing.assert_allclose(found.weights, by_hand, atol=1e-7)


def test_the_mean_is_of_all_cross_heads_and_of_no_others(german: Record) -> None:
    found = align(german)
    assert found.heads == ((1, 0), (1, 1))
    np.testing.assert_allclose(found.weights, [[0.4, 0.275, 0.325], [0.5625, 0.1875, 0.25]], atol=1e-7)
    np.testing.assert_allclose(align(german, [("decoder.cross", 1), (0, 0)]).weights, found.weights)
    np.testing.assert_allclose(found.weights.sum(-1), 1, atol=1e-6)  # rows still add up


def test_the_mean_has_no_head_that_was_not_recorded(german: Record) -> None:
    first, cross = german.layers
    some = dataclasses.replace(german, layers=(first, dataclasses.replace(cross, head_numbers=(1,))))
    assert align(some).heads == ((1, 1),)
    np.testing.assert_array_equal(align(some).weights, align(german, [(0, 1)]).weights)
    with pytest.raises(InputError, match="must be one that was chosen for recording, 1 of layer decoder"):
        align(some, [(0, 0)])


def test_written_rows_are_called_after_the_next_token(german: Record) -> None:
    found = align(german, [(0, 0)], rows="written")
    assert [word.text for word in found.target] == ["tokens", "?"]
    np.testing.assert_allclose(found.weights[0], [(0.3 + 1.0) / 2, 0.15, 0.2], atol=1e-7)


def test_behind_the_end_of_a_text_no_row_says_what_is_written() -> None:
    target = (TOKENS[0], Token("to", word=0), Token("</s>", special=True))
    found = align(make_cross({"source": ZEICHEN, "target": target}, np.full((1, 3, 4), 0.25)), rows="written")
    assert [word.text for word in found.target] == ["to", "</s>"]
    assert found.weights.shape == (2, 3)


def test_the_picture_holds_these_numbers_under_these_names(german: Record) -> None:
    axes = alignment_figure(german).axes[0]
    np.testing.assert_array_equal(axes.images[0].get_array(), align(german).weights)
    assert [label.get_text() for label in axes.get_xticklabels()] == ["Zeichen", "sind", "</s>"]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["<s>", "tokens"]
    assert axes.xaxis.get_ticks_position() == "top"
    assert texts(alignment_figure(german)) >= {"made by hand: mean of 2 heads of target → source layer 0"}


def texts(figure) -> set[str]:
    return {text.get_text() for text in figure.findobj(matplotlib.text.Text)}


def test_each_head_has_its_own_map_on_one_scale(german: Record) -> None:
    maps = [axes for axes in alignment_figure(german, "each").axes if axes.images]
    assert [axes.get_xlabel() for axes in maps] == ["target → source layer 0 head 0", "target → source layer 0 head 1"]
    for head, axes in enumerate(maps):
        np.testing.assert_array_equal(axes.images[0].get_array(), align(german, [(0, head)]).weights)
        assert axes.images[0].get_clim() == (0, 0.625)


@pytest.mark.usefixtures("chinese_font")
@pytest.mark.parametrize(
    ("heads", "suffix"),
    slow_but(
        [("mean", ".svg"), ("each", ".png")], [(one, end) for one in ("mean", "each") for end in (".png", ".svg")]
    ),
)
def test_chinese_on_both_axes_is_drawn_whole(tmp_path: Path, heads: str, suffix: str) -> None:
    source = tuple(Token(word, word=number) for number, word in enumerate(["貓", "追", "老鼠", "，", "因為", "它"]))
    target = tuple(Token(word, word=number) for number, word in enumerate(["ネコ", "は", "ネズミ", "を"]))
    record = make_cross({"source": source, "target": target}, np.full((2, 4, 6), 1 / 6))
    figure = alignment_figure(record, heads)  # a missing glyph is a warning, and warnings are errors
    write_figure(figure, tmp_path / f"it{suffix}")
    assert (tmp_path / f"it{suffix}").stat().st_size > 5_000
    names = [label.get_text() for label in figure.axes[0].get_xticklabels()]
    assert names == ["貓", "追", "老\n鼠", "，", "因\n為", "它"]  # upright, one under the other


@pytest.mark.usefixtures("chinese_font")
def test_names_lie_within_the_paper_and_do_not_touch() -> None:
    source = tuple(Token("internationalization"[: 3 + number % 18], word=number) for number in range(60))
    target = tuple(Token(f"字{number}", word=number) for number in range(60))
    figure = alignment_figure(make_cross({"source": source, "target": target}, np.full((1, 60, 60), 1 / 60)))
    renderer = figure.canvas.get_renderer()
    paper = Bbox([[0, 0], figure.get_size_inches() * figure.dpi])
    for labels in (figure.axes[0].get_xticklabels(), figure.axes[0].get_yticklabels()):
        boxes = [label.get_window_extent(renderer) for label in labels]
        assert all(paper.containsx(box.x0) and paper.containsy(box.y1) for box in boxes)
        assert not any(one.overlaps(other) for one, other in itertools.pairwise(boxes))
    for drawn in figure.findobj(matplotlib.text.Annotation):
        box = drawn.get_window_extent(renderer)
        assert paper.x0 <= box.x0 <= box.x1 <= paper.x1
        assert paper.y0 <= box.y0 <= box.y1 <= paper.y1


def test_long_texts_are_refused_and_cut_only_where_asked() -> None:
    record = make_cross({"source": text(100), "target": text(5)}, np.tile(np.arange(100, 0, -1) / 5050, (1, 5, 1)))
    with pytest.raises(InputError, match=r"the source has 100: choose some with source=range\(0, 60\)"):
        alignment_figure(record)
    figure = alignment_figure(record, source=range(60), target=range(1, 3))
    assert figure.axes[0].images[0].get_array().shape == (2, 60)
    said = " ".join(" ".join(texts(figure)).split())
    assert "Only words 2 to 3 of the 5 of the target are shown." in said
    assert "Only words 1 to 60 of the 100 of the source are shown." in said
    assert f"{1 - sum(range(41, 101)) / 5050:.0%} of the weight of these rows falls on words that are not." in said
    for wrong in (range(90, 101), range(5, 5), range(80), range(0, 20, 2), 3):
        with pytest.raises(InputError, match="`source` must be a range"):
            alignment_figure(record, source=wrong)


def test_what_is_no_alignment_is_refused_with_the_way_out(german: Record, english) -> None:
    with pytest.raises(ObservationError, match="needs cross-attention, and none was seen"):
        alignment_figure(english.record)
    with pytest.raises(InputError, match=r"look at another text \(decoder.cross\), got 'encoder.self'"):
        alignment_figure(german, [("encoder.self", 0)])
    with pytest.raises(InputError, match=r"`head` must be from 0 to 1 \(heads: 2\), got 2"):
        alignment_figure(german, [(0, 2)])
    with pytest.raises(InputError, match=r"`layer` must be 0 \(seen layers: 1\), got 1"):
        alignment_figure(german, [(1, 0)])
    for heads, words in ((["12"], "pairs such as"), ([], "at least one pair"), ("all", '"mean", "each" or pairs')):
        with pytest.raises(InputError, match=words if heads != ["12"] else "layer"):
            alignment_figure(german, heads)
    with pytest.raises(InputError, match="`rows` must be"):
        alignment_figure(german, rows="next")
    with pytest.raises(InputError, match=r"`batch_index` must be from 0 to 0 \(batch: 1\), got 3"):
        alignment_figure(german, batch_index=3)


def test_two_times_the_same_file(german: Record, tmp_path: Path) -> None:
    for name in ("one.svg", "other.svg"):
        write_figure(alignment_figure(german), tmp_path / name)
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "other.svg").read_bytes()
    with pytest.raises(InputError, match=r"`path` must end in \.png or \.svg, got it\.gif"):
        write_figure(alignment_figure(german), tmp_path / "it.gif")
