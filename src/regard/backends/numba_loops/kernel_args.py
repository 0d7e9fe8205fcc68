"""The arguments of the compiled loops: one record of addresses, strides in bytes, sizes and numbers; `BLOCK_OF_WEIGHTS`
for the statistics of weights, `HEAD_ROWS` for rows of a few heads (its strides are PyTorch's), `JOB` for all others.

`counter`, `seats` and `packed` are incremented by all threads: for the next task, for a part of `room` for each thread,
and for each of the `packs` blocks of keys that are rearranged.
"""

import numpy as np

__all__ = ["BLOCK_OF_WEIGHTS", "CHUNK", "HEAD_ROWS", "JOB", "PACKED", "SEATS"]

_NUMBERS = """
    counter seats packed packs tasks room room_bytes
    q k v output lse low packed_keys packed_values
    q_batch q_head q_row k_batch k_head k_row v_batch v_head v_row
    batch heads kv_heads queries keys depth value_vectors pairs
    rows starts lengths tiles seen edge mask_batch mask_heads
    bias bias_batch bias_head bias_row bias_sums bias_sums_bytes
    parts part_most part_mass part_sums
    up delta dq dk dv up_batch up_head up_row
    row_bits column_bits least_bits
""".split()
_FLOATS = "scale cap biased soft hidden factor kept".split()

JOB = np.dtype([(name, np.int64) for name in _NUMBERS] + [(name, np.float32) for name in _FLOATS], align=True)
SEATS, PACKED = (_NUMBERS.index(name) for name in ("seats", "packed"))

CHUNK = 64  # weights that are searched together; the columns of a block are a multiple of it
BLOCK_OF_WEIGHTS = np.dtype(
    [
        (name, np.int64)
        for name in """
    weights scores heads rows columns size room
    row_shift tall column_shift broad bin_rows bin_columns first count
    top keys per_row received sums maxima
""".split()
    ]
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
