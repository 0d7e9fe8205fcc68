"""Whole models: the Transformer and the families of checkpoints it reads, RNN seq2seq, heads, decoding."""

from regard.models import decoding, output_heads
from regard.models.config import Buckets, Clipped, Learned, Sinusoidal, Slopes, Tokens, TransformerConfig
from regard.models.embedding import embed
from regard.models.recurrent import RecurrentConfig, RecurrentSeq2Seq
from regard.models.transformer import Output, Transformer

__all__ = [
    "Buckets",
    "Clipped",
    "Learned",
    "Output",
    "RecurrentConfig",
    "RecurrentSeq2Seq",
    "Sinusoidal",
    "Slopes",
    "Tokens",
    "Transformer",
    "TransformerConfig",
    "decoding",
    "embed",
    "output_heads",
]
