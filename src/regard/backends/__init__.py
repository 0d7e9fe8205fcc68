"""Ways to compute one problem, and the choice among them."""

from regard.backends.base import Answer, Backend, preferred
from regard.backends.reference import Reference
from regard.backends.sdpa import Sdpa
from regard.backends.selection import (
    BACKENDS,
    Explanation,
    check_name,
    choose,
    explain,
    use_backend,
)
from regard.backends.strips import Strips

__all__ = [
    "BACKENDS",
    "Answer",
    "Backend",
    "Explanation",
    "Reference",
    "Sdpa",
    "Strips",
    "check_name",
    "choose",
    "explain",
    "preferred",
    "use_backend",
]
