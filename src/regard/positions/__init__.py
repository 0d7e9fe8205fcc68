"""Where a token stands: embedded into x, rotated into q and k, or added to the scores."""

from regard.positions.alibi import ALiBi, alibi_slopes
from regard.positions.base import Bias, Relative, Rotary
from regard.positions.dense_bias import DenseBias
from regard.positions.embeddings import learned, sinusoidal
from regard.positions.gaussian import Gaussian
from regard.positions.relative_position_bias import RelativePositionBias, RelativePositionBiasND
from regard.positions.rope import RoPE
from regard.positions.rope_scaling import (
    NTK,
    DynamicNTK,
    LinearScaling,
    Llama3,
    LongRoPE,
    Proportional,
    Scaling,
    YaRN,
)
from regard.positions.t5 import T5Bias, t5_buckets

__all__ = [
    "NTK",
    "ALiBi",
    "Bias",
    "DenseBias",
    "DynamicNTK",
    "Gaussian",
    "LinearScaling",
    "Llama3",
    "LongRoPE",
    "Proportional",
    "Relative",
    "RelativePositionBias",
    "RelativePositionBiasND",
    "RoPE",
    "Rotary",
    "Scaling",
    "T5Bias",
    "YaRN",
    "alibi_slopes",
    "learned",
    "sinusoidal",
    "t5_buckets",
]
