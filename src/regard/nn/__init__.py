"""Modules to build with: plain nn.Modules around regard.attention."""

from regard.nn import tutorials
from regard.nn.attention_decoder import AttentionDecoderCell, DecoderState
from regard.nn.attention_pooling import AttentionPooling
from regard.nn.blocks import DecoderBlock, EncoderBlock
from regard.nn.elman import Elman, ElmanCell
from regard.nn.embedded_positions import LearnedPositions, PositionalEncoding
from regard.nn.feed_forward import FeedForward
from regard.nn.grid_attention import AxialAttention, NeighborhoodAttention
from regard.nn.load_attention import LoadedKeys, load_attention_state_dict
from regard.nn.longformer import LongformerAttention
from regard.nn.multi_head import MultiHeadAttention
from regard.nn.rnn_attention import AdditiveAttention, BilinearAttention, LocalAttention
from regard.nn.stacks import Decoder, Encoder, EncoderDecoder
from regard.nn.summary import Summary, summary
from regard.nn.unregistered import unregistered_parameters
from regard.nn.value_module import ValueModule
from regard.nn.windowed import BigBirdAttention, SlidingWindowAttention

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
    "unregistered_parameters",
]
