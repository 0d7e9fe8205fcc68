"""Sizes of native/call.h, native/products.h and native/tiles.h that the arguments of the kernels depend on."""

__all__ = ["BLOCK", "GROUP", "LANES", "ROWS_AT_ONCE", "STRIP", "STRIPS"]

BLOCK = 64  # queries, or keys, of a tile
GROUP = 8  # blocks of keys whose scores are held together
LANES = 16  # floats of a vector
STRIP = 16  # queries, or keys, of a block that are skipped together where a mask hides them
STRIPS = BLOCK // STRIP
ROWS_AT_ONCE = 4  # rows of a product
