"""Batches: rows of like length together, as many as a budget of tokens allows; and one batch dealt to several places.

Everything is a pure function of its arguments, so whoever resumes needs no state but the epoch and the batch's number.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from regard.errors import InputError

__all__ = ["batches", "deal"]

_SPREAD = 0.1  # how far, of its length, a row may move among its neighbours: other company in each epoch


def batches(
    lengths: Sequence[Sequence[int]] | Sequence[int], *, tokens: int, seed: int, epoch: int
) -> list[tuple[int, ...]]:
    """Divide rows into batches of at most `tokens` tokens each, padding counted.

    A batch of `rows` rows costs rows × the longest length in it, in whichever column that is. Rows of about the same
    length come together; who exactly, and the order of the batches, changes with the epoch. Within a batch rows go
    from short to long.

    Args:
        lengths: For each row its length, or the lengths of its columns: (source, target).
        tokens: The budget of a batch.
        seed: Of the run.
        epoch: 0, 1, 2, …

    Returns:
        The batches in the order they are to be trained on, each the indices of its rows; every row is in one of them.

    Raises:
        InputError: There are no rows, or one is longer than the budget.

    >>> batches([5, 2, 2, 4], tokens=10, seed=0, epoch=0)
    [(2, 1), (3, 0)]
    """
    sizes = _sizes(lengths)
    if not len(sizes):
        raise InputError("`lengths` must have at least one row, got none: is the corpus empty?")
    if (longest := int(sizes.max())) > tokens:
        row, many = int(sizes.argmax()), int((sizes > tokens).sum())
        raise InputError(
            f"`tokens` must be at least the length of each row, got {tokens}, and row {row} has {longest} ({many:,} "
            f"of {len(sizes):,} rows are too long): raise `tokens`, or leave those rows out with `Corpus.select`"
        )
    random = np.random.default_rng([seed, epoch])
    order = np.argsort(sizes + (1 + _SPREAD * sizes) * random.random(len(sizes)), kind="stable")
    found = [tuple(sorted(batch, key=lambda row: int(sizes[row]))) for batch in _cut(order, sizes, tokens)]
    return [found[index] for index in random.permutation(len(found))]


def deal(batch: tuple[int, ...], parts: int) -> list[tuple[int, ...]]:
    """Deal the rows of one batch to `parts` places (processes × accumulation steps), like cards.

    The numbers of rows differ by one at most, and so, since `batches` orders rows by length, hardly do their tokens.
    A part is empty only where there are fewer rows than parts.

    >>> deal((7, 3, 9, 1, 4), 2)
    [(7, 9, 4), (3, 1)]
    """
    if isinstance(parts, bool) or parts < 1:
        raise InputError(f"`parts` must be processes × accumulation steps and at least 1, got {parts}")
    return [tuple(batch[part::parts]) for part in range(parts)]


def _sizes(lengths: Sequence[Sequence[int]] | Sequence[int]) -> NDArray[np.int64]:
    """The length that counts of each row: the largest of its columns."""
    sizes = np.array([row if isinstance(row, int) else max(row) for row in lengths], dtype=np.int64)
    if (sizes < 0).any():
        raise InputError(f"`lengths` must be 0 or more, got {sizes.min()} for row {sizes.argmin()}")
    return sizes


def _cut(order: NDArray[np.int64], sizes: NDArray[np.int64], tokens: int) -> list[list[int]]:
    """Take rows in this order until one more would break the budget."""
    found: list[list[int]] = []
    current: list[int] = []
    longest = 0
    for row, size in zip(order.tolist(), sizes[order].tolist(), strict=True):
        if current and (len(current) + 1) * max(longest, size) > tokens:
            found.append(current)
            current, longest = [], 0
        current.append(row)
        longest = max(longest, size)
    return [*found, current]
