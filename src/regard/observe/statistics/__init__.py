"""What is kept of the weights: each statistic folds rows, block by block, and is exact at any length."""

from regard.observe.statistics.base import Extent, PerKey, PerQuery, Statistic
from regard.observe.statistics.chosen import Columns, Rectangle, Rows
from regard.observe.statistics.confidence import Confidence
from regard.observe.statistics.distance import Distance
from regard.observe.statistics.entropy import Entropy
from regard.observe.statistics.gradient import GradientTimesAttention, HeadImportance
from regard.observe.statistics.heatmap import HeatMap
from regard.observe.statistics.mass import Mass
from regard.observe.statistics.of_weights import of_weights
from regard.observe.statistics.received import Received
from regard.observe.statistics.rollout import Rollout
from regard.observe.statistics.sink import Sink
from regard.observe.statistics.top import Top
from regard.observe.statistics.value_norm import ValueNorm
from regard.observe.statistics.weights import Weights

__all__ = [
    "Columns",
    "Confidence",
    "Distance",
    "Entropy",
    "Extent",
    "GradientTimesAttention",
    "HeadImportance",
    "HeatMap",
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
