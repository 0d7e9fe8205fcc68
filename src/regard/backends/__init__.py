"""Ways to compute one problem, and the choice among them."""

from regard.backends.base import Answer, Backend, preferred
from regard.backends.blockwise import Blockwise
from regard.backends.narrow_keys import FEW_QUERIES, narrowed
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

__all__ = [
    "BACKENDS",
    "FEW_QUERIES",
    "Answer",
    "Backend",
    "Blockwise",
    "Explanation",
    "Reference",
    "Sdpa",
    "attend_dtensors",
    "check_name",
    "choose",
    "explain",
    "explain_dtensors",
    "narrowed",
    "preferred",
    "use_backend",
]
