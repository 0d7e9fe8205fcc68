"""What is kept of the weights: each statistic folds rows, block by block, and is exact at any length."""

from regard.observe.statistics.base import Extent, Statistic
from regard.observe.statistics.entropy import Entropy
from regard.observe.statistics.heatmap import HeatMap
from regard.observe.statistics.received import Received
from regard.observe.statistics.top import Top
from regard.observe.statistics.weights import Weights

__all__ = ["Entropy", "Extent", "HeatMap", "Received", "Statistic", "Top", "Weights"]
