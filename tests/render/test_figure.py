"""Figures show what the record holds, in fonts that have its letters; nothing outside the figure changes."""

import itertools
import re
from pathlib import Path
from xml.etree import ElementTree

import matplotlib
import numpy as np
import pytest

from regard.errors import InputError
from regard.files import write_atomically
from regard.record.records import Record
from regard.record.tokens import Token
from regard.render.figure import focus_figure, heads_figure, heatmap_figure, save_figure
from regard.render.figure_panels import head_mosaic, ink
from regard.render.sentence_figure import COLOURS
from sweeps import sweep

NAMES = ["english", "cross", "hostile", "pieces", "nameless", "long_text"]


WRITTEN = ["hostile.svg", "pieces.svg", "cross.svg", "nameless.svg"]  # by `make test`


def _write(file: str, request: pytest.FixtureRequest, folder: Path) -> None:
    """Draw a record of the fixtures; a missing glyph is a warning, and warnings are errors."""
    name, suffix = Path(file).stem, Path(file).suffix
    record = request.getfixturevalue(name)
    (folder := folder / file).mkdir()
    path = folder / f"figure{suffix}"
    save_figure(record.record, record.focus, path)
    start = path.read_bytes()[:8]
    assert start.startswith(b"\x89PNG") if suffix == ".png" else start.startswith(b"<?xml")
    assert [each.name for each in folder.iterdir()] == [path.name]


