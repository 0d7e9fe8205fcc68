"""The choice among backends, and why it fell as it did."""

import html
from dataclasses import dataclass

import torch

from regard.backends.base import Backend
from regard.backends.blockwise import Blockwise
from regard.backends.chunked_sdpa import Split
from regard.backends.derivatives import lacks_derivative
from regard.backends.flex import Flex
from regard.backends.numba_loops import Compiled
from regard.backends.plan_cache import covered
from regard.backends.reference import Reference
from regard.backends.sdpa import Sdpa
from regard.backends.triton_additive import AdditiveTriton
from regard.errors import InputError
from regard.problem import Problem
from regard.shapes import human_bytes

__all__ = ["BACKENDS", "BY_NAME", "Explanation", "check_name", "choose", "explain"]

# `auto` takes the one with the least work of those that do not refuse; the first of equals.
_FORMULA = Reference()
BACKENDS: tuple[Backend, ...] = (Sdpa(), Blockwise(), _FORMULA)
# These are for a few kinds of calls alone, and nothing is faster for them; what they refuse is not worth a word.
SHORTCUTS: tuple[Backend, ...] = (Split(),)
# These run where they are requested, by name or `use_backend`: `auto` takes what needs only PyTorch and was measured.
BY_NAME: tuple[Backend, ...] = (Compiled(), Flex(), AdditiveTriton())


_WHOLE = 2**24  # pairs of which compiled code holds tensors rather than leave the graph


@dataclass(frozen=True)
class Explanation:
    """Which backend runs a call, why the others do not, and what it costs."""

    backend: str | None
    refusals: tuple[tuple[str, str], ...]
    slower: tuple[tuple[str, float], ...]  # backends that could run it, and how many times the work it is to them
    flops: int
    bytes: int
    share: float
    asked: str = "auto"

    def __str__(self) -> str:
        nobody = "no backend can run it" if self.asked == "auto" else f"{self.asked} cannot run it"
        head = f"{self.backend} runs it" if self.backend else nobody
        lines = [head, *(f"{name} refused: {reason}" for name, reason in self.refusals)]
        lines += [f"{name} could, with about {times:.1f} × the work" for name, times in self.slower]
        if self.backend:
            lines.append(
                f"{self.flops / 1e9:.3g} GFLOP in the {_percent(self.share)} of blocks of 128 × 128 that hold a "
                f"visible pair, {human_bytes(self.bytes)} besides the output"
            )
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """The same lines for a notebook."""
        head, *rest = (html.escape(line) for line in str(self).splitlines())
        return f"<p><strong>{head}</strong></p><ul>{''.join(f'<li>{line}</li>' for line in rest)}</ul>"


def _percent(share: float) -> str:
    """Two digits where it is little."""
    return f"{share:.0%}" if share >= 0.1 else f"{100 * share:.2g}%"


def named() -> dict[str, Backend]:
    """Every backend by its name."""
    return {one.name: one for one in (*BACKENDS, *SHORTCUTS, *BY_NAME)}


def choose(problem: Problem, backend: str = "auto", prefers: str = "auto") -> Backend:
    """Return the named backend, or the preferred one, or the one with the least work; raise if none is left.

    The error gives the reason of each backend. If there is no sequence or no head, the formula computes the empty
    result.
    """
    check_name(backend)
    if problem.is_empty:
        return _FORMULA
    if backend == "auto":
        if prefers != "auto" and _refuses(named()[prefers], problem) is None:
            return named()[prefers]
        if not torch.compiler.is_compiling():
            for first in (*SHORTCUTS, BACKENDS[0]):
                if _refuses(first, problem) is None and first.work(problem) == 0:
                    return first  # none has less
        ready, refusals = _ready(problem)
        if not ready:
            reasons = "; ".join(f"{name}: {reason}" for name, reason in refusals)
            raise InputError(f"no backend can run this call ({reasons}): raise `max_bytes` or shorten it")
        return _fastest(ready, problem)
    reason = _refuses(named()[backend], problem)
    if reason is not None:
        raise InputError(f'the backend {backend!r} cannot run this call: {reason}; backend="auto" takes one that can')
    return named()[backend]


