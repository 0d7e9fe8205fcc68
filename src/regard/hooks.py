"""What rooms below leave to rooms above, which the package names when it is imported and which load at their first use.

Calls whose sequences lie over the ranks of a process group are computed by `regard.parallel`, so nothing in the core
knows how tensors are sharded. Weights of recorded queries and keys are computed by `regard.observe`, so records and
atlases are read without torch.
"""

from collections.abc import Callable
from typing import Any

__all__ = ["KEPT_WEIGHTS", "OVER_RANKS", "are_sharded", "kept_weights", "over_ranks"]

# By the name of the class of such tensors, what loads the module that takes them: it has `attend` and `explain`.
OVER_RANKS: dict[str, Callable[[], Any]] = {}

# What loads the module that computes weights from recorded queries and keys: it has `weights`.
KEPT_WEIGHTS: list[Callable[[], Any]] = []


def are_sharded(*given: object) -> bool:
    """Return whether one of these is a tensor of which each rank has a part, without importing what defines them."""
    return any(type(one).__name__ in OVER_RANKS for one in given)


def over_ranks() -> Any:
    """Load the module that takes such calls."""
    (load,) = OVER_RANKS.values()
    return load()


def kept_weights() -> Any:
    """Load the module that computes weights from recorded queries and keys."""
    (load,) = KEPT_WEIGHTS
    return load()
