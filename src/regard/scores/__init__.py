"""Query × key → score: how well a query and a key fit, before normalizing."""

from regard.scores.additive import Additive
from regard.scores.base import Score
from regard.scores.bilinear import Bilinear
from regard.scores.concat import Concat
from regard.scores.cosine import Cosine
from regard.scores.deberta import DeBERTa
from regard.scores.relative_key_query import RelativeKeyQuery
from regard.scores.scaled_dot import Dot, ScaledDot
from regard.scores.shaw import Shaw
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
