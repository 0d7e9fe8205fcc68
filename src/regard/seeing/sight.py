"""What a watch gives: the records of the passes that were seen, to be asked, drawn and saved."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from regard.errors import InputError, ObservationError
from regard.observe.atlas import load_atlas, save_atlas
from regard.observe.focus import choose_focus
from regard.observe.records import Record
from regard.render.alignment import alignment_figure
from regard.render.figure import heatmap_figure
from regard.render.page import write_page
from regard.render.patches import Patch, patch_figure
from regard.render.word_weights import Heads, Rows
from regard.seeing.export import export
from regard.seeing.notebook import forwards_html
from regard.seeing.vision import grid_of, image_of

__all__ = ["Sight", "load"]


class Sight:
    """What was seen: one record a forward pass. Everything a record answers can be asked of it directly.

    `seen.weights(layer=, head=)`, `seen.heatmap(...)`, `seen.entropy(...)`, `seen.received(...)`, `seen.top(...)`,
    `seen.statistic("distance", layer=, head=)` and `seen.heads("it", "animal")` are those of `Record`, of the only
    pass; of several, choose `seen.forwards[i]`, or `seen[i]`, which can be drawn and saved like the whole.
    """

    def __init__(self, forwards: tuple[Record, ...] = ()) -> None:
        self.forwards = forwards
        self.why_plain: dict[str, str] = {}  # the sites that a kernel asked for has not served, and why
        self.calls_elsewhere = 0  # calls of the model from threads other than the one that watched, which were not seen

    @property
    def record(self) -> Record:
        """The record of the only forward pass."""
        if not self.forwards:
            raise ObservationError("nothing has been seen yet: ask after the `with` block of regard.watch has ended")
        if len(self.forwards) > 1:
            raise ObservationError(
                f"{len(self.forwards)} forward passes were seen: choose one with seen.forwards[i], or watch one alone"
            )
        return self.forwards[0]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or (not hasattr(Record, name) and name not in Record.__dataclass_fields__):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.record, name)

    def __getitem__(self, index: int) -> "Sight":
        """One forward pass of several, to be asked, drawn, shown and saved alone."""
        count = len(self.forwards)
        if not -count <= index < count:
            raise InputError(f"`seen[i]` must be from 0 to {count - 1} (forward passes: {count}), got {index}")
        return Sight((self.forwards[index],))

    def __iter__(self) -> "Iterator[Sight]":
        return (Sight((one,)) for one in self.forwards)

    def _repr_html_(self) -> str:
        """What a notebook shows, in at most 300 kB."""
        return forwards_html(self.forwards)

    def __repr__(self) -> str:
        unseen = f", {self.calls_elsewhere} calls from other threads not seen" if self.calls_elsewhere else ""
        return f"<{len(self.forwards)} forward passes seen, of {[len(one) for one in self.forwards]} layers{unseen}>"

    def plot(self, *, layer: int | str, head: int, sequence: int = 0) -> Any:
        """Draw the heat map of one head as a matplotlib Figure (`.savefig`, or shown by a notebook)."""
        return heatmap_figure(self.record, layer=layer, head=head, sequence=sequence)

    def plot_alignment(
        self,
        heads: Heads = "mean",
        *,
        rows: Rows = "read",
        source: range | None = None,
        target: range | None = None,
        sequence: int = 0,
    ) -> Any:
        """Draw which words of the target look at which of the source, as a matplotlib Figure.

        `heads` is "mean" of all cross-attention, "each" head as a small map, or pairs of layer and head to average.
        A row is called after the word that the decoder has "read", or the one that is "written" from there. Of more
        than 60 words a side, `source=range(...)` and `target=range(...)` choose.
        """
        return alignment_figure(self.record, heads, rows=rows, source=source, target=target, sequence=sequence)

    def plot_patches(
        self,
        image: Any,
        grid: Any,
        *,
        layer: int | str,
        head: int | None = None,
        patch: Patch = "cls",
        sequence: int = 0,
    ) -> Any:
        """Draw where a patch (row, column) of an image, or "cls", looks, laid over the image: a matplotlib Figure.

        `image` is one of PIL, an array or a tensor, in the proportions that the model saw; `grid` the vision model,
        its config, or a PatchGrid. Without `head` it is the mean of the heads of the layer.
        """
        found = grid_of(grid, self.record, layer)
        pixels = image_of(image)
        return patch_figure(self.record, found, pixels, layer=layer, head=head, patch=patch, sequence=sequence)

    def export(
        self,
        path: str | os.PathLike[str],
        what: str = "weights",
        *,
        layer: int | str | None = None,
        head: int | None = None,
        sequence: int = 0,
    ) -> None:
        """Write one thing to a file .csv, .npy, .npz, .png or .svg.

        `what` is "weights", "map", "map.max", "top", "alignment", "heads", or a statistic that was kept: "entropy".
        """
        export(self.record, path, what, layer=layer, head=head, sequence=sequence)

    def to_html(self, path: str | os.PathLike[str], *, token: str | None = None, title: str = "") -> None:
        """Write one self-contained page that a browser opens without a server; needs the tokens to be known."""
        record = self.record
        write_page(record, choose_focus(record, token=token), Path(path), title=title or record.model)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write everything to one atlas file, atomically; regard.load reads it."""
        if not self.forwards:
            raise ObservationError("nothing has been seen yet, so there is nothing to save")
        save_atlas(self.forwards, path)


def load(path: str | os.PathLike[str]) -> Sight:
    """Read an atlas that `seen.save` or `regard look --out it.atlas` wrote.

    Raises:
        AtlasError: The file is missing, cut off, damaged, of another version, or not an atlas.
    """
    return Sight(load_atlas(path))
