"""Value-weighted norm: the contribution of a weight to the output, with the model's output projection W_O."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from regard.errors import InputError, ObservationError
from regard.observe.statistics.base import Extent
from regard.observe.statistics.default_statistics import HeatMap, Received
from regard.observe.watched_call import WatchedCall
from regard.observe.weight_rows import RowBlock

__all__ = ["ValueNorm", "output_projection", "weight_of"]


# Of the module that calls attention: PyTorch, OPT, BART, CLIP and ours; Llama and its kin; GPT-2; DistilBERT; GPT-NeoX,
# Falcon, Phi, ALBERT; timm; T5; ModernBERT; diffusers.
_NAMES = ("out_proj", "o_proj", "c_proj", "out_lin", "dense", "proj", "o", "Wo", "wo", "to_out")


def output_projection(
    owner: nn.Module | None, parent: nn.Module | None, width: int, name: str
) -> Float[Tensor, "in_width out_width"]:
    """Return the output projection of the module that owns a call, or BERT's `output.dense` of the parent module.

    Raises:
        ObservationError: No projection with an input of `width` numbers was found, or several.
    """
    found = {id(one): one for one in _candidates(owner, parent) if _takes(one, width)}
    if len(found) == 1:
        return weight_of(*found.values())
    what = "several modules may be it" if found else f"no module there takes in the {width} numbers of all its heads"
    raise ObservationError(
        f"the output projection of {name or 'this call'} ({type(owner).__name__}) is not known, as {what}: name it "
        "with statistics.ValueNorm(projection={...}), from module names to nn.Linear modules"
    )


def weight_of(module: nn.Module | Tensor) -> Float[Tensor, "in_width out_width"]:
    """Return the weight for multiplication from the right; a tensor must have nn.Linear's layout."""
    weight = module if isinstance(module, Tensor) else module.weight
    assert isinstance(weight, Tensor)
    return weight.detach() if type(module).__name__ == "Conv1D" else weight.detach().T


def _candidates(owner: nn.Module | None, parent: nn.Module | None) -> Iterator[nn.Module]:
    around = getattr(parent, "output", None)
    for one in [*(getattr(owner, name, None) for name in _NAMES), getattr(around, "dense", None)]:
        first = next(iter(one), None) if isinstance(one, nn.Sequential | nn.ModuleList) else one
        if isinstance(first, nn.Module):
            yield first


def _takes(module: nn.Module, width: int) -> bool:
    weight = getattr(module, "weight", None)
    known = isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D"
    if not known or not isinstance(weight, Tensor) or weight.ndim != 2 or not weight.is_floating_point():
        return False
    return weight_of(module).shape[0] == width


_KEYS = 1024  # number of values projected in one step


