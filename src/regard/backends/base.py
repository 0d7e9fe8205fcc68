"""What backends share: what they declare that they cannot do, and the choice of one."""

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd import forward_ad

from regard.masks.random_blocks import draws_blocks
from regard.normalizers import is_of_parts, is_softmax
from regard.problem import Problem
from regard.scores import ScaledDot, Score
from regard.tensors import in_forward_mode
from regard.torch_private import (
    Ambient,
    TransformType,
    get_interpreter_stack,
    get_unwrapped,
    is_batchedtensor,
    is_exporting,
    is_functorch_wrapped_tensor,
    is_onnx_export,
    peek_interpreter_stack,
)
from regard.values import tensors

__all__ = [
    "DERIVATIVES", "FEATURES", "LARGE", "OPERATORS", "PREFERRED", "SOFTMAX_OF_PRODUCTS", "TRACED", "Answer", "Backend",
    "Mode",
    "preferred",
]  # fmt: skip

PREFERRED: ContextVar[str] = ContextVar("preferred", default="auto")
_PREFERRED = Ambient(PREFERRED)


class Mode(Enum):
    """Where a call is made, which decides what can be asked about it."""

    EAGER = "eager"
    COMPILED = "compiled"  # planning cannot be traced
    EXPORTED = "exported"  # for any length and machine, and for other runtimes than PyTorch

    @classmethod
    def now(cls) -> "Mode":
        """Return the mode of the code that runs."""
        if not torch.compiler.is_compiling():
            return cls.EAGER
        return cls.EXPORTED if is_exporting() else cls.COMPILED


# What a call may need of a backend: a word for the sentence of one that lacks it, or whether it is needed.
FEATURES: Mapping[str, Callable[[Problem], str | bool]] = {
    "weights": lambda call: call.wants_weights,
    "log-sum-exp": lambda call: call.wants_lse,
    "score": lambda call: not _is_product(call.score) and type(call.score).__name__,
    "softcap": lambda call: call.score.softcap is not None,
    "normalizer": lambda call: not is_softmax(call.normalizer) and type(call.normalizer).__name__,
    "normalizer of whole rows": lambda call: not is_of_parts(call.normalizer) and type(call.normalizer).__name__,
    "sink": lambda call: call.sink is not None,
    "bias": lambda call: call.bias is not None,
    "weight_factor": lambda call: call.weight_factor is not None,
    "dropout": lambda call: call.dropout is not None,
    "mapped mask": lambda call: call.mask is not None and any(map(_is_mapped, tensors(call.mask.mask))),
    "drawn mask": lambda call: call.mask is not None and draws_blocks(call.mask.mask),
    "gradients": lambda call: torch.is_grad_enabled() and any(x.requires_grad for x in (call.q, call.k, call.v)),
    "forward mode": lambda call: _has_tangents(call),
    "second derivative": lambda _: _is_nested(),
    "torch.func": lambda _: not torch.compiler.is_compiling() and peek_interpreter_stack() is not None,
    "compiling": lambda _: torch.compiler.is_compiling(),
    "ONNX": lambda _: is_onnx_export(),
    "autocast": lambda call: torch.is_autocast_enabled(call.q.device.type),
    "device but cpu": lambda call: call.q.device.type != "cpu" and str(call.q.device),
    "device with memory but cpu": lambda call: call.q.device.type not in ("cpu", "meta") and str(call.q.device),
    "float64": lambda call: call.q.dtype == torch.float64,
}

