"""Score → weight: how the scores of a row become weights."""

from regard.normalizers.softmax import Softmax

__all__ = ["Softmax"]
