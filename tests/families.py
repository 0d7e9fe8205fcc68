"""Every family of masks, scores, biases, factors and normalizers, as functions of a shape and of tensors by name."""

from dataclasses import dataclass

import torch

from regard import masks, normalizers, positions, scores
from regard.positions import Bias, Relative
from regard.scores import Score

WIDTH = 8


@dataclass(frozen=True)
class Shape:
    batch: int
    heads: int
    kv_heads: int
    queries: int
    keys: int
    value_width: int

    @property
    def all_pairs(self):
        return self.batch, self.heads, self.queries, self.keys


def drawn_at(*shape, seed=0):
    """Numbers of variance 1 / fan-in."""
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(*shape, generator=generator, dtype=torch.float64) / shape[-1] ** 0.5


def _chance(*shape, p, seed=0):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed)) < p


def _blocks(s):
    """Whole blocks that are seen or not, another choice for each head, and three rows that see nothing."""
    coarse = _chance(1, s.heads, -(-s.queries // 16), -(-s.keys // 16), p=0.4, seed=5)
    seen = coarse.repeat_interleave(16, 2).repeat_interleave(16, 3)[:, :, : s.queries, : s.keys].clone()
    seen[:, :, 3:6] = False
    return seen


def _pairs(s):
    seen = _chance(*s.all_pairs, p=0.5, seed=6)
    seen[:, :, s.queries // 2] = False
    return seen


def _real(s):
    real = torch.ones(s.batch, s.keys, dtype=torch.bool)
    real[0, s.keys // 2 + 3 :] = False
    real[-1, :18] = False
    return real


def _document(s):
    ids = torch.arange(s.keys) * 5 // s.keys
    ids[-7:] = -1
    return masks.Document(ids)


# Masks by the shape they are for: relative and not, for each sequence or head, in runs, in columns and scattered.
MASKS = {
    "none": lambda s: None,
    "causal": lambda s: masks.Causal(),
    "causal from the start": lambda s: masks.Causal(align="start"),
    "window": lambda s: masks.Causal() & masks.Window(21),
    "both sides": lambda s: masks.Window(left=20, right=33),
    "all but a window": lambda s: ~masks.Window(21),
    "dilated": lambda s: masks.DilatedWindow(9, dilation=5),
    "strided": lambda s: masks.sparse_transformer(19),
    "sinks and window": lambda s: masks.Causal() & (masks.Window(17) | masks.Sinks(3)),
    "columns": lambda s: masks.Prefix(32),
    "prefix of each sequence": lambda s: masks.prefix_lm(torch.tensor([s.keys // 3, 30][: s.batch])),
    "padded": lambda s: masks.Padding(_real(s)),
    "padded causal": lambda s: masks.Causal() & masks.Padding(_real(s)),
    "documents": lambda s: masks.Causal() & _document(s),
    "global": lambda s: masks.longformer(24, global_positions=(0, 30, s.keys - 1)),
    "bigbird": lambda s: masks.bigbird(num_random_blocks=1, block=16, heads=s.heads),
    "random": lambda s: masks.RandomBlocks(2, block=16, seed=2, heads=s.heads),
    "block local": lambda s: masks.BlockLocal(24, look_backward=1),
    "tensor of pairs": _pairs,
    "tensor of blocks": _blocks,
    "rule of heads": lambda s: masks.MaskMod(lambda b, h, i, j: (i + 2 * j + h) % 3 > b),
}


@dataclass(frozen=True, eq=False)
class Nearness(Score):
    """A score of one's own, with a tensor: −Σ_d w_d (q_d − k_d)²."""

    weight: torch.Tensor
    softcap: float | None = None

    def tile(self, q, k, i, j):
        return -((q[..., :, None, :] - k[..., None, :, :]).square() * self.weight.to(q.dtype)).sum(-1)


SCORES = {
    "scaled dot": lambda s, new, cap: scores.ScaledDot(cap),
    "additive": lambda s, new, cap: scores.Additive(
        new("W", 5, WIDTH), new("U", 5, WIDTH), new("vector", s.heads, 5), new("inner", 5), cap
    ),
    "concat": lambda s, new, cap: scores.Concat(new("W", 5, 2 * WIDTH), new("vector", 5), softcap=cap),
    "bilinear": lambda s, new, cap: scores.Bilinear(new("W", s.heads, WIDTH, WIDTH), cap),
    "cosine": lambda s, new, cap: scores.Cosine(new("temperature", s.heads).abs() + 0.5, cap),
    "shaw": lambda s, new, cap: scores.Shaw(new("keys", 31, WIDTH), new("values", s.heads, 61, s.value_width), cap),
    "relative key query": lambda s, new, cap: scores.RelativeKeyQuery(new("table", s.heads, 31, WIDTH), cap),
    "deberta": lambda s, new, cap: scores.DeBERTa(
        new("keys", s.heads, 16, WIDTH), new("queries", s.heads, 16, WIDTH), 8, 40, cap
    ),
    "transformer-xl": lambda s, new, cap: scores.TransformerXL(
        new("content", s.heads, WIDTH), new("place", s.heads, WIDTH), new("R", s.heads, WIDTH, 6), cap
    ),
    "of one's own": lambda s, new, cap: Nearness(new("weight", WIDTH), cap),
}


@dataclass(frozen=True, eq=False)
class Slopes(Bias):
    """A bias of one's own, with a tensor."""

    slopes: torch.Tensor

    @property
    def leading(self):
        return 1, self.slopes.shape[0]

    def __call__(self, batch, head, i, j):
        return self.slopes[head] * torch.cos(0.3 * i + 0.2 * j)


@dataclass(frozen=True, eq=False)
class Decay(Relative):
    """A relative bias of one's own, for all heads, with a tensor."""

    rate: torch.Tensor

    def diagonals(self, distance):
        return torch.exp(-self.rate[:, None] * distance.abs())


def _grid(s, new):
    offsets = (2 * 5 - 1) * (2 * (-(-s.keys // 5)) - 1)
    return positions.RelativePositionBiasND(new("grid", offsets, s.heads), (5, -(-s.keys // 5)))


BIASES = {
    "none": lambda s, new: None,
    "alibi": lambda s, new: positions.ALiBi(s.heads, new("slopes", s.heads).abs(), bidirectional=True),
    "t5": lambda s, new: positions.T5Bias(new("table", 16, s.heads), bidirectional=True, max_distance=60),
    "table": lambda s, new: positions.RelativePositionBias(new("table", 41, s.heads)),
    "grid": _grid,
    "matrix": lambda s, new: new("matrix", s.queries, s.keys),
    "matrix of heads": lambda s, new: new("matrix", 1, s.heads, s.queries, s.keys),
    "matrix of sequences": lambda s, new: positions.DenseBias(new("matrix", s.batch, 1, s.queries, s.keys)),
    "number of a key": lambda s, new: new("row", s.batch, 1, 1, s.keys),
    "of one's own": lambda s, new: Slopes(new("slopes", s.heads)),
    "relative of one's own": lambda s, new: Decay(new("rate", 1).abs() + 0.02),
}
FACTORS = {
    "none": lambda s, new: None,
    "gaussian": lambda s, new: positions.Gaussian(new("center", s.batch, s.queries).abs() * 0.5 * s.keys, 30.0),
    "relative": lambda s, new: Decay(new("decay", 1).abs() + 0.02),
    "matrix": lambda s, new: positions.DenseBias(new("gate", 1, s.heads, s.queries, s.keys)),
}
NORMALIZERS = {
    "softmax": lambda s, new: normalizers.Softmax(),
    "sink": lambda s, new: normalizers.Softmax(new("sink", s.heads)),
    "sigmoid": lambda s, new: normalizers.Sigmoid(),
    "sigmoid 0": lambda s, new: normalizers.Sigmoid(0.0),
}


class Leaves(dict):
    """Tensors by name: made at the first asking in the type of the case, and differentiated afterwards."""

    def __init__(self, rounded, dtype, learned):
        super().__init__()
        self.rounded, self.dtype, self.learned = rounded, dtype, learned

    def __call__(self, name, *shape):
        if name not in self:
            exact = drawn_at(*shape, seed=len(self)) * (shape[-1] ** 0.5 if len(shape) == 1 else 1)
            exact = 3 * exact if name in ("q", "k") else exact
            self[name] = exact.to(self.rounded).to(self.dtype).requires_grad_(self.learned or name in "qkv")
        return self[name]
