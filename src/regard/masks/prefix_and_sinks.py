"""The first keys.

Prefix: the first keys of each sequence, which every query may see.

Sinks: the first tokens, which every query may see.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from regard.checks import are_integers, check_count
from regard.errors import InputError
from regard.masks.base import Mask
from regard.masks.padding_and_global import entry
from regard.masks.rectangles import Rectangles

__all__ = ["Prefix", "Sinks"]


@dataclass(frozen=True, eq=False)
class Prefix(Mask):
    """j < length: the prefix is seen by all; `length` is one number or an integer tensor (batch,).

    `Causal() | Prefix(length)`, which `masks.prefix_lm` writes, is the mask of a prefix language model.

    Cost: O(n · length · dim) time; no memory but for a number a sequence, copied.

    >>> import torch
    >>> Prefix(torch.tensor([1, 2])).bind(2, 3).dense(batch=2)[:, 0].int()
    tensor([[[1, 0, 0],
             [1, 0, 0]],
    <BLANKLINE>
            [[1, 1, 0],
             [1, 1, 0]]], dtype=torch.int32)
    """

    length: int | Int[Tensor, " batch"]

    def __post_init__(self) -> None:
        if not isinstance(self.length, Tensor):
            check_count("length", self.length, 0, "counts the keys of the prefix")
        elif self.length.ndim != 1 or not are_integers(self.length):
            raise InputError(
                f"`length` must be an integer or an integer tensor (batch,), got {self.length.dtype} of shape "
                f"{tuple(self.length.shape)}"
            )
        super().__post_init__()

    def __call__(self, batch: Tensor, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
        """The key belongs to the prefix."""
        if not isinstance(self.length, Tensor):
            return j < self.length
        return j < entry(self.length[:, None], batch, torch.zeros_like(batch))

    def blocks(self, rectangles: Rectangles, /) -> Tensor:
        """Compare the range of keys with the length."""
        length = self.length
        if isinstance(length, Tensor):
            length = length.cpu()[(...,) + (None,) * (1 + len(rectangles.shape))]
        return rectangles.answer(empty=rectangles.left >= length, full=rectangles.right <= length)

    @property
    def leading(self) -> tuple[int, int]:
        """One length a sequence, or one for all."""
        return (self.length.shape[0], 1) if isinstance(self.length, Tensor) else (1, 1)


@dataclass(frozen=True)
class Sinks(Mask):
    """j < num_sink_tokens: the first keys are seen by all (attention sinks: Xiao et al. 2024, arXiv:2309.17453).

    StreamingLLM keeps 4 of them beside a window: `Causal() & (Window(1020) | Sinks(4))`. (A sink without a token, one
    more number in the softmax, is `normalizers.Softmax(sink)`.)

    Cost: O(n · num_sink_tokens · dim) time; no memory.

    >>> Sinks(1).bind(3, 3).dense()[0, 0].int()
    tensor([[1, 0, 0],
            [1, 0, 0],
            [1, 0, 0]], dtype=torch.int32)
    """

    num_sink_tokens: int

    def __post_init__(self) -> None:
        check_count("num_sink_tokens", self.num_sink_tokens, 0, "counts the first keys")

    def __call__(self, batch: Tensor, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
        """The key is one of the first."""
        return j < self.num_sink_tokens

    def blocks(self, rectangles: Rectangles, /) -> Tensor:
        """Compare the range of keys with the count."""
        sinks = self.num_sink_tokens
        return rectangles.answer(empty=rectangles.left >= sinks, full=rectangles.right <= sinks)
