"""A small language model over characters: its construction, its training and its loss."""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from regard.models import Transformer, TransformerConfig, output_heads
from regard.train.loss_and_optimizer import Schedule, SchedulerKwargs
from regard_lab.texts import Text
from regard_lab.training import fit, seeded

__all__ = ["HEADS", "LENGTH", "WIDTH", "language_model", "losses", "trained"]

VOCABULARY = 128  # ASCII
WIDTH, LAYERS, HEADS = 64, 2, 4
LENGTH = 64  # characters per training row
_BATCH, _RATE, _CLIP = 8, 3e-3, 1.0
_SCHEDULE = Schedule("cosine_with_min_lr", 50, SchedulerKwargs(min_lr_rate=0.05))


def language_model(**options: Any) -> Transformer:
    """Return a decoder over characters with these `options` of TransformerConfig and random weights from PyTorch's
    generator.
    """
    config = TransformerConfig(
        vocab_size=VOCABULARY,
        hidden_size=WIDTH,
        num_attention_heads=HEADS,
        intermediate_size=4 * WIDTH,
        decoder_layers=LAYERS,
        norm_first=True,
        hidden_act="gelu",
        dropout=0.0,
        output_head=output_heads.LanguageModel(),
        **options,
    )
    return Transformer(config)


def trained(text: Text, steps: int, seed: int, **options: Any) -> Transformer:
    """Train a model on rows of LENGTH characters; with equal seeds, all models get the same rows in the same order."""
    with seeded(seed) as generator:
        model = language_model(**options)

        def loss() -> Tensor:
            rows = text.batch(_BATCH, LENGTH, generator)
            return functional.cross_entropy(_logits(model, rows).flatten(0, 1), rows[:, 1:].flatten())

        fit(model, loss, steps, learning_rate=_RATE, schedule=_SCHEDULE, max_grad_norm=_CLIP)
    return model


def losses(model: Transformer, rows: Int[Tensor, "rows n+1"]) -> Float[Tensor, "rows n"]:
    """Return −ln p of each character but the first, in nats."""
    found = []
    with torch.inference_mode():
        for some in rows.split(32):
            logits = _logits(model, some).transpose(1, 2)
            found.append(functional.cross_entropy(logits, some[:, 1:], reduction="none"))
    return torch.cat(found)


def _logits(model: Transformer, rows: Tensor) -> Tensor:
    logits = model(rows[:, :-1]).logits
    assert isinstance(logits, Tensor)
    return logits
