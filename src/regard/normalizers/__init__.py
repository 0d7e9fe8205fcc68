"""Score → weight: how the scores of a row become weights."""

from regard.normalizers.sigmoid import Sigmoid
from regard.normalizers.softmax import Normalizer, Softmax

__all__ = ["Normalizer", "Sigmoid", "Softmax"]


def is_softmax(normalizer: Normalizer) -> bool:
    """Whether the weights are those of the softmax, and of no other class of one's own."""
    return type(normalizer).normalize is Softmax.normalize


def is_of_parts(normalizer: Normalizer) -> bool:
    """Whether a row may be normalized in parts, of some heads: keys that are hidden in it may be left out."""
    return is_softmax(normalizer) or type(normalizer).weights is Sigmoid.weights
