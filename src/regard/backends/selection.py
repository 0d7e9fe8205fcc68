"""The backends that there are, the choice of one for a call, and why it is taken."""

import html
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from regard.backends.base import FEATURES, PREFERRED, Backend, Mode
from regard.backends.call_form import unwritable
from regard.backends.flex import Flex
from regard.backends.native import Native, choice
from regard.backends.reference import Reference
from regard.backends.sdpa import Sdpa
from regard.backends.strips import Strips
from regard.errors import InputError
from regard.masks.block_plan import BLOCK
from regard.problem import Problem
from regard.tensors import human_bytes
from regard.torch_private import is_onnx_export

__all__ = [
    "BACKENDS",
    "BY_NAME",
    "Explanation",
    "Mode",
    "check_name",
    "choose",
    "explain",
    "is_chosen_by_sizes",
    "named",
    "use_backend",
]

_NATIVE, _FUSED, _STRIPS, _FORMULA = Native(), Sdpa(), Strips(), Reference()
# Those that `auto` takes, the first of those that cost the least; then those for who asks for them by name.
BACKENDS: tuple[Backend, ...] = (_NATIVE, _FUSED, _STRIPS, _FORMULA)
BY_NAME: tuple[Backend, ...] = (Flex(),)
_NAMED = {backend.name: backend for backend in (*BACKENDS, *BY_NAME)}
# Names of backends that were removed, and what computes their calls now.
_REMOVED = {
    "numba": 'the compiled loops are backend="native" now, which needs no compiler and no command',
    "blockwise": 'its calls are computed by backend="strips", in as little memory',
    "split": 'backend="auto" computes its calls by "native" or by "sdpa"',
    "sharded": 'what the ranks of a sharded sequence compute is "strips", which q, k and v as DTensors take',
    "triton": (
        'the Triton kernels were removed; backend="auto" computes additive scores by "strips" or '
        'by "reference", and regard.watch computes its statistics without a backend'
    ),
}
_WHOLE = 2**24  # pairs of which compiled code holds tensors rather than have strips planned in an operator


def named() -> dict[str, Backend]:
    """Every backend by its name."""
    return _NAMED


def check_name(backend: object) -> None:
    """Raise an InputError if it is not the name of a backend; the error lists the names, and says what computes the
    calls of a backend that was removed.
    """
    if not isinstance(backend, str) or (backend != "auto" and backend not in _NAMED):
        removed = _REMOVED.get(backend) if isinstance(backend, str) else None
        raise InputError(
            f'`backend` must be "auto" or one of {", ".join(_NAMED)}, got {backend!r}'
            f"{'' if removed is None else f': {removed}'}"
        )


def choose(problem: Problem, backend: str = "auto", prefers: str = "auto", mode: Mode | None = None) -> Backend:
    """Take the named backend, or the preferred one, or the one that costs least; raise with every reason if none
    is left. Where there is no pair, the formula gives zeros or the empty result, whatever the backend.

    `mode` is where the call is made, by default where this runs. In a graph nothing can be planned: there, the first
    one is taken that does not refuse.
    """
    check_name(backend)
    mode = Mode.now() if mode is None else mode
    chosen = _chosen(problem, backend, prefers, mode)
    if chosen is not None:
        return chosen
    if backend != "auto":
        reason = _NAMED[backend].refuses(problem, mode)
        raise InputError(f'the backend {backend!r} cannot run this call: {reason}; backend="auto" takes one that can')
    if is_onnx_export() and _FORMULA.limits(problem) is None:
        raise InputError(
            f"ONNX cannot express this call: {_FORMULA.refuses(problem, mode)}; torch.export.export can, and ONNX can "
            "hold the pairs of one length, masks.Dense(mask.bind(q_len, kv_len).dense())"
        )
    reasons = "; ".join(f"{one.name}: {one.refuses(problem, mode)}" for one in BACKENDS if one.suits(problem))
    raise InputError(f"no backend can run this call ({reasons}): raise `max_bytes` or shorten it")


def _chosen(problem: Problem, backend: str, prefers: str, mode: Mode) -> Backend | None:
    if problem.is_empty:
        return _FORMULA
    if backend != "auto":
        return _first((_NAMED[backend],), problem, mode)
    if prefers != "auto" and (preferred := _first((_NAMED[prefers],), problem, mode)) is not None:
        return preferred
    if mode is Mode.EAGER:
        return _cheapest(problem)
    order = _compiled_order(problem) if mode is Mode.COMPILED else _exported_order(problem)
    return _first([one for one in order if one.suits(problem)], problem, mode)


def _first(order: Sequence[Backend], problem: Problem, mode: Mode) -> Backend | None:
    for backend in order:
        if backend.refuses(problem, mode) is None:
            return backend
    return None


def _cheapest(problem: Problem) -> Backend | None:
    """Return the backend of the least cost; none is asked whose cost cannot be the least."""
    bounds = sorted((one.least_cost(problem), at) for at, one in enumerate(BACKENDS) if one.suits(problem))
    best: Backend | None = None
    least = float("inf"), 0
    for bound in bounds:
        if bound > least:
            break
        backend = BACKENDS[bound[1]]
        if backend.refuses(problem) is None and (cost := (backend.cost(problem), bound[1])) < least:
            best, least = backend, cost
    return best


