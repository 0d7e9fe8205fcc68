"""What attention heads do, as numpy values: patterns, sinks, scores, and what is measured of them."""

from regard.heads.answer_sources import Sources
from regard.heads.change_loss_and_pairs import HeadChange, Loss, Lost, PairScores, WordPair
from regard.heads.head_set import HeadSet, ReadoutScore
from regard.heads.jobs import JOBS, HeadJob
from regard.heads.patterns import PATTERNS, SinkKey, find_sinks, head_patterns
from regard.heads.scores import MEASURES, RULES, HeadScores

__all__ = [
    "JOBS",
    "MEASURES",
    "PATTERNS",
    "RULES",
    "HeadChange",
    "HeadJob",
    "HeadScores",
    "HeadSet",
    "Loss",
    "Lost",
    "PairScores",
    "ReadoutScore",
    "SinkKey",
    "Sources",
    "WordPair",
    "find_sinks",
    "head_patterns",
]
