"""Statistics of the weights. Each processes rows block by block, and is exact at any length."""

from regard.capture.statistics.base import Extent, PerKey, PerQuery, Statistic
from regard.capture.statistics.chosen import Columns, Rectangle, Rows
from regard.capture.statistics.confidence import Confidence
from regard.capture.statistics.distance import Distance
from regard.capture.statistics.entropy import Entropy
from regard.capture.statistics.gradient import GradientTimesAttention, HeadImportance
from regard.capture.statistics.heatmap import HeatMap
from regard.capture.statistics.mass import Mass
from regard.capture.statistics.received import Received
from regard.capture.statistics.rollout import Rollout
from regard.capture.statistics.sink import Sink
from regard.capture.statistics.top_keys import Top
from regard.capture.statistics.try_statistic import of_weights
from regard.capture.statistics.value_norm import ValueNorm
from regard.capture.statistics.weights import Weights

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
