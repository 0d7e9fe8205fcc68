"""The lab's report as one HTML page without scripts or external resources."""

import html
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from regard_lab.document import document, figure, made_on
from regard_lab.experiment import Finding, Verdict
from regard_lab.running import Result

__all__ = ["page"]

_SIGNS = {Verdict.HOLDS: "✓", Verdict.WITHIN: "≈", Verdict.FAILS: "✗", Verdict.GPU: "…"}
_CLASSES = {Verdict.HOLDS: "holds", Verdict.WITHIN: "within", Verdict.FAILS: "fails", Verdict.GPU: "gpu"}
_LONG = 12  # how many numbers of a list are shown


def page(results: Sequence[Result], about: Mapping[str, Any], *, planned: int) -> str:
    """Return all results as one page; `about` is the result of `report.about`."""
    body = [*_contents(results), *(_section(one, about) for one in results)]
    return document(
        "What is said about attention, put to the test", _lede(results, about, planned), body, _machine(about)
    )


def _lede(results: Sequence[Result], about: Mapping[str, Any], planned: int) -> str:
    verdicts = [one.finding.verdict for one in results if one.finding is not None]
    counts = [f"{one} {verdicts.count(one)}" for one in Verdict if one in verdicts]
    failed = sum(one.failed for one in results)
    text = f"{len(results)} claim{'' if len(results) == 1 else 's'}"
    text += f": {', '.join(counts)}." if counts else "."
    if failed:
        text += f" {failed} could not be run."
    if planned > len(results):
        text += f" {planned - len(results)} more were to be run and were not reached."
    how = "a quick run, with fewer sizes, steps and repetitions" if about["quick"] else "a full run"
    seconds = sum(one.seconds for one in results)
    return html.escape(f"{text} From {how}, seed {about['seed']}, {seconds:,.0f} seconds in all.")


def _contents(results: Sequence[Result]) -> Iterator[str]:
    yield '<nav aria-label="Claims"><ol class=contents>'
    for one in results:
        number, title = one.claim.number, html.escape(one.claim.title)
        key = "" if one.finding is None else html.escape(one.finding.key)
        yield (
            f'<li><span class=number>{number}</span><a href="#claim-{number}">{title}</a>'
            f"<span class=key>{key}</span>{_badge(one.finding)}</li>"
        )
    yield "</ol></nav>"


def _badge(finding: Finding | None) -> str:
    if finding is None:
        return '<span class="badge failed">! not run</span>'
    verdict = finding.verdict
    return f'<span class="badge {_CLASSES[verdict]}">{_SIGNS[verdict]} {verdict}</span>'


def _section(result: Result, about: Mapping[str, Any]) -> str:
    claim, finding = result.claim, result.finding
    lines = [
        f'<section id="claim-{claim.number}"><h2><span class=number>{claim.number}</span> '
        f"{html.escape(claim.title)} {_badge(finding)}</h2>",
        f"<p class=statement>{html.escape(claim.statement)}</p>",
        f"<p class=source>{_linked(claim.source)}</p>",
    ]
    if finding is None:
        lines.append(f"<p class=warning>This could not be run: {html.escape(result.problem)}</p>")
    else:
        lines += _found(finding, _figures(result))
    quick = " --quick" if about["quick"] else ""
    lines.append(
        f"<p class=again>{result.seconds:,.1f} s. Again: <code>regard lab {claim.name}{quick} "
        f"--seed {about['seed']} --threads {about['threads']}</code></p></section>"
    )
    return "\n".join(lines)


@lru_cache(maxsize=32)
def _figures(result: Result) -> tuple[str, ...]:
    """Draw the charts of one result, once: the page is written again after every claim that follows."""
    charts = () if result.finding is None else result.finding.charts
    return tuple(figure(chart, f"n{result.claim.number}f{at}") for at, chart in enumerate(charts))


def _found(finding: Finding, figures: Sequence[str]) -> Iterator[str]:
    yield f"<p class=found>{html.escape(finding.text)}</p><ul class=parts>"
    for part in finding.parts:
        sign = f'<span class="sign {_CLASSES[part.verdict]}" title="{part.verdict}">{_SIGNS[part.verdict]}</span>'
        yield f"<li>{sign}<span>{html.escape(part.text)}</span></li>"
    yield "</ul>"
    yield from figures
    yield f"<p class=limits><strong>Limits.</strong> {html.escape(finding.limits)}</p>"
    yield "<details><summary>All numbers</summary><table>"
    yield from _rows(finding.numbers)
    yield "</table></details>"


def _rows(numbers: Mapping[str, Any]) -> Iterator[str]:
    for name, value in numbers.items():
        yield f"<tr><th scope=row>{html.escape(str(name))}</th><td>{html.escape(_shown(value))}</td></tr>"


def _shown(value: Any) -> str:
    """Format a value with few digits; `lab.json` has all of them."""
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "–"}[value]
    if isinstance(value, Mapping):
        return ", ".join(f"{name}: {_shown(one)}" for name, one in value.items())
    if hasattr(value, "tolist"):
        return _shown(value.tolist())
    if isinstance(value, list | tuple):
        some = [_shown(one) for one in value[:_LONG]]
        return f"[{', '.join(some)}{', …' if len(value) > _LONG else ''}]"
    return f"{value:,.5g}" if isinstance(value, float) else str(value)


def _linked(source: str) -> str:
    """Return the source with arXiv numbers as links."""
    return re.sub(r"arXiv:(\d{4}\.\d{4,5})", r'<a href="https://arxiv.org/abs/\1">\g<0></a>', html.escape(source))


def _machine(about: Mapping[str, Any]) -> str:
    return f"{made_on(about)} The numbers in full are in lab.json beside this page."