def test_records_are_written_without_a_warning(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    for case in sweep(WRITTEN):
        with case as file:
            _write(file, request, tmp_path)


@pytest.mark.usefixtures("chinese_font")
@pytest.mark.parametrize("suffix", [".png", pytest.param(".svg", marks=pytest.mark.slow)])
def test_a_chinese_record_is_written_without_a_warning(
    request: pytest.FixtureRequest, tmp_path: Path, suffix: str
) -> None:
    _write(f"chinese{suffix}", request, tmp_path)


@pytest.mark.slow
def test_every_record_is_written_without_a_warning(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    for case in sweep(name + suffix for suffix in (".png", ".svg") for name in NAMES):
        with case as file:
            if file not in WRITTEN:
                _write(file, request, tmp_path)


def texts(figure) -> list[str]:
    return [text.get_text() for text in figure.findobj(matplotlib.text.Text) if text.get_text()]


def test_the_map_shows_the_weights_with_tokens_on_both_axes(english) -> None:
    axes = heatmap_figure(english.record, layer=5, head=11).axes[0]
    np.testing.assert_array_equal(axes.images[0].get_array(), english.record.weights(layer=5, head=11)[0])
    tokens = [token.text for token in english.record.stream("text")]
    assert [label.get_text() for label in axes.get_yticklabels()] == tokens
    assert [label.get_text() for label in axes.get_xticklabels()] == tokens


@pytest.mark.slow
def test_a_pooled_map_spans_all_tokens_and_says_what_a_cell_is(long_text) -> None:
    axes = heatmap_figure(long_text.record, layer=5, head=1).axes[0]
    assert axes.images[0].get_extent() == [0, 512, 512, 0]
    assert axes.get_xlabel() == "each cell is 4 × 4 tokens, largest weight"


def test_the_grid_holds_every_head_in_its_place(english) -> None:
    mosaic = head_mosaic(english.record, 0)
    assert mosaic.shape == (6 * 51, 12 * 51)
    weights = english.record.weights(layer=5, head=3)[0]
    cell = mosaic[5 * 51 + 2 : 6 * 51 - 1, 3 * 51 + 2 : 4 * 51 - 1]
    assert cell[0, 0] == weights[0, 0]
    assert cell[-1, -1] == weights[-1, -1]
    assert cell.max() == weights.max()
    assert len(heads_figure(english.record).axes[0].get_yticks()) == 6


def test_two_arcs_in_two_colours_from_the_word_to_its_targets(english) -> None:
    figure = focus_figure(english.record, english.focus)
    arcs = [patch for patch in figure.axes[0].patches if isinstance(patch, matplotlib.patches.FancyArrowPatch)]
    assert [matplotlib.colors.to_hex(arc.get_facecolor()).upper() for arc in arcs] == list(COLOURS[:2])
    words = {text.get_text(): text for text in figure.axes[0].texts}
    renderer = figure.canvas.get_renderer()
    for arc, target in zip(arcs, ("animal", "street"), strict=True):
        box = words[target].get_window_extent(renderer)
        tip = figure.axes[0].transData.transform(arc.get_path().vertices)
        reach = arc.get_window_extent(renderer)
        assert box.x0 < (box.x0 + box.x1) / 2 < box.x1
        assert abs(reach.x0 - (box.x0 + box.x1) / 2) < 25, (target, tip[-1])
    assert "layer 5 head 11: it → animal 0.60" in words


@pytest.mark.usefixtures("chinese_font")
def test_chinese_is_drawn_with_a_font_that_has_it(chinese) -> None:
    assert {"貓", "老鼠", "它"} <= set(texts(focus_figure(chinese.record, chinese.focus)))


def test_dollar_signs_are_signs(hostile) -> None:
    figure = focus_figure(hostile.record, hostile.focus)
    drawn = [text for text in figure.findobj(matplotlib.text.Text) if text.get_text() == "$x^2$"]
    assert len(drawn) >= 3  # in the sentence and on both axes
    assert not any(text.get_parse_math() for text in drawn)


def test_unbalanced_dollars_and_broken_mathtext_are_drawn(tmp_path: Path, pieces) -> None:
    stream = tuple(Token(r"$\frac{$", word=token.word) for token in pieces.record.stream("text"))
    save_figure(Record(pieces.record.layers, {"text": (stream,)}, model=r"$\bad$"), pieces.focus, tmp_path / "a.svg")


@pytest.mark.usefixtures("chinese_font")
def test_svg_text_is_drawn_as_paths_and_refers_to_nothing_outside(chinese, tmp_path: Path) -> None:
    save_figure(chinese.record, chinese.focus, tmp_path / "a.svg")
    text = (tmp_path / "a.svg").read_text()
    root = ElementTree.fromstring(text)
    names = {element.tag.split("}")[1] for element in root.iter()}
    assert "text" not in names
    assert not re.findall(r'href="(?!#|data:)', text)
    assert text.count("<use") > 50


def test_the_same_record_gives_the_same_file_and_settings_of_the_caller_are_not_touched_nor_used(
    pieces, tmp_path: Path
) -> None:
    save_figure(pieces.record, pieces.focus, tmp_path / "a.svg")
    with matplotlib.rc_context({"svg.fonttype": "none", "font.size": 20.0}):
        before = dict(matplotlib.rcParams)
        save_figure(pieces.record, pieces.focus, tmp_path / "b.svg")
        assert dict(matplotlib.rcParams) == before
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    assert "<text" not in (tmp_path / "b.svg").read_text()


def test_other_formats_are_refused(pieces, tmp_path: Path) -> None:
    for case in sweep(["a.pdf", "a", "a.html"]):
        with case as name, pytest.raises(InputError, match=r"`path` must end in \.png or \.svg"):
            save_figure(pieces.record, pieces.focus, tmp_path / name)


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"old")

    def fail(*names: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr("os.replace", fail)
    with pytest.raises(InputError, match=r"cannot write .*a\.txt: no space left"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="must lie in a folder that exists"):
        write_atomically(tmp_path / "no" / "a.png", b"")


def test_no_word_leaves_the_figure_and_none_covers_another(request: pytest.FixtureRequest) -> None:
    for case in sweep(["english", "cross", "long_text"]):
        with case as name:
            figure = focus_figure(*request.getfixturevalue(name))
            renderer = figure.canvas.get_renderer()
            boxes = [text.get_window_extent(renderer) for text in figure.axes[0].texts]
            assert all(
                box.x0 >= 0 and box.x1 <= figure.bbox.x1 and box.y0 >= 0 and box.y1 <= figure.bbox.y1 for box in boxes
            )
            middles = [(box.x0 + box.x1) / 2 for box in boxes[:-2]]  # the last two are the legend, centred
            assert abs((min(middles) + max(middles)) / 2 - figure.bbox.x1 / 2) < 0.1 * figure.bbox.x1
            boxes.sort(key=lambda box: (round(box.y0 / 20), box.x0))
            assert not any(box.overlaps(other) for box, other in itertools.pairwise(boxes))


def test_darker_means_more_to_every_eye() -> None:
    lightness = (ink()(np.linspace(0, 1, 64))[:, :3] * [0.2126, 0.7152, 0.0722]).sum(-1)
    assert (np.diff(lightness) < 0).all()
    assert lightness[0] == pytest.approx(1)
    assert lightness[-1] < 0.15
