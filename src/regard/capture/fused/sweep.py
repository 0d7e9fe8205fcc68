"""Compute all data of the standard statistics from q and k with two fused kernels, in O(n) memory.

Supported is the softmax of scaled products in which a query sees a band; bins are those of the heat map. The
block sizes are those of similar kernels and untuned, and float32 does not use tensor cores, whose TF32 is
not precise enough.
"""

import contextlib
import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.backends.kernel_compilers import Blocks, interprets
from regard.errors import InputError, MissingExtraError
from regard.masks.causal_and_window import Band

__all__ = ["MOST_DIM", "MOST_STRONGEST", "Band", "Bins", "Blocks", "Found", "observe"]

MOST_STRONGEST = 16  # maximum number of keys per row, which are held in registers
MOST_DIM = 256
_HIDDEN = -1e30  # a score below that of any visible key; unlike minus infinity, it gives zero when multiplied by zero


@dataclass(frozen=True)
class Bins:
    """The bins of a heat map: the rows and columns that each spans, powers of two, and the offset of the call in its
    first bin.
    """

    tall: int
    broad: int
    row_shift: int = 0
    column_shift: int = 0


class Found(NamedTuple):
    """The results; weights, sums and maxima in float32, received attention summed in float64.

    The log-sum-exp of a row that sees no key is +inf, as in `RowBlock.lse`: its weights are exp(−inf) = 0.
    """

    lse: Float[Tensor, "batch heads queries"]
    entropy: Float[Tensor, "batch heads queries"] | None
    top_weights: Float[Tensor, "batch heads queries count"] | None
    top_keys: Int[Tensor, "batch heads queries count"] | None
    received: Float[Tensor, "batch heads keys"] | None
    sums: Float[Tensor, "batch heads row_bins column_bins"] | None
    maxima: Float[Tensor, "batch heads row_bins column_bins"] | None


def observe(
    q: Float[Tensor, "batch heads queries dim"],
    k: Float[Tensor, "batch kv_heads keys dim"],
    *,
    scale: float,
    band: Band | None = None,
    q_offset: int | None = None,
    lse: Float[Tensor, "batch heads queries"] | None = None,
    count: int = 8,
    bins: Bins | None = None,
    by_keys: bool = True,
    blocks: tuple[Blocks, Blocks] | None = None,
) -> Found:
    """Compute p_ij = exp(scale · q_i·k_j − lse_i) tile by tile and return the data of the statistics, without storing
    any p_ij.

    Args:
        q: Queries, on CUDA, in float32, float16 or bfloat16, with any strides.
        k: Keys; query head h uses their head h // (heads / kv_heads).
        scale: The factor on the products.
        band: The keys that a query sees; by default all.
        q_offset: Position of the first query; by default the queries are the last positions.
        lse: The log-sum-exps as natural logarithms, if the fused attention kernel has computed them; with these, and
            `count` 0, the first kernel is skipped, and with it entropies and strongest keys.
        count: Number of strongest keys of each row, at most 16.
        bins: The bins of the heat map; without them, a single bin spans everything.
        by_keys: Whether to compute received attention and the heat map with the second kernel.
        blocks: Block sizes of the two kernels; by default those for the device.

    Raises:
        InputError: The tensors are not on CUDA (and Triton's interpreter is off), or of a type or width that the
            kernels do not support.
        MissingExtraError: Triton is missing.
    """
    _check(q, k, count)
    band, bins = band or Band(), bins or Bins(_power(q.shape[2]), _power(k.shape[2]))
    for_keys, for_queries = blocks or _blocks(q.dtype, q.shape[3])
    call = _Call(q.detach(), k.detach(), scale, band, k.shape[2] - q.shape[2] if q_offset is None else q_offset)
    entropy = top_weights = top_keys = received = sums = maxima = None
    with torch.cuda.device(q.device) if q.is_cuda else contextlib.nullcontext(), torch.no_grad():
        if lse is None or count:
            base2, entropy, scores, keys = _sweep_keys(call, max(count, 1), for_keys)
            if count:
                top_weights, order = torch.exp2(scores - base2[..., None]).topk(min(count, scores.shape[-1]), -1)
                top_keys = keys.gather(-1, order).masked_fill_(top_weights <= 0, -1)
        else:
            base2 = torch.where(lse == -torch.inf, torch.inf, lse).to(torch.float32) / math.log(2)
            base2 = base2.contiguous()
        if by_keys:
            received, sums, maxima = _sweep_queries(call, base2, bins, for_queries)
    return Found(base2 * math.log(2), entropy, top_weights, top_keys, received, sums, maxima)


