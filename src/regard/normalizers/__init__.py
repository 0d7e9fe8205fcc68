"""Score → weight: how the scores of a row become weights."""

from regard.normalizers.base import Normalizer
from regard.normalizers.sigmoid import Sigmoid
from regard.normalizers.softmax import Softmax

__all__ = ["Normalizer", "Sigmoid", "Softmax"]
