"""Statistics of the weights. Each processes rows block by block, and is exact at any length."""

from regard.capture.statistics.base import Extent, PerKey, PerQuery, Statistic, of_weights
from regard.capture.statistics.chosen_weights import Columns, KeySpanSums, Rectangle, Rows, Weights
from regard.capture.statistics.confidence_distance_sink import Confidence, Distance, Sink
from regard.capture.statistics.default_statistics import Entropy, HeatMap, Received, Top
from regard.capture.statistics.gradient import GradientTimesAttention, HeadImportance
from regard.capture.statistics.mass import Mass
from regard.capture.statistics.rollout import Rollout
from regard.capture.statistics.value_norm import ValueNorm

__all__ = [
    "Columns",
    "Confidence",
    "Distance",
    "Entropy",
    "Extent",
    "GradientTimesAttention",
    "HeadImportance",
    "HeatMap",
    "KeySpanSums",
    "Mass",
    "PerKey",
    "PerQuery",
    "Received",
    "Rectangle",
    "Rollout",
    "Rows",
    "Sink",
    "Statistic",
    "Top",
    "ValueNorm",
    "Weights",
    "of_weights",
]
