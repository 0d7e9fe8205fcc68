"""What backends share: what they declare that they cannot do, the choice of one, and log-sum-exps in two numbers."""

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd import forward_ad

from regard.backends import compiled_selection
from regard.errors import InputError
from regard.masks import Causal
from regard.masks.random_blocks import draws_blocks
from regard.normalizers import Sigmoid, Softmax
from regard.problem import Problem
from regard.scores import ScaledDot
from regard.tensors import in_forward_mode, tensors, unwrapped
from regard.torch_private import (
    TransformType,
    get_interpreter_stack,
    is_batchedtensor,
    peek_interpreter_stack,
)

__all__ = [
    "DERIVATIVES", "FEATURES", "LARGE", "PREFERRED", "REMOVED", "SOFTMAX_OF_PRODUCTS", "Answer", "Backend",
    "Selection", "are_rounded", "log_sum", "merge", "preferred", "with_sink",
]  # fmt: skip

PREFERRED: ContextVar[str] = ContextVar("preferred", default="auto")

# What a call may need of a backend: a word for the sentence of one that lacks it, or whether it is needed.
FEATURES: Mapping[str, Callable[[Problem], str | bool]] = {
    "weights": lambda call: call.wants_weights,
    "log-sum-exp": lambda call: call.wants_lse,
    "score": lambda call: not call.score.product and type(call.score).__name__,
    "score but ScaledDot": lambda call: type(call.score) is not ScaledDot,
    "scores": lambda _: True,
    "softcap": lambda call: call.score.softcap is not None,
    "normalizer": lambda call: not isinstance(call.normalizer, Softmax) and type(call.normalizer).__name__,
    "normalizer of whole rows": lambda call: (
        not isinstance(call.normalizer, Softmax | Sigmoid) and type(call.normalizer).__name__
    ),
    "sink": lambda call: call.sink is not None,
    "bias": lambda call: call.bias is not None,
    "weight_factor": lambda call: call.weight_factor is not None,
    "dropout": lambda call: call.dropout is not None,
    "mask but Causal": lambda call: call.mask is not None and type(call.mask.mask) is not Causal,
    "mapped mask": lambda call: call.mask is not None and any(map(is_batchedtensor, tensors(call.mask.mask))),
    "drawn mask": lambda call: torch.compiler.is_compiling() and call.mask is not None and draws_blocks(call.mask.mask),
    "gradients": lambda call: torch.is_grad_enabled() and any(x.requires_grad for x in (call.q, call.k, call.v)),
    "forward mode": lambda call: _has_tangents(call),
    "second derivative": lambda _: _is_nested(),
    "torch.func": lambda _: not torch.compiler.is_compiling() and peek_interpreter_stack() is not None,
    "compiling": lambda _: torch.compiler.is_compiling(),
    "autocast": lambda call: torch.is_autocast_enabled(call.q.device.type),
    "device but cpu": lambda call: call.q.device.type != "cpu" and str(call.q.device),
    "device with memory but cpu": lambda call: call.q.device.type not in ("cpu", "meta") and str(call.q.device),
    "float64": lambda call: call.q.dtype == torch.float64,
    "type but float32": lambda call: call.q.dtype != torch.float32,
}

# What every backend but the formula lacks.
DERIVATIVES = {
    "forward mode": "it has no forward-mode derivative (jvp, jacfwd, hessian)",
    "second derivative": "it has no second derivative inside torch.func",
}
# What backends lack that know no more than masked, biased and capped products, and their softmax.
SOFTMAX_OF_PRODUCTS = {
    "weights": "it never holds all weights",
    "score": "it knows the dot product alone, not {}",
    "normalizer": "it has no {}, only the softmax",
    "weight_factor": "it has no factor on the weights",
    "dropout": "it has no dropout",
}
# Names of backends that were removed, and what computes their calls now.
REMOVED: Mapping[str, str] = {
    "numba": 'the compiled loops are backend="native" now, which needs no compiler and no command',
    "triton": (
        'the Triton kernels were removed; backend="auto" computes additive scores by "blockwise" or '
        'by "reference", and regard.watch computes its statistics without a backend'
    ),
}


def _has_tangents(call: Problem) -> bool:
    if torch.compiler.is_compiling() or not in_forward_mode():
        return False
    parts = call.q, call.k, call.v, call.score, call.bias, call.normalizer, call.weight_factor
    # Inside torch.func the tangent may lie below other wrappers, where it cannot be asked for.
    return bool(get_interpreter_stack()) or any(forward_ad.unpack_dual(x).tangent is not None for x in tensors(parts))


