"""Attention block by block: pure PyTorch, in O(n) memory, forward and backward."""

from regard.backends.blockwise.backend import Blockwise

__all__ = ["Blockwise"]
