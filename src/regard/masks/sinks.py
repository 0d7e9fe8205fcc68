"""Sinks: the first tokens, which every query may see."""

from dataclasses import dataclass

from torch import Tensor

from regard.masks.base import Mask
from regard.masks.block_plan import Rectangles
from regard.masks.checks import check_count

__all__ = ["Sinks"]


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
