"""Lists of heads for a terminal: scores for pairs of words, and changes."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from regard.render.head_change import HeadChange
from regard.render.head_scores import RULES, head_number, ranked
from regard.render.head_table_text import number, table_lines
from regard.render.heatmap_text import share_bar
from regard.render.labels import visible
from regard.render.line_breaking import fit
from regard.render.word_pair_result import Pair, PairScores

if TYPE_CHECKING:
    from rich.text import Text

__all__ = ["CAVEAT", "change_lines", "pair_score_lines"]

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


def _counted(pair: Pair) -> str:
    lost = [f"{pair.missing} lack a word"] if pair.missing else []
    lost += [f"{pair.later} have the second word only later"] if pair.later else []
    count = f"{len(pair.weights)} sentence" + ("s" if len(pair.weights) != 1 else "")
    out = f" ({', '.join(lost)})" if lost else ""
    return f"{visible(pair.source)} → {visible(pair.target)}: {count}{out}; an even head would give {pair.even:.2f}"


def _pair_score_table(scores: PairScores, pairs: tuple[Pair, ...], top: int) -> Iterator["Text"]:
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
    yield from table_lines(f"{visible(change.before.model)}, {names}: compared {how}, as {change.why}.", width)
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
