"""Score → weight: how the scores of a row become weights."""

from regard.normalizers.sigmoid import Sigmoid
from regard.normalizers.softmax import Normalizer, Softmax

__all__ = ["Normalizer", "Sigmoid", "Softmax"]
