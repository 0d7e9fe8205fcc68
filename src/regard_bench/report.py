"""Results as JSON and as tables, and regressions against an earlier run."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from regard.errors import InputError
from regard.files import write_atomically
from regard_bench.rows import Row
from regard_bench.shares import Peaks, shown_peaks, shown_share
from regard_bench.timing import Ratio

__all__ = [
    "as_json", "limits_table", "read", "regressions", "share_of", "shown", "shown_ratio", "table", "write_json",
]  # fmt: skip

_VERSION = 2  # 1 had other words for outcomes
WORSE = 1.25  # times: what counts as a regression
_UNKNOWN = Peaks()


def as_json(rows: Iterable[Row], about: Mapping[str, Any], peaks: Peaks = _UNKNOWN) -> dict[str, Any]:
    """Return everything that was measured; `about` describes the machine, and `peaks` are its limits."""
    return {"version": _VERSION, **about, "peaks": peaks.as_json(), "rows": [_row(one, peaks) for one in rows]}


def write_json(path: Path, rows: Iterable[Row], about: Mapping[str, Any], peaks: Peaks = _UNKNOWN) -> None:
    """Save the results, whole or not at all.

    Raises:
        InputError: The file cannot be written.
    """
    text = json.dumps(as_json(rows, about, peaks), ensure_ascii=False, indent=1, allow_nan=False)
    write_atomically(path, (text + "\n").encode())


def read(path: Path) -> dict[str, Any]:
    """Return results that `write_json` saved.

    Raises:
        InputError: It cannot be read, or is no such file.
    """
    try:
        found = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as problem:
        raise InputError(f"cannot read the results in {path}: {problem}") from problem
    if not isinstance(found, dict) or found.get("version") != _VERSION or not isinstance(found.get("rows"), list):
        raise InputError(f"{path} has no results of `regard bench` of version {_VERSION}: measure again")
    return found


def regressions(rows: Sequence[Row], before: Mapping[str, Any]) -> list[tuple[Row, float]]:
    """Return the rows that are worse than an earlier run by a quarter, beyond both spreads, and how many times.

    Only ratios are compared, so that the runs may come from different machines with the same processor. Between
    processors ratios differ: products in bfloat16 take 0.4 of float32's time on one, and 1.6 times as long on another.
    """
    earlier = {one["key"]: one for one in before["rows"] if one["median"] is not None}
    worse = []
    for row in rows:
        then = earlier.get(row.key)
        if row.ratio is None or then is None or row.unit != "×":
            continue
        better_up = row.what.endswith("/ time") if row.target is None else row.target.least
        times = then["low"] / row.ratio.high if better_up else row.ratio.low / then["high"]
        if times > WORSE:
            worse.append((row, times))
    return worse


def table(
    machines: Sequence[Mapping[str, Any]],
    chosen: Sequence[tuple[str, str, str]] = (),
    words: Mapping[str, str] | None = None,
    *,
    more: Callable[[Mapping[str, Any]], str] = lambda _: "",
) -> str:
    """Return a table in Markdown of the results of several machines, a column each; `words` translates.

    The rows are those of the `chosen` (case, at, what), or all. A figure that does not reach its target says so. `more`
    gives what a cell has after it.

    >>> row = {"case": "full", "at": "512 tokens", "what": "time / SDPA's", "target": "≤ 0.8", "outcome": "missed"}
    >>> row |= {"median": 1.004, "low": 0.99, "high": 1.01, "rounds": 9, "unit": "×", "why": ""}
    >>> print(table([{"machine": {"cpu": "One"}, "rows": [row]}, {"machine": {"cpu": "Other"}, "rows": []}]))
    | case | at | what | target | One | Other |
    |---|---|---|---:|---:|---:|
    | full | 512 tokens | time / SDPA's | ≤ 0.8 | 1.00 × (0.99 – 1.01), missed | not measured |
    """
    translated = dict(words or {})

    def word(text: str) -> str:
        return translated.get(text, text)

    def cell(row: Mapping[str, Any] | None) -> str:
        if row is None or row["median"] is None:
            return word((row and row["why"]) or "not measured")
        outcome = str(row["outcome"] or "")
        return shown(row) + (f", {word(outcome)}" if outcome in ("missed", "inconclusive") else "") + more(row)

    names = _names(machines)
    heads = [word(one) for one in ("case", "at", "what", "target")] + names
    lines = [f"| {' | '.join(heads)} |", f"|---|---|---|{'---:|' * (1 + len(names))}"]
    measured = [{(row["case"], row["at"], row["what"]): row for row in one["rows"]} for one in machines]
    for key in dict.fromkeys(chosen or (key for one in measured for key in one)):
        found = [one.get(key) for one in measured]
        target = next((one["target"] for one in found if one and one["target"]), "")
        cells = [*map(word, key), target, *map(cell, found)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def shown(row: Mapping[str, Any]) -> str:
    """Return the measurement of a row in the JSON as text."""
    return shown_ratio(Ratio(row["median"], row["low"], row["high"], row["rounds"]), row["unit"])


def share_of(row: Mapping[str, Any]) -> str:
    """Return what a cell adds of the share of the machine's limit; nothing where it is not known, as in old files."""
    share = row.get("share")
    return f"; {shown_share(share)}" if share else ""


