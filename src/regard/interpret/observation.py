"""Observation, the result of a watch: the records of its forward passes, with methods to query, plot and save them."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.errors import ObservationError
from regard.interpret.export import export
from regard.interpret.look_result import LookResult
from regard.interpret.vision_transformers import grid_of, image_of
from regard.lessons.lesson import Lesson
from regard.lessons.recorded_heads import lesson_of_record
from regard.lessons.text_words import Language
from regard.record.atlas import read_atlas, save_atlas
from regard.record.highlight import choose_focus
from regard.record.layers import Stream, at_index
from regard.record.missing_attention import Missing, sum_missing
from regard.record.places import Name
from regard.record.records import Answers, Layer, Record
from regard.record.tokens import Token
from regard.render.alignment_figure import alignment_figure
from regard.render.figure import heatmap_figure
from regard.render.notebook import forwards_html, record_html
from regard.render.page import write_page
from regard.render.patches import Patch, patch_figure
from regard.render.word_alignment import Heads, Rows

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Observation", "load_atlas"]

_NOTHING = "nothing has been seen yet: ask after the `with` block of regard.watch has ended"
_FAILED = (
    "nothing was kept, as an exception ended the `with` block of regard.watch or was raised at its end: mend what it "
    "says, and run the model in a new block"
)


class Observation(Answers):
    """The result of a watch: one record per forward pass, with the methods of a record.

    `seen.weights(layer=, head=)`, `seen.heatmap(...)`, `seen.entropy(...)`, `seen.received(...)`, `seen.top(...)`,
    `seen.statistic("distance", layer=, head=)`, `seen.rank_heads("it", "animal")`, `seen.look(token="it")` and all
    plots refer to the only pass. If there are several, select one with `seen[i]`. `len(seen)` is the number of passes,
    and iterating over `seen` yields them.
    """

    def __init__(self, records: tuple[Record, ...] = ()) -> None:
        self.records = records
        self.fallback_reasons: dict[
            str, str
        ] = {}  # call sites that the selected backend did not support, with the reason
        self.calls_elsewhere = 0  # number of calls of the model from other threads, which were not recorded
        self.failed = False  # whether the watch ended with an exception

    @property
    def missing(self) -> tuple[Missing, ...]:
        """The attention that ran and could not be recorded, over all passes: module, reason, number of calls."""
        return sum_missing(one for record in self.records for one in record.missing)

    @property
    def record(self) -> Record:
        """The record of the only forward pass."""
        if not self.records:
            raise ObservationError(_FAILED if self.failed else _NOTHING)
        if len(self.records) > 1:
            raise ObservationError(
                f"{len(self.records)} forward passes were seen: choose one with seen.records[i], or watch only one"
            )
        return self.records[0]

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
    def notes(self) -> Mapping[str, Any]:  # type: ignore[override]
        """Further data of the only pass: `keep`, and for a generation the length of its prompt."""
        return self.record.notes

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, index: int) -> "Observation":
        """Return one of several forward passes as an Observation of its own."""
        if not self.records:
            raise ObservationError(_FAILED if self.failed else _NOTHING)
        return Observation((self.records[at_index("seen[i]", index, len(self.records), "forward passes")],))

    def __iter__(self) -> "Iterator[Observation]":
        return (Observation((one,)) for one in self.records)

    def _repr_html_(self) -> str:
        """Return the HTML that a notebook displays, of at most 300 kB."""
        return forwards_html(self.records)

    def __repr__(self) -> str:
        missing = f", {len(self.missing)} missing" if self.missing else ""
        unseen = f", {self.calls_elsewhere} calls from other threads not seen" if self.calls_elsewhere else ""
        layers = [len(one) for one in self.records]
        return f"<{len(self.records)} forward passes seen, of {layers} layers{missing}{unseen}>"

    def plot(
        self, *, layer: int | str | Layer, head: int, batch_index: int = 0, stream: Stream | None = None
    ) -> "Figure":
        """Plot the heat map of one head and return the matplotlib Figure, which a notebook displays and `.savefig`
        saves.
        """
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
        """Plot the weights of the target's words on the source's words and return the matplotlib Figure.

        `heads` is "mean" (over all cross-attention), "each" (one small map per head), or pairs of layer and head to
        average. With `rows="read"` a row has the name of the decoder's input word, with `rows="written"` the name of
        the word predicted from it. For more than 60 words per side, select a part with `source=range(...)` and
        `target=range(...)`.
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
        """Plot the attention of a patch (row, column) of an image, or of "cls", over the image, and return the
        matplotlib Figure.

        `image` is a PIL image, an array or a tensor with the aspect ratio of the model's input. `grid` is the vision
        model, its config, or a PatchGrid. Without `head`, the mean over the heads of the layer is shown. Layers are
        counted within `stream`, by default "image".
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
        kind: str = "weights",
        *,
        layer: int | str | Layer | None = None,
        head: int | None = None,
        batch_index: int = 0,
        stream: Stream | None = None,
    ) -> None:
        """Export one item to a file: .csv, .npy, .npz, .png or .svg.

        `kind` is "weights", "map", "map.max", "top", "alignment", "heads", or the name of a recorded statistic, such
        as "entropy".
        """
        export(self.record, path, kind, layer=layer, head=head, batch_index=batch_index, stream=stream)

    def look(
        self,
        token: Name | None = None,
        *,
        layer: int | str | None = None,
        head: int | None = None,
        batch_index: int = 0,
        stream: Stream | None = None,
    ) -> LookResult:
        """Return what `regard.look` shows: a word, and two heads that attend from it; `print` it, or display it in a
        notebook. The tokens must be known.

        Args:
            token: The word to look from; by default a pronoun with a large weight on a word, else the word with the two
                largest weights.
            layer: The layer of the first head, by its number or name; by default any.
            head: The first head, in that layer; by default any.
            batch_index: The sequence of the batch.
            stream: The stream of the layers; by default that of cross-attention, if there is any, or of the first text.

        Raises:
            InputError: The word, layer, head, sequence or stream does not exist, or the text has one word.
            ObservationError: Nothing was seen, or the tokens are unknown.
        """
        record = self.record
        focus = choose_focus(record, token=token, layer=layer, head=head, batch_index=batch_index, stream=stream)
        return LookResult(record, focus, record.model)

    def lesson(
        self,
        token: Name | None = None,
        *,
        layer: int | str | None = None,
        head: int | None = None,
        batch_index: int = 0,
        stream: Stream | None = None,
        lang: Language = "en",
    ) -> Lesson:
        """Return a lesson that opens with a real head: its queries, keys and values, and each step from them on, as a
        page (`.to_html("lesson.html")`, or in a notebook) and as text (`.text`).

        The record must have queries, keys and values: watch with keep="qkv". With keep="qk" the steps end with the
        weights. Readers choose layer, head and token on the page, which has all layers up to 2 MB, else the chosen one.

            with regard.watch(model, keep="qkv", tokenizer=tokenizer) as seen:
                model(**inputs)
            seen.lesson(layer=5, head=11, token="it").to_html("lesson.html")

        Args:
            token: The query that is looked at first; by default as in `look`. Of a word of several tokens it is the
                first, as in `regard steps`.
            layer: The layer that is shown first, by its number or name; by default as in `look`.
            head: The head, in that layer; by default as in `look`.
            batch_index: The sequence of the batch.
            stream: The stream of the layers.
            lang: "en" or "zh"; readers can switch.

        Raises:
            InputError: The token, layer, head, sequence or stream does not exist, the text has more than 256 tokens, or
                the layer's weights are no softmax of products of queries and keys.
            ObservationError: Nothing was seen, or the record keeps no queries and keys.
        """
        chosen: dict[str, Any] = {"layer": layer, "head": head, "batch_index": batch_index, "stream": stream}
        return lesson_of_record(self.record, token=token, **chosen, lang=lang)

    def to_html(self, path: str | os.PathLike[str], *, token: Name | None = None, title: str = "") -> None:
        """Save a self-contained HTML page of the first sequence, which needs no server; its tokens must be known.

        An atlas (`save`) has all sequences of a batch, and `regard open` shows them.
        """
        record = self.record
        write_page(record, choose_focus(record, token=token), Path(path), title=title or record.model)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Save all passes to one atlas file, atomically; regard.load_atlas loads it."""
        if not self.records:
            raise ObservationError(_FAILED if self.failed else _NOTHING)
        save_atlas(self.records, path)


# Set here because `record` must not import `render`.
Record._repr_html_ = record_html  # type: ignore[attr-defined]


def load_atlas(path: str | os.PathLike[str]) -> Observation:
    """Load an atlas that was saved by `seen.save` or `regard look --out it.atlas`.

    Raises:
        AtlasError: The file is missing, truncated, damaged, of another version, or not an atlas.
    """
    return Observation(read_atlas(path))
