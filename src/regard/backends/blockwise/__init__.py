"""Attention block by block: pure PyTorch, in O(n) memory, forward and backward."""

from regard.backends.blockwise.backend import Blockwise, attend_in_blocks, results_in_blocks

__all__ = ["Blockwise", "attend_in_blocks", "results_in_blocks"]