def limits_table(machines: Sequence[Mapping[str, Any]]) -> str:
    """Return a table in Markdown of the limits of several machines; nothing where no run has measured them."""
    if not any("peaks" in one for one in machines):
        return ""
    found = [shown_peaks(one["peaks"]) if "peaks" in one else {} for one in machines]
    lines = [f"| limit | {' | '.join(_names(machines))} |", f"|---|{'---:|' * len(machines)}"]
    names = dict.fromkeys(name for one in found for name in one)
    lines += [f"| {name} | {' | '.join(one.get(name, 'not measured') for one in found)} |" for name in names]
    return "\n".join(lines)


def _names(machines: Sequence[Mapping[str, Any]]) -> list[str]:
    return [one["machine"]["cpu"].replace("(R)", "").replace(" Processor", "") for one in machines]


def shown_ratio(ratio: Ratio, unit: str) -> str:
    """Return a ratio and the interval of its median as text.

    >>> shown_ratio(Ratio(1.021, 1.012, 1.03, 20), "×")
    '1.02 × (1.01 – 1.03)'
    """
    spread = "" if ratio.low == ratio.high else f" ({_digits(ratio.low)} – {_digits(ratio.high)})"
    return f"{_digits(ratio.median)}{' ' * bool(unit)}{unit}{spread}"


def _digits(number: float) -> str:
    """Three digits, or whole."""
    return f"{number:.0f}" if abs(number) >= 100 else f"{number:.1f}" if abs(number) >= 10 else f"{number:.2f}"


def _row(row: Row, peaks: Peaks) -> dict[str, Any]:
    ratio = row.ratio
    return {
        "key": row.key,
        "case": row.case,
        "at": row.at,
        "what": row.what,
        "size": row.size,
        "median": None if ratio is None else ratio.median,
        "low": None if ratio is None else ratio.low,
        "high": None if ratio is None else ratio.high,
        "rounds": None if ratio is None else ratio.rounds,
        "unit": row.unit,
        "target": None if row.target is None else str(row.target),
        "outcome": None if row.outcome is None else str(row.outcome),
        "seconds": dict(row.seconds),
        "why": row.why,
        "work": None if row.work is None else vars(row.work),
        "rate": None if row.rate is None else vars(row.rate),
        "share": _share(row, peaks),
    }


def _share(row: Row, peaks: Peaks) -> dict[str, Any] | None:
    share = None if row.work is None or row.rate is None else peaks.share(row.work, row.rate)
    if row.work is None or share is None:
        return None
    return {"of": row.work.resource, **vars(share), "in_cache": peaks.fits_cache(row.work)}
