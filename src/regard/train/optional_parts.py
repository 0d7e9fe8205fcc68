"""Parts of a run that it can do without: samples, BLEU, figures. One that fails is left out, with a sentence."""

from collections.abc import Iterator
from contextlib import contextmanager

from regard.errors import RegardError

__all__ = ["optional_part", "reason_of"]

_LONGEST = 300  # characters of a reason


@contextmanager
def optional_part(name: str, warnings: list[str]) -> Iterator[None]:
    """Leave out what fails inside, and append a warning that names it and the reason; Ctrl-C still stops.

    >>> warnings = []
    >>> with optional_part("alignment.svg", warnings):
    ...     raise OSError("no space left on device")
    >>> warnings
    ['alignment.svg is left out: OSError: no space left on device']
    """
    try:
        yield
    except Exception as problem:
        warnings.append(f"{name} is left out: {reason_of(problem)}")


def reason_of(problem: Exception) -> str:
    """Return an error as one line, with its type where it is none of regard's."""
    text = " ".join(str(problem).split())[:_LONGEST]
    return text if isinstance(problem, RegardError) else f"{type(problem).__name__}: {text}"
