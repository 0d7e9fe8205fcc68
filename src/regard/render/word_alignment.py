"""Weights between words instead of subwords: the numbers of an alignment, and its table for a terminal."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

from regard.errors import InputError, MissingExtraError, ObservationError
from regard.record.layers import at_index, find_layer, head_at
from regard.record.records import Layer, Record
from regard.record.tokens import Token, Word
from regard.render.labels import key_labels, layer_name, query_labels, shown_words, visible
from regard.render.terminal import share_bar

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.text import Text

__all__ = ["Alignment", "AlignmentTable", "Heads", "Rows", "align", "alignment_table", "chosen_heads", "word_weights"]

Heads = Literal["mean", "each"] | Sequence[tuple[int | str | Layer, int]]
Rows = Literal["read", "written"]


@dataclass(frozen=True, eq=False)
class Alignment:
    """`weights` (target words, source words), the mean over `heads`; each head is given by the index of its layer in
    the record and its number.
    """

    target: tuple[Word, ...]
    source: tuple[Word, ...]
    weights: npt.NDArray[np.float64]
    heads: tuple[tuple[int, int], ...]
    rows: Rows = "read"


def align(record: Record, heads: Heads = "mean", *, rows: Rows = "read", batch_index: int = 0) -> Alignment:
    """Average the cross-attention of some heads, from words of the target to words of the source.

    The weight between two words is the mean over the query word's pieces of the sum over the key word's pieces, so
    that the sum of a row is preserved.

    Args:
        record: The record of an encoder–decoder.
        heads: "mean" over all heads of all cross-attention, or pairs of layer and head.
        rows: The name of a row: the decoder's input word at that position ("read"), or the word predicted from it
            ("written"), one position further; both are in use (Kobayashi et al. 2020, arXiv:2004.10102). The last
            position's prediction is not in the record and shown as "?"; after the end of a text there is no such row.
        batch_index: The sequence of the batch, counted from 0; negative numbers count from the end.

    Raises:
        InputError: The head does not exist, or belongs to self-attention.
        ObservationError: There is no cross-attention, or only maps of it were recorded.
    """
    pairs = chosen_heads(record, heads)
    first = record.layers[pairs[0][0]]
    batch_index = at_index("batch_index", batch_index, first.batch, "batch")
    target, source = _words(record, first, rows, batch_index)
    total = np.zeros((len(target), len(source)))
    for layer, head in pairs:
        seen = record.layers[layer]
        if (seen.queries, seen.keys) != (first.queries, first.keys):
            raise InputError(
                f"`heads` must look from one text at one other, got {seen.queries} × {seen.keys} positions in "
                f"{layer_name(record, layer)} and {first.queries} × {first.keys} in "
                f"{layer_name(record, pairs[0][0])}: draw them one by one"
            )
        weights = record.weights(layer=seen, head=head)[batch_index]
        total += word_weights(weights, target, source)
    if rows == "written" and len(target) > 1 and target[-2].special:
        target, total = target[:-1], total[:-1]  # nothing is predicted after the end of a text
    return Alignment(target, source, total / len(pairs), pairs, rows)


def word_weights(
    weights: npt.NDArray[np.floating], target: Sequence[Word], source: Sequence[Word]
) -> npt.NDArray[np.float64]:
    """Merge the pieces of words into (target words, source words): mean of rows, sum of columns.

    >>> pieces = np.array([[0.5, 0.25, 0.25], [0.0, 0.5, 0.5]])
    >>> word_weights(pieces, [Word("tokens", (0, 1))], [Word("Zei", (0,)), Word("chen", (1, 2))])
    array([[0.25, 0.75]])
    """
    across = np.add.reduceat(weights, [word.pieces[0] for word in source], axis=1, dtype=np.float64)
    down = np.add.reduceat(across, [word.pieces[0] for word in target], axis=0)
    merged: npt.NDArray[np.float64] = down / np.array([len(word.pieces) for word in target])[:, None]
    return merged


def chosen_heads(record: Record, heads: Heads) -> tuple[tuple[int, int], ...]:
    """Return pairs of a layer's index in the record and a head; `heads` counts layers as the model does."""
    crossing = [(index, layer) for index, layer in enumerate(record.layers) if layer.kind == "cross"]
    if not crossing:
        raise ObservationError(
            "an alignment needs cross-attention, and none was seen: watch an encoder–decoder, or draw one head with "
            "plot(layer=, head=)"
        )
    if isinstance(heads, str):
        if heads not in ("mean", "each"):
            raise InputError(f'`heads` must be "mean", "each" or pairs such as [(5, 3)] (layer, head), got {heads!r}')
        return tuple((index, head) for index, layer in crossing for head in layer.recorded_heads)
    if not hasattr(heads, "__iter__"):
        raise InputError(f'`heads` must be "mean", "each" or pairs such as [(5, 3)] (layer, head), got {heads!r}')
    if not heads:
        raise InputError("`heads` must hold at least one pair of layer and head, got none")
    return tuple(_checked(record, pair, [layer for _, layer in crossing]) for pair in heads)


