"""Ways to compute one problem, and the choice among them."""

from regard.backends.backend_context import preferred, use_backend
from regard.backends.base import Answer, Backend
from regard.backends.blockwise import Blockwise
from regard.backends.narrow_keys import narrowed
from regard.backends.reference import Reference
from regard.backends.sdpa import Sdpa
from regard.backends.selection import BACKENDS, Explanation, check_name, choose, explain

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
    "preferred",
    "use_backend",
]
