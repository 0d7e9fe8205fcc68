"""The result of an approximation: an output that must be unwrapped explicitly."""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from regard.errors import InputError

__all__ = ["Approximate"]


@dataclass(frozen=True, eq=False)
class Approximate:
    """The output of an approximation, with the name and the parameters of the method.

    It is deliberately not a tensor and does not support arithmetic: a model that replaces exact attention by an
    approximation fails at the first `+` instead of computing other numbers silently. Use `.output` to get the tensor.

    >>> import torch
    >>> result = Approximate(torch.tensor([1.0, 1.1]), "Performer, 256 random features")
    >>> result
    Approximate(Performer, 256 random features: output (2,))
    >>> round(result.error(torch.tensor([1.0, 1.0])), 4)
    0.0707
    """

    output: Float[Tensor, "*shape"]
    method: str

    def error(self, expected: Float[Tensor, "*shape"]) -> float:
        """Return ‖output − expected‖ / ‖expected‖, the relative error in the Frobenius norm.

        Raises:
            InputError: `expected` has another shape.
        """
        if self.output.shape != expected.shape:
            raise InputError(
                f"`expected` must have the shape of the output, {tuple(self.output.shape)}, got "
                f"{tuple(expected.shape)}: "
                "compute it from the same q, k and v"
            )
        output, expected = self.output.detach(), expected.detach()
        return float((output - expected).norm() / expected.norm())

    def __repr__(self) -> str:
        return f"Approximate({self.method}: output {tuple(self.output.shape)})"
