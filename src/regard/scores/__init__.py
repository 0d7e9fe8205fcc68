"""Query × key → score: how well a query and a key fit, before normalizing."""

from regard.scores.additive import Additive, Concat
from regard.scores.base import Dot, ScaledDot, Score
from regard.scores.bilinear import Bilinear
from regard.scores.cosine import Cosine
from regard.scores.deberta import DeBERTa
from regard.scores.shaw import RelativeKeyQuery, Shaw
from regard.scores.transformer_xl import TransformerXL

__all__ = [
    "Additive",
    "Bilinear",
    "Concat",
    "Cosine",
    "DeBERTa",
    "Dot",
    "RelativeKeyQuery",
    "ScaledDot",
    "Score",
    "Shaw",
    "TransformerXL",
]
