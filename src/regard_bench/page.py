"""The results as one HTML page: a figure of each case over the length, and every number."""

import html
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from regard_bench.report import shown
from regard_bench.rows import Outcome
from regard_bench.shares import shown_peaks, shown_share
from regard_lab.charts import Line, Lines
from regard_lab.document import document, figure, made_on

__all__ = ["page"]

_SIGNS = {
    Outcome.REACHED: ("✓", "holds"),
    Outcome.MISSED: ("✗", "fails"),
    Outcome.UNSURE: ("≈", "within"),
    Outcome.SEEN: ("·", "gpu"),
}


def page(results: Mapping[str, Any]) -> str:
    """Draw what `report.as_json` gives."""
    rows: list[dict[str, Any]] = results["rows"]
    counts = [(one, sum(row["outcome"] == one for row in rows)) for one in Outcome]
    counts_text = ", ".join(f"{one} {count}" for one, count in counts if count)
    lede = html.escape(
        f"{len(rows)} figures: {counts_text}. Each is a ratio of calls that were timed in turn, with a confidence "
        "interval of its median in brackets. Where the target is within it, the result is inconclusive. Where the "
        "operations or bytes of a call are known, its speed is also given as a share of the machine's limit."
    )
    cases: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        cases.setdefault(row["case"], []).append(row)
    body = [part for at, (case, some) in enumerate(cases.items()) for part in _section(at, case, some)]
    body += _limits(results["peaks"]) if "peaks" in results else ()
    return document("How fast regard is here", lede, body, made_on(results))


def _section(at: int, case: str, rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    yield f"<section><h2>{html.escape(case)}</h2>"
    if (chart := _chart(case, rows)) is not None:
        yield figure(chart, f"b{at}")
    shares = any(row.get("share") for row in rows)
    names = ("at", "what", "measured", *["share of the limit"] * shares, "target")
    heads = "".join(f"<th scope=col>{one}</th>" for one in names)
    yield f"<table><tr>{heads}</tr>"
    for row in rows:
        sign, kind = _SIGNS.get(row["outcome"], ("–", "gpu"))
        measured = row["why"] or "not measured" if row["median"] is None else shown(row)
        word = html.escape(row["outcome"] or "not measured")
        yield (
            f"<tr><td>{html.escape(row['at'])}</td><td>{html.escape(row['what'])}</td>"
            f'<td><span class="sign {kind}" title="{word}">{sign}</span> {html.escape(measured)}</td>'
            f"{_share(row) if shares else ''}"
            f'<td class="short">{html.escape(row["target"] or "")}</td></tr>'
        )
    yield "</table></section>"


def _share(row: Mapping[str, Any]) -> str:
    share = row.get("share")
    return f"<td>{html.escape(shown_share(share)) if share else ''}</td>"


def _limits(peaks: Mapping[str, Any]) -> Iterator[str]:
    """Return the section of the limits that shares are of."""
    yield "<section><h2>The machine's limits</h2>"
    yield (
        "<p>Fused multiply–adds in registers, beside PyTorch's matrix products of 1,024 × 1,024, and memory that is "
        "read; medians of samples before and after each case, on as many threads.</p>"
    )
    yield "<table><tr><th scope=col>limit</th><th scope=col>measured</th></tr>"
    for name, measured in shown_peaks(peaks).items():
        yield f"<tr><td>{html.escape(name)}</td><td>{html.escape(measured)}</td></tr>"
    yield "</table></section>"


def _chart(case: str, rows: Sequence[Mapping[str, Any]]) -> Lines | None:
    """Seconds of all sides over the length, where there are several lengths."""
    sized = [row for row in rows if row["size"] is not None and row["median"] is not None]
    if len({row["size"] for row in sized}) < 2:
        return None
    names = list(dict.fromkeys(name for row in sized for name in row["seconds"]))
    lines = []
    for name in names:
        # Rows of one measurement have the same seconds; of several, the first is drawn.
        points = {float(row["size"]): row["seconds"][name] for row in reversed(sized) if name in row["seconds"]}
        lines.append(Line(name, tuple(sorted(points)), tuple(points[x] for x in sorted(points))))
    return Lines(
        case, "Seconds of a call, medians; lower is faster.", "length", "seconds", tuple(lines), log_across=True,
        log_up=True,
    )  # fmt: skip
