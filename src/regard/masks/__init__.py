"""Who may see whom: masks as values over positions, True where a query may see a key."""

from regard.masks.axial import Axial
from regard.masks.base import EMPTY, FULL, PARTIAL, BoundMask, Mask
from regard.masks.block_local import BlockLocal
from regard.masks.causal import Causal
from regard.masks.compose import bigbird, longformer, prefix_lm, sparse_transformer
from regard.masks.convert import (
    from_attention_mask,
    from_key_padding_mask,
    from_mha_attn_mask,
    to_attention_mask,
    to_dense_mask,
    to_key_padding_mask,
    to_mha_attn_mask,
)
from regard.masks.convert_blocks import from_block_mask, to_block_mask
from regard.masks.convert_lengths import Unpadded, cu_seqlens_from_lengths, pack, unpack, unpad
from regard.masks.dense import Dense
from regard.masks.dilated import DilatedWindow
from regard.masks.document import Document
from regard.masks.global_tokens import Global
from regard.masks.local_monotonic import LocalMonotonic
from regard.masks.local_predictive import LocalPredictive
from regard.masks.mask_mod import MaskMod
from regard.masks.neighborhood import Neighborhood
from regard.masks.padding import Padding
from regard.masks.prefix import Prefix
from regard.masks.random_blocks import RandomBlocks
from regard.masks.sinks import Sinks
from regard.masks.strided import Strided
from regard.masks.window import Window

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
