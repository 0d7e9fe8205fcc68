"""Query × key → score: how well a query and a key fit, before normalizing."""

from regard.scores.base import Score
from regard.scores.scaled_dot import Dot, ScaledDot

__all__ = ["Dot", "ScaledDot", "Score"]
