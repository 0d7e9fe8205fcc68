"""Packing of short sequences into rows, kept apart by `masks.Document`."""

from collections.abc import Sequence

import torch
from jaxtyping import Int
from torch import Tensor

from regard.errors import InputError

__all__ = ["collate_packed", "pack_sequences"]


def pack_sequences(lengths: Sequence[int], block_size: int) -> list[tuple[int, ...]]:
    """Return rows of sequences, at most `block_size` tokens each: the longest first, each where it fits tightest.

    The method is best-fit decreasing, in O(n log n). It needs at most 11/9 of the minimum number of rows plus 6/9 of a
    row (Johnson 1974; Dósa 2007 for the constant of first-fit decreasing). The result depends only on the arguments.

    Args:
        lengths: Tokens of each sequence, at least 1.
        block_size: Tokens of a row.

    Returns:
        The rows, each the indices of its sequences; every sequence is in one of them.

    Raises:
        InputError: A sequence is empty or longer than a row.

    >>> pack_sequences([3, 6, 2, 5, 4], 8)
    [(1, 2), (3, 0), (4,)]
    """
    for index, length in enumerate(lengths):
        if not 1 <= length <= block_size:
            raise InputError(
                f"`lengths` must be from 1 to `block_size` ({block_size}), got {length} for sequence {index}: cut long "
                "ones with `chunk_tokens`, leave empty ones out, or raise `block_size`"
            )
    rows: list[list[int]] = []
    open_rows: list[list[int]] = [[] for _ in range(block_size + 1)]  # rows by the room left in them, first made last
    rooms = 0  # bit r is set when a row has room for exactly r tokens, so that the tightest is found at once
    for index in sorted(range(len(lengths)), key=lambda index: -lengths[index]):
        length = lengths[index]
        if fitting := rooms >> length:
            room = length + (fitting & -fitting).bit_length() - 1
            row = open_rows[room].pop()
            rooms &= ~(not open_rows[room] and 1 << room)
        else:
            room, row = block_size, len(rows)
            rows.append([])
        rows[row].append(index)
        if left := room - length:
            open_rows[left].append(row)
            rooms |= 1 << left
    return [tuple(row) for row in rows]


def collate_packed(
    sequences: Sequence[Sequence[int]], rows: Sequence[Sequence[int]], block_size: int, pad_token_id: int
) -> tuple[Int[Tensor, "batch n"], Int[Tensor, "batch n"]]:
    """Return the rows of `pack_sequences` as tensors, sequence after sequence.

    Args:
        sequences: Token ids of each sequence.
        rows: For each row the indices of its sequences.
        block_size: Tokens of a row.
        pad_token_id: The id of the padding token.

    Returns:
        `input_ids` (batch, block_size), and the document of each token (batch, block_size) for `masks.Document`: 0, 1,
        … within a row, −1 for padding.

    Raises:
        InputError: The sequences of a row are longer than `block_size`, or there are no rows.

    >>> collate_packed([[5, 6], [7]], [(0, 1)], block_size=4, pad_token_id=0)
    (tensor([[5, 6, 7, 0]]), tensor([[ 0,  0,  1, -1]]))
    """
    if not rows:
        raise InputError("`rows` must have at least one row, got none")
    ids = torch.full((len(rows), block_size), pad_token_id, dtype=torch.long)
    documents = torch.full((len(rows), block_size), -1, dtype=torch.long)
    for place, members in enumerate(rows):
        tokens = [token for index in members for token in sequences[index]]
        if len(tokens) > block_size:
            raise InputError(
                f"`rows` must have at most `block_size` ({block_size}) tokens each, got {len(tokens)} in row {place}"
            )
        ids[place, : len(tokens)] = torch.tensor(tokens, dtype=torch.long)
        lengths = torch.tensor([len(sequences[index]) for index in members], dtype=torch.long)
        documents[place, : len(tokens)] = torch.repeat_interleave(lengths)
    return ids, documents
