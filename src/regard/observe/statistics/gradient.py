"""Statistics of the loss: gradient × attention, and the importance of heads."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from regard.observe.statistics.base import Extent, Need, PerKey, PerQuery
from regard.observe.statistics.default_statistics import HeatMap
from regard.observe.weight_rows import RowBlock
from regard.part import product

__all__ = ["GradientTimesAttention", "HeadImportance"]


class GradientTimesAttention:
    """p_ij · ∂L/∂p_ij = p_ij (∂L/∂o_i · v_j): the first-order change of the loss per relative change of a weight.

    It is positive if a larger weight would increase the loss. Call `backward()` within the `with` block; the rows are
    computed from q and k during the first backward pass. There are three arrays:

        gradient_x_attention       (batch, heads, queries)  Σ_j, the row's sum, which is o_i · ∂L/∂o_i
        gradient_x_attention.keys  (batch, heads, keys)  Σ_i, the column's sum
        gradient_x_attention.mean  (batch, heads, query bins, key bins)  pooled as the heat map is

    Weights are those before dropout: watch in evaluation mode. Chefer et al. 2021, "Generic Attention-model
    Explainability" (https://arxiv.org/abs/2103.15679, equation 5), who keep its positive part.

    Raises:
        ObservationError: Nothing ran backward, the model ran without gradients, or a call does not show its output.
    """

    name = "gradient_x_attention"
    needs: frozenset[Need] = frozenset({"gradient"})

    def __init__(self) -> None:
        self._heat, self._rows, self._columns = HeatMap(), _RowSums(), _ColumnSums()
        self._gradient: Tensor | None = None
        self._values: Tensor | None = None
        self._first = 0

    def start(self, extent: Extent, /) -> None:
        """Store the gradient and the values of the call."""
        around = extent.needs(self.name)
        assert around.gradient is not None  # such statistics start when it is known
        self._gradient, self._values = around.gradient.to(extent.dtype), around.values(self.name).to(extent.dtype)
        self._first = extent.queries - self._gradient.shape[2]
        for one in (self._heat, self._rows, self._columns):
            one.start(extent)

    def fold(self, rows: RowBlock) -> None:
        """Multiply each weight by its gradient."""
        assert self._gradient is not None
        assert self._values is not None
        here = slice(rows.rows.start - self._first, rows.rows.stop - self._first)
        group = self._gradient.shape[1] // self._values.shape[1]
        shared = slice(rows.heads.start // group, -(-rows.heads.stop // group))
        values = self._values[rows.batch_index, shared, rows.columns]
        slopes = product(self._gradient[rows.batch_index, rows.heads, here][None], values.mT[None])[0]
        weighted = rows.weights[..., : slopes.shape[2]] * slopes
        folded = RowBlock(rows.batch_index, rows.heads, rows.start, rows.key_start, weighted)
        for one in (self._heat, self._rows, self._columns):
            one.fold(folded)

    def finish(self, extent: Extent, /) -> Mapping[str, Any]:
        """Return the sums and the map."""
        rows, columns = self._rows.finish(extent), self._columns.finish(extent)
        mean = self._heat.finish(extent)["mean"]
        return {self.name: rows["rows"], f"{self.name}.keys": columns["columns"], f"{self.name}.mean": mean}


class _RowSums(PerQuery):
    name = "rows"

    def of(self, rows: RowBlock) -> Tensor:
        return rows.weights.sum(-1)


class _ColumnSums(PerKey):
    name = "columns"

    def of(self, rows: RowBlock) -> Tensor:
        return rows.weights.sum(1)


class HeadImportance:
    """|Σ_i o_i · ∂L/∂o_i| of each sequence, (batch, heads): the first-order change of the loss if the head is removed.

    Michel et al. 2019, "Are Sixteen Heads Really Better than One?" (https://arxiv.org/abs/1905.10650, equation 2): the
    expectation over texts of |Att_h(x)ᵀ ∂L/∂Att_h(x)|; average it over yours. It needs no map, only the output and its
    gradient: call `backward()` within the `with` block.

    Raises:
        ObservationError: Nothing ran backward, the model ran without gradients, or a call does not show its output.
    """

    name = "importance"
    needs: frozenset[Need] = frozenset({"gradient"})
    sweeps = False

    def __init__(self) -> None:
        self._found: Tensor | None = None

    def start(self, extent: Extent, /) -> None:
        """Multiply output and gradient."""
        around = extent.needs(self.name)
        assert around.output is not None  # such statistics start when it is known
        assert around.gradient is not None
        product = around.output.detach().to(extent.dtype) * around.gradient.to(extent.dtype)
        if extent.padding is not None:
            hidden = torch.tensor(extent.padding.queries).to(product.device)
            product = product.masked_fill(hidden[:, None, :, None], 0)
        self._found = product.sum((-2, -1)).abs()

    def fold(self, rows: RowBlock) -> None:
        """Do nothing: no row is needed."""

    def finish(self, extent: Extent, /) -> Mapping[str, Any]:
        """Return one number per head."""
        assert self._found is not None
        return {self.name: self._found.cpu().numpy()}
