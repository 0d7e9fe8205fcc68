"""Who may see whom: masks as values over positions, True where a query may see a key."""

from regard.masks.base import EMPTY, FULL, PARTIAL, BoundMask, Mask, Only
from regard.masks.causal import Causal
from regard.masks.convert import from_key_padding_mask, from_zeros_and_ones
from regard.masks.dense import Dense
from regard.masks.padding import Padding
from regard.masks.window import Window

__all__ = [
    "EMPTY",
    "FULL",
    "PARTIAL",
    "BoundMask",
    "Causal",
    "Dense",
    "Mask",
    "Only",
    "Padding",
    "Window",
    "from_key_padding_mask",
    "from_zeros_and_ones",
]
