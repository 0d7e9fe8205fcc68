"""A mask together with the order in which a sharded sequence lies."""

from dataclasses import dataclass

from regard.backends.sharded.sequence_layout import SequenceLayout
from regard.masks import Mask

__all__ = ["OrderedMask"]


@dataclass(frozen=True, eq=False)
class OrderedMask:
    """The `mask=` of a call whose DTensors were permuted by `shard_sequence`.

    Args:
        mask: The mask over the positions of the sequence as it was; None hides nothing.
        layout: Which positions each rank has.
    """

    mask: Mask | None
    layout: SequenceLayout