@dataclass(frozen=True, eq=False)
class _Call:
    """The arguments of a call for both kernels."""

    q: Tensor
    k: Tensor
    scale: float
    band: Band
    start: int

    @property
    def arguments(self) -> tuple[int | float, ...]:
        """Strides, sizes and the band, in the order of the kernels' parameters."""
        heads, queries, keys = self.q.shape[1], self.q.shape[2], self.k.shape[2]
        sizes = heads, heads // self.k.shape[1], queries, keys, self.start
        band = self.band.within(queries + keys + abs(self.start))
        return *self.q.stride(), *self.k.stride(), *sizes, *band, self.scale * math.log2(math.e)

    @property
    def widths(self) -> dict[str, int]:
        """The width of a head and the next power of two."""
        return {"dim": self.q.shape[3], "padded": max(16, _power(self.q.shape[3]))}


def _sweep_keys(call: _Call, count: int, blocks: Blocks) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return log-sum-exps in base 2, entropies, and the largest scores of each row with their keys, unsorted."""
    from regard.capture.fused.kernels import over_keys

    batch, heads, queries, _ = call.q.shape
    lse, entropy = torch.empty(2, batch, heads, queries, device=call.q.device, dtype=torch.float32)
    scores = lse.new_empty(batch, heads, queries, _power(count))
    keys = torch.empty_like(scores, dtype=torch.int32)
    over_keys[-(-queries // blocks.queries), batch * heads](
        *(call.q, call.k, lse, entropy, scores, keys),
        *call.arguments,
        **call.widths,
        count=scores.shape[-1],
        hidden=_HIDDEN,
        **blocks.options,
    )
    return lse, entropy, scores, keys


def _sweep_queries(call: _Call, lse: Tensor, bins: Bins, blocks: Blocks) -> tuple[Tensor, Tensor, Tensor]:
    """Return the attention that each key received, and sums and maxima of the bins."""
    from regard.capture.fused.kernels import over_queries

    batch, heads, queries, _ = call.q.shape
    rows, columns = queries + bins.row_shift, call.k.shape[2] + bins.column_shift
    narrow = min(bins.broad, blocks.keys)
    # As many bins as fill whole blocks; columns of bins that are wider than a block are merged below.
    bin_rows = -(-_up(rows, blocks.queries) // bins.tall)
    bin_columns = _up(columns, max(bins.broad, blocks.keys)) // narrow
    received = torch.zeros(batch, heads, call.k.shape[2], dtype=torch.float64, device=call.q.device)
    sums = torch.zeros(batch, heads, bin_rows, bin_columns, dtype=torch.float32, device=call.q.device)
    maxima = torch.zeros_like(sums)
    over_queries[-(-columns // blocks.keys), batch * heads](
        *(call.q, call.k, lse, received, sums, maxima),
        *call.arguments,
        *(bins.row_shift, bins.column_shift, bin_rows, bin_columns),
        **call.widths,
        tall=bins.tall,
        broad=bins.broad,
        **blocks.options,
    )
    if bins.broad > narrow:
        joined = batch, heads, bin_rows, -1, bins.broad // narrow
        sums, maxima = sums.view(joined).sum(-1), maxima.view(joined).amax(-1)
    here = ..., slice(-(-rows // bins.tall)), slice(-(-columns // bins.broad))
    return received, sums[here], maxima[here]


def _blocks(dtype: torch.dtype, dim: int) -> tuple[Blocks, Blocks]:
    """Return block sizes along the keys and along the queries that give the highest occupancy on an H100, as estimated
    by the compiler.
    """
    if dtype == torch.float32:  # without tensor cores, and with twice the shared memory
        small = Blocks(32, 32, warps=4, stages=1)
        return small, small
    along = Blocks(64, 64, warps=4, stages=3), Blocks(64, 128, warps=8)
    return along if dim <= 128 else (replace(along[0], stages=2), replace(along[1], keys=64))


def _check(q: Tensor, k: Tensor, count: int) -> None:
    try:
        import triton  # noqa: F401
    except ImportError:
        raise MissingExtraError("triton", "gpu") from None
    if not (q.is_cuda or interprets()):
        raise InputError(f"`q` must be on CUDA for the fused pass, got {q.device}: leave it to the pass in PyTorch")
    if q.dtype not in (torch.float32, torch.float16, torch.bfloat16) or k.dtype != q.dtype:
        raise InputError(
            f"q and k must both be float32, float16 or bfloat16 for the fused pass, got {q.dtype}, {k.dtype}"
        )
    if q.shape[3] > MOST_DIM or k.shape[3] != q.shape[3]:
        raise InputError(f"q and k must have one width up to {MOST_DIM}, got {q.shape[3]} and {k.shape[3]}")
    if not 0 <= count <= MOST_STRONGEST:
        raise InputError(f"`count` must be from 0 to {MOST_STRONGEST} for the fused pass, got {count}")


def _power(length: int) -> int:
    """Return the smallest power of two that is not less."""
    return 1 << (length - 1).bit_length()


def _up(length: int, step: int) -> int:
    return -(-length // step) * step
