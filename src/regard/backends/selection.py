"""The backends that there are, and why one of them runs a call."""

import html
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from regard.backends import compiled_selection
from regard.backends.base import FEATURES, PREFERRED, Backend, Selection
from regard.backends.blockwise import Blockwise
from regard.backends.chunked_sdpa import Split
from regard.backends.flex import Flex
from regard.backends.native import Native, choice
from regard.backends.reference import Reference
from regard.backends.sdpa import Sdpa
from regard.backends.sharded import Sharded
from regard.problem import Problem
from regard.tensors import human_bytes

__all__ = [
    "BACKENDS",
    "BY_NAME",
    "SELECTION",
    "Explanation",
    "check_name",
    "choose",
    "explain",
    "named",
    "use_backend",
]

_FORMULA = Reference()
_NATIVE = Native()
SELECTION = Selection(
    usual=(Sdpa(), Blockwise(), _FORMULA),
    shortcuts=(_NATIVE, Split()),
    by_name=(Flex(), Sharded()),
    formula=_FORMULA,
)
BACKENDS, BY_NAME = SELECTION.usual, SELECTION.by_name
choose, check_name = SELECTION.choose, SELECTION.check_name


def named() -> dict[str, Backend]:
    """Every backend by its name."""
    return SELECTION.named


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
    sharding: tuple[str, ...] = ()  # what the ranks of a sharded sequence do, in lines
    reasons: tuple[str, ...] = ()  # why `auto` takes a shortcut, or does not, in lines

    def __str__(self) -> str:
        nobody = "no backend can run it" if self.asked == "auto" else f"{self.asked} cannot run it"
        head = f"{self.backend} runs it" if self.backend else nobody
        lines = [head, *self.reasons, *(f"{name} refused: {reason}" for name, reason in self.refusals)]
        lines += [f"{name} could, with about {times:.1f} × the work" for name, times in self.slower]
        if self.backend:
            lines.append(
                f"{self.flops / 1e9:.3g} GFLOP in the {_percent(self.share)} of blocks of 128 × 128 that hold a "
                f"visible pair, {human_bytes(self.bytes)} besides the output"
            )
        return "\n".join([*lines, *self.sharding])

    def _repr_html_(self) -> str:
        """The same lines for a notebook."""
        head, *rest = (html.escape(line) for line in str(self).splitlines())
        return f"<p><strong>{head}</strong></p><ul>{''.join(f'<li>{line}</li>' for line in rest)}</ul>"


def _percent(share: float) -> str:
    """Two digits where it is little."""
    return f"{share:.0%}" if share >= 0.1 else f"{100 * share:.2g}%"


@contextmanager
def use_backend(backend: str) -> Iterator[None]:
    """Have attention() take a backend for each call inside that it does not refuse; other calls go as ever.

    For models, whose calls cannot be told one by one. Calls that name a backend keep to it. The preference is that of
    this thread (or task of asyncio), so it must not stay open over a generator's `yield`. Compiled code does not see
    it.

    Args:
        backend: The name of one, as `regard doctor` lists them, or "auto" for none.

    Raises:
        InputError: There is no such backend.

    >>> import torch, regard
    >>> x = torch.zeros(1, 1, 8, 4)
    >>> with regard.use_backend("reference"):
    ...     print(str(regard.explain(x, x, x)).splitlines()[0])
    reference runs it
    """
    check_name(backend)
    token = PREFERRED.set(backend)
    try:
        yield
    finally:
        PREFERRED.reset(token)


def explain(problem: Problem, backend: str = "auto", prefers: str = "auto") -> Explanation:
    """Explain the choice for a problem without computing it."""
    check_name(backend)
    if problem.is_empty:
        return Explanation(_FORMULA.name, (), (), flops=0, bytes=0, share=0.0, asked=backend)
    reasons = {prefers: named()[prefers].refuses(problem)} if backend == "auto" != prefers else {}
    if backend == "auto" and reasons.get(prefers, "") is None:
        backend = prefers
    taken, said = _shortcuts(problem) if backend == "auto" else ([], [])
    everyone = (*taken, *BACKENDS) if backend == "auto" else (named()[backend],)
    reasons |= {one.name: one.refuses(problem) for one in everyone}
    unsaid = {one.name for one in SELECTION.shortcuts} - {backend, prefers}
    refusals = [(name, reason) for name, reason in reasons.items() if reason is not None and name not in unsaid]
    ready = [one for name, one in named().items() if reasons.get(name, "not asked") is None]
    chosen = _first_of(ready, problem) if ready else None
    slower = [] if chosen is None else [(one.name, _times(one, chosen, problem)) for one in ready if one is not chosen]
    if chosen is _NATIVE and backend == "auto":
        said.append(f"{chosen.name}: {choice.reason_for(problem)}")
    share = problem.plan().share
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
        reasons=tuple(said),
    )


def _shortcuts(problem: Problem) -> tuple[list[Backend], list[str]]:
    """The shortcuts that `auto` asks to run a problem, and what hinders native kernels if they could."""
    asked = (
        [] if torch.compiler.is_compiling() else [one for one in SELECTION.shortcuts if SELECTION.asks(one, problem)]
    )
    hindered = _NATIVE in asked and not any(FEATURES[what](problem) for what in _NATIVE.lacks)
    reason = choice.hindrance(problem) if hindered else ""
    said = [f"{_NATIVE.name} not taken: {reason}"] if reason else []
    return [one for one in asked if not one.is_passed_over(problem)], said


def _first_of(ready: list[Backend], problem: Problem) -> Backend:
    """The one that would be chosen of those that can run it, shortcuts before others that have as little work."""
    if torch.compiler.is_compiling():
        return compiled_selection.smallest(ready, problem)
    first = next((one for one in SELECTION.shortcuts if one in ready), None)
    return first or min(ready, key=lambda one: one.work(problem))


def _times(one: Backend, chosen: Backend, problem: Problem) -> float:
    """How many times the work; nothing is counted for a plain call of the fused kernel, which is never passed over."""
    pairs = problem.batch * problem.heads * problem.queries * problem.keys
    return (one.work(problem) or pairs) / (chosen.work(problem) or pairs)