def _is_nested() -> bool:
    levels = None if torch.compiler.is_compiling() else get_interpreter_stack()
    return levels is not None and sum(level.key() == TransformType.Grad for level in levels) > 1


@dataclass(frozen=True, eq=False)
class Answer:
    """What a backend computed: the output, and weights and log-sum-exp where the problem wanted them."""

    output: Float[Tensor, "batch heads queries value_dim"]
    weights: Float[Tensor, "batch heads queries keys"] | None = None
    lse: Float[Tensor, "batch heads queries"] | None = None


class Backend:
    """One way to compute a problem, exact or not at all.

    What it cannot do it declares: `lacks` has a sentence for each of `FEATURES` that it refuses, in the order in which
    they are said; `least_work`, for each feature, the work for each pair below which it never is where that is needed.
    `experimental` says on which hardware it is not yet as fast or as well tried as it should be. A shortcut is asked by
    `auto` from `least_keys` keys on, where no feature of `not_for` is needed.
    """

    name: ClassVar[str]
    lacks: ClassVar[Mapping[str, str]] = DERIVATIVES
    least_work: ClassVar[Mapping[str, float]] = {}
    experimental: ClassVar[str] = ""
    least_keys: ClassVar[int] = 0
    not_for: ClassVar[tuple[str, ...]] = ()

    def refuses(self, problem: Problem) -> str | None:
        """Say why this backend cannot compute the problem exactly, or None if it can."""
        for feature, sentence in self.lacks.items():
            if needed := FEATURES[feature](problem):
                return sentence.format(needed)
        return self.limits(problem)

    def is_passed_over(self, problem: Problem) -> bool:
        """Whether `auto` does not take this shortcut for a problem that it can run."""
        return False

    def limits(self, problem: Problem) -> str | None:
        """Say which size or value of a problem that needs nothing it lacks is too much for it, or None."""
        return None

    def bytes(self, problem: Problem) -> int:
        """Bytes that it allocates besides the output."""
        raise NotImplementedError

    def work(self, problem: Problem) -> float:
        """Estimate the time, in pairs of the fused kernel; 0 where nothing can be faster."""
        raise NotImplementedError

    def plain(self, problem: Problem) -> Callable[[Tensor, Tensor, Tensor], Tensor] | None:
        """Give a function of q, k and v for all problems of these sizes with this mask and bias, if there is one.

        `call_cache` keeps it, and asks only for problems whose bias holds no tensor of the caller's. Where a problem
        has dropout, the function draws a seed for each call; a backend that cannot has none.
        """
        return None

    def leaves_graph(self, problem: Problem) -> bool:
        """Whether a compiler has to break its graph for this problem, which no operator can take."""
        return False

    def __call__(self, problem: Problem) -> Answer:
        """Compute a problem that is not refused."""
        raise NotImplementedError


def preferred() -> str:
    """The backend that is preferred here (see `use_backend`), or "auto"."""
    return "auto" if torch.compiler.is_compiling() else PREFERRED.get()


