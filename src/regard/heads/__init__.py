"""What attention heads do, as numpy values: patterns, sinks, scores, and what is measured of them."""

from regard.heads.measurements import HeadChange, Loss, Lost, Pair, PairScores
from regard.heads.patterns import PATTERNS, Sink, find_sinks, head_patterns
from regard.heads.scores import MEASURES, RULES, HeadScores

__all__ = [
    "MEASURES",
    "PATTERNS",
    "RULES",
    "HeadChange",
    "HeadScores",
    "Loss",
    "Lost",
    "Pair",
    "PairScores",
    "Sink",
    "find_sinks",
    "head_patterns",
]
