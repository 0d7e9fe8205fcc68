"""Softmaxes over scores whose weights cannot be recorded, and the reasons."""

from collections.abc import Callable, Iterable

from regard.capture.intercept.follow_weights import Softmax
from regard.capture.missing_attention import Caller

__all__ = ["BY_HAND", "NEGATIVE", "ONE_BY_ONE", "OTHER_SUM", "REARRANGED", "UNKNOWN", "Verdicts"]

REARRANGED = (
    "rearranges its weights (in bands or blocks), takes them apart or puts them together before they meet the values, "
    "so they cannot be shown as queries × keys"
)
NEGATIVE = "has weights below 0 after the softmax (one is taken from another), which cannot be shown as weights"
ONE_BY_ONE = "multiplies its weights with the values one by one and sums, without a product of both"
OTHER_SUM = "sums its weights over another dimension than its softmax runs over, so they are no weights of each query"
UNKNOWN = (
    "hands its weights, together with other activations, to {}, which is not looked into: let it multiply them by "
    "torch.matmul"
)
BY_HAND = "makes its weights by exp and a sum instead of a softmax: let it call torch.softmax"


class Verdicts:
    """Reports softmaxes to `miss`, each once: immediately, or at the end if they are only suspected."""

    def __init__(self, miss: Callable[[Caller, str], None]) -> None:
        self._miss = miss
        self._suspects: list[Softmax] = []

    def fail(self, softmaxes: Iterable[Softmax], reason: str) -> None:
        """Report softmaxes whose weights were used in an unsupported way."""
        for softmax in softmaxes:
            if not softmax.used and not softmax.missed:
                softmax.missed = True
                self._miss(softmax.caller, reason)

    def suspect(self, softmaxes: Iterable[Softmax], reason: str) -> None:
        """Store softmaxes whose weights were passed to a function that is not analyzed."""
        for softmax in softmaxes:
            if softmax.suspect is None:
                softmax.suspect = reason
                self._suspects.append(softmax)

    def finish(self) -> None:
        """Report the suspected softmaxes whose weights were used nowhere else."""
        for softmax in self._suspects:
            self.fail((softmax,), softmax.suspect or "")