class ValueNorm:
    """‖α_ij v_j W_O‖ = α_ij ‖v_j W_O‖ of each head: v_j = x_j W_V + b, W_O its part of the output projection.

    Kobayashi et al. 2020, "Attention is Not Only a Weight" (https://arxiv.org/abs/2004.10102, section 3): a sink with a
    small value takes much weight and moves little. Four arrays:

        value_norm       (batch, heads, keys)  Σ_i ‖α_ij v_j W_O‖, what each key moves in all queries
        value_norm.keys  (batch, heads, keys)  ‖v_j W_O‖ alone
        value_norm.mean, value_norm.max  (batch, heads, query bins, key bins)  pooled as the heat map is

    W_O is looked for in the module that owns the call (`out_proj`, `o_proj`, `c_proj`, …) and, as BERT has it, in
    `output.dense` beside it. `projection` names it where that fails: an nn.Linear, or a tensor as nn.Linear holds it
    (out_width, heads · value_dim), or a mapping from the names of layers to either. Its bias moves all alike and is
    left out.

    Raises:
        ObservationError: While watching, where W_O or the values are not known.
    """

    name = "value_norm"
    by_head = True

    def __init__(self, projection: nn.Module | Tensor | Mapping[str, nn.Module | Tensor] | None = None) -> None:
        self._asked = projection
        if isinstance(projection, Mapping):
            self._given = {name: _checked(one) for name, one in projection.items()}
            self._anywhere = None
        else:
            self._given = {}
            self._anywhere = None if projection is None else _checked(projection)
        self._heat, self._received = HeatMap(), Received()
        self._norms: Tensor | None = None
        self._projection: Tensor | None = None

    def __deepcopy__(self, memo: dict[int, Any]) -> "ValueNorm":
        """Return a new statistic with the same projection."""
        return type(self)(self._asked)

    def start(self, extent: Extent, /) -> None:
        """Project the values of new keys, and allocate memory."""
        known = 0 if self._norms is None else self._norms.shape[2]
        around, last = extent.needs(self.name), extent.keys if extent.cross else extent.queries + extent.offset
        if last > known:
            norms = self._fresh(around, extent, slice(max(0, known - around.shift), last - around.shift))
            # A sliding cache may have dropped keys that were never seen here.
            norms = functional.pad(norms, (last - known - norms.shape[2], 0))
            self._norms = norms if self._norms is None else torch.cat([self._norms, norms], 2)
        self._heat.start(extent)
        self._received.start(extent)

    def _fresh(self, around: WatchedCall, extent: Extent, keys: slice) -> Float[Tensor, "batch heads keys"]:
        """Return the norms of some keys of a call."""
        return self._of(around.values(self.name)[:, :, keys].to(extent.dtype), extent)

    def fold(self, rows: RowBlock) -> None:
        """Multiply each column by the norm of its value."""
        assert self._norms is not None  # start comes first
        norms = self._norms[rows.batch_index, rows.heads, rows.columns]
        norms = functional.pad(norms, (0, rows.weights.shape[2] - norms.shape[-1]))
        moved = RowBlock(rows.batch_index, rows.heads, rows.start, rows.key_start, rows.weights * norms[:, None])
        self._heat.fold(moved)
        self._received.fold(moved)

    def finish(self, extent: Extent, /) -> Mapping[str, Any]:
        """Return sums, norms and maps."""
        assert self._norms is not None
        heat = self._heat.finish(extent)
        norms = functional.pad(self._norms, (0, extent.keys - self._norms.shape[2]))
        return {
            self.name: self._received.finish(extent)["received"],
            f"{self.name}.keys": norms.cpu().numpy(),
            f"{self.name}.mean": heat["mean"],
            f"{self.name}.max": heat["max"],
        }

    def _of(self, values: Tensor, extent: Extent) -> Float[Tensor, "batch heads keys"]:
        """Return the norms, computed for some keys at a time, because a projected value is as wide as the model."""
        weight = self._weight(extent, values.shape[-1]).to(values)
        heads = weight.unflatten(0, (extent.heads, -1))
        group = extent.heads // values.shape[1]
        norms = values.new_empty(len(values), extent.heads, values.shape[2])
        for head in range(extent.heads):
            for batch_index in range(len(values)):
                for part in range(0, values.shape[2], _KEYS):
                    some = values[batch_index, head // group, part : part + _KEYS]
                    norms[batch_index, head, part : part + _KEYS] = torch.linalg.vector_norm(some @ heads[head], dim=-1)
        return norms

    def _weight(self, extent: Extent, value_dim: int) -> Float[Tensor, "in_width out_width"]:
        if self._projection is None:
            around, width = extent.needs(self.name), extent.heads * value_dim
            given = self._given.get(around.site, self._anywhere)
            self._projection = around.projection(width) if given is None else given
            if self._projection.shape[0] != width:
                raise ObservationError(
                    f"`projection` for {around.site or 'this call'} must take in {extent.heads} heads of {value_dim}, "
                    f"{width} numbers, got {self._projection.shape[0]}: pass it as nn.Linear holds it (out, in)"
                )
        return self._projection


def _checked(projection: nn.Module | Tensor) -> Tensor:
    weight = projection if isinstance(projection, Tensor) else getattr(projection, "weight", None)
    if not isinstance(weight, Tensor) or weight.ndim != 2 or not weight.is_floating_point():
        raise InputError(
            "`projection` must be an nn.Linear, a matrix as nn.Linear holds it, or a mapping from names of layers to "
            f"either, got {type(projection).__name__}"
        )
    return weight_of(projection)