# What every backend but the formula lacks.
DERIVATIVES = {
    "forward mode": "it has no forward-mode derivative (jvp, jacfwd, hessian)",
    "second derivative": "it has no second derivative inside torch.func",
}
# What backends lack in graphs whose calls are PyTorch's own operations there, and no operator.
TRACED = {"drawn mask": "compiled code cannot draw the blocks of RandomBlocks, which an operator can"}
# What backends lack that put an operator of their own into graphs.
OPERATORS = {"ONNX": "ONNX has no operator for it"}
# What backends lack that know no more than masked, biased and capped products, and their softmax.
SOFTMAX_OF_PRODUCTS = {
    "weights": "it never holds all weights",
    "score": "it knows the dot product alone, not {}",
    "normalizer": "it has no {}, only the softmax",
    "weight_factor": "it has no factor on the weights",
    "dropout": "it has no dropout",
}


def _is_product(score: Score) -> bool:
    """Whether the score is a product after `prepare`, also if it is of a class of one's own."""
    return score.product and (type(score).prepare is not Score.prepare or type(score).tile is ScaledDot.tile)


def _is_mapped(tensor: Tensor) -> bool:
    """Whether torch.func.vmap maps over a tensor at any level, such as outside of torch.func.grad."""
    if torch.compiler.is_compiling():
        return is_batchedtensor(tensor)
    while is_functorch_wrapped_tensor(tensor):
        if is_batchedtensor(tensor):
            return True
        tensor = get_unwrapped(tensor)
    return False


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
    they are said, and `lacks_in_graphs` those that it refuses in compiled and exported code besides. `experimental`
    says on which hardware it is not yet as fast or as well tried as it should be.
    """

    name: ClassVar[str]
    lacks: ClassVar[Mapping[str, str]] = DERIVATIVES
    lacks_in_graphs: ClassVar[Mapping[str, str]] = {}
    experimental: ClassVar[str] = ""

    def refuses(self, problem: Problem, mode: Mode | None = None) -> str | None:
        """Say why this backend cannot compute the problem exactly, or None if it can; by default where this runs."""
        in_graph = (Mode.now() if mode is None else mode) is not Mode.EAGER
        for lacks in (self.lacks, self.lacks_in_graphs) if in_graph else (self.lacks,):
            for feature, sentence in lacks.items():
                if needed := FEATURES[feature](problem):
                    return sentence.format(needed)
        return self.limits(problem)

    def limits(self, problem: Problem) -> str | None:
        """Say which size or value of a problem that needs nothing it lacks is too much for it, or None."""
        return None

    def suits(self, problem: Problem) -> bool:
        """Whether `auto` takes it for such problems; one that was measured for some alone suits no others."""
        return True

    def bytes(self, problem: Problem) -> int:
        """Bytes that it allocates besides the output."""
        raise NotImplementedError

    def cost(self, problem: Problem) -> float:
        """Estimate the time, in pairs of the fused kernel; 0 where nothing can be faster."""
        raise NotImplementedError

    def least_cost(self, problem: Problem) -> float:
        """Return what the cost is at least, without planning for the mask."""
        return 0.0

    def plain(self, problem: Problem) -> Callable[[Tensor, Tensor, Tensor], Tensor] | None:
        """Give a function of q, k and v for all problems of these sizes with this mask and bias, if there is one.

        `call_cache` keeps it, and asks only for problems whose bias holds no tensor of the caller's. Where a problem
        has dropout, the function draws a seed for each call; a backend that cannot has none.
        """
        return None

    def plain_of(self, problem: Problem) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor] | None:
        """Give a function of what is visible (`BoundMask.broadcast`), q, k and v for all problems of these sizes with
        a mask and no bias, if there is one.
        """
        return None

    def leaves_graph(self, problem: Problem) -> bool:
        """Whether a compiler has to break its graph for this problem, which no operator can take."""
        return False

    def __call__(self, problem: Problem) -> Answer:
        """Compute a problem that is not refused."""
        raise NotImplementedError


def preferred() -> str:
    """The backend that is preferred here (see `use_backend`), or "auto"; other code is compiled for each."""
    return _PREFERRED.get()


LARGE = 2.0**10  # beyond it float32 rounds a log-sum-exp by more than 2⁻¹⁵, and every weight of the row with it
