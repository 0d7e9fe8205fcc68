"""Charts: what is refused, and that a figure holds what the chart does."""

import re
import warnings

import pytest

from regard.errors import InputError
from regard_lab.charts import Bars, LabeledMatrix, Line, Lines, Matrices
from regard_lab.drawing import figure_of, png_of, svg_of

LINES = Lines(
    "線與面", "two lines", "x axis", "y axis",
    (Line("measured 測", (1.0, 10.0, 100.0), (1.0, 2.0, 3.0), (0.5, 1.5, 2.5), (1.5, 2.5, 3.5)),
     Line("expected", (1.0, 100.0), (1.0, 3.0), dashed=True)), log_across=True, level=2.5,
)  # fmt: skip
BARS = Bars("bars", "some bars", "share", ("a", "乙", "c"), ("one", "two"), ((1.0, 2.0, 3.0), (0.5, 0.25, 4.0)))
MATRICES = Matrices(
    "matrices", "two of them",
    (LabeledMatrix("first", ("我", "爱"), ("x", "y"), ((0.0, 1.0), (0.5, 0.25)), marked=((1, 1),)),
     LabeledMatrix("second", ("a",) * 20, ("b",) * 30, ((0.5,) * 30,) * 20, digits=None)),
)  # fmt: skip
pytestmark = pytest.mark.usefixtures("chinese_font")
CHARTS = [LINES, BARS, MATRICES]


@pytest.fixture(scope="module")
def pages():
    """Each chart drawn for a page; matplotlib warns of glyphs that a font has not."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return [svg_of(chart, f"n1f{number}") for number, chart in enumerate(CHARTS)]


def test_a_chart_is_drawn_without_a_missing_glyph(pages):
    assert all(svg.startswith("<svg") for svg in pages)
    assert png_of(BARS).startswith(b"\x89PNG")


@pytest.mark.slow
@pytest.mark.parametrize("chart", [LINES, MATRICES], ids=lambda chart: type(chart).__name__)
def test_every_chart_is_drawn_as_a_picture(chart):
    assert png_of(chart).startswith(b"\x89PNG")


@pytest.mark.parametrize("chart", CHARTS, ids=lambda one: type(one).__name__)
def test_nothing_is_written_beyond_the_edge(chart):
    figure = figure_of(chart)
    figure.canvas.draw()
    everything = figure.get_tightbbox(figure.canvas.get_renderer())
    width, height = figure.get_size_inches()
    assert everything.x0 >= -0.02
    assert everything.y0 >= -0.02
    assert everything.x1 <= width + 0.02
    assert everything.y1 <= height + 0.02


@pytest.mark.slow
def test_a_figure_holds_the_numbers_of_its_chart():
    axes = figure_of(LINES).axes[0]
    assert [list(line.get_xdata()) for line in axes.lines[:2]] == [[1, 10, 100], [1, 100]]
    assert list(axes.lines[0].get_ydata()) == [1, 2, 3]
    assert axes.get_xscale() == "log"
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["measured 測", "expected"]
    bars = figure_of(BARS).axes[0].patches
    assert [bar.get_width() for bar in bars] == [1, 2, 3, 0.5, 0.25, 4]
    cells = figure_of(MATRICES).axes[0]
    assert [text.get_text() for text in cells.texts[:4]] == ["0.00", "1.00", "0.50", "0.25"]


@pytest.mark.parametrize(
    ("across", "up"), [(True, False), (False, True), pytest.param(True, True, marks=pytest.mark.slow)]
)
def test_an_axis_of_powers_counts_them_as_people_write_numbers(across, up):
    x = tuple(10.0**n for n in range(7)) * 2  # more places than are named one by one
    line = Line("a", tuple(sorted(x[at] * (1 + at) for at in range(14))), x[:7] * 2)
    axes = figure_of(Lines("t", "a line", "x", "y", (line,), log_across=across, log_up=up)).axes[0]
    for axis, is_log in ((axes.xaxis, across), (axes.yaxis, up)):
        assert axis.get_scale() == ("log" if is_log else "linear")
        if is_log:
            named = [label.get_text() for label in axis.get_ticklabels()]
            assert {"1", "100", "10,000"} & set(named), named
            assert not any("mathdefault" in one for one in named)


def test_ids_of_two_figures_in_one_page_differ_and_point_to_their_own(pages):
    first, second = pages[0], svg_of(LINES, "n1f9")
    ids = [set(re.findall(r'id="([^"]+)"', one)) for one in (first, second)]
    assert not ids[0] & ids[1]
    for text, own in zip((first, second), ids, strict=True):
        used = set(re.findall(r'href="#([^"]+)"', text)) | set(re.findall(r"url\(#([^)]+)\)", text))
        assert used
        assert used <= own


def test_a_figure_is_the_same_twice(pages):
    assert svg_of(LINES, "n1f0") == pages[0]


def test_what_does_not_fit_is_refused():
    with pytest.raises(InputError, match="must have as many numbers"):
        Line("one", (1.0, 2.0), (1.0,))
    with pytest.raises(InputError, match="1 to 7 besides dashed ones"):
        Lines("", "", "", "", (Line("expected", (1.0,), (1.0,), dashed=True),))
    with pytest.raises(InputError, match="a row for each of `series`"):
        Bars("", "", "", ("a",), ("one",), ((1.0, 2.0),))
    with pytest.raises(InputError, match="a number for each of its rows and columns"):
        LabeledMatrix("m", ("a",), ("b", "c"), ((1.0,),))
