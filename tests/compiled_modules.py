"""Random modules, compiled: compared with the formula in float64, and how many graphs a compiler makes of them.

    found = check(drawn(17))       the largest error, by what is allowed, and the graphs; a DisagreementError if wrong

The formula is the same module with the same numbers in float64, eager, with backend="reference".
"""

import contextlib
import logging
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

import regard
from random_calls import ALLOWED_OF_AUTO, DisagreementError
from random_modules import Drawn

__all__ = ["LENGTHS", "Found", "check"]

LENGTHS = (9, 12, 7, 20, 6, 16, 13, 8, 11, 19, 5, 17, 10, 14, 18, 15, 21, 4, 22, 23)  # on both sides of all thresholds
COMPARED = 7  # … of which the first are compared with the formula
RECOMPILED = 2  # times at most: for any length after the first one, and for one more kind of it


class Found(NamedTuple):
    """What came of a compiled module."""

    worst: float  # error, by what is allowed
    pieces: int  # graphs of the first call
    graphs: int  # of all calls
    breaks: tuple[str, ...]  # why a graph was broken


def check(drawn: Drawn, lengths: Sequence[int] = LENGTHS, *, backend: str = "aot_eager") -> Found:
    """Compile a module, run it on texts of several lengths, and compare outputs and gradients with the formula.

    Raises:
        DisagreementError: A result is another than that of the formula, or there are more graphs than allowed.
    """
    torch._dynamo.reset()
    graphs: set[object] = set()
    compiler: Any = torch._dynamo.lookup_backend(backend)

    def counted(graph: Any, inputs: Any) -> Callable[..., Any]:
        graphs.add(torch._guards.CompileContext.current_compile_id())  # the backend may be asked twice for one graph
        compiled: Callable[..., Any] = compiler(graph, inputs)
        return compiled

    torch._dynamo.utils.counters.clear()
    compiled = torch.compile(drawn.module, backend=counted, dynamic=drawn.dynamic, fullgraph=not drawn.in_python)
    worst, pieces = 0.0, 0
    for at, length in enumerate(lengths):
        learns = drawn.wants_gradients
        try:
            results = _computed(drawn, compiled, length, learns=learns)
        except Exception as error:
            raise DisagreementError(f"at length {length}, {type(error).__name__}: {_shortened(error)}") from error
        if at < COMPARED:
            worst = max(worst, _compare(drawn, results, length, learns=learns))
        pieces = pieces or len(graphs)
        if len(graphs) > pieces * (1 + RECOMPILED):
            raise DisagreementError(f"{len(graphs)} graphs after {at + 1} lengths, the first call being {pieces}")
    return Found(worst, pieces, len(graphs), tuple(torch._dynamo.utils.counters["graph_break"]))


def _shortened(error: Exception) -> str:
    return " ".join(str(error).split())[:400]


def _computed(drawn: Drawn, module: Any, length: int, *, learns: bool, exact: bool = False) -> dict[str, Tensor]:
    """Outputs, and gradients of the sum of their products with fixed numbers."""
    inputs = [one.double() if exact and one.is_floating_point() else one for one in drawn.inputs(length)]
    if learns:
        inputs = [one.requires_grad_() if one.is_floating_point() else one for one in inputs]
    torch.manual_seed(length)
    with contextlib.nullcontext() if learns else torch.no_grad():
        outputs = module(*inputs)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    results = {f"output {at}": one.detach() for at, one in enumerate(outputs)}
    if not learns:
        return results
    loss: Any = 0
    for at, one in enumerate(outputs):
        up = torch.randn(one.shape, generator=torch.Generator().manual_seed(at), dtype=torch.float64)
        loss = loss + (one.masked_fill(one.isinf(), 0.0) * up.to(drawn.dtype).to(one.dtype)).sum()
    leaves = {f"gradient of input {at}": one for at, one in enumerate(inputs) if one.requires_grad}
    own = drawn.exact if exact else drawn.module
    leaves |= {f"gradient of {name}": one for name, one in own.named_parameters()}
    gradients = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
    for name, leaf, gradient in zip(leaves, leaves.values(), gradients, strict=True):
        results[name] = torch.zeros_like(leaf) if gradient is None else gradient
    return results


def _compare(drawn: Drawn, results: dict[str, Tensor], length: int, *, learns: bool) -> float:
    eager = _computed(drawn, drawn.module, length, learns=learns)
    with regard.use_backend("reference"):
        exact = _computed(drawn, drawn.exact, length, learns=learns, exact=True)
    allowed, of_gradients, _ = ALLOWED_OF_AUTO[drawn.dtype]
    worst = 0.0
    largest = max((_largest(exact[name]) for name in exact if "gradient" in name), default=0.0)
    for name, result in results.items():
        expected = exact[name]
        if (result.shape, result.dtype) != (eager[name].shape, eager[name].dtype):
            raise DisagreementError(
                f"at length {length}, {name} is {tuple(result.shape)} of {result.dtype}, eager "
                f"{tuple(eager[name].shape)} of {eager[name].dtype}"
            )
        finite = expected.isfinite()
        if not torch.equal(result.isfinite(), finite):
            raise DisagreementError(f"at length {length}, {name} is not finite elsewhere")
        size = _largest(expected[finite])
        if "gradient" in name and size < 1e-9 * largest:
            size = largest  # it is 0, of terms that cancel and are rounded
        error, of_eager = (_largest((one.double() - expected)[finite]) for one in (result, eager[name]))
        limit = max(max(size, 1e-3) * (of_gradients if "gradient" in name else allowed), 2 * of_eager)
        if not error <= limit:
            raise DisagreementError(
                f"at length {length}, {name} is wrong by {error:.2g} of {size:.2g}, where {limit:.2g} is allowed and "
                f"eager code has {of_eager:.2g}"
            )
        worst = max(worst, error / limit if limit else 0.0)
    return worst


def _largest(errors: Tensor) -> float:
    return float(errors.abs().max()) if errors.numel() else 0.0


logging.getLogger("torch._dynamo").setLevel(logging.ERROR)
