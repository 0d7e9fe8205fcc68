"""The backends that tests go through."""

from regard.backends.selection import named

# Those that know most calls; `native` needs kernels.
GENERAL = [named()[name] for name in ("sdpa", "strips", "reference")]
