"""A figure of a run: the loss in training and held out, the other scores, the learning rate."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.render.mpl_figure import place, sheet, write_figure
from regard.train.events import Ended, Evaluated, Event
from regard.train.jsonl_log import read_log

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["Curves", "curves_figure"]

_WIDE, _HIGH, _LEFT, _GAP = 6.4, 2.1, 1.0, 0.75
_TRAINED, _HELD = "#7a8ca8", "#c2410c"  # they differ in lightness too


def curves_figure(log_history: Sequence[dict[str, Any]]) -> "Figure":
    """Return a figure of the events of a log: panels for the loss, each other score, and the learning rate."""
    steps = [one for one in log_history if one["event"] == "stepped"]
    scored = [one for one in log_history if one["event"] == "evaluated"]
    names = [name for name in (scored[-1]["scores"] if scored else ()) if name not in ("loss", "perplexity")]
    panels = ["loss", *names, "learning_rate"]
    with sheet(panels) as brush:
        height = len(panels) * (_HIGH + _GAP) + 0.2
        brush.figure.set_size_inches(_LEFT + _WIDE + 0.3, height)
        for index, name in enumerate(panels):
            axes = place(brush, (_LEFT, height - (index + 1) * (_HIGH + _GAP) + 0.45, _WIDE, _HIGH))
            _panel(axes, name, steps, scored)
    return brush.figure


class Curves:
    """A callback that draws the log of a run again after each evaluation.

    Args:
        log: The log; `JsonlLog` comes before this callback.
        path: The figure, PNG or SVG.
    """

    def __init__(self, log: Path, path: Path) -> None:
        self.log, self.path = log, path

    def __call__(self, event: Event) -> None:
        """Draw the log after an evaluation and at the end."""
        if isinstance(event, Evaluated | Ended) and self.log.exists():
            write_figure(curves_figure(read_log(self.log)), self.path)


def _panel(axes: "Axes", name: str, steps: Sequence[dict[str, Any]], scored: Sequence[dict[str, Any]]) -> None:
    if name in ("loss", "learning_rate") and steps:
        axes.plot(
            [one["step"] for one in steps], [one[name] for one in steps], color=_TRAINED, lw=0.9, label="training"
        )
    if name != "learning_rate" and scored:
        values = [one["scores"].get(name) for one in scored]
        axes.plot([one["step"] for one in scored], values, color=_HELD, lw=1.4, marker="o", ms=3, label="held out")
    axes.set_ylabel({"loss": "loss (nats)", "learning_rate": "learning rate", "bleu": "BLEU"}.get(name, name))
    axes.set_xlabel("step")
    axes.set_xlim(0, max((one["step"] for one in (*steps, *scored)), default=1) * 1.02)
    if name == "learning_rate":
        axes.ticklabel_format(axis="y", style="scientific", scilimits=(-2, 2))
    axes.grid(alpha=0.25, lw=0.5)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    if name == "loss" and steps and scored:
        axes.legend(frameon=False)
