"""The table of docs/models.md: what each family changed of the first Transformer, read from our own configurations."""

import re
from pathlib import Path
from typing import Any

import torch
from published import PUBLISHED

from regard.models import Transformer, TransformerConfig
from regard.models.families import family_of
from regard.nn.feed_forward import feed_forward_activation

__all__ = ["PAGE", "page"]

PAGE = Path(__file__).resolve().parent / "models.md"
FIRST = TransformerConfig(vocab_size=37000, encoder_layers=6, decoder_layers=6)  # Vaswani et al. 2017, "base"
BETWEEN = re.compile(r"(<!-- families: written by docs/generate.py -->\n).*?(<!-- end -->)", re.DOTALL)

# What a column shows, from a configuration.
COLUMNS: dict[str, Any] = {
    "stacks": lambda config: config.kind,
    "norm": lambda config: f"{config.norm}, {'before' if config.norm_first else 'after'}",
    "positions": lambda config: _positions(config),
    "feed-forward": lambda config: feed_forward_activation(config.hidden_act, config.is_gated_act),
    "biases": lambda config: _biases(config),
    "kv heads": lambda config: f"{_kv_heads(config)} of {config.num_attention_heads}",
    "else": lambda config: _else(config),
}


def page() -> str:
    """Give docs/models.md with the table as it must be."""
    text, times = BETWEEN.subn(lambda found: found[1] + "\n".join(_rows()) + "\n" + found[2], PAGE.read_text("utf-8"))
    assert times == 1, f"{PAGE} has no place for the table"
    return text


def _rows() -> list[str]:
    """Bold is what differs from the first row."""
    first = {name: show(FIRST) for name, show in COLUMNS.items()}
    rows = [f"| family | {' | '.join(COLUMNS)} | parameters |", "|---|" + "---|" * (len(COLUMNS) + 1)]
    rows.append(f"| the first one, base | {' | '.join(first.values())} | {_parameters(FIRST)} |")
    for name, raw in PUBLISHED.items():
        family, config = family_of(raw), family_of(raw).config(raw)
        shown = {column: show(config) for column, show in COLUMNS.items()}
        cells = [one if one == first[column] or not one else f"**{one}**" for column, one in shown.items()]
        # How many kv heads there are is news only where they are shared.
        if _kv_heads(config) == config.num_attention_heads:
            cells[list(COLUMNS).index("kv heads")] = shown["kv heads"]
        rows.append(f"| `{family.types[0]}` ({name}) | {' | '.join(cells)} | {_parameters(config)} |")
    return rows


def _parameters(config: TransformerConfig) -> str:
    with torch.device("meta"):
        return f"{sum(one.numel() for one in Transformer(config).parameters()):,}"


def _positions(config: TransformerConfig) -> str:
    if config.position_bias == "t5":
        return "bias of distances"
    kind = type(config.positions).__name__
    names = {"Sinusoidal": "sinusoidal", "Learned": "learned", "RoPE": "rotary"}
    return names[kind] + (", halves" if getattr(config.positions, "variant", "") == "marian" else "")


def _kv_heads(config: TransformerConfig) -> int:
    return config.num_key_value_heads or config.num_attention_heads


def _biases(config: TransformerConfig) -> str:
    if config.bias:
        return "all"
    return "q, k, v" if config.qkv_bias else "none"


def _else(config: TransformerConfig) -> str:
    said = {
        "√width on embeddings": config.scale_embedding,
        "norm on embeddings": config.normalize_embedding,
        "segments": config.type_vocab_size > 1,
        "scores not divided": config.scale == 1.0,
        f"window {config.sliding_window}": config.sliding_window is not None,
    }
    return ", ".join(name for name, holds in said.items() if holds)
