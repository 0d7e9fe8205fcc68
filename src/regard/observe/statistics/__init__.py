"""Statistics of the weights. Each processes rows block by block, and is exact at any length."""

from regard.observe.statistics.base import Extent, PerKey, PerQuery, Statistic, of_weights
from regard.observe.statistics.chosen_weights import Columns, KeySpanSums, Rectangle, Rows, Weights
from regard.observe.statistics.confidence_distance_sink import Confidence, Distance, Sink
from regard.observe.statistics.default_statistics import Entropy, HeatMap, Received, Top
from regard.observe.statistics.gradient import GradientTimesAttention, HeadImportance
from regard.observe.statistics.mass import Mass
from regard.observe.statistics.rollout import Rollout
from regard.observe.statistics.value_norm import ValueNorm

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
