"""Batches of rows of like length, shards of one batch, rows padded to one tensor, and blocks of running text.

Batches and shards are pure functions of their arguments: resuming needs only the epoch and the number of the batch.
"""

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Bool, Int
from numpy.typing import NDArray
from torch import Tensor

from regard.errors import InputError

__all__ = ["batches", "chunk_tokens", "pad", "shard_batch"]

_SPREAD = 0.1  # how far, of its length, a row may move among its neighbours: other neighbours in each epoch


def batches(
    lengths: Sequence[Sequence[int]] | Sequence[int], *, max_tokens_per_batch: int, seed: int, epoch: int
) -> list[tuple[int, ...]]:
    """Return batches of row indices, each of at most `max_tokens_per_batch` tokens, padding included.

    The size of a batch of n rows is n × the longest length in it, in any column. A batch contains rows of similar
    length. The order of the batches changes with the epoch, and so does the choice among rows of similar length. Within
    a batch, rows are ordered from short to long.

    Args:
        lengths: For each row its length, or the lengths of its columns: (source, target).
        max_tokens_per_batch: Largest number of tokens of a batch.
        seed: Seed of the order.
        epoch: 0, 1, 2, …

    Returns:
        The batches in the order they are to be trained on, each the indices of its rows; every row is in one of them.

    Raises:
        InputError: There are no rows, or one is longer than `max_tokens_per_batch`.

    >>> batches([5, 2, 2, 4], max_tokens_per_batch=10, seed=0, epoch=0)
    [(2, 1), (3, 0)]
    """
    sizes = _sizes(lengths)
    if not len(sizes):
        raise InputError("`lengths` must have at least one row, got none: is the corpus empty?")
    if (longest := int(sizes.max())) > max_tokens_per_batch:
        row, many = int(sizes.argmax()), int((sizes > max_tokens_per_batch).sum())
        raise InputError(
            f"`max_tokens_per_batch` must be at least the length of each row, got {max_tokens_per_batch}, and row "
            f"{row} has {longest} ({many:,} of {len(sizes):,} rows are too long): raise it, or leave those rows out "
            "with `Corpus.select`"
        )
    random = np.random.default_rng([seed, epoch])
    order = np.argsort(sizes + (1 + _SPREAD * sizes) * random.random(len(sizes)), kind="stable")
    found = [
        tuple(sorted(batch, key=lambda row: int(sizes[row]))) for batch in _cut(order, sizes, max_tokens_per_batch)
    ]
    return [found[index] for index in random.permutation(len(found))]


def shard_batch(batch: tuple[int, ...], num_shards: int) -> list[tuple[int, ...]]:
    """Return the rows of a batch in `num_shards` shards (processes × accumulation steps), dealt in turn.

    The numbers of rows of the shards differ by at most one. Their numbers of tokens are nearly equal, because `batches`
    orders rows by length. A shard is empty only if there are fewer rows than shards.

    >>> shard_batch((7, 3, 9, 1, 4), 2)
    [(7, 9, 4), (3, 1)]
    """
    if isinstance(num_shards, bool) or num_shards < 1:
        raise InputError(f"`num_shards` must be processes × accumulation steps and at least 1, got {num_shards}")
    return [tuple(batch[shard::num_shards]) for shard in range(num_shards)]


def _sizes(lengths: Sequence[Sequence[int]] | Sequence[int]) -> NDArray[np.int64]:
    """The length that counts of each row: the largest of its columns."""
    sizes = np.array([row if isinstance(row, int) else max(row) for row in lengths], dtype=np.int64)
    if (sizes < 0).any():
        raise InputError(f"`lengths` must be 0 or more, got {sizes.min()} for row {sizes.argmin()}")
    return sizes


def _cut(order: NDArray[np.int64], sizes: NDArray[np.int64], max_tokens: int) -> list[list[int]]:
    """Take rows in this order until one more would exceed the limit."""
    found: list[list[int]] = []
    current: list[int] = []
    longest = 0
    for row, size in zip(order.tolist(), sizes[order].tolist(), strict=True):
        if current and (len(current) + 1) * max(longest, size) > max_tokens:
            found.append(current)
            current, longest = [], 0
        current.append(row)
        longest = max(longest, size)
    return [*found, current]


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

    The first `block_size` tokens of a chunk are its inputs, and the last `block_size` tokens are its labels. Each chunk
    begins with the last token of the chunk before it, so every token except the first one is predicted once. The last
    chunk may be shorter.

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
