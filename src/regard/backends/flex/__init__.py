"""FlexAttention, PyTorch's compiled kernel with block masks, as a backend."""

from regard.backends.flex.backend import Flex

__all__ = ["Flex"]
