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
from regard.backends.sharded.dtensors import attend_dtensors, explain_dtensors
from regard.backends.strips import Strips

__all__ = [
    "BACKENDS",
    "Answer",
    "Backend",
    "Explanation",
    "Reference",
    "Sdpa",
    "Strips",
    "attend_dtensors",
    "check_name",
    "choose",
    "explain",
    "explain_dtensors",
    "preferred",
    "use_backend",
]
