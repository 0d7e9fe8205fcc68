"""What a watch gives: the records of the passes that were seen, to be asked, drawn and saved."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.capture.atlas import read_atlas, save_atlas
from regard.capture.highlight import choose_focus
from regard.capture.missing_attention import Missing, sum_missing
from regard.capture.record_methods import Answers
from regard.capture.records import Layer, Record
from regard.capture.selectors import Stream, at_index
from regard.capture.tokens import Token
from regard.errors import ObservationError
from regard.interpret.export import export
from regard.interpret.notebook_display import forwards_html
from regard.interpret.vision_transformers import grid_of, image_of
from regard.render.alignment import alignment_figure
from regard.render.figure import heatmap_figure
from regard.render.page import write_page
from regard.render.patches import Patch, patch_figure
from regard.render.word_weights import Heads, Rows

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Observation", "load_atlas"]

_NOTHING = "nothing has been seen yet: ask after the `with` block of regard.watch has ended"
_FAILED = (
    "nothing was kept, as an exception ended the `with` block of regard.watch or was raised at its end: mend what it "
    "says, and run the model in a new block"
)


class Observation(Answers):
    """What was seen: one record a forward pass. Everything a record answers can be asked of it directly.

    `seen.weights(layer=, head=)`, `seen.heatmap(...)`, `seen.entropy(...)`, `seen.received(...)`, `seen.top(...)`,
    `seen.statistic("distance", layer=, head=)` and `seen.rank_heads("it", "animal")` are of the only pass, and so is
    all that is drawn; of several, choose `seen[i]`. `len(seen)` is the number of passes, and `for one in seen` goes
    through them.
    """

    def __init__(self, forwards: tuple[Record, ...] = ()) -> None:
        self.forwards = forwards
        self.fallback_reasons: dict[str, str] = {}  # the sites that a kernel asked for has not served, and why
        self.calls_elsewhere = 0  # calls of the model from threads other than the one that watched, which were not seen
        self.failed = False  # whether an exception ended the watch

    @property
    def missing(self) -> tuple[Missing, ...]:
        """The attention that ran and could not be seen, over all passes: module, reason, number of calls."""
        return sum_missing(one for record in self.forwards for one in record.missing)

    @property
    def record(self) -> Record:
        """The record of the only forward pass."""
        if not self.forwards:
            raise ObservationError(_FAILED if self.failed else _NOTHING)
        if len(self.forwards) > 1:
            raise ObservationError(
                f"{len(self.forwards)} forward passes were seen: choose one with seen.forwards[i], or watch one alone"
            )
        return self.forwards[0]

    @property
    def layers(self) -> tuple[Layer, ...]:  # type: ignore[override]
        """The layers of the only pass, in the order of their calls."""
        return self.record.layers

    @property
    def tokens(self) -> Mapping[str, tuple[tuple[Token, ...], ...]]:  # type: ignore[override]
        """The tokens of the only pass, by stream and sequence."""
        return self.record.tokens

    @property
    def model(self) -> str:
        """The name of the model."""
        return self.record.model

    @property
    def notes(self) -> Mapping[str, Any]:
        """What else is known of the only pass: `keep`, and of a generation the length of its prompt."""
        return self.record.notes

    def __len__(self) -> int:
        return len(self.forwards)

    def __getitem__(self, index: int) -> "Observation":
        """One forward pass of several, to be asked, drawn, shown and saved by itself."""
        if not self.forwards:
            raise ObservationError(_FAILED if self.failed else _NOTHING)
        return Observation((self.forwards[at_index("seen[i]", index, len(self.forwards), "forward passes")],))

    def __iter__(self) -> "Iterator[Observation]":
        return (Observation((one,)) for one in self.forwards)

    def _repr_html_(self) -> str:
        """What a notebook shows, in at most 300 kB."""
        return forwards_html(self.forwards)

    def __repr__(self) -> str:
        missing = f", {len(self.missing)} missing" if self.missing else ""
        unseen = f", {self.calls_elsewhere} calls from other threads not seen" if self.calls_elsewhere else ""
        layers = [len(one) for one in self.forwards]
        return f"<{len(self.forwards)} forward passes seen, of {layers} layers{missing}{unseen}>"

    def plot(
        self, *, layer: int | str | Layer, head: int, batch_index: int = 0, stream: Stream | None = None
    ) -> "Figure":
        """Draw the heat map of one head as a matplotlib Figure (`.savefig`); a notebook shows it as it is."""
        return heatmap_figure(self.record, layer=layer, head=head, batch_index=batch_index, stream=stream)

    def plot_alignment(
        self,
        heads: Heads = "mean",
        *,
        rows: Rows = "read",
        source: range | None = None,
        target: range | None = None,
        batch_index: int = 0,
    ) -> "Figure":
        """Draw which words of the target look at which of the source, as a matplotlib Figure.

        `heads` is "mean" of all cross-attention, "each" head as a small map, or pairs of layer and head to average.
        A row is called after the word that the decoder has "read", or the one that is "written" from there. Of more
        than 60 words a side, `source=range(...)` and `target=range(...)` choose.
        """
        return alignment_figure(self.record, heads, rows=rows, source=source, target=target, batch_index=batch_index)

    def plot_patches(
        self,
        image: Any,
        grid: Any,
        *,
        layer: int | str | Layer,
        head: int | None = None,
        patch: Patch = "cls",
        batch_index: int = 0,
        stream: Stream | None = None,
    ) -> "Figure":
        """Draw where a patch (row, column) of an image, or "cls", looks, laid over the image: a matplotlib Figure.

        `image` is one of PIL, an array or a tensor, in the proportions that the model saw; `grid` the vision model,
        its config, or a PatchGrid. Without `head` it is the mean of the heads of the layer, whose number is counted
        within `stream`, "image" unless given.
        """
        if stream is None and not isinstance(layer, str | Layer) and "image" in self.streams:
            stream = "image"
        seen = self.layer(layer, stream)
        found = grid_of(grid, self.record, seen)
        pixels = image_of(image)
        return patch_figure(self.record, found, pixels, layer=seen, head=head, patch=patch, batch_index=batch_index)

    def export(
        self,
        path: str | os.PathLike[str],
        what: str = "weights",
        *,
        layer: int | str | Layer | None = None,
        head: int | None = None,
        batch_index: int = 0,
        stream: Stream | None = None,
    ) -> None:
        """Write one thing to a file .csv, .npy, .npz, .png or .svg.

        `what` is "weights", "map", "map.max", "top", "alignment", "heads", or a statistic that was kept: "entropy".
        """
        export(self.record, path, what, layer=layer, head=head, batch_index=batch_index, stream=stream)

    def to_html(self, path: str | os.PathLike[str], *, token: str | None = None, title: str = "") -> None:
        """Write one self-contained page that a browser opens without a server; needs the tokens to be known."""
        record = self.record
        write_page(record, choose_focus(record, token=token), Path(path), title=title or record.model)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write everything to one atlas file, atomically; regard.read_atlas reads it."""
        if not self.forwards:
            raise ObservationError(_FAILED if self.failed else _NOTHING)
        save_atlas(self.forwards, path)


def load_atlas(path: str | os.PathLike[str]) -> Observation:
    """Read an atlas that `seen.save` or `regard look --out it.atlas` wrote.

    Raises:
        AtlasError: The file is missing, cut off, damaged, of another version, or not an atlas.
    """
    return Observation(read_atlas(path))
