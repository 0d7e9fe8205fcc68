"""Masks of every kind, drawn for any place: each with its rule written once more in numpy.

A new mask gets one entry in `FAMILIES`. Positions of queries run from `start` on, those of keys from 0.
"""

from typing import NamedTuple

import numpy as np
import torch

from regard import masks


class Place(NamedTuple):
    """Where a mask is bound, and where its numbers are drawn from."""

    rng: np.random.Generator
    batch: int
    heads: int
    queries: int
    keys: int
    start: int

    @property
    def i(self):
        return self.start + np.arange(self.queries)[:, None]

    @property
    def j(self):
        return np.arange(self.keys)

    def below(self, most, least=0):
        return int(self.rng.integers(least, max(least + 1, most)))

    def grid(self):
        """Two factors of the number of keys, as near to each other as can be."""
        tall = next(size for size in range(int(self.keys**0.5), 0, -1) if self.keys % size == 0)
        return tall, self.keys // tall


def _axial(at):
    tall, wide = at.grid()
    axis = at.below(2)
    rule = at.i // wide == at.j // wide if axis == 1 else at.i % wide == at.j % wide
    return masks.Axial((tall, wide), axis=axis), rule


def _block_local(at):
    size, before, after = at.below(at.keys, 1), at.below(3), at.below(3)
    step = at.j // size - at.i // size
    return masks.BlockLocal(size, look_backward=before, look_forward=after), (step >= -before) & (step <= after)


def _causal(at):
    if at.rng.random() < 0.5:
        return masks.Causal(align="start"), at.j <= at.i - at.start
    return masks.Causal(), at.j <= at.i


def _dense(at):
    shape = [size if at.rng.random() < 0.5 else 1 for size in (at.batch, at.heads, at.queries)] + [at.keys]
    seen = at.rng.random(shape) < at.rng.choice([0.01, 0.5, 0.99])
    return masks.Dense(torch.tensor(seen)), seen


def _dilated(at):
    before, after, dilation = at.below(at.keys // 2), at.below(3), at.below(5, 1)
    steps = (at.i - at.j) / dilation
    rule = (steps == np.floor(steps)) & (steps >= -after) & (steps <= before)
    return masks.DilatedWindow(left=before, right=after, dilation=dilation), rule


def _document(at):
    ids = np.repeat(at.rng.permutation(8) - 1, at.rng.multinomial(at.keys, [1 / 8] * 8))
    if at.rng.random() < 0.5:
        own = at.rng.integers(-1, 7, at.queries)
        seen = (own[:, None] == ids) & (ids >= 0)
        return masks.Document(torch.tensor(ids), query_ids=torch.tensor(own)), seen
    own = ids[np.clip(at.i, 0, at.keys - 1)]
    return masks.Document(torch.tensor(ids)), (own == ids) & (ids >= 0)


def _global(at):
    if at.rng.random() < 0.5:
        flags = at.rng.random((at.batch, at.keys)) < 0.02
        row = flags[:, None, np.clip(at.i[:, 0], 0, at.keys - 1), None]
        return masks.Global(torch.tensor(flags)), row | flags[:, None, None]
    tokens = tuple(at.rng.integers(0, at.keys, 3).tolist())
    return masks.Global(tokens), np.isin(at.i, tokens) | np.isin(at.j, tokens)


def _monotonic(at):
    radius, first = at.below(40), at.below(at.keys)
    center = np.minimum(at.i - at.start + first, at.keys - 1)
    return masks.LocalMonotonic(radius, first=first), abs(at.j - center) <= radius


def _predictive(at):
    center, radius = at.rng.random((at.batch, at.queries)) * at.keys, at.below(40)
    rule = abs(np.floor(center)[:, None, :, None] - at.j) <= radius
    return masks.LocalPredictive(torch.tensor(center), radius=radius), rule


def _neighborhood(at):
    (tall, wide), size = at.grid(), 2 * at.below(3) + 1
    rule = (abs(at.i // wide - at.j // wide) <= size // 2) & (abs(at.i % wide - at.j % wide) <= size // 2)
    return masks.Neighborhood((tall, wide), size, boundary="crop"), rule


def _only(at):
    step = at.below(7, 2)
    rule = masks.MaskMod(lambda b, h, i, j: (i + j + h) % step == b % step)
    b, h = np.arange(at.batch)[:, None, None, None], np.arange(at.heads)[:, None, None]
    return rule, (at.i + at.j + h) % step == b % step


def _padding(at):
    first, end = np.sort(at.rng.integers(0, at.keys, (2, at.batch)), 0)[..., None]
    real = (at.j >= first) & (at.j <= end)
    return masks.Padding(torch.tensor(real)), real[:, None, None]


def _prefix(at):
    length = at.rng.integers(0, at.keys, at.batch)
    return masks.Prefix(torch.tensor(length)), at.j < length[:, None, None, None]


def _random(at):
    block = at.below(64, 16)
    mask = masks.RandomBlocks(3, block=block, seed=at.below(9), heads=at.heads)
    drawn = mask.bind(at.queries, at.keys).mask.plan.numpy()  # (heads, rows, 3): the draw itself has no formula
    row = np.clip(at.i[:, 0] // block, 0, drawn.shape[1] - 1)
    seen = (drawn[:, row][..., None] == at.j // block).any(2)
    return mask, seen & (at.i >= 0) & (at.i < at.keys)


def _sinks(at):
    count = at.below(6)
    return masks.Sinks(count), (at.j < count) & (at.i == at.i)


def _strided(at):
    stride = at.below(9, 1)
    return masks.Strided(stride), at.i % stride == at.j % stride


def _window(at):
    before, after = at.below(at.keys // 2), at.below(at.keys // 8)
    return masks.Window(left=before, right=after), (at.i - at.j <= before) & (at.j - at.i <= after)


FAMILIES = {
    "Axial": _axial,
    "BlockLocal": _block_local,
    "Causal": _causal,
    "Dense": _dense,
    "DilatedWindow": _dilated,
    "Document": _document,
    "Global": _global,
    "LocalMonotonic": _monotonic,
    "LocalPredictive": _predictive,
    "Neighborhood": _neighborhood,
    "MaskMod": _only,
    "Padding": _padding,
    "Prefix": _prefix,
    "RandomBlocks": _random,
    "Sinks": _sinks,
    "Strided": _strided,
    "Window": _window,
}


def combined(at, names):
    """Masks of these families with random &, | and ~ between them, and what they leave."""
    mask, seen = FAMILIES[names[0]](at)
    for name in names[1:]:
        other, other_seen = FAMILIES[name](at)
        if at.rng.random() < 0.3:
            other, other_seen = ~other, ~other_seen
        mask, seen = (mask & other, seen & other_seen) if at.rng.random() < 0.6 else (mask | other, seen | other_seen)
    return mask, seen
