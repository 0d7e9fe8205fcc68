"""The arguments of the compiled loops: one record of addresses, strides in bytes, sizes and numbers; `BLOCK_OF_WEIGHTS`
for the statistics of weights (the last line for weights that are computed from q and k), `HEAD_ROWS` for rows of a few
heads (its strides are PyTorch's), `JOB` for all others.

`counter`, `seats` and `packed` are incremented by all threads: for the next task, for a part of `room` for each thread,
and for each of the `packs` blocks of keys that are rearranged. `finished` are counters of the key–value heads, for each
part that is read. Where `lse` is 0, none is written.
"""

import struct
from typing import Any

import numpy as np
import torch
from torch import Tensor

__all__ = [
    "BLOCK_OF_WEIGHTS",
    "CHUNK",
    "FROM_QK",
    "HEAD_ROWS",
    "JOB",
    "PACKED",
    "SEATS",
    "START",
    "float_buffer",
    "place",
    "record_of",
]

_NUMBERS = """
    counter seats packed tasks room room_bytes
    q q_batch q_head q_row k k_batch k_head k_row v v_batch v_head v_row up up_batch up_head up_row
    output lse low packs packed_keys packed_values
    batch heads kv_heads queries keys depth value_vectors pairs
    rows starts lengths tiles seen spans edge mask_batch mask_heads
    bias bias_batch bias_head bias_row bias_sums bias_sums_bytes
    parts finished part_most part_mass part_sums
    delta dq dk dv
    row_bits column_bits least_bits
""".split()
_FLOATS = "scale cap biased soft hidden factor kept".split()

JOB = np.dtype([(name, np.int64) for name in _NUMBERS] + [(name, np.float32) for name in _FLOATS], align=True)
SEATS, PACKED = (_NUMBERS.index(name) for name in ("seats", "packed"))
START = struct.Struct("6q")  # of counter … room_bytes
_ROWS, _NUMBER = struct.Struct("4q"), struct.Struct("q")
_PLACES = {name: 8 * at for at, name in enumerate(_NUMBERS)}


def record_of(numbers: dict[str, Any]) -> bytes:
    """Return a record of numbers; those that are not given are 0."""
    return np.array([tuple(numbers.get(name, 0) for name in JOB.names or ())], JOB).tobytes()


def place(job: bytearray, *, rows: dict[str, Tensor], **numbers: int) -> None:
    """Write the addresses and strides of tensors, and numbers, into a record: many times as fast as NumPy does."""
    for name, x in rows.items():
        batch, head, row, _ = x.stride()
        size = x.element_size()
        _ROWS.pack_into(job, _PLACES[name], x.data_ptr(), batch * size, head * size, row * size)
    for name, number in numbers.items():
        _NUMBER.pack_into(job, _PLACES[name], number)


def float_buffer(*sizes: int) -> Tensor:
    """Return memory for numbers of 32 bits on the CPU, as compiled code addresses it under every default of PyTorch."""
    return torch.empty(*sizes, dtype=torch.float32, device="cpu")


CHUNK = 64  # weights that are searched together; the columns of a block are a multiple of it
FROM_QK = tuple("q packed depth group weights_row diagonal before after seen".split())  # of weights from q and k
BLOCK_OF_WEIGHTS = np.dtype(
    [
        (name, np.int64)
        for name in """
    weights scores heads rows columns size room
    row_shift tall column_shift broad bin_rows bin_columns first count
    top keys per_row received sums maxima
""".split()
    ]
    + [(name, np.int64) for name in FROM_QK]
)

HEAD_ROWS = np.dtype(
    [
        (name, np.int64)
        for name in """
    q q_batch q_head q_row k k_batch k_head k_row mask mask_batch mask_head mask_row hides
    weights numbers batch heads group first rows keys depth causal
""".split()
    ]
    + [(name, np.float32) for name in ("scale", "hidden")]
)
