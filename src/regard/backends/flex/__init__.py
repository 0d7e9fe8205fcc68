"""FlexAttention, PyTorch's compiled kernel with block masks, as a backend; on CUDA it is experimental."""

from regard.backends.flex.backend import Flex

__all__ = ["Flex"]