def is_chosen_by_sizes(problem: Problem, backend: Backend) -> bool:
    """Return whether a backend was chosen for a call without planning, so that it is for all calls of these sizes."""
    if backend is not _FUSED or problem.is_empty:
        return False
    cost = backend.cost(problem)
    return all(cost < one.least_cost(problem) for one in BACKENDS if one is not backend and one.suits(problem))


def _compiled_order(problem: Problem) -> tuple[Backend, ...]:
    """Kernels that were measured to be faster, then whole tensors where they are small, and where they are not, strips,
    which an operator plans.
    """
    if _pairs(problem) <= _WHOLE:
        return _NATIVE, _FUSED, _FORMULA, _STRIPS
    if _FUSED.bytes(problem) == 0:
        return _NATIVE, _FUSED, _STRIPS, _FORMULA
    return _NATIVE, _STRIPS, _FUSED, _FORMULA


def _exported_order(problem: Problem) -> tuple[Backend, ...]:
    """PyTorch's own operators, which every runtime knows, and which hold whole tensors for any length.

    Strips compute what these cannot draw, and what needs more than `max_bytes` whatever the lengths that are left free:
    where such a program is loaded, regard has to be imported. ONNX has no operator for them, and no sums in float32 in
    the fused kernel of narrower queries.
    """
    if not is_onnx_export():
        return _FUSED, _FORMULA, _STRIPS
    return (_FUSED, _FORMULA) if problem.q.element_size() >= 4 else (_FORMULA,)


def _pairs(problem: Problem) -> int:
    return problem.batch * problem.heads * problem.queries * problem.keys


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
    block: int = BLOCK  # rows and columns of a block
    reasons: tuple[str, ...] = ()  # why `auto` takes a shortcut, or does not, in lines

    def __str__(self) -> str:
        nobody = "no backend can run it" if self.asked == "auto" else f"{self.asked} cannot run it"
        head = f"{self.backend} runs it" if self.backend else nobody
        lines = [head, *self.reasons, *(f"{name} refused: {reason}" for name, reason in self.refusals)]
        lines += [f"{name} could, with about {times:.1f} × the work" for name, times in self.slower]
        if self.backend:
            lines.append(
                f"{self.flops / 1e9:.3g} GFLOP in the {_percent(self.share)} of blocks of {self.block} × {self.block} "
                f"that hold a visible pair, {human_bytes(self.bytes)} besides the output"
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
    this thread (or task of asyncio), so it must not stay open over a generator's `yield`. Compiled code sees it too: it
    is compiled once for each backend that is preferred around its calls.

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
    mode, reasons = Mode.now(), {}
    if backend == "auto" != prefers:
        reasons[prefers] = _NAMED[prefers].refuses(problem, mode)
        backend = prefers if reasons[prefers] is None else backend
    considered = [one for one in BACKENDS if one.suits(problem)] if backend == "auto" else [_NAMED[backend]]
    reasons |= {one.name: one.refuses(problem, mode) for one in considered}
    # What was measured for some calls alone has nothing to say of others.
    refusals = [
        (name, why)
        for name, why in reasons.items()
        if why and not (backend == "auto" and name in _MEASURED and name != prefers)
    ]
    ready = [one for one in _NAMED.values() if one.name in reasons and reasons[one.name] is None]
    chosen = _chosen(problem, backend, "auto", mode)
    said = _about_native(problem, chosen, mode) if backend == "auto" else ()
    share = problem.plan().share
    pairs = _pairs(problem)
    # No cost is compared with those of 0, of which all visible pairs are counted here.
    costs = {one: one.cost(problem) or pairs * share or 1.0 for one in ready}
    slower = [(one.name, costs[one] / costs[chosen]) for one in ready if chosen is not None and one is not chosen]
    flops = int(2 * pairs * (problem.q.shape[-1] + problem.v.shape[-1]) * share)
    return Explanation(
        chosen.name if chosen else None,
        tuple(refusals),
        tuple(slower),
        flops,
        chosen.bytes(problem) if chosen else 0,
        share,
        backend,
        reasons=(*said, *_about_graphs(problem, backend)),
    )


def _about_graphs(problem: Problem, backend: str) -> tuple[str, ...]:
    """Say where a compiler has to break its graph."""
    compiled = _chosen(problem, backend, "auto", Mode.COMPILED)
    if compiled is None or not compiled.leaves_graph(problem):
        return ()
    return (
        f"compiled code leaves its graph for it: {unwritable(problem)} is written in Python, and the operator of "
        f"{compiled.name} holds values of regard alone",
    )


_MEASURED = ("native",)


def _about_native(problem: Problem, chosen: Backend | None, mode: Mode) -> tuple[str, ...]:
    """Say why `auto` takes native kernels, or what hinders those that would be faster."""
    if chosen is _NATIVE:
        return (f"{_NATIVE.name}: {choice.reason_for(problem)}",)
    if mode is not Mode.EAGER or any(FEATURES[what](problem) for what in (*_NATIVE.lacks, *_NATIVE.not_for)):
        return ()
    reason = choice.hindrance(problem)
    return (f"{_NATIVE.name} not taken: {reason}",) if reason else ()
