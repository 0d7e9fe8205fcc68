"""Results as JSON and as tables, and regressions against an earlier run."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from regard.errors import InputError
from regard.files import write_atomically
from regard_bench.rows import Row
from regard_bench.shares import Peaks, shown_peaks, shown_share
from regard_bench.timing import Ratio

__all__ = [
    "as_json", "limits_table", "processor", "read", "regressions", "shown", "shown_ratio", "table", "targets_table",
    "write_json",
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


def table(columns: Mapping[str, Mapping[str, Any]], cases: Sequence[str] = (), *, with_targets: bool = False) -> str:
    """Return a table in Markdown of the results of several runs, a column each.

    The rows are those of `cases`, or all. Shares of the machine's limit have a column beside the figures, and targets
    if requested. A run that has none of the rows has no column.

    >>> row = {"case": "full", "at": "512 tokens", "what": "time / SDPA's", "unit": "×", "why": ""}
    >>> row |= {"median": 1.004, "low": 0.99, "high": 1.01, "rounds": 9}
    >>> print(table({"One": {"rows": [row]}, "Other": {"rows": [row | {"median": None}]}, "None": {"rows": []}}))
    | case | at | what | One | Other |
    |---|---|---|---:|---:|
    | full | 512 tokens | time / SDPA's | 1.00 × (0.99 – 1.01) | not measured |
    >>> print(table({"One": {"rows": [row | {"target": "≤ 1.1"}]}}, with_targets=True))
    | case | at | what | target | One |
    |---|---|---|---:|---:|
    | full | 512 tokens | time / SDPA's | ≤ 1.1 | 1.00 × (0.99 – 1.01) |
    """
    runs = {name: rows for name, results in columns.items() if (rows := _by_key(results, cases))}
    with_shares = [name for name, rows in runs.items() if any(row.get("share") for row in rows.values())]
    heads = ["case", "at", "what", *["target"] * with_targets]
    for name in runs:
        heads += [name, "share of its limit"] if name in with_shares else [name]
    lines = [f"| {' | '.join(heads)} |", f"|---|---|---|{'---:|' * (len(heads) - 3)}"]
    for key in dict.fromkeys(key for rows in runs.values() for key in rows):
        cells = list(key)
        if with_targets:
            cells.append(next((rows[key]["target"] for rows in runs.values() if key in rows), None) or "")
        for name, rows in runs.items():
            row = rows.get(key)
            cells.append(_figure(row))
            if name in with_shares:
                share = row and row.get("share")
                cells.append(shown_share(share) if share else "")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def targets_table(columns: Mapping[str, Mapping[str, Any]], cases: Sequence[str] = ()) -> str:
    """Return a table in Markdown of the targets, with the outcome of each run, and above it the number of each outcome.

    Sizes of a case that have the same target share a row.

    >>> row = {"case": "full", "at": "512 tokens", "what": "time / SDPA's", "target": "≤ 0.8", "outcome": "missed"}
    >>> rows = [row, row | {"at": "1,024 tokens"}, row | {"at": "2,048 tokens", "outcome": "reached"}]
    >>> print(targets_table({"One": {"rows": rows}, "Other": {"rows": []}}))
    - One: 1 of 3 targets reached, 2 not reached.
    - Other: nothing was measured.
    <BLANKLINE>
    | case | what | target | One | Other |
    |---|---|---:|---|---|
    | full | time / SDPA's | ≤ 0.8 | not reached: 512 / 1,024 tokens; reached: 2,048 tokens | not measured |
    """
    runs = {name: _by_key(results, cases) for name, results in columns.items()}
    sizes: dict[tuple[str, str, str], dict[str, None]] = {}
    for rows in runs.values():
        for (case, at, what), row in rows.items():
            if row["target"]:
                sizes.setdefault((case, what, row["target"]), {})[at] = None
    lines = [f"- {name}: {_counts(rows.values())}." for name, rows in runs.items()]
    lines += ["", f"| case | what | target | {' | '.join(runs)} |", f"|---|---|---:|{'---|' * len(runs)}"]
    for (case, what, target), lengths in sizes.items():
        cells = [_outcomes({at: rows.get((case, at, what)) for at in lengths}) for rows in runs.values()]
        lines.append(f"| {case} | {what} | {target} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _by_key(results: Mapping[str, Any], cases: Sequence[str]) -> dict[tuple[str, str, str], Mapping[str, Any]]:
    rows = results["rows"]
    if cases:
        rows = [row for case in cases for row in rows if row["case"] == case]
    return {(row["case"], row["at"], row["what"]): row for row in rows}


def _figure(row: Mapping[str, Any] | None) -> str:
    if row is None or row["median"] is None:
        return (row and row["why"]) or "not measured"
    return shown(row)


_OUTCOMES = {"missed": "not reached", "inconclusive": "inconclusive", "reached": "reached", None: "not measured"}


def _counts(rows: Iterable[Mapping[str, Any]]) -> str:
    outcomes = [row["outcome"] for row in rows if row["target"] and row["outcome"]]
    if not outcomes:
        return "nothing was measured"
    others = [f"{outcomes.count(name)} {_OUTCOMES[name]}" for name in ("missed", "inconclusive") if name in outcomes]
    return ", ".join([f"{outcomes.count('reached')} of {len(outcomes)} targets reached", *others])


def _outcomes(rows: Mapping[str, Mapping[str, Any] | None]) -> str:
    """Return the outcomes of one target at several sizes: "not reached: 512 / 1,024 tokens; reached: 4,096 tokens"."""
    at = {outcome: [size for size, row in rows.items() if (row and row["outcome"]) == outcome] for outcome in _OUTCOMES}
    at = {outcome: sizes for outcome, sizes in at.items() if sizes}
    if len(at) == 1:
        return _OUTCOMES[next(iter(at))]
    return "; ".join(f"{_OUTCOMES[outcome]}: {_sizes(sizes)}" for outcome, sizes in at.items())


def _sizes(sizes: Sequence[str]) -> str:
    """Join sizes, with their unit once.

    >>> _sizes(["512 tokens", "1,024 tokens"])
    '512 / 1,024 tokens'
    """
    units = {size.partition(" ")[2] for size in sizes}
    if len(units) > 1:
        return " / ".join(sizes)
    return f"{' / '.join(size.partition(' ')[0] for size in sizes)} {units.pop()}".strip()


def shown(row: Mapping[str, Any]) -> str:
    """Return the measurement of a row in the JSON as text."""
    return shown_ratio(Ratio(row["median"], row["low"], row["high"], row["rounds"]), row["unit"])


def limits_table(columns: Mapping[str, Mapping[str, Any]]) -> str:
    """Return a table in Markdown of the limits of several runs; nothing where no run has measured them."""
    limits = {name: shown_peaks(results["peaks"]) for name, results in columns.items() if "peaks" in results}
    if not limits:
        return ""
    lines = [f"| limit | {' | '.join(columns)} |", f"|---|{'---:|' * len(columns)}"]
    for limit in dict.fromkeys(limit for shown in limits.values() for limit in shown):
        cells = [limits.get(name, {}).get(limit, "not measured") for name in columns]
        lines.append(f"| {limit} | {' | '.join(cells)} |")
    return "\n".join(lines)


def processor(results: Mapping[str, Any]) -> str:
    """Return the name of a run's processor."""
    return str(results["machine"]["cpu"]).replace("(R)", "").replace(" Processor", "")


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
