"""Which blocks are computed together: bands of rows whose keys are evenly spaced, and what is left, gathered."""

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch

from regard.backends.blockwise.block_groups import Band, Gathered, Piece
from regard.masks.block_runs import Indices, Runs

__all__ = ["plan"]

_TALL = 4  # rows that share their shape are worth a call of their own
_WIDE = 8  # and so are blocks in one run


def plan(runs: Runs, last: int, *, short: bool, relative: bool, gathers: bool) -> list[Piece]:
    """Put the runs of one mask together.

    `last` is the last column block, which has to be masked where it is `short` of keys. `relative`: the mask depends on
    i − j alone. `gathers`: rows may be computed together though their columns are not evenly spaced.
    """
    runs = _without_tail(runs, last) if short else runs
    tail = (runs.start + runs.length > last) & short
    pieces: list[Piece] = []
    if relative:
        # Full and partial blocks of a row in one call: a tile of the mask that all rows share costs little.
        whole, member = runs.merged()
        free = ~((whole.start + whole.length > last) & short)
        bands, taken = _bands(whole, free, step=1, tall=_TALL, wide=None)
        pieces += bands
        left = ~taken[member]
        runs, tail = runs.where(left), tail[left]
    for full in (True, False):
        some = runs.where(runs.full == full)
        free = ~tail[runs.full == full]
        if full:
            bands, taken = _bands(some, free, step=0, tall=2, wide=None)
            pieces += bands
            some, free = some.where(~taken), free[~taken]
        if full or relative:
            bands, taken = _bands(some, free, step=1, tall=_TALL, wide=_WIDE if gathers else 1)
            pieces += bands
            some = some.where(~taken)
        pieces += _gathered(some) if gathers and full else _singles_or_gathered(some, gathers)
    return pieces


def _without_tail(runs: Runs, last: int) -> Runs:
    """Cut the last column block off full runs, as one that must be masked."""
    ends = runs.full & (runs.start + runs.length > last)
    body = replace(runs, length=runs.length - ends)
    cut = Runs(runs.row[ends], np.full(int(ends.sum()), last), np.ones(int(ends.sum()), np.int64), ~runs.full[ends])
    return Runs.together([body.where(body.length > 0), cut])


def _bands(
    runs: Runs, free: npt.NDArray[np.bool_], *, step: int, tall: int, wide: int | None
) -> tuple[list[Band], npt.NDArray[np.bool_]]:
    """Rows that follow one another with runs of one length, `step` apart; and which of the runs they take."""
    taken = np.zeros(len(runs.row), np.bool_)
    at = np.flatnonzero(free)
    if not len(at):
        return [], taken
    row, origin, length = runs.row[at], (runs.start - step * runs.row)[at], runs.length[at]
    order = np.lexsort((row, length, origin))
    row, origin, length, at = row[order], origin[order], length[order], at[order]
    begins = np.ones(len(row), np.bool_)
    begins[1:] = (origin[1:] != origin[:-1]) | (length[1:] != length[:-1]) | (row[1:] != row[:-1] + 1)
    first = np.flatnonzero(begins)
    count = np.diff(np.append(first, len(row)))
    worth = count >= tall
    if wide is not None:
        worth |= length[first] >= wide
    taken[at[np.repeat(worth, count)]] = True
    full = np.logical_and.reduceat(runs.full[at], first)
    bands = [
        Band(int(row[f]), int(n), int(runs.start[at[f]]), int(length[f]), step, not is_full)
        for f, n, is_full in zip(first[worth], count[worth], full[worth], strict=True)
    ]
    return bands, taken


def _singles_or_gathered(runs: Runs, gathers: bool) -> list[Piece]:
    """Long runs alone, so that nothing is copied; short ones gathered, if that may be."""
    alone = runs.length >= (_WIDE if gathers else 1)
    singles: list[Piece] = [
        Band(int(row), 1, int(start), int(length), 1, not full)
        for row, start, length, full in zip(*(x[alone] for x in runs.columns), strict=True)
    ]
    return singles + _gathered(runs.where(~alone))


def _gathered(runs: Runs) -> list[Piece]:
    """All blocks of a row together, and rows with equally many blocks together."""
    if not len(runs.row):
        return []
    blocks = np.arange(int(runs.length.sum())) - np.repeat(np.cumsum(runs.length) - runs.length, runs.length)
    columns: Indices = np.repeat(runs.start, runs.length) + blocks
    rows, first, count = np.unique(np.repeat(runs.row, runs.length), return_index=True, return_counts=True)
    pieces: list[Piece] = []
    for many in np.unique(count):
        which = np.flatnonzero(count == many)
        table = columns[first[which, None] + np.arange(many)]
        if len(which) == 1 and table[0, -1] - table[0, 0] == many - 1:
            row = int(rows[which[0]])
            pieces.append(Band(row, 1, int(table[0, 0]), int(many), 1, not bool(runs.full[0])))
            continue
        pieces.append(Gathered(torch.from_numpy(rows[which]), torch.from_numpy(table), not bool(runs.full[0])))
    return pieces
