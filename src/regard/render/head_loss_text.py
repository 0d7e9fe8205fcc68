"""What a model loses without some heads, in lines for a terminal: the losses, and the random sets beside them."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from regard.render.head_lists_text import CAVEAT
from regard.render.head_loss import Loss, Lost
from regard.render.head_scores import head_number
from regard.render.head_table_text import table_lines
from regard.render.labels import visible

if TYPE_CHECKING:
    from rich.text import Text

__all__ = ["loss_lines"]


def loss_lines(lost: Lost, *, width: int = 80) -> Iterator["Text"]:
    """Yield the losses without some heads, and without random heads."""
    from rich.text import Text

    heads = ", ".join(head_number(*one) for one in lost.heads)
    how = "set to 0" if lost.replace == "zero" else "set to its mean over all positions"
    several = "heads" if len(lost.heads) > 1 else "head"
    yield from table_lines(f"{visible(lost.model)} without {several} {heads} (output {how})", width)
    yield Text("")
    count = len(lost.losses[0].random)
    yield Text(f"  {'':<29}{'':>22}   {f'{count} random sets' if count else ''}".rstrip(), "dim")
    last = f"{'median':>9}{'most':>8}" if count else ""
    yield Text(f"  {'':<29}{'whole':>6}{'without':>9}{'rise':>8}{last}", "dim")
    for loss in lost.losses:
        yield Text(_loss_row(loss), no_wrap=True)
    yield Text("")
    unit = f"Losses are in nats a token; {lost.probe}." if lost.probe else "A change is 1 − cosine: 0 is none."
    yield from table_lines(unit + (" Random sets are as many other heads." if count else ""), width)
    if count:
        yield from table_lines(_verdict(lost), width)
    yield from table_lines(
        CAVEAT + "this is what the model loses here, on this text; other heads may have stood in.", width, "dim"
    )


def _loss_row(loss: Loss) -> str:
    row = f"  {loss.name:<29}{loss.whole:>6.3f}{loss.without:>9.3f}{loss.rise:>+8.3f}"
    if loss.random:
        row += f"{float(np.median(loss.rises)):>+9.3f}{max(loss.rises):>+8.3f}"
    return row


def _verdict(lost: Lost) -> str:
    """Return how many random sets increase the loss less, and the set with the largest increase: it may contain a head
    that the chosen ones depend on.
    """
    loss = lost.losses[-1] if lost.probe else lost.losses[0]
    less = sum(one < loss.rise for one in loss.rises)
    dearest = max(range(len(loss.rises)), key=lambda at: loss.rises[at])
    names = ", ".join(head_number(*one) for one in lost.sets[dearest])
    return f"Of the {len(loss.rises)} random sets, {less} cost less ({loss.name}); the dearest was {names}."
