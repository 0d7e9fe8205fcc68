"""Ways to compute one problem, and the choice among them."""

from regard.backends.base import Answer, Backend
from regard.backends.blockwise import Blockwise
from regard.backends.choice import BACKENDS, Explanation, check_name, choose, explain
from regard.backends.narrowed import narrowed
from regard.backends.preferred import prefer, preferred
from regard.backends.reference import Reference
from regard.backends.sdpa import Sdpa

__all__ = [
    "BACKENDS",
    "Answer",
    "Backend",
    "Blockwise",
    "Explanation",
    "Reference",
    "Sdpa",
    "check_name",
    "choose",
    "explain",
    "narrowed",
    "prefer",
    "preferred",
]
