"""Padding of rows to one tensor, and blocks of running text."""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from regard.errors import InputError

__all__ = ["chunk_tokens", "pad"]


def pad(
    sequences: Sequence[Sequence[int]], pad_token_id: int, *, pad_to_multiple_of: int | None = None
) -> tuple[Int[Tensor, "batch n"], Bool[Tensor, "batch n"]]:
    """Return sequences as one tensor, padded on the right to the longest, with their attention mask.

    Args:
        sequences: Token ids.
        pad_token_id: The id of the padding token.
        pad_to_multiple_of: Round the length up to a multiple of this; kernels like multiples of 8.

    Returns:
        `input_ids` (batch, n), and `attention_mask` (batch, n): True for tokens, False for padding.

    Raises:
        InputError: There are no sequences, or `pad_to_multiple_of` is below 1.

    >>> input_ids, attention_mask = pad([[5, 6, 7], [8]], 0, pad_to_multiple_of=4)
    >>> input_ids, attention_mask.int()
    (tensor([[5, 6, 7, 0],
            [8, 0, 0, 0]]), tensor([[1, 1, 1, 0],
            [1, 0, 0, 0]], dtype=torch.int32))
    """
    multiple = 1 if pad_to_multiple_of is None else pad_to_multiple_of
    if not sequences:
        raise InputError("`sequences` must have at least one, got none")
    if multiple < 1:
        raise InputError(f"`pad_to_multiple_of` must be at least 1, got {multiple}")
    lengths = torch.tensor([len(row) for row in sequences])
    width = -(-int(lengths.max()) // multiple) * multiple
    ids = torch.tensor([[*row, *([pad_token_id] * (width - len(row)))] for row in sequences], dtype=torch.long)
    return ids.reshape(len(sequences), width), torch.arange(width) < lengths[:, None]


def chunk_tokens(token_ids: Sequence[int], block_size: int) -> list[list[int]]:
    """Return running text in chunks of block_size + 1 tokens for a causal language model.

    The first `block_size` tokens of a chunk are its inputs, the last `block_size` its labels: each chunk begins with
    the last token of the one before, and every token but the first is predicted once. The last chunk may be shorter.

    Raises:
        InputError: There are fewer than two tokens, or `block_size` is below 1.

    >>> chunk_tokens([1, 2, 3, 4, 5, 6], 2)
    [[1, 2, 3], [3, 4, 5], [5, 6]]
    """
    if block_size < 1:
        raise InputError(f"`block_size` must be at least 1, got {block_size}")
    if len(token_ids) < 2:
        raise InputError(f"`token_ids` must be at least two, an input and its label, got {len(token_ids)}")
    starts = range(0, len(token_ids) - 1, block_size)
    return [list(token_ids[start : start + block_size + 1]) for start in starts]
