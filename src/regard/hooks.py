"""The one hook of the core: what computes calls whose sequences lie over the ranks of a process group.

The package gives it `regard.parallel` when it is imported, and the first such call loads that. So nothing in the core
knows how tensors are sharded.
"""

from collections.abc import Callable
from typing import Any

__all__ = ["OVER_RANKS", "are_sharded", "over_ranks"]

# By the name of the class of such tensors, what loads the module that takes them: it has `attend` and `explain`.
OVER_RANKS: dict[str, Callable[[], Any]] = {}


def are_sharded(*given: object) -> bool:
    """Return whether one of these is a tensor of which each rank has a part, without importing what defines them."""
    return any(type(one).__name__ in OVER_RANKS for one in given)


def over_ranks() -> Any:
    """Load the module that takes such calls."""
    (load,) = OVER_RANKS.values()
    return load()
