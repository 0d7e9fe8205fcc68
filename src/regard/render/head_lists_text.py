"""Lists of heads for a terminal: scores for pairs of words, changes, and what a model loses without some heads."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from regard.heads.change_loss_and_pairs import HeadChange, Loss, Lost, PairScores, WordPair
from regard.heads.head_set import HeadSet
from regard.heads.scores import RULES, head_number, ranked
from regard.render.head_table_text import number, table_lines
from regard.render.labels import visible
from regard.render.line_breaking import fit
from regard.render.terminal import share_bar

if TYPE_CHECKING:
    from rich.text import Text

__all__ = ["CAVEAT", "change_lines", "head_set_lines", "loss_lines", "pair_score_lines"]

_BAR = 24
_PAIR = 18  # width of a column in cells
_FEW = 3  # maximum number of pairs side by side
CAVEAT = (
    "A weight alone is not an explanation (Jain & Wallace 2019, arXiv:1902.10186; Wiegreffe & Pinter 2019, "
    "arXiv:1908.04626): "
)


def pair_score_lines(scores: PairScores, *, top: int = 10, width: int = 80) -> Iterator["Text"]:
    """Yield the heads with the largest weight from one word to another: the mean over the sentences and its standard
    deviation.
    """
    from rich.text import Text

    rest = "" if scores.unused == 0 else f", {scores.unused} of them without both words of a pair"
    yield from table_lines(f"{visible(scores.model)}: {scores.sentences} sentences{rest}", width)
    for pair in scores.pairs:
        yield from table_lines("  " + _counted(pair), width)
    yield Text("")
    together = scores.all
    for start in range(0, len(scores.pairs), _FEW):
        yield from _pair_score_table(scores, scores.pairs[start : start + _FEW], top)
        yield Text("")
    if len(scores.pairs) > 1:
        firsts = {pair.name: head_number(*ranked(pair.mean, 1)[0][:2]) for pair in scores.pairs}
        if len(set(firsts.values())) == 1:
            found = f"The same head is the strongest for all pairs: {next(iter(firsts.values()))}."
        else:
            found = "Strongest for " + ", ".join(f"{visible(name)}: {head}" for name, head in firsts.items()) + ". "
            layer, head, value = ranked(together, 1)[0]
            found += f"Strongest for all of them: {head_number(layer, head)}, at least {value:.2f}."
        yield from table_lines(found, width)
    yield from table_lines(CAVEAT + "--ablate shows what the model loses without a head.", width, "dim")


def _counted(pair: WordPair) -> str:
    lost = [f"{pair.missing} lack a word"] if pair.missing else []
    lost += [f"{pair.later} have the second word only later"] if pair.later else []
    count = f"{len(pair.weights)} sentence" + ("s" if len(pair.weights) != 1 else "")
    out = f" ({', '.join(lost)})" if lost else ""
    return f"{visible(pair.source)} → {visible(pair.target)}: {count}{out}; an even head would give {pair.even:.2f}"


def _pair_score_table(scores: PairScores, pairs: tuple[WordPair, ...], top: int) -> Iterator["Text"]:
    from rich.cells import set_cell_size
    from rich.text import Text

    titles = "".join(set_cell_size(fit(visible(pair.name), _PAIR - 2), _PAIR) for pair in pairs)
    yield Text(f"  {'head':<7}{titles}".rstrip(), "dim")
    for layer, head, value in ranked(scores.all, top):
        row = Text(f"  {head_number(layer, head):<7}", no_wrap=True)
        for pair in pairs:
            spread = number(float(pair.spread[layer, head]))
            row.append(f"{number(float(pair.mean[layer, head]))} ± {spread}".ljust(_PAIR))
        if len(scores.pairs) == 1:
            row.append(share_bar(value, _BAR), "cyan")
        row.rstrip()
        yield row


def change_lines(change: HeadChange, *, top: int = 10, width: int = 80) -> Iterator["Text"]:
    """Yield the heads with the largest change, and the rule whose weight has changed most."""
    from rich.text import Text

    names = " and ".join(map(visible, change.names))
    how = "row by row" if change.by_rows else "by the scores of the heads"
    models = " and ".join(dict.fromkeys((visible(change.before.model), visible(change.after.model))))
    yield from table_lines(f"{models}, {names}: compared {how}, as {change.why}.", width)
    meaning = (
        "change: mean over rows of the Jensen–Shannon divergence / ln 2; 0 is the same, 1 no key in common. sum: over "
        "all rows, in nats (Clark et al. 2019, arXiv:1906.04341)."
        if change.by_rows
        else "change: the largest difference of a share of weight, over the rules of regard heads. Two texts differ in "
        "more than their language: what a head does in one may have had no occasion in the other."
    )
    yield from table_lines(meaning, width, "dim")
    yield Text("")
    total = f"{'sum':>7}" if change.by_rows else ""
    yield Text(f"  {'head':<7}{'change':>6}{total}   what has changed most", "dim")
    for layer, head, value in ranked(change.change, top):
        row = Text(f"  {head_number(layer, head):<7}{number(value).rjust(6)}", no_wrap=True)
        if change.by_rows:
            row.append(number(float(change.distance[layer, head])).rjust(7))
        name, before, after = change.moved(layer, head)
        row.append(f"   {RULES[name].label} {before:.2f} → {after:.2f}")
        yield row
    yield Text("")
    known = change.change[np.isfinite(change.change)]
    yield Text(f"Half of the {known.size} heads changed by less than {np.median(known):.3f}.")


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


def head_set_lines(found: HeadSet, *, top: int = 20, width: int = 80) -> Iterator["Text"]:
    """Yield the heads of a set with their measure and their weight in the readout, and what the readout is worth."""
    from rich.text import Text

    several = "heads" if len(found) > 1 else "head"
    yield from table_lines(f"{visible(found.model)}: {len(found)} {several} for {found.job}", width)
    yield from table_lines(f"measure: {found.method}", width, "dim")
    yield Text("")
    yield Text(f"  {'head':<7}{'measure':>8}{'weight in the readout':>24}", "dim")
    measures = found.head_scores or found.weights
    for name, score, weight in list(zip(found.names, measures, found.weights, strict=True))[:top]:
        shown = f"{score:.2f}" if found.head_scores else "–"
        row = Text(f"  {name:<7}{shown:>8}{weight:>+24.2f}  ", no_wrap=True)
        row.append(share_bar(score, _BAR), "cyan")
        row.rstrip()
        yield row
    if len(found) > top:
        yield Text(f"  … {len(found) - top} more: --json saves all")
    yield Text("")
    if found.correlation is not None:
        lost = "log-probability of held-out answers without some documents"
        yield from table_lines(f"correlation of the readout with the {lost}: {found.correlation:.2f}", width)
    if found.held_out is not None and found.chance is not None:
        yield from table_lines(f"readout on held-out examples: {found.held_out}; chance is {found.chance:.2f}", width)
        yield from table_lines(f"with shuffled labels: {found.shuffled_labels}", width)
    yield from table_lines(CAVEAT + "--ablate shows what the model loses without a head.", width, "dim")


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
