"""Results as JSON and as tables, and regressions against an earlier run."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from regard.errors import InputError
from regard.files import write_atomically
from regard_bench.rows import Row
from regard_bench.timing import Ratio

__all__ = ["as_json", "read", "regressions", "shown", "shown_ratio", "table", "write_json"]

_VERSION = 2  # 1 had other words for outcomes
WORSE = 1.25  # times: what counts as a regression


def as_json(rows: Iterable[Row], about: Mapping[str, Any]) -> dict[str, Any]:
    """Return everything that was measured; `about` describes the machine."""
    return {"version": _VERSION, **about, "rows": [_row(one) for one in rows]}


def write_json(path: Path, rows: Iterable[Row], about: Mapping[str, Any]) -> None:
    """Save the results, whole or not at all.

    Raises:
        InputError: The file cannot be written.
    """
    text = json.dumps(as_json(rows, about), ensure_ascii=False, indent=1, allow_nan=False)
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


def table(rows: Iterable[Mapping[str, Any]], words: Mapping[str, str] | None = None) -> str:
    """Return a table in Markdown of the rows in the JSON; `words` translates its heads and outcomes.

    >>> ratio = {"median": 1.004, "low": 0.99, "high": 1.01, "rounds": 9, "unit": "×"}
    >>> row = {"case": "full", "at": "512 tokens", "what": "time / SDPA's", **ratio}
    >>> print(table([{**row, "target": "≤ 1.02", "outcome": "reached", "why": ""}]))
    | case | at | what | measured | target | outcome |
    |---|---|---|---:|---:|---|
    | full | 512 tokens | time / SDPA's | 1.00 × (0.99 – 1.01) | ≤ 1.02 | reached |
    """
    translated = dict(words or {})

    def word(text: str) -> str:
        return translated.get(text, text)

    heads = [word(one) for one in ("case", "at", "what", "measured", "target", "outcome")]
    lines = [f"| {' | '.join(heads)} |", "|---|---|---|---:|---:|---|"]
    for row in rows:
        measured = row["why"] or "not measured" if row["median"] is None else shown(row)
        cells = row["case"], row["at"], row["what"], measured, row["target"] or "", row["outcome"] or ""
        lines.append(f"| {' | '.join(word(one) for one in cells)} |")
    return "\n".join(lines)


def shown(row: Mapping[str, Any]) -> str:
    """Return the measurement of a row in the JSON as text."""
    return shown_ratio(Ratio(row["median"], row["low"], row["high"], row["rounds"]), row["unit"])


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


def _row(row: Row) -> dict[str, Any]:
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
    }
