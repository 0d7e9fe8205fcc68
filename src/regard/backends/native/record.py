"""The records of the kernels, field by field in the order of native/call.h (`CALL`) and native/statistics.h (`ROWS`):
addresses, sizes, strides in bytes, and numbers.
"""

import struct
from typing import Any

import numpy as np
import torch
from torch import Tensor

__all__ = ["CALL", "ROWS", "START", "float_buffer", "place", "record_of"]

_NUMBERS = """
    next_task next_workspace packed tasks workspace workspace_bytes
    q q_batch q_head q_row k k_batch k_head k_row v v_batch v_head v_row
    grad_output grad_output_batch grad_output_head grad_output_row
    output peaks totals packs packed_keys packed_values
    batch heads kv_heads queries keys depth value_vectors bf16
    tile_runs run_starts run_lengths run_masks visible strip_ranges last_block mask_batch mask_heads
    bias bias_batch bias_head bias_row diagonal_sums diagonal_sums_bytes
    parts finished_parts part_peaks part_totals part_sums
    delta dq dk dv
    drops seed least_bits is_sigmoid
""".split()
_FLOATS = "scale_for_cap cap scale_for_bias scale shift hidden gradient_scale kept_scale".split()

CALL = np.dtype([(name, np.int64) for name in _NUMBERS] + [(name, np.float32) for name in _FLOATS], align=True)
START = struct.Struct("6q")  # of next_task … workspace_bytes
_TENSOR, _NUMBER = struct.Struct("4q"), struct.Struct("q")
_OFFSETS = {name: 8 * n for n, name in enumerate(_NUMBERS)}

ROWS = np.dtype(
    [
        (name, np.int64)
        for name in """
    q packed depth rows columns diagonal before after keys first
    group weights weights_row workspace
    height width row_shift column_shift bin_columns
    count strongest strongest_keys row_sums received sums maxima
""".split()
    ]
)


def record_of(numbers: dict[str, Any]) -> bytes:
    """Return a record of a call; numbers that are not given are 0."""
    return np.array([tuple(numbers.get(name, 0) for name in CALL.names or ())], CALL).tobytes()


def place(call: bytearray, *, tensors: dict[str, Tensor], **numbers: int) -> None:
    """Write the addresses and strides of tensors, and numbers, into a record: many times as fast as NumPy does."""
    for name, x in tensors.items():
        batch, head, row, _ = x.stride()
        size = x.element_size()
        _TENSOR.pack_into(call, _OFFSETS[name], x.data_ptr(), batch * size, head * size, row * size)
    for name, number in numbers.items():
        _NUMBER.pack_into(call, _OFFSETS[name], number)


def float_buffer(*sizes: int) -> Tensor:
    """Return memory for numbers of 32 bits on the CPU, as kernels address it under every default of PyTorch."""
    return torch.empty(*sizes, dtype=torch.float32, device="cpu")
