"""The sizes in which the compiled loops work."""

__all__ = ["BLOCK", "GROUP"]

BLOCK = 64  # rows and columns of a block
GROUP = 8  # blocks of a row whose scores are held at once
