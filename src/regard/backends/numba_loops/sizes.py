"""The block sizes of the compiled loops, and of the vectors and products in them."""

__all__ = ["BLOCK", "GROUP", "LANES", "ROWS", "STRIP", "STRIPS"]

BLOCK = 64  # rows and columns of a block
GROUP = 8  # number of blocks of a row whose scores are held at the same time
LANES = 16  # floats of a vector
STRIP = 16  # rows or columns of a block that are skipped together where a mask hides them
STRIPS = BLOCK // STRIP
ROWS = 4  # rows of a product, whose sums are held in registers
