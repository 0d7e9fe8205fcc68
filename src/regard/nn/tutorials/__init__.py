"""The modules that lessons on attention have people write, one file a lesson, computed by `regard.attention`.

Code written for a lesson runs when its import is changed, and a state dict of the lesson's own class loads strictly,
both ways. So these modules alone speak the lessons' words, on purpose: their arguments, attributes and what they return
are the lesson's (`d_model`, `W_q`, Q K V), where `regard.nn` speaks PyTorch.

    single_head       DotProductAttention(d_k) → output
    multi_head        MultiHeadAttention(d_model, num_heads, dropout=0.1) → (output, weights)
    encoder           TransformerEncoder and its parts, visualize_attention; MultiHeadAttention(d_model, num_heads) →
                      output, with the weights in `.attention_weights`
    cross_attention   MultiHeadAttention(hid_dim, n_heads, dropout) → output, for keys of another length

Names that one lesson alone has are exported here too. `MultiHeadAttention` differs in three lessons: import it from the
lesson's module.

A mask holds ones (seen) and zeros (hidden) and broadcasts over the scores. Where lessons break, these do not: keys may
be longer than queries, a width may be odd, half types work, a query that sees nothing has weights 0, and weights are
those before dropout, so that rows sum to 1 (a lesson's own, returned after dropout, sum to 0.55 or 1.1).
"""

from typing import NoReturn

from regard.nn.tutorials import cross_attention, encoder, multi_head, single_head
from regard.nn.tutorials.encoder import (
    EncoderLayer,
    FeedForward,
    PositionalEncoding,
    TransformerEncoder,
    scaled_dot_product_attention,
    visualize_attention,
)
from regard.nn.tutorials.single_head import DotProductAttention

__all__ = [
    "DotProductAttention",
    "EncoderLayer",
    "FeedForward",
    "PositionalEncoding",
    "TransformerEncoder",
    "cross_attention",
    "encoder",
    "multi_head",
    "scaled_dot_product_attention",
    "single_head",
    "visualize_attention",
]


def __getattr__(name: str) -> NoReturn:
    if name == "MultiHeadAttention":
        raise ImportError(
            "three lessons have a MultiHeadAttention: import it from regard.nn.tutorials.multi_head (gives output and "
            "weights), .encoder (gives the output, keeps the weights in .attention_weights) or .cross_attention "
            "(hid_dim, n_heads, dropout)"
        )
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
