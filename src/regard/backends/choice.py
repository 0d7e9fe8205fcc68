"""The choice among backends, and why it fell as it did."""

from dataclasses import dataclass

from regard.backends.base import Backend
from regard.backends.reference import Reference
from regard.backends.sdpa import Sdpa
from regard.errors import InputError
from regard.problem import Problem
from regard.shapes import human_bytes

__all__ = ["BACKENDS", "Explanation", "choose", "explain"]

# Fastest first; `auto` takes the first that does not refuse.
BACKENDS: tuple[Backend, ...] = (Sdpa(), Reference())


@dataclass(frozen=True)
class Explanation:
    """Which backend runs a call, why the others do not, and what it costs."""

    backend: str | None
    refusals: tuple[tuple[str, str], ...]
    flops: int
    bytes: int
    share: float

    def __str__(self) -> str:
        head = f"{self.backend} runs it" if self.backend else "no backend can run it"
        lines = [head, *(f"{name} refused: {reason}" for name, reason in self.refusals)]
        if self.backend:
            lines.append(
                f"{self.flops / 1e9:.3g} GFLOP useful, {human_bytes(self.bytes)} besides the output, "
                f"{self.share:.0%} of the blocks of 128 × 128 hold a visible pair"
            )
        return "\n".join(lines)


def choose(problem: Problem, backend: str = "auto") -> Backend:
    """Take the named backend, or the first that does not refuse; raise with every reason if none is left."""
    if backend == "auto":
        reasons = []
        for candidate in BACKENDS:
            reason = candidate.refuses(problem)
            if reason is None:
                return candidate
            reasons.append(f"{candidate.name}: {reason}")
        raise InputError(f"no backend can run this call ({'; '.join(reasons)}): raise `budget=` (bytes) or shorten it")
    named = {candidate.name: candidate for candidate in BACKENDS}
    if backend not in named:
        raise InputError(f'`backend` must be "auto" or one of {", ".join(named)}, got {backend!r}')
    reason = named[backend].refuses(problem)
    if reason is not None:
        raise InputError(f'the backend {backend!r} cannot run this call: {reason}; backend="auto" takes one that can')
    return named[backend]


def explain(problem: Problem, backend: str = "auto") -> Explanation:
    """Explain the choice for a problem without computing it."""
    candidates = [one for one in BACKENDS if backend in ("auto", one.name)]
    if not candidates:
        choose(problem, backend)  # raises, naming the backends there are
    refusals: list[tuple[str, str]] = []
    chosen: Backend | None = None
    for candidate in candidates:
        reason = candidate.refuses(problem)
        if reason is None:
            chosen = candidate
            break
        refusals.append((candidate.name, reason))
    share = problem.mask.share_visible() if problem.mask else 1.0
    pairs = problem.batch * problem.heads * problem.queries * problem.keys
    flops = int(2 * pairs * (problem.q.shape[-1] + problem.v.shape[-1]) * share)
    return Explanation(
        chosen.name if chosen else None, tuple(refusals), flops, chosen.bytes(problem) if chosen else 0, share
    )
