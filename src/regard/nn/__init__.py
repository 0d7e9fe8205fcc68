"""Modules to build with: plain nn.Modules around regard.attention."""

from regard.nn import tutorials
from regard.nn.additive import AdditiveAttention
from regard.nn.attention_decoder import AttentionDecoderCell, DecoderState
from regard.nn.attention_pooling import AttentionPooling
from regard.nn.axial import AxialAttention
from regard.nn.bigbird import BigBirdAttention
from regard.nn.bilinear import BilinearAttention
from regard.nn.decoder_block import DecoderBlock
from regard.nn.elman import Elman, ElmanCell
from regard.nn.embedded_positions import LearnedPositions, PositionalEncoding
from regard.nn.encoder_block import EncoderBlock
from regard.nn.feed_forward import FeedForward
from regard.nn.load_attention import LoadedKeys, load_attention_state_dict
from regard.nn.local import LocalAttention
from regard.nn.longformer import LongformerAttention
from regard.nn.multi_head import MultiHeadAttention
from regard.nn.neighborhood import NeighborhoodAttention
from regard.nn.sliding_window import SlidingWindowAttention
from regard.nn.stacks import Decoder, Encoder, EncoderDecoder
from regard.nn.summary import Summary, summary
from regard.nn.value_module import ValueModule

__all__ = [
    "AdditiveAttention",
    "AttentionDecoderCell",
    "AttentionPooling",
    "AxialAttention",
    "BigBirdAttention",
    "BilinearAttention",
    "Decoder",
    "DecoderBlock",
    "DecoderState",
    "Elman",
    "ElmanCell",
    "Encoder",
    "EncoderBlock",
    "EncoderDecoder",
    "FeedForward",
    "LearnedPositions",
    "LoadedKeys",
    "LocalAttention",
    "LongformerAttention",
    "MultiHeadAttention",
    "NeighborhoodAttention",
    "PositionalEncoding",
    "SlidingWindowAttention",
    "Summary",
    "ValueModule",
    "load_attention_state_dict",
    "summary",
    "tutorials",
]
