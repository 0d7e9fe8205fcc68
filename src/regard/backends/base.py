"""What a backend is."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any, Protocol, TypeVar, cast

import torch
from jaxtyping import Float
from torch import Tensor

from regard.problem import Problem

__all__ = ["Answer", "Backend", "run_eagerly"]

_Call = TypeVar("_Call", bound=Callable[..., Any])


@dataclass(frozen=True, eq=False)
class Answer:
    """What a backend computed: the output, and weights and log-sum-exp where the problem wanted them."""

    output: Float[Tensor, "batch heads queries value_dim"]
    weights: Float[Tensor, "batch heads queries keys"] | None = None
    lse: Float[Tensor, "batch heads queries"] | None = None


class Backend(Protocol):
    """One way to compute a problem, exact or not at all."""

    name: str

    def refuses(self, problem: Problem) -> str | None:
        """Say why this backend cannot compute the problem exactly, or None if it can."""
        ...

    def bytes(self, problem: Problem) -> int:
        """Bytes that it allocates besides the output."""
        ...

    def work(self, problem: Problem) -> float:
        """Estimate the time, in pairs of the fused kernel; 0 where nothing can be faster."""
        ...

    def plain(self, problem: Problem) -> Callable[[Tensor, Tensor, Tensor], Tensor] | None:
        """A function of q, k and v for all usual problems of these sizes (see `known`), where there is one."""
        ...

    def __call__(self, problem: Problem) -> Answer:
        """Compute a problem that is not refused."""
        ...


def run_eagerly(call: _Call) -> _Call:
    """Keep compilers out of a backend's call, as `torch.compiler.disable` does.

    That imports PyTorch's compiler where it decorates, which doubles the time of `import regard`: so it is put off
    until somebody else has imported the compiler, without which nothing is compiled.
    """
    disabled: list[Callable[..., Any]] = []

    @wraps(call)
    def run(*given: Any) -> Any:
        if "torch._dynamo" not in sys.modules:
            return call(*given)
        if not disabled:
            disabled.append(torch.compiler.disable(call))
        return disabled[0](*given)

    return cast("_Call", run)
