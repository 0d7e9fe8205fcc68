"""Whole models: the Transformer and the families of checkpoints it reads, RNN seq2seq, heads, decoding."""

from regard.models import decoding, output_heads
from regard.models.config import Learned, Sinusoidal, TransformerConfig
from regard.models.embedding import embed
from regard.models.generation_config import GenerationConfig, UnsupportedGenerationWarning
from regard.models.inputs_outputs import Output, SpecialTokens
from regard.models.recurrent import RecurrentConfig, RecurrentSeq2Seq
from regard.models.transformer import Transformer

__all__ = [
    "GenerationConfig",
    "Learned",
    "Output",
    "RecurrentConfig",
    "RecurrentSeq2Seq",
    "Sinusoidal",
    "SpecialTokens",
    "Transformer",
    "TransformerConfig",
    "UnsupportedGenerationWarning",
    "decoding",
    "embed",
    "output_heads",
]
