"""Select the kernel for one kind of call, and prepare its arguments once for all calls with the same sizes."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from regard.backends.native.library import library
from regard.backends.native.mask_tables import Tables, tables_for
from regard.backends.native.record import float_buffer, place, record_of
from regard.backends.native.sizes import BLOCK, GROUP, LANES
from regard.backends.native.threads import address_of, run
from regard.normalizers import Sigmoid
from regard.positions.base import is_by_distance
from regard.positions.evaluated import evaluate
from regard.problem import Problem

__all__ = ["Call", "gradients"]

_FEW = 16  # maximum rows of a key–value head for which keys are read without packing them
_PART = 16  # maximum number of blocks of keys per task if there are few queries
_TASKS = 2  # minimum number of tasks of the backward pass per thread


class Call:
    """A function of q, k and v of a prepared problem that returns its output in their dtype, and the peaks and totals
    of its rows (`normalizers.softmax.Sums`), without the sink.

    The mask's tables and the bias are those at the time of creation. The tensors of the problem are not kept alive.
    """

    def __init__(self, problem: Problem) -> None:
        self._tables = tables_for(problem)
        self._bf16 = problem.q.dtype == torch.bfloat16 and library().has_bf16
        self._last_block = _last_block_of(problem)
        self._bias, numbers = _bias_of(problem)
        width, value_width = problem.k.shape[-1], problem.v.shape[-1]
        numbers |= _numbers_of(problem, self._tables)
        numbers |= {"last_block": self._last_block.ctypes.data, "bf16": self._bf16}
        numbers["depth"] = -(-width // 2) if self._bf16 else width
        self._blocks, self._sides = -(-problem.keys // BLOCK), problem.batch * problem.kv_heads
        rows = self._rows = problem.heads // problem.kv_heads * problem.queries
        self._is_few = rows <= _FEW and numbers["depth"] % LANES == 0 and self._tables.leading[1] == 1
        if self._is_few:
            each = max(2, min(_PART, self._sides * self._blocks // (4 * torch.get_num_threads())))
            numbers["parts"] = -(-self._blocks // each)
        self._depth, self._tasks = numbers["depth"], self._sides * numbers.get("parts", 0)
        self._record = record_of(numbers)
        self._sizes = (*problem.q.shape[:3], -(-value_width // LANES) * LANES)
        vectors, scores = self._sizes[3], GROUP * BLOCK  # floats of a row of values, and of scores
        self._workspace = 4 * BLOCK * (numbers["depth"] + scores + vectors + 2)
        if self._is_few:
            self._workspace = 4 * (rows * (self._depth + scores) + BLOCK * max(self._depth, vectors // 2))
        self._workspace += -self._workspace % 64
        self._width, self._dtype, self._zero = value_width, problem.q.dtype, _is_nothing(problem.scale)
        self._is_wide = self._bf16 or self._dtype == torch.float32  # as the kernels read it

    def __call__(
        self,
        q: Float[Tensor, "batch heads queries dim"],
        k: Float[Tensor, "batch kv_heads keys dim"],
        v: Float[Tensor, "batch kv_heads keys value_dim"],
    ) -> tuple[Float[Tensor, "batch heads queries value_dim"], Tensor, Tensor]:
        """Compute it."""
        peaks, totals = (float_buffer(*self._sizes[:3]) for _ in range(2))  # operators share no memory
        numbers = {"peaks": peaks.data_ptr(), "totals": totals.data_ptr()}
        return self._computed(q, k, v, numbers, (peaks, totals)), peaks, totals

    def output(
        self,
        q: Float[Tensor, "batch heads queries dim"],
        k: Float[Tensor, "batch kv_heads keys dim"],
        v: Float[Tensor, "batch kv_heads keys value_dim"],
        **numbers: int,
    ) -> Float[Tensor, "batch heads queries value_dim"]:
        """Compute the output only; `seed` is that of a call's own dropout."""
        return self._computed(q, k, v, numbers)

    def _computed(
        self, q: Tensor, k: Tensor, v: Tensor, numbers: Mapping[str, int], buffers: tuple[Tensor, ...] = ()
    ) -> Tensor:
        if not self._is_wide:
            q, k, v = q.float(), k.float(), v.float()
        multiple = 2 if self._bf16 else 1
        q, k, v = _in_rows(q, multiple), _in_rows(k, multiple), _in_rows(v, LANES)
        if self._zero:
            q = torch.zeros_like(q)
        output = q.new_empty(self._sizes)
        record = bytearray(self._record)
        place(record, tensors={"q": q, "k": k, "v": v}, output=output.data_ptr(), **numbers)
        if self._is_few:
            self._read(record, (self, q, k, v, output, *buffers))
        else:
            self._prefill(record, (self, q, k, v, output, *buffers))
        if self._width != self._sizes[3]:
            output = output[..., : self._width]
        return output if self._is_wide else output.to(self._dtype)

    def _prefill(self, record: bytearray, buffers: tuple[object, ...]) -> None:
        """Pack keys (and values in pairs), then compute each tile of queries."""
        batch, heads, queries, width = self._sizes
        packs = self._sides * self._blocks
        keys = float_buffer(packs * BLOCK * self._depth)
        place(record, tensors={}, packs=packs, packed_keys=keys.data_ptr())
        values = float_buffer(packs * BLOCK // 2 * width if self._bf16 else 0)
        place(record, tensors={}, packed_values=values.data_ptr())
        tasks = packs + batch * heads * -(-queries // BLOCK)
        run("attend", record, tasks=tasks, buffers=(*buffers, keys, values), workspace_bytes=self._workspace)

    def _read(self, record: bytearray, buffers: tuple[object, ...]) -> None:
        """Read the keys in parts; whoever finishes the last part of a key–value head merges them."""
        rows, counters = self._tasks * self._rows, 8 * self._sides
        parts = bytearray(counters + 4 * rows * (2 + self._sizes[3]))
        start = address_of(parts)
        sums = start + counters
        peaks = sums + 4 * rows * self._sizes[3]
        place(record, tensors={}, finished_parts=start, part_sums=sums, part_peaks=peaks, part_totals=peaks + 4 * rows)
        run("read", record, tasks=self._tasks, buffers=(*buffers, parts), workspace_bytes=self._workspace)


def gradients(
    problem: Problem,
    up: Float[Tensor, "batch heads queries value_dim"],
    peaks: Float[Tensor, "batch heads queries"],
    delta: Float[Tensor, "batch heads queries"],
    *,
    of_bias: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Compute the gradients of q, k and v of a prepared problem in float32, and of a bias of i − j: a number for each
    of its heads and for each distance, from the largest down.

    Args:
        problem: The problem.
        up: The gradient of the output, by each row's total.
        peaks: The peak of each row, 0 where it sees nothing.
        delta: Σ_d up · output, less the gradient of the log-sum-exp, by each row's total.
        of_bias: Whether to compute that of the bias, which must be Relative.
    """
    tables, last_block = tables_for(problem), _last_block_of(problem)
    _bias, numbers = _bias_of(problem)  # alive until the kernels have run
    q, k, v, up = (_in_rows(x, LANES) for x in (problem.q, problem.k, problem.v, up))
    if _is_nothing(problem.scale):
        q = torch.zeros_like(q)
    sides, blocks = problem.batch * problem.kv_heads, -(-problem.keys // BLOCK)
    tiles = problem.heads // problem.kv_heads * -(-problem.queries // BLOCK)
    parts = _parts_of(sides, tiles)
    depth, width = q.shape[-1], v.shape[-1]
    dq = float_buffer(*q.shape)
    dk, dv = (float_buffer(*k.shape[:2], blocks * BLOCK, x) for x in (depth, width))
    packed, sums = float_buffer(dk.numel() + dv.numel()), float_buffer((parts - 1) * (dk.numel() + dv.numel()))
    peaks, delta = peaks.float().contiguous(), delta.float().contiguous()
    numbers |= _numbers_of(problem, tables)
    # The gradient of a bias has no factor; then the others are multiplied by it at the end.
    numbers |= {
        "last_block": last_block.ctypes.data,
        "depth": depth,
        "gradient_scale": 1.0 if of_bias else problem.scale,
    }
    numbers |= {"parts": parts, "part_sums": sums.data_ptr(), "packs": sides * blocks}
    numbers |= {"packed_keys": packed.data_ptr(), "packed_values": packed.data_ptr() + dk.numel() * 4}
    diagonals = _sums_of_diagonals(problem, parts) if of_bias else None
    if diagonals is not None:
        numbers |= {"diagonal_sums": diagonals.data_ptr(), "diagonal_sums_bytes": diagonals.shape[-1] * 4}
    buffers = {"peaks": peaks, "delta": delta, "dq": dq, "dk": dk, "dv": dv}
    numbers |= {name: buffer.data_ptr() for name, buffer in buffers.items()}
    record = bytearray(record_of(numbers))
    place(record, tensors={"q": q, "k": k, "v": v, "grad_output": up})
    workspace = 4 * BLOCK * (2 * depth + width + 3 * BLOCK + 2)
    alive = (*buffers.values(), q, k, v, up, packed, sums, tables, last_block, _bias, diagonals)
    run("differentiate", record, tasks=sides * (blocks + parts), buffers=alive, workspace_bytes=workspace)
    if parts > 1:
        run("add_parts", record, tasks=sides * blocks, buffers=alive)
    dq, dk = dq[..., : problem.q.shape[-1]], dk[:, :, : problem.keys, : problem.k.shape[-1]]
    dv = dv[:, :, : problem.keys, : problem.v.shape[-1]]
    if diagonals is None:
        return dq, dk, dv, None
    return dq.mul_(problem.scale), dk.mul_(problem.scale), dv, _added(diagonals, problem)


def _sums_of_diagonals(problem: Problem, parts: int) -> Float[Tensor, "batch heads parts diagonals"]:
    """Return zeros for each task's sums along diagonals, in the order of `evaluate`; the last block of keys may
    reach beyond them.
    """
    diagonals = problem.queries - 1 + -(-problem.keys // BLOCK) * BLOCK
    return float_buffer(problem.batch, problem.heads, parts, diagonals).zero_()


def _added(
    diagonals: Float[Tensor, "batch heads parts diagonals"], problem: Problem
) -> Float[Tensor, "#heads diagonals"]:
    """Return the sums of all tasks, for each head that the bias distinguishes."""
    assert problem.bias is not None
    whole = diagonals[..., : problem.queries + problem.keys - 1].sum((0, 2))
    return whole if problem.bias.leading[1] > 1 else whole.sum(0, keepdim=True)


def _parts_of(sides: int, tiles: int) -> int:
    """Return among how many tasks the tiles of a key–value head are divided: as few as keep all threads busy."""
    threads = torch.get_num_threads()
    return 1 if threads == 1 else min(tiles, -(-_TASKS * threads // sides))


def _numbers_of(problem: Problem, tables: Tables) -> dict[str, Any]:
    """Return the sizes, the tables of the mask, and the factors."""
    numbers: dict[str, Any] = {
        name: getattr(problem, name) for name in ("batch", "heads", "kv_heads", "queries", "keys")
    }
    numbers |= {name: array.ctypes.data for name, array in tables.arrays.items()}
    numbers |= {"mask_batch": tables.leading[0], "mask_heads": tables.leading[1]}
    if isinstance(problem.normalizer, Sigmoid):
        numbers |= {"is_sigmoid": 1, "shift": problem.normalizer.shift_for(problem.keys)}
    numbers |= {"value_vectors": -(-problem.v.shape[-1] // LANES)}
    return numbers | _dropout_of(problem) | _factors_of(problem)


def _last_block_of(problem: Problem) -> npt.NDArray[np.uint8]:
    """Return 1 for the keys that the last block has."""
    return (np.arange(BLOCK) < (problem.keys - 1) % BLOCK + 1).astype(np.uint8)


def _in_rows(x: Float[Tensor, "batch heads n width"], multiple: int) -> Tensor:
    """Return the tensor padded with zeros to a multiple in width, with contiguous rows and its sign in memory."""
    x = x.resolve_neg()
    if x.shape[-1] % multiple:
        return pad(x, (0, -x.shape[-1] % multiple)).contiguous()  # it keeps strides in which heads are adjacent
    return x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()


def _bias_of(problem: Problem) -> tuple[Tensor | None, dict[str, Any]]:
    """Return the bias and its strides: entries of neighbouring keys are adjacent; those of i − j are shifted by one
    per row.
    """
    if problem.bias is None:
        return None, {}
    if is_by_distance(problem.bias):
        place = problem.queries, problem.keys, problem.q_offset, problem.q.device
        values = evaluate(problem.bias, *place).values.float().contiguous()
        first = values.data_ptr() + (problem.queries - 1) * 4
        return values, {"bias": first, "bias_head": values.stride(0) * 4 if len(values) > 1 else 0, "bias_row": -4}
    tile = problem.everything.numbers(problem.bias, problem.q.device)
    tile = tile.float()
    tile = tile if tile.stride(-1) == 1 else tile.contiguous()
    steps = (step * 4 if size > 1 else 0 for step, size in zip(tile.stride(), tile.shape, strict=True))
    return tile, dict(zip(("bias_batch", "bias_head", "bias_row"), steps, strict=False)) | {"bias": tile.data_ptr()}


def _dropout_of(problem: Problem) -> dict[str, Any]:
    """Return the numbers of dropout; `kept_scale` is 1 without it."""
    dropout = problem.dropout
    if dropout is None:
        return {"kept_scale": 1.0}
    numbers = {"drops": 1, "seed": int(dropout.seed), "least_bits": dropout.least_bits}
    return numbers | {"kept_scale": 1 / (1 - dropout.p)}


def _factors_of(problem: Problem) -> dict[str, float]:
    """Return the factors before each step; after the softcap and after the bias there is none."""
    softcap, factor = problem.score.softcap, 1.0 if _is_nothing(problem.scale) else problem.scale
    factors: dict[str, float] = {}
    if softcap is not None:
        factors |= {"scale_for_cap": problem.scale / softcap, "cap": softcap}
        factor = 1.0
    if problem.bias is not None:
        factors["scale_for_bias"], factor = factor, 1.0
    return factors | {"scale": factor, "hidden": -math.inf if factor > 0 else math.inf}


def _is_nothing(scale: float) -> bool:
    """Return whether a scale is 0 in float32: hidden pairs are marked by a score, which would be lost when multiplied
    by 0.
    """
    return bool(np.float32(scale) == 0)
