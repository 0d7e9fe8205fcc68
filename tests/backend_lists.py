"""The backends that tests go through."""

from regard.backends.selection import named

# Those that know most calls; `native` needs kernels and `split` knows two kinds of calls.
GENERAL = [named()[name] for name in ("sdpa", "blockwise", "reference")]
