"""The block sizes of the compiled loops."""

__all__ = ["BLOCK", "GROUP"]

BLOCK = 64  # rows and columns of a block
GROUP = 8  # number of blocks of a row whose scores are held at the same time
