"""Which documents occur in a range of positions: what `Document` knows of rectangles without looking at pairs."""

from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from regard.masks.checks import covered, prefix_counts

__all__ = ["Ranges", "ranges"]


@dataclass(frozen=True, eq=False)
class Ranges:
    """Bounds of the documents in any range of positions, exact where documents are contiguous."""

    after: Int[Tensor, "batch n"]  # the least document from here on
    before: Int[Tensor, "batch n"]  # the greatest up to here
    counts: Int[Tensor, "batch edges"]  # of positions that belong to a document

    def between(
        self, first: Int[Tensor, "*ranges"], end: Int[Tensor, "*ranges"]
    ) -> tuple[Int[Tensor, "batch 1 *ranges"], Int[Tensor, "batch 1 *ranges"], Int[Tensor, "batch 1 *ranges"]]:
        """Bounds of the documents in [first, end), and how many positions belong to one."""
        last = self.after.shape[1] - 1
        low, high = self.after[:, first.clamp(0, last)], self.before[:, (end - 1).clamp(0, last)]
        return low[:, None], high[:, None], covered(self.counts, first, end)


def ranges(queries: Int[Tensor, "#batch queries"], keys: Int[Tensor, "#batch keys"]) -> tuple[Ranges, Ranges]:
    """Name each document by its first key, so that contiguous ones are in order whatever their ids."""
    batch, nowhere = max(len(queries), len(keys)), keys.shape[1]
    both = torch.cat([keys.expand(batch, -1), queries.expand(batch, -1)], 1)
    ids, documents = both.unique(return_inverse=True)
    first = torch.full((batch, len(ids)), nowhere)
    first.scatter_reduce_(1, documents[:, :nowhere], torch.arange(nowhere).expand(batch, -1), "amin")
    first[:, ids < 0] = nowhere
    labels = first.gather(1, documents)
    return _bounds(labels[:, nowhere:], nowhere), _bounds(labels[:, :nowhere], nowhere)


def _bounds(labels: Int[Tensor, "batch n"], nowhere: int) -> Ranges:
    labels = labels if labels.shape[1] else labels.new_full((len(labels), 1), nowhere)
    real = labels < nowhere
    after = labels.flip(1).cummin(1).values.flip(1)
    before = torch.where(real, labels, -1).cummax(1).values
    return Ranges(after, before, prefix_counts(real))