def _refuses(one: Backend, problem: Problem) -> str | None:
    """What a backend says, and before that which derivative the formula alone has."""
    return (None if one is _FORMULA else lacks_derivative(problem)) or one.refuses(problem)


def check_name(backend: object) -> None:
    """Raise an InputError that lists the names if it is none of them."""
    if not isinstance(backend, str) or (backend != "auto" and backend not in named()):
        raise InputError(f'`backend` must be "auto" or one of {", ".join(named())}, got {backend!r}')


def explain(problem: Problem, backend: str = "auto", prefers: str = "auto") -> Explanation:
    """Explain the choice for a problem without computing it."""
    check_name(backend)
    if problem.is_empty:
        return Explanation(_FORMULA.name, (), (), flops=0, bytes=0, share=0.0, asked=backend)
    unwilling: list[tuple[str, str]] = []
    if backend == "auto" and prefers != "auto":
        reason = _refuses(named()[prefers], problem)
        backend = prefers if reason is None else backend
        unwilling = [] if reason is None or prefers in {one.name for one in BACKENDS} else [(prefers, reason)]
    ready, refusals = _ready(problem)
    ready += [one for one in BY_NAME if one.name == backend and _refuses(one, problem) is None]
    unsaid = (*SHORTCUTS, *BY_NAME)
    refusals = unwilling + refusals
    refusals += [(one.name, reason) for one in unsaid if one.name == backend and (reason := _refuses(one, problem))]
    if backend != "auto":
        ready = [one for one in ready if one.name == backend]
        refusals = [one for one in refusals if one[0] == backend]
    chosen = _fastest(ready, problem) if ready else None
    slower = [] if chosen is None else [(one.name, _times(one, chosen, problem)) for one in ready if one is not chosen]
    share = covered(problem).share
    pairs = problem.batch * problem.heads * problem.queries * problem.keys
    flops = int(2 * pairs * (problem.q.shape[-1] + problem.v.shape[-1]) * share)
    return Explanation(
        chosen.name if chosen else None,
        tuple(refusals),
        tuple(slower),
        flops,
        chosen.bytes(problem) if chosen else 0,
        share,
        backend,
    )


def _ready(problem: Problem) -> tuple[list[Backend], list[tuple[str, str]]]:
    """The backends that can run a problem, and what the others say."""
    ready = [one for one in SHORTCUTS if _refuses(one, problem) is None]
    refusals = []
    for candidate in BACKENDS:
        reason = _refuses(candidate, problem)
        if reason is None:
            ready.append(candidate)
        else:
            refusals.append((candidate.name, reason))
    return ready, refusals


def _fastest(ready: list[Backend], problem: Problem) -> Backend:
    if len(ready) == 1:
        return ready[0]
    if torch.compiler.is_compiling():
        return _compiled(ready, problem)
    best, least = ready[0], ready[0].work(problem)
    for candidate in ready[1:]:
        if least == 0:
            break
        if (work := candidate.work(problem)) < least:
            best, least = candidate, work
    return best


def _compiled(ready: list[Backend], problem: Problem) -> Backend:
    """A compiler does not follow the planning of blocks: whole tensors where they are small, blocks eagerly if not."""
    blocks = [one for one in ready if isinstance(one, Blockwise)]
    whole = [one for one in ready if not isinstance(one, Blockwise)]
    small = problem.batch * problem.heads * problem.queries * problem.keys <= _WHOLE
    if whole and (small or not blocks or whole[0].bytes(problem) == 0):
        return whole[0]
    return blocks[0]


def _times(one: Backend, chosen: Backend, problem: Problem) -> float:
    """How many times the work; nothing is counted for a plain call of the fused kernel, which is never passed over."""
    pairs = problem.batch * problem.heads * problem.queries * problem.keys
    return (one.work(problem) or pairs) / (chosen.work(problem) or pairs)
