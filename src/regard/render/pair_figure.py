"""One head over two texts as a figure: both sentences with arcs, both heat maps on one scale, and the changes."""

from pathlib import Path
from typing import TYPE_CHECKING

from regard.capture.minimal_pair import MinimalPair
from regard.render.figure_panels import draw_heatmap, label_room, panel_map
from regard.render.head_change import HeadChange
from regard.render.labels import check_focus, head_name, key_labels, query_labels
from regard.render.mpl_figure import note, place, sheet, title, write_figure
from regard.render.pair_sentences import CAUTION, change_sentence, flip_sentence, flip_text, head_sentence
from regard.render.sentence_figure import draw_sketch, plan_sketch

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["pair_figure", "save_pair_figure"]

_SIDE = 4.6
_BAR = 1.1  # width in inches of a map's colour bar
_FOOT, _LINE = 0.75, 0.19  # inches under the maps, and of a line of text there
_UNDER = 0.42  # from the maps to the first of them
_FLIPS = 6  # maximum number of flips listed


def pair_figure(pair: MinimalPair, change: HeadChange) -> "Figure":
    """Draw one head over two texts: the sentences one below the other, the maps side by side."""
    texts = tuple(zip(pair.records, pair.highlights, strict=True))
    for record, focus in texts:
        check_focus(record, focus)
    layer, head = pair.head
    layers = [record.layers[layer] for record in pair.records]
    says = _says(pair, change)
    with sheet([*_tokens(pair), *says]) as brush:
        rooms = [label_room(brush, record, seen, 0) for record, seen in zip(pair.records, layers, strict=True)]
        left, top = (max(room) for room in zip(*rooms, strict=True))
        across = left + _SIDE + _BAR
        full = 2 * across + 0.2
        sketches = [plan_sketch(brush, record, focus, full - 0.8) for record, focus in texts]
        lines = [1 + int(brush.width(one, 10) / (full - 1.0)) for one in says]
        foot = _FOOT + _LINE * sum(lines)
        below = foot + top + _SIDE + 0.45
        brush.figure.set_size_inches(full, below + sum(sketch.height for sketch in sketches))
        scale = max(float(panel_map(seen, head, 0).values.max(initial=0.0)) for seen in layers)
        bottom = below
        for sketch, focus in zip(reversed(sketches), reversed(pair.highlights), strict=True):
            draw_sketch(brush, place(brush, (0.4, bottom, full - 0.8, sketch.height)), sketch, focus)
            bottom += sketch.height
        maps = [place(brush, (number * across + left, foot, _SIDE, _SIDE)) for number in range(2)]
        for number, ((record, focus), axes, seen) in enumerate(zip(texts, maps, layers, strict=True), 1):
            draw_heatmap(brush, axes, record, seen, head, 0, focus.queries[focus.word].pieces, scale)
            title(brush, axes, f"text {number}: {head_name(record, layer, head)}", top)
        for number, one in enumerate(says):
            note(brush, maps[0], one, room=full - 1.0, below=_UNDER + _LINE * sum(lines[:number]), size=10)
    return brush.figure


def save_pair_figure(pair: MinimalPair, change: HeadChange, path: str | Path) -> None:
    """Save `pair_figure` as PNG or SVG, atomically."""
    write_figure(pair_figure(pair, change), path)


def _tokens(pair: MinimalPair) -> list[str]:
    """Return the tokens of both texts, for which fonts are needed."""
    seen = [(record, record.layers[pair.head[0]]) for record in pair.records]
    return [token.text for one in seen for label in (query_labels, key_labels) for token in label(*one, 0)]


def _says(pair: MinimalPair, change: HeadChange) -> list[str]:
    """Return the sentences under the maps."""
    found = pair.flips.flips if not pair.is_untouched else ()
    named = [f"{flip_text(flip, pair.words)}" for flip in found[:_FLIPS]]
    more = [f"and {len(found) - _FLIPS} weaker ones"] if len(found) > _FLIPS else []
    flips = "; ".join(named + more)
    return [one for one in (head_sentence(pair), flip_sentence(pair), flips, change_sentence(change), CAUTION) if one]
