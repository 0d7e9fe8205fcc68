"""The result of an approximation: an output that must be unwrapped explicitly."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from regard.checks import check_size
from regard.errors import InputError

__all__ = [
    "Approximate",
    "check_heads",
    "check_padding",
    "check_padding_of_keys",
    "check_tokens",
]


@dataclass(frozen=True, eq=False)
class Approximate:
    """The output of an approximation, with the name and the parameters of the method.

    An `Approximate` is not a tensor and does not support arithmetic. If a model replaces exact attention by an
    approximation, it therefore fails at the first `+`; otherwise it would silently compute other numbers. The tensor is
    in `.output`.

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


def check_heads(embed_dim: int, num_heads: int) -> int:
    """Give the width of one of `num_heads` heads that share `embed_dim`."""
    if check_size("embed_dim", embed_dim) % check_size("num_heads", num_heads):
        raise InputError(
            f"`embed_dim` must be a multiple of `num_heads`, got {embed_dim} and {num_heads}: choose a divisor of "
            f"{embed_dim}"
        )
    return embed_dim // num_heads


def check_tokens(name: str, x: Tensor, embed_dim: int, batch: int | None = None) -> None:
    """Raise unless `x` is (batch, tokens, embed_dim), with the batch of the queries if that is given."""
    if x.ndim != 3 or x.shape[-1] != embed_dim or 0 in x.shape[1:]:
        raise InputError(
            f"`{name}` must be (batch, tokens, {embed_dim}) with a token at least, got shape {tuple(x.shape)}: write "
            f"{name}[None] for one sequence, {name}.flatten(0, -3) for more dimensions, or build the module with "
            "another `embed_dim`"
        )
    if batch is not None and x.shape[0] != batch:
        raise InputError(
            f"`{name}` must have a sequence for each of {batch} in `x`, got {x.shape[0]}: write {name}.expand(...)"
        )


def check_padding(padding: Tensor, source: Tensor) -> None:
    """Raise unless there is a flag for each key of each sequence."""
    if padding.dtype != torch.bool or padding.shape != source.shape[:2]:
        raise InputError(
            f"`key_padding_mask` must be boolean {tuple(source.shape[:2])}, True for padding, got {padding.dtype} of "
            f"shape {tuple(padding.shape)}: write attention_mask == 0 for the 0/1 mask of transformers, and "
            "mask.expand(...) where sequences share it"
        )


def check_padding_of_keys(padding: Tensor, keys: torch.Size) -> None:
    """Raise unless the flags broadcast over the batch and length of the keys, and never the keys over the flags."""
    flags = padding.shape
    pairs = zip(flags[-2::-1], keys[-2::-1], strict=False)
    fits = len(flags) <= len(keys) and all(one in (1, size) for one, size in pairs)
    if padding.dtype != torch.bool or flags[-1:] != keys[-1:] or not fits:
        raise InputError(
            f"`key_padding_mask` must be boolean with a flag for each of {keys[-1]} keys, True for padding, and "
            f"broadcast to {tuple(keys)}, got {padding.dtype} of shape {tuple(flags)}: write attention_mask == 0 for "
            "the 0/1 mask of transformers, and mask[:, None] where k has heads"
        )
