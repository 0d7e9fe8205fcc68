"""What a watch gives: the records of the passes that were seen, to be asked, drawn and saved."""

import os
from pathlib import Path
from typing import Any

from regard.errors import ObservationError
from regard.observe.atlas import load_atlas, save_atlas
from regard.observe.focus import choose_focus
from regard.observe.records import Record
from regard.render.figure import heatmap_figure
from regard.render.page import write_page

__all__ = ["Sight", "load"]


class Sight:
    """What was seen: one record a forward pass. Everything a record answers can be asked of it directly.

    `seen.weights(layer=, head=)`, `seen.heatmap(...)`, `seen.entropy(...)`, `seen.received(...)`, `seen.top(...)`,
    `seen.statistic("distance", layer=, head=)` and `seen.heads("it", "animal")` are those of `Record`, of the only
    pass; of several, choose `seen.forwards[i]`.
    """

    def __init__(self, forwards: tuple[Record, ...] = ()) -> None:
        self.forwards = forwards

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

    def __repr__(self) -> str:
        return f"<{len(self.forwards)} forward passes seen, of {[len(one) for one in self.forwards]} layers>"

    def plot(self, *, layer: int | str, head: int, sequence: int = 0) -> Any:
        """Draw the heat map of one head as a matplotlib Figure (`.savefig`, or shown by a notebook)."""
        return heatmap_figure(self.record, layer=layer, head=head, sequence=sequence)

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
