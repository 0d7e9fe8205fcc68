"""Save the results of a run of the lab as lab.json and index.html, atomically."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from regard.errors import InputError
from regard.files import write_atomically
from regard_lab.experiment import Setting
from regard_lab.machine import here
from regard_lab.page import page
from regard_lab.running import Result

__all__ = ["about", "as_json", "plain", "write"]

_VERSION = 1


def write(folder: Path, results: Sequence[Result], setting: Setting, *, planned: int) -> None:
    """Save both files for the results so far, of `planned` ones, and make the folder if necessary.

    Raises:
        InputError: The folder cannot be made or is not writable.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise InputError(f"`--output-dir` must be a folder, {folder} cannot be made: {problem.strerror}") from problem
    about_run = about(setting)
    text = json.dumps(as_json(results, about_run, planned=planned), ensure_ascii=False, indent=1, allow_nan=False)
    write_atomically(folder / "lab.json", (text + "\n").encode())
    write_atomically(folder / "index.html", page(results, about_run, planned=planned).encode())


def about(setting: Setting) -> dict[str, Any]:
    """Return date, settings, versions and machine of the run."""
    return {"quick": setting.quick, "seed": setting.seed, **here(setting.threads)}


def as_json(results: Sequence[Result], about_run: Mapping[str, Any], *, planned: int) -> dict[str, Any]:
    """Return all results as plain values; `planned` is their number in a run that is not interrupted."""
    return {"version": _VERSION, **about_run, "planned": planned, "claims": [_result(one) for one in results]}


def _result(result: Result) -> dict[str, Any]:
    claim = result.claim
    found: dict[str, Any] = {
        "number": claim.number,
        "name": claim.name,
        "title": claim.title,
        "statement": claim.statement,
        "source": claim.source,
        "seconds": round(result.seconds, 2),
    }
    if result.finding is None:
        return {**found, "verdict": None, "problem": result.problem, "trace": result.trace}
    finding = result.finding
    return {
        **found,
        "verdict": str(finding.verdict),
        "key": finding.key,
        "parts": [{"text": part.text, "verdict": str(part.verdict)} for part in finding.parts],
        "text": finding.text,
        "limits": finding.limits,
        "numbers": plain(finding.numbers),
    }


def plain(value: Any) -> Any:
    """Convert a value to JSON types: NumPy's numbers to Python's, and numbers that are not finite to text.

    >>> plain({"a": (1, float("inf")), 3: float("nan")})
    {'a': [1, 'inf'], '3': 'nan'}
    """
    if isinstance(value, Mapping):
        return {str(name): plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
