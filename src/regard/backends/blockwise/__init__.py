"""Attention block by block: pure PyTorch, in O(n) memory, forward and backward."""

from regard.backends.blockwise.autograd_function import Passes
from regard.backends.blockwise.backend import Blockwise, attend_in_blocks, results_in_blocks

__all__ = ["Blockwise", "Passes", "attend_in_blocks", "results_in_blocks"]
