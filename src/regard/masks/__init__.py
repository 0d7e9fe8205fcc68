"""Who may see whom: masks as values over positions, True where a query may see a key."""

from regard.masks.base import BoundMask, Mask
from regard.masks.block_local import BlockLocal
from regard.masks.causal_and_window import Causal, Window
from regard.masks.compose import bigbird, longformer, prefix_lm, sparse_transformer
from regard.masks.convert import (
    Unpadded,
    cu_seqlens_from_lengths,
    from_attention_mask,
    from_key_padding_mask,
    from_mha_attn_mask,
    pack,
    to_attention_mask,
    to_dense_mask,
    to_key_padding_mask,
    to_mha_attn_mask,
    unpack,
    unpad,
)
from regard.masks.convert_blocks import from_block_mask, to_block_mask
from regard.masks.dense import Dense, MaskMod
from regard.masks.dilated_and_strided import DilatedWindow, Strided
from regard.masks.document import Document
from regard.masks.grid import Axial, Neighborhood
from regard.masks.local_attention import LocalMonotonic, LocalPredictive
from regard.masks.padding_and_global import Global, Padding
from regard.masks.prefix_and_sinks import Prefix, Sinks
from regard.masks.random_blocks import RandomBlocks
from regard.masks.rectangles import EMPTY, FULL, PARTIAL

__all__ = [
    "EMPTY",
    "FULL",
    "PARTIAL",
    "Axial",
    "BlockLocal",
    "BoundMask",
    "Causal",
    "Dense",
    "DilatedWindow",
    "Document",
    "Global",
    "LocalMonotonic",
    "LocalPredictive",
    "Mask",
    "MaskMod",
    "Neighborhood",
    "Padding",
    "Prefix",
    "RandomBlocks",
    "Sinks",
    "Strided",
    "Unpadded",
    "Window",
    "bigbird",
    "cu_seqlens_from_lengths",
    "from_attention_mask",
    "from_block_mask",
    "from_key_padding_mask",
    "from_mha_attn_mask",
    "longformer",
    "pack",
    "prefix_lm",
    "sparse_transformer",
    "to_attention_mask",
    "to_block_mask",
    "to_dense_mask",
    "to_key_padding_mask",
    "to_mha_attn_mask",
    "unpack",
    "unpad",
]
