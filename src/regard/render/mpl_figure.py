"""An empty figure with fonts for its texts, axes placed in inches, saving to files, and display in notebooks.

Only matplotlib's objects are used: no pyplot, no global state, no window.
"""

import io
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from regard.errors import InputError, MissingExtraError
from regard.files import write_atomically
from regard.render.fonts import fonts_for
from regard.render.sentence_figure import Brush

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage

__all__ = ["DPI", "colour_bar", "note", "note_lines", "place", "sheet", "title", "write_figure"]


DPI = 150
_FORMATS = (".png", ".svg")
_POINTS = 72  # in inches


@cache
def _shown_figure() -> "type[Figure]":
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    class ShownFigure(Figure):
        """A matplotlib Figure with its own PNG, which Jupyter displays without `%matplotlib inline`."""

        def _repr_png_(self) -> bytes:
            buffer = io.BytesIO()
            with rc_context({"text.usetex": False}):  # the same as when saved to a file
                self.savefig(buffer, format="png", dpi=self.dpi)
            return buffer.getvalue()

    return ShownFigure


@contextmanager
def sheet(texts: Iterable[str]) -> Iterator[Brush]:
    """Yield an empty figure, with fonts that have the letters of all its texts."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
    except ImportError as error:
        raise MissingExtraError("matplotlib", "figures") from error
    with _settings():
        figure = _shown_figure()(dpi=DPI, facecolor="white")
        yield Brush(figure, FigureCanvasAgg(figure), fonts_for(texts))


def write_figure(figure: "Figure", path: str | Path) -> None:
    """Save a figure as PNG or SVG, atomically; text in an SVG is drawn as paths and needs no font.

    Raises:
        InputError: The path has another extension, or is not writable.
    """
    path = Path(path)
    if path.suffix.lower() not in _FORMATS:
        raise InputError(f"`path` must end in {' or '.join(_FORMATS)}, got {path.name}")
    kind = path.suffix.lower()[1:]
    dateless = {"Date": None} if kind == "svg" else None  # the same figure gives the same file
    buffer = io.BytesIO()
    with _settings():
        figure.savefig(buffer, format=kind, dpi=DPI, metadata=dateless)
    write_atomically(path, buffer.getvalue())


@contextmanager
def _settings() -> Iterator[None]:
    """Set matplotlib's settings that affect the drawing inside the block, and restore the caller's afterwards."""
    import matplotlib

    with matplotlib.rc_context({"text.usetex": False, "svg.fonttype": "path", "svg.hashsalt": "regard"}):
        yield


def place(brush: Brush, inches: tuple[float, float, float, float]) -> "Axes":
    """Return axes at (left, bottom, width, height), in inches."""
    width, height = brush.figure.get_size_inches()
    left, bottom, across, up = inches
    return brush.figure.add_axes((left / width, bottom / height, across / width, up / height))


def colour_bar(brush: Brush, axes: "Axes", image: "AxesImage", wide: float) -> None:
    """Draw the colour bar of an image, to the right of axes that are `wide` inches wide."""
    bar = brush.figure.colorbar(image, cax=axes.inset_axes((1 + 0.12 / wide, 0, 0.12 / wide, 1)))
    bar.outline.set_visible(False)
    bar.ax.tick_params(labelsize=8, length=2, color="#888888")


def title(brush: Brush, axes: "Axes", text: str, above: float) -> None:
    """Write a left-aligned title, `above` inches over the axes."""
    axes.annotate(
        brush.fonts.spell(text), (0, 1), xytext=(0, above * _POINTS + 2), xycoords="axes fraction",
        textcoords="offset points", va="bottom", ha="left", annotation_clip=False, **brush.font(12.5, bold=True),
    )  # fmt: skip


def note_lines(brush: Brush, text: str, room: float, size: float) -> list[str]:
    """Return a sentence in lines of at most `room` inches."""
    lines = [""]
    for word in text.split(" "):
        longer = f"{lines[-1]} {word}".strip()
        lines = [*lines[:-1], longer] if brush.width(longer, size) <= room else [*lines, word]
    return [line for line in lines if line]


def note(brush: Brush, axes: "Axes", text: str, *, room: float, below: float = 0.1, size: float = 9.5) -> None:
    """Write a sentence under axes, in lines of at most `room` inches."""
    axes.annotate(
        brush.fonts.spell("\n".join(note_lines(brush, text, room, size))), (0, 0), xytext=(0, -below * _POINTS),
        xycoords="axes fraction", textcoords="offset points", va="top", ha="left", annotation_clip=False,
        color="#555555", **brush.font(size),
    )  # fmt: skip