@dataclass(frozen=True)
class Selection:
    """The backends there are, and the choice among them.

    Args:
        usual: `auto` takes the one with the least work of those that do not refuse, the first of equals.
        shortcuts: For calls for which they were measured to be faster; what they refuse is not worth a word.
        by_name: For those who ask for them by name or `use_backend`.
        formula: What gives the empty result where there is no sequence or no head.
    """

    usual: tuple[Backend, ...]
    shortcuts: tuple[Backend, ...]
    by_name: tuple[Backend, ...]
    formula: Backend

    named: dict[str, Backend] = field(init=False)  # by name; not made at first use, which compilers cannot follow

    def __post_init__(self) -> None:
        object.__setattr__(self, "named", {one.name: one for one in (*self.usual, *self.shortcuts, *self.by_name)})

    def check_name(self, backend: object) -> None:
        """Raise an InputError if it is not the name of a backend; the error lists the names, and says what computes the
        calls of a backend that was removed.
        """
        if not isinstance(backend, str) or (backend != "auto" and backend not in self.named):
            removed = REMOVED.get(backend) if isinstance(backend, str) else None
            raise InputError(
                f'`backend` must be "auto" or one of {", ".join(self.named)}, got {backend!r}'
                f"{'' if removed is None else f': {removed}'}"
            )

    def choose(self, problem: Problem, backend: str = "auto", prefers: str = "auto") -> Backend:
        """Take the named backend, or the preferred one, or the one with the least work; raise with every reason if none
        is left. Where there is no sequence or no head, the formula gives the empty result, whatever the backend.
        """
        self.check_name(backend)
        if problem.is_empty:
            return self.formula
        if backend != "auto":
            if (reason := self.named[backend].refuses(problem)) is not None:
                raise InputError(
                    f'the backend {backend!r} cannot run this call: {reason}; backend="auto" takes one that can'
                )
            return self.named[backend]
        if prefers != "auto" and self.named[prefers].refuses(problem) is None:
            return self.named[prefers]
        found = compiled_selection.choose(self, problem) if torch.compiler.is_compiling() else self.fastest(problem)
        if found is None:
            reasons = "; ".join(f"{one.name}: {one.refuses(problem)}" for one in self.usual)
            raise InputError(f"no backend can run this call ({reasons}): raise `max_bytes` or shorten it")
        return found

    def asks(self, one: Backend, problem: Problem) -> bool:
        """Whether `auto` asks a shortcut about a problem."""
        return problem.keys >= one.least_keys and not any(FEATURES[what](problem) for what in one.not_for)

    def shortcuts_for(self, problem: Problem) -> list[Backend]:
        """The shortcuts that `auto` takes for a problem unless they refuse it."""
        return [one for one in self.shortcuts if self.asks(one, problem) and not one.is_passed_over(problem)]

    def fastest(self, problem: Problem) -> Backend | None:
        """A shortcut, or else the first with the least work; none is asked that declares that it has more."""
        for one in self.shortcuts_for(problem):
            if one.refuses(problem) is None:
                return one
        pairs = problem.batch * problem.heads * problem.queries * problem.keys
        floors = [
            (max((pairs * each for what, each in one.least_work.items() if FEATURES[what](problem)), default=0.0), at)
            for at, one in enumerate(self.usual)
        ]
        best: Backend | None = None
        least = (float("inf"), 0)
        for floor, at in sorted(floors):
            one = self.usual[at]
            if (floor, at) < least and one.refuses(problem) is None and (work := (one.work(problem), at)) < least:
                best, least = one, work
        return best


LARGE = 2.0**10  # beyond it float32 rounds a log-sum-exp by more than 2⁻¹⁵, and every weight of the row with it


def log_sum(peak: Float[Tensor, "*rows"], total: Float[Tensor, "*rows"]) -> tuple[Tensor, Tensor]:
    """Give (high, low) of exp(peak) · total; (−inf, 0) where the total is 0."""
    logarithm = total.log()
    high = peak + logarithm
    low = peak - high + logarithm
    return high, low.masked_fill_(high.isinf(), 0.0)


def merge(
    high: Float[Tensor, "*#rows"],
    low: Float[Tensor, "*#rows"],
    other_high: Float[Tensor, "*#rows"],
    other_low: Float[Tensor, "*#rows"],
) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Give (high, low) of two sums together, and the share of either; two sums of nothing have no share."""
    peak = torch.maximum(high, other_high)
    peak = peak.masked_fill(peak == -torch.inf, 0.0)
    one, other = (high - peak + low).exp_(), (other_high - peak + other_low).exp_()
    total = one + other
    whole = total.masked_fill(total == 0, 1.0)
    return log_sum(peak, total), (one / whole, other / whole)


def are_rounded(high: Float[Tensor, "*rows"]) -> bool:
    """Check whether `high` alone would not do for some row."""
    size = unwrapped(high).abs()  # of a batch that torch.func.vmap maps over, only the whole has numbers
    return bool(((size > LARGE) & (size < torch.inf)).any())


def with_sink(
    output: Float[Tensor, "batch heads queries value_dim"],
    lse: Float[Tensor, "batch heads queries"],
    sink: Float[Tensor, " heads"],
    low: Float[Tensor, "batch heads queries"] | None = None,
) -> tuple[Float[Tensor, "batch heads queries value_dim"], Float[Tensor, "batch heads queries"]]:
    """Weights sum to σ(lse − sink) where a sink takes the rest; a row that sees nothing stays 0.

    `low` is what rounding took from the log-sum-exp, where it is known (see `log_sums`).
    """
    sink = sink.to(lse.dtype)[:, None]
    (lse, _), (left, _) = merge(lse, torch.zeros_like(lse) if low is None else low, sink, torch.zeros_like(sink))
    return (output.to(lse.dtype) * left[..., None]).to(output.dtype), lse
