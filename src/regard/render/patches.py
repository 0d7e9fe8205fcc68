"""The attention of one patch of an image, or of [CLS], drawn over the image.

In a vision transformer (Dosovitskiy et al. 2021, arXiv:2010.11929) an image of rows × columns patches is a sequence in
row-major order, after a few tokens that are not patches.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from regard.errors import InputError
from regard.record.layers import Stream, at_index, head_at
from regard.record.records import Layer, Record
from regard.render.labels import head_name, layer_name, visible
from regard.render.mpl_figure import colour_bar, note, place, sheet, title
from regard.render.sentence_figure import COLOURS, Brush

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure

__all__ = ["Image", "Patch", "PatchGrid", "PatchWeights", "patch_figure", "patch_weights"]

Image = npt.NDArray[np.uint8]  # (height, width, 3)
Patch = tuple[int, int] | str

_SIDE, _LEFT, _BETWEEN, _BAR, _TOP, _FOOT = 3.6, 0.3, 0.35, 0.75, 0.65, 0.85  # inches
_FAINT = 0.45  # share of the image's contrast under the weights


@dataclass(frozen=True)
class PatchGrid:
    """The grid of a vision transformer: rows × columns patches, and the names of the tokens before them."""

    rows: int
    columns: int
    prefix: tuple[str, ...] = ("cls",)

    @property
    def positions(self) -> int:
        """The number of tokens."""
        return len(self.prefix) + self.rows * self.columns

    def position(self, patch: Patch) -> int:
        """Return the token of a patch, or of a name before the patches.

        >>> PatchGrid(2, 3).position((1, 0)), PatchGrid(2, 3).position("cls")
        (4, 0)
        """
        if isinstance(patch, str):
            if patch in self.prefix:
                return self.prefix.index(patch)
        elif len(patch) == 2 and 0 <= patch[0] < self.rows and 0 <= patch[1] < self.columns:
            return len(self.prefix) + patch[0] * self.columns + patch[1]
        names = "".join(f', or "{name}"' for name in self.prefix)
        raise InputError(
            f"`patch` must be (row, column) from (0, 0) to ({self.rows - 1}, {self.columns - 1}){names}, got {patch!r}"
        )


@dataclass(frozen=True, eq=False)
class PatchWeights:
    """The weights of one token on each patch, of shape (rows, columns), and on each token before them."""

    patches: npt.NDArray[np.float64]
    prefix: dict[str, float]


def patch_weights(
    record: Record,
    grid: PatchGrid,
    *,
    layer: int | str | Layer,
    head: int | None = None,
    patch: Patch = "cls",
    batch_index: int = 0,
    stream: Stream | None = None,
) -> PatchWeights:
    """Return the weights of one row by patches; without `head`, the mean over the recorded heads of the layer.

    Raises:
        InputError: The layer, head, patch or sequence does not exist, or the layer has another number of positions.
    """
    seen = record.layer(layer, stream)
    _check(record, seen, grid)
    batch_index = at_index("batch_index", batch_index, seen.batch, "batch")
    row = grid.position(patch)
    heads = seen.recorded_heads if head is None else [head_at(seen, head)]
    rows = [np.asarray(record.weights(layer=seen, head=one)[batch_index, row], dtype=np.float64) for one in heads]
    weights = rows[0] if head is not None else np.mean(rows, axis=0)
    start = len(grid.prefix)
    before = {name: float(weights[at]) for at, name in enumerate(grid.prefix)}
    return PatchWeights(weights[start:].reshape(grid.rows, grid.columns), before)


def patch_figure(
    record: Record,
    grid: PatchGrid,
    image: Image,
    *,
    layer: int | str | Layer,
    head: int | None = None,
    patch: Patch = "cls",
    batch_index: int = 0,
    stream: Stream | None = None,
) -> "Figure":
    """Draw the image with the chosen patch framed, and next to it a faded copy with its weights on top.

    Args:
        record: The record of a vision transformer.
        grid: The model's grid of patches.
        image: The model's input image, in any size with the grid's aspect ratio.
        layer: The layer's number or name.
        head: The head; by default the mean over the recorded heads of the layer.
        patch: The query patch, (row, column) from the top left, or the name of a token before the patches: "cls".
        batch_index: The sequence of the batch, counted from 0; negative numbers count from the end.
        stream: The stream in which the layer is counted, such as "image".

    Raises:
        InputError: The layer, head or patch does not exist, the image has another aspect ratio, or the layer has
            another number of positions.
    """
    layer = record.layer(layer, stream)
    found = patch_weights(record, grid, layer=layer, head=head, patch=patch, batch_index=batch_index)
    _check_image(image, grid)
    heading = _heading(record, layer, head)
    scale = _SIDE / max(grid.rows, grid.columns)
    wide, high = scale * grid.columns, scale * grid.rows
    with sheet([heading]) as brush:
        full = max(2 * wide + _BETWEEN + _LEFT + _BAR, _LEFT + brush.width(heading, 12.5, bold=True) + 0.2)
        brush.figure.set_size_inches(full, _TOP + high + _FOOT)
        left = place(brush, (_LEFT, _FOOT, wide, high))
        right = place(brush, (_LEFT + wide + _BETWEEN, _FOOT, wide, high))
        _draw_image(left, image, grid)
        _draw_weights(brush, right, image, grid, found)
        if not isinstance(patch, str):
            for axes in (left, right):
                _frame(axes, patch)
        title(brush, left, heading, 0.12)
        note(brush, left, _says(patch, found), room=full - 2 * _LEFT)
    return brush.figure


def _heading(record: Record, seen: Layer, head: int | None) -> str:
    index = record.layers.index(seen)
    one = None if head is None else head_name(record, index, head % seen.heads)
    what = one or f"mean of {_heads(seen)} of {layer_name(record, index)}"
    return f"{visible(record.model)}: {what}" if record.model else what[0].upper() + what[1:]


def _heads(seen: Layer) -> str:
    if seen.head_numbers is None:
        return f"the {seen.heads} heads"
    return f"{len(seen.head_numbers)} of the {seen.heads} heads"


def _check(record: Record, seen: Layer, grid: PatchGrid) -> None:
    if seen.queries == seen.keys == grid.positions:
        return
    fits = [index for index, one in enumerate(record.layers) if one.queries == one.keys == grid.positions]
    fitting = [layer_name(record, index) for index in fits]
    way = f"choose {', '.join(fitting)}" if fitting else "give the grid yourself: PatchGrid(rows, columns, prefix)"
    raise InputError(
        f"`layer` must read {grid.rows} × {grid.columns} patches and {len(grid.prefix)} tokens before them, "
        f"{grid.positions} in all, got {layer_name(record, record.layers.index(seen))} of {seen.queries} × "
        f"{seen.keys}: {way}"
    )


def _check_image(image: Image, grid: PatchGrid) -> None:
    height, width = image.shape[:2]
    if height * grid.columns != width * grid.rows:
        raise InputError(
            f"`image` must have the proportions of {grid.rows} × {grid.columns} patches, got {height} × {width} "
            "pixels: resize and crop it as the model's processor did, pass the processor's own pixels, or if the model "
            "has read this shape, give its grid, PatchGrid(rows, columns, prefix)"
        )


def _draw_image(axes: "Axes", image: Image, grid: PatchGrid) -> None:
    axes.imshow(image, extent=(0, grid.columns, grid.rows, 0), aspect="auto", interpolation="antialiased")
    axes.set_axis_off()


def _draw_weights(brush: Brush, axes: "Axes", image: Image, grid: PatchGrid, found: PatchWeights) -> None:
    """Draw the image in faint grey with the weights over it in orange, more opaque for larger weights."""
    grey = image.mean(-1)
    faint = np.repeat((255 - _FAINT * (255 - grey))[..., None], 3, -1).astype(np.uint8)
    _draw_image(axes, faint, grid)
    laid = axes.imshow(
        found.patches, cmap=_veil(), vmin=0, vmax=float(found.patches.max(initial=0.0)) or 1.0, aspect="auto",
        interpolation="nearest", extent=(0, grid.columns, grid.rows, 0),
    )  # fmt: skip
    colour_bar(brush, axes, laid, _SIDE)


def _veil() -> "Colormap":
    """Return a colour map from transparent to dark orange; the image is grey, so that colour means weight, also for
    colour-blind readers.
    """
    from matplotlib.colors import LinearSegmentedColormap

    clear, strong, darkest = "#ffffff00", f"{COLOURS[1]}d0", "#6b2a00f5"
    return LinearSegmentedColormap.from_list("veil", [clear, strong, darkest])


def _frame(axes: "Axes", patch: tuple[int, int]) -> None:
    from matplotlib.patches import Rectangle

    row, column = patch
    for colour, width in (("white", 3.6), (COLOURS[0], 2.0)):  # visible on any image
        axes.add_patch(Rectangle((column, row), 1, 1, fill=False, edgecolor=colour, linewidth=width, clip_on=False))


def _says(patch: Patch, found: PatchWeights) -> str:
    who = f"[{patch.upper()}]" if isinstance(patch, str) else f"the patch in row {patch[0]}, column {patch[1]}"
    parts = [
        f"{found.patches.sum():.2f} to the patches",
        *(f"{w:.2f} to [{n.upper()}]" for n, w in found.prefix.items()),
    ]
    last = parts.pop()
    return f"Where {who} looks: {', '.join(parts)} and {last}." if parts else f"Where {who} looks: {last}."
