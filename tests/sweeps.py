"""Many cases in one test: each runs, and the failure names those that went wrong."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NoReturn

import pytest

__all__ = ["sweep"]


def sweep(cases: Iterable[Any], name: Callable[[Any], str] = str) -> Iterator["Case"]:
    """Yield each case as a context that gives its value; after the last, fail with the names of those that failed.

    A failure inside a context does not end the sweep, so that one run names every case that is wrong. A skip ends it,
    and hides no failure before it.

    >>> for case in sweep([1, 2]):
    ...     with case as number:
    ...         assert number > 0
    """
    failures: list[tuple[str, BaseException]] = []
    count = 0
    for value in cases:
        count += 1
        yield Case(value, name(value), failures, count)
    if count == 0:
        pytest.fail("the sweep has no case", pytrace=False)
    if failures:
        report(failures, count)


def report(failures: list[tuple[str, BaseException]], count: int) -> NoReturn:
    """Fail with the names of the cases that failed, and the error of the first."""
    label, error = failures[0]
    names = ", ".join(label for label, _ in failures[:20])
    raise AssertionError(f"{len(failures)} of {count} cases fail: {names}\n{label}: {error!r}") from error


class Case:
    """One case of a sweep: a context manager that keeps a failure for the end of the sweep."""

    def __init__(self, value: Any, name: str, failures: list[tuple[str, BaseException]], number: int) -> None:
        self.value, self.name, self.failures, self.number = value, name, failures, number

    def __enter__(self) -> Any:
        return self.value

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> bool:
        if isinstance(error, Exception | pytest.fail.Exception):
            self.failures.append((self.name, error))
            return True
        if isinstance(error, pytest.skip.Exception) and self.failures:
            report(self.failures, self.number)
        return False
