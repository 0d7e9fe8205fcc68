"""Rows of different length as one tensor, and a stream of text cut into rows."""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from regard.errors import InputError

__all__ = ["pad", "windows"]


def pad(
    rows: Sequence[Sequence[int]], value: int, *, multiple: int = 1
) -> tuple[Int[Tensor, "batch n"], Bool[Tensor, "batch n"]]:
    """Fill rows up with `value` behind their tokens, to the length of the longest.

    Args:
        rows: Token ids.
        value: The id to fill up with.
        multiple: The length is rounded up to a multiple of this; kernels like multiples of 8.

    Returns:
        The ids (batch, n), and where they are real (batch, n): True for tokens, False for padding.

    Raises:
        InputError: There are no rows, or `multiple` is below 1.

    >>> ids, real = pad([[5, 6, 7], [8]], 0, multiple=4)
    >>> ids, real.int()
    (tensor([[5, 6, 7, 0],
            [8, 0, 0, 0]]), tensor([[1, 1, 1, 0],
            [1, 0, 0, 0]], dtype=torch.int32))
    """
    if not rows:
        raise InputError("`rows` must have at least one row, got none")
    if multiple < 1:
        raise InputError(f"`multiple` must be at least 1, got {multiple}")
    lengths = torch.tensor([len(row) for row in rows])
    width = -(-int(lengths.max()) // multiple) * multiple
    ids = torch.tensor([[*row, *([value] * (width - len(row)))] for row in rows], dtype=torch.long)
    return ids.reshape(len(rows), width), torch.arange(width) < lengths[:, None]


def windows(ids: Sequence[int], length: int) -> list[list[int]]:
    """Cut a stream of tokens into rows of length + 1 for a causal language model.

    A row's first `length` tokens are read and its last `length` predicted, so each row begins with the token that the
    one before ended with, and every token but the stream's first is predicted once. The last row may be shorter.

    Raises:
        InputError: There are fewer than two tokens, or `length` is below 1.

    >>> windows([1, 2, 3, 4, 5, 6], 2)
    [[1, 2, 3], [3, 4, 5], [5, 6]]
    """
    if length < 1:
        raise InputError(f"`length` must be at least 1, got {length}")
    if len(ids) < 2:
        raise InputError(f"`ids` must be at least two tokens, one to read and one to predict, got {len(ids)}")
    return [list(ids[start : start + length + 1]) for start in range(0, len(ids) - 1, length)]
