"""Measure cases one after another, and save what is finished at once."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from regard.errors import InputError, MissingExtraError
from regard.files import write_atomically
from regard.hub import BundledModelError
from regard_bench.machine_peak import PeakMeter
from regard_bench.page import page
from regard_bench.report import as_json, regressions, write_json
from regard_bench.rows import Case, Effort, Row
from regard_bench.shares import Peaks

__all__ = ["chosen", "confirmed", "measure"]


def chosen(cases: Sequence[Case], names: Sequence[str]) -> list[Case]:
    """Return the cases of these names, in the order of the list; all of them without a name.

    Raises:
        InputError: There is no such case.
    """
    known = [one.name for one in cases]
    for name in names:
        if name not in known:
            raise InputError(f"there is no case {name!r}; there are {', '.join(known)}")
    return [one for one in cases if not names or one.name in names]


def measure(
    cases: Sequence[Case], effort: Effort, out: Path, about: Mapping[str, Any], meter: PeakMeter
) -> Iterator[Row]:
    """Yield each row as soon as it is measured; after each case `out` and its page have all so far.

    Under "took" `out` has the seconds of each case. The meter samples the machine's limits before and after each case,
    so that shares of them are those of the same run. A case whose packages or models are missing yields one row with
    the reason.
    """
    rows: list[Row] = []
    took: dict[str, float] = {}
    _write(out, rows, about, Peaks())  # an output that cannot be written is refused now
    effort.progress("the machine's limits")
    meter.sample()
    for case in cases:
        begin = time.perf_counter()
        for row in _rows(case, effort):
            rows.append(row)
            yield row
        took[case.name] = round(time.perf_counter() - begin, 1)
        meter.sample()
        _write(out, rows, {**about, "took": took}, meter.peaks())


def confirmed(
    worse: Sequence[tuple[Row, float]], cases: Sequence[Case], effort: Effort, before: Mapping[str, Any]
) -> list[tuple[Row, float]]:
    """Measure what looks worse than before once more, three times as long: a neighbour may be noisy."""
    names = {row.origin for row, _ in worse}
    keys = {row.key for row, _ in worse}
    longer = replace(effort, max_seconds=3 * effort.max_seconds, only=keys)
    rows = [row for case in cases if case.name in names for row in _rows(case, longer) if row.key in keys]
    return regressions(rows, before)


def _rows(case: Case, effort: Effort) -> Iterator[Row]:
    """Yield the rows of a case, each with its name; one with the reason where a package or a model is missing."""
    try:
        for row in case.rows(effort):
            yield replace(row, origin=case.name)
    except (MissingExtraError, BundledModelError) as missing:
        yield Row(case.name, "", "", why=str(missing), origin=case.name)


def _write(out: Path, rows: Sequence[Row], about: Mapping[str, Any], peaks: Peaks) -> None:
    write_json(out, rows, about, peaks)
    write_atomically(out.with_suffix(".html"), page(as_json(rows, about, peaks)).encode())
