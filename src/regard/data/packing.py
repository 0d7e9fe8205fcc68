"""Packing: short texts share rows, kept apart by `masks.Document`."""

from collections.abc import Sequence

import torch
from jaxtyping import Int
from torch import Tensor

from regard.errors import InputError

__all__ = ["pack", "packed"]


def pack(lengths: Sequence[int], width: int) -> list[tuple[int, ...]]:
    """Put texts into rows of at most `width` tokens, in few rows: the longest first, each where it fits tightest.

    Best-fit decreasing needs at most 11/9 of the fewest rows possible, and 6/9 of a row (Johnson 1974; Dósa 2007 for
    the constant of first-fit decreasing). The result depends on the arguments alone; O(n log n).

    Args:
        lengths: Tokens of each text, at least 1.
        width: Tokens of a row.

    Returns:
        The rows, each the indices of its texts; every text is in one of them.

    Raises:
        InputError: A text is empty or longer than a row.

    >>> pack([3, 6, 2, 5, 4], 8)
    [(1, 2), (3, 0), (4,)]
    """
    for index, length in enumerate(lengths):
        if not 1 <= length <= width:
            raise InputError(
                f"`lengths` must be from 1 to `width` ({width}), got {length} for text {index}: cut long texts with "
                "`windows`, leave empty ones out, or raise `width`"
            )
    rows: list[list[int]] = []
    open_rows: list[list[int]] = [[] for _ in range(width + 1)]  # rows by the room left in them, first made last
    rooms = 0  # bit r is set when a row has room for exactly r tokens, so that the tightest is found at once
    for index in sorted(range(len(lengths)), key=lambda index: -lengths[index]):
        length = lengths[index]
        if fitting := rooms >> length:
            room = length + (fitting & -fitting).bit_length() - 1
            row = open_rows[room].pop()
            rooms &= ~(not open_rows[room] and 1 << room)
        else:
            room, row = width, len(rows)
            rows.append([])
        rows[row].append(index)
        if left := room - length:
            open_rows[left].append(row)
            rooms |= 1 << left
    return [tuple(row) for row in rows]


def packed(
    rows: Sequence[Sequence[int]], bins: Sequence[Sequence[int]], width: int, pad: int
) -> tuple[Int[Tensor, "batch width"], Int[Tensor, "batch width"]]:
    """Write texts one behind the other into the rows that `pack` chose.

    Args:
        rows: Token ids of each text.
        bins: For each row of the result the texts in it.
        width: Tokens of a row.
        pad: The id to fill up with.

    Returns:
        The ids (batch, width), and each place's document (batch, width) as `masks.Document` reads them: 0, 1, … within
        a row, −1 for padding.

    Raises:
        InputError: A row's texts are longer than `width`, or there are no rows.

    >>> packed([[5, 6], [7]], [(0, 1)], width=4, pad=0)
    (tensor([[5, 6, 7, 0]]), tensor([[ 0,  0,  1, -1]]))
    """
    if not bins:
        raise InputError("`bins` must have at least one row, got none")
    ids = torch.full((len(bins), width), pad, dtype=torch.long)
    documents = torch.full((len(bins), width), -1, dtype=torch.long)
    for place, texts in enumerate(bins):
        tokens = [token for text in texts for token in rows[text]]
        if len(tokens) > width:
            raise InputError(
                f"`bins` must hold at most `width` ({width}) tokens each, got {len(tokens)} in row {place}"
            )
        ids[place, : len(tokens)] = torch.tensor(tokens, dtype=torch.long)
        lengths = torch.tensor([len(rows[text]) for text in texts], dtype=torch.long)
        documents[place, : len(tokens)] = torch.repeat_interleave(lengths)
    return ids, documents