def _checked(record: Record, pair: tuple[int | str | Layer, int], crossing: Sequence[Layer]) -> tuple[int, int]:
    try:
        name, head = pair
    except (TypeError, ValueError):
        raise InputError(f"`heads` must be pairs such as [(5, 3)] (layer, head), got {pair!r} among them") from None
    layer = record.layer(name) if isinstance(name, str | Layer) else find_layer(crossing, name)
    if layer.kind != "cross":
        names = ", ".join(one.name for one in crossing)
        raise InputError(f"`heads` must be of layers that look at another text ({names}), got {layer.name!r}")
    return record.layers.index(layer), head_at(layer, head)


def _words(record: Record, layer: Layer, rows: Rows, batch_index: int) -> tuple[tuple[Word, ...], tuple[Word, ...]]:
    if rows not in ("read", "written"):
        raise InputError(f'`rows` must be "read" or "written", got {rows!r}')
    target, source = query_labels(record, layer, batch_index), key_labels(record, layer, batch_index)
    if rows == "written":
        target = (*target[1:], Token("?", special=True, space=True))  # the last prediction is not in the record
    left, right = shown_words(target), shown_words(source)
    return tuple(word for word, _ in left), tuple(word for word, _ in right)


_MOST, _BAR, _NARROWEST = 3, 10, 40


@dataclass(frozen=True, eq=False)
class AlignmentTable:
    """The rich renderable of `alignment_table`."""

    record: Record
    heads: Heads
    rows: Rows
    width: int

    def __rich_console__(self, console: "Console", options: "ConsoleOptions") -> "RenderResult":
        yield from self._lines(max(_NARROWEST, min(self.width, options.max_width)))

    def _lines(self, width: int) -> Iterator["Text"]:
        from rich.cells import cell_len, set_cell_size
        from rich.text import Text

        chosen = chosen_heads(self.record, self.heads)
        found = align(self.record, [(self.record.layers[at], head) for at, head in chosen], rows=self.rows)
        wide = min(16, max(cell_len(visible(word.text)) for word in found.target))
        for word, weights in zip(found.target, found.weights, strict=True):
            if word.special and word.text == "?" and self.rows == "written" and word is found.target[-1]:
                continue  # the prediction from the last input token is unknown
            order = weights.argsort()[::-1][:_MOST]
            text = Text(no_wrap=True)
            text.append(set_cell_size(visible(word.text), wide), "dim" if word.special else "bold")
            text.append("  ")
            text.append(share_bar(float(weights[order[0]]), _BAR).ljust(_BAR), "cyan")
            said = [f"{weights[at]:.2f} {visible(found.source[at].text)}" for at in order]
            text.append("  " + "   ".join(said))
            text.truncate(width, overflow="ellipsis")
            yield text


def alignment_table(
    record: Record, heads: Heads = "mean", *, rows: Rows = "written", width: int = 80
) -> AlignmentTable:
    """Draw for each word of the target the three source words with the largest weights.

    Args:
        record: What was seen of an encoder–decoder.
        heads, rows: As in `alignment_figure`.
        width: The width of a line in terminal cells.

    Raises:
        InputError: The head does not exist, or the width is too small.
        MissingExtraError: rich is not installed.
    """
    try:
        import rich  # noqa: F401
    except ImportError as error:
        raise MissingExtraError("rich", "cli") from error
    if width < _NARROWEST:
        raise InputError(f"`width` must be at least {_NARROWEST} cells, got {width}")
    chosen_heads(record, heads)
    return AlignmentTable(record, heads, rows, width)
