"""Approximate attention. Its functions return `Approximate`, which cannot be confused with the output of
regard.attention.
"""

from regard.approximations.approximate import Approximate
from regard.approximations.features import positive_features, random_features
from regard.approximations.linformer import Compression, LinformerAttention
from regard.approximations.nystromformer import NystromformerAttention, nystromformer_attention
from regard.approximations.performer import PerformerAttention, performer_attention

__all__ = [
    "Approximate",
    "Compression",
    "LinformerAttention",
    "NystromformerAttention",
    "PerformerAttention",
    "nystromformer_attention",
    "performer_attention",
    "positive_features",
    "random_features",
]
