"""Where an answer came from, for a terminal: the answer, the parts of the documents that count, and the checks."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from regard.heads.answer_sources import Removal, Sources
from regard.render.head_table_text import table_lines
from regard.render.labels import visible

if TYPE_CHECKING:
    from rich.text import Text

__all__ = ["caution", "removal_sentence", "signed", "source_lines", "verdict"]

_BAR = 6
_SHOWN = 0.1  # share of the largest score from which a part is shown
_CLEAR = 1.0  # nats that the removal of a part must cost beyond that of its control
_SHADES = ("", "", "bold", "bold reverse")


def source_lines(found: Sources, *, top: int = 10, width: int = 80) -> Iterator["Text"]:
    """Yield the answer, the parts with the largest scores under their documents, and what was measured and what not."""
    from rich.text import Text

    yield from _wrapped(found.answer, width, "  ", "bold")
    yield Text("")
    shown = _shown(found, top)
    for number, document in enumerate(found.documents):
        mine = [at for at in shown if found.parts[at].document == number]
        rest = sum(one.document == number for one in found.parts) - len(mine)
        score = found.document_scores[number]
        title = Text(f"{visible(document.name)}  ", "bold" if mine else "dim", overflow="ellipsis", no_wrap=True)
        word = "part" if rest == 1 else "parts"
        title.append(
            f"{score:.2f}" + (f", {rest} more {word}" if mine and rest else f", {rest} {word}" if rest else "")
        )
        title.truncate(width, overflow="ellipsis")
        yield title
        for at in mine:
            yield from _part(found, at, width)
    if len(found.sentence_spans) > 1:
        yield Text("")
        yield from _by_sentence(found, width)
    yield Text("")
    for removal in found.removals:
        yield from table_lines(removal_sentence(found, removal), width)
    yield from table_lines(verdict(found), width)
    yield from table_lines(caution(found), width, "dim")


def _shown(found: Sources, top: int) -> list[int]:
    """Return the parts to show, in the order of the prompt."""
    scores = found.scores
    best = sorted(range(len(scores)), key=lambda at: -scores[at])[:top]
    return sorted(at for at in best if scores[at] > 0 and scores[at] >= _SHOWN * scores[best[0]])


def _part(found: Sources, at: int, width: int) -> Iterator["Text"]:
    from rich.text import Text

    part, score = found.parts[at], float(found.scores[at])
    share = score / max(float(found.scores.max()), 1e-12)
    bar = "█" * max(1, round(share * _BAR))
    lead = f"  {part.id:>5}  {score:.2f} {bar:<{_BAR}} "
    style = _SHADES[min(3, int(share * 3.99))]
    for line in _wrapped(found.text(part), max(20, width - len(lead)), "", style):
        yield Text(lead, no_wrap=True) + line
        lead = " " * len(lead)


def _wrapped(text: str, width: int, lead: str, style: str) -> Iterator["Text"]:
    """Yield the lines of a text without its line breaks, with what it hides made visible."""
    from rich.console import Console
    from rich.text import Text

    whole = Text(visible(" ".join(text.split())), style)
    for line in whole.wrap(Console(width=width), width - len(lead)):
        line.rstrip()
        yield Text(lead) + line


def _by_sentence(found: Sources, width: int) -> Iterator["Text"]:
    """Yield the part with the largest score for each sentence of the answer."""
    for (start, end), scores in zip(found.sentence_spans, found.sentence_scores, strict=True):
        best = int(scores.argmax())
        said = " ".join(found.answer[start:end].split())
        yield from table_lines(f"{found.parts[best].id} ({scores[best]:.2f}) for: {visible(said)}", width)


def signed(number: float) -> str:
    """Return a number with its sign, two decimals and a minus as wide as a plus."""
    return f"{number:+.2f}".replace("-", "−")


def removal_sentence(found: Sources, removal: Removal) -> str:
    """Return what the answer lost without a part."""
    total = float(found.log_probs.sum())
    said = (
        f"Without {removal.part}, the log-probability of the answer ({signed(total)}) changes by "
        f"{signed(-removal.drop)} (with its keys hidden instead: {signed(-removal.hidden)})"
    )
    if removal.control is None or removal.control_drop is None:
        return said + "; there is no other part to compare with."
    return said + f"; without {removal.control}, a random part, by {signed(-removal.control_drop)}."


def verdict(found: Sources) -> str:
    """Return whether the answer seems to come from the parts at all."""
    most = f"For a token of the answer, the heads give a part at most {found.strength:.2f} of their weight on average"
    if found.threshold is None:
        return f"{most}; no threshold was calibrated for them."
    wrong = "" if found.error_rate is None else f", which was wrong in {found.error_rate:.0%} of other examples"
    if not found.from_nowhere:
        return f"{most}, above {found.threshold:.2f}, the threshold of answers from nowhere{wrong}."
    below = (
        f"for a token of the answer, the heads give a part at most {found.strength:.2f} of their weight on average, "
        f"below {found.threshold:.2f}{wrong}"
    )
    if depends := [one.part for one in found.removals if one.drop - max(0.0, one.control_drop or 0.0) > _CLEAR]:
        return (
            f"By its scores the answer comes from nowhere in these documents ({below}); but it depends on {depends[0]}."
        )
    return f"The answer seems to come from nowhere in these documents: {below}."


def caution(found: Sources) -> str:
    """Return what the scores are, and what they do not prove."""
    heads = ", ".join(found.heads.names[:4]) + (" …" if len(found.heads) > 4 else "")
    said = (
        f"Scores are attention weights of {len(found.heads)} heads of {visible(found.model)} ({heads}) while it "
        "predicts the answer. They show what these heads read, and do not prove that the answer depends on it"
    )
    return said + (": the changes above measure that." if found.removals else ": --verify removes a part and measures.")
