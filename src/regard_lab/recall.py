"""Associative recall over training steps, in a model of one layer and in one of two.

A sequence consists of pairs of a key and a value, followed by one of the keys; the target is its value.

An induction head solves it: one layer adds to each token the token before it, and a head of the next layer attends to
the token that follows the key (Olsson et al. 2022, arXiv:2209.11895). A single layer has no such information.
"""

from dataclasses import dataclass, field

import torch
from jaxtyping import Int
from torch import Tensor
from torch.nn import functional

from regard.data import AssociativeRecall
from regard.interpret.watch import watch
from regard.models import Transformer, TransformerConfig, output_heads
from regard.models.config import Learned
from regard_lab.training import fit, seeded

__all__ = ["TASK", "RecallRun", "by_counting", "course", "model_of", "scores"]

TASK = AssociativeRecall(num_symbols=32, num_kv_pairs=8)
WIDTH, HEADS, HIDDEN = 64, 2, 128
_BATCH, _RATE = 64, 2e-3
_TESTS, _WATCHED = 500, 32  # number of sequences to measure accuracy on, and of those to record attention of


@dataclass(frozen=True)
class RecallRun:
    """Measurements at steps of training; the scores are those of every layer's strongest head."""

    parameters: int
    steps: list[int] = field(default_factory=list)
    accuracy: list[float] = field(default_factory=list)
    induction: list[list[float]] = field(default_factory=list)
    previous: list[list[float]] = field(default_factory=list)


def model_of(layers: int) -> Transformer:
    """Return a decoder of one or two layers with equally many parameters.

    A layer without biases has 4 w² + 2 w h + 2 w parameters, for width w and h hidden units. A unit has 2 w
    parameters, so 2 w + h + 1 more hidden units have as many as one more layer.
    """
    config = TransformerConfig(
        vocab_size=TASK.vocab_size,
        hidden_size=WIDTH,
        num_attention_heads=HEADS,
        intermediate_size=HIDDEN if layers == 2 else 2 * WIDTH + 2 * HIDDEN + 1,
        decoder_layers=layers,
        norm_first=True,
        hidden_act="gelu",
        positions=Learned(2 * TASK.num_kv_pairs + 1),
        bias=False,
        dropout=0.0,
        output_head=output_heads.LanguageModel(),
    )
    return Transformer(config)


def course(layers: int, steps: int, seed: int, *, looks: int = 20) -> RecallRun:
    """Train one model, and measure it `looks` times on sequences that it is not trained on."""
    sources, answers = _drawn(_TESTS, _tests(seed))
    with seeded(seed) as generator:
        model = model_of(layers)
        found = RecallRun(sum(one.numel() for one in model.parameters()))

        def loss() -> Tensor:
            asked, right = _drawn(_BATCH, generator)
            return functional.cross_entropy(_last(model, asked), right)

        def look(step: int) -> None:
            found.steps.append(step)
            found.accuracy.append(float((_last(model, sources).argmax(-1) == answers).double().mean()))
            induction, previous = scores(model, sources[:_WATCHED])
            found.induction.append(induction)
            found.previous.append(previous)

        fit(model, loss, steps, learning_rate=_RATE, evaluate=look, eval_steps=max(steps // looks, 1))
    return found


def scores(model: Transformer, sources: Int[Tensor, "batch n"]) -> tuple[list[float], list[float]]:
    """Return two scores of each layer's strongest head, as means over the sequences: the weight that the final key
    gives to the value after its first occurrence, and the weight that values give to the token before them, their key.
    """
    with watch(model, statistics=["induction", "previous"]) as seen:
        model(sources)
    layers = [one.statistics for one in seen.record.layers]
    induction = [one["induction"][:, :, -1].mean(0).max() for one in layers]
    previous = [one["previous"][:, :, 1::2].mean((0, 2)).max() for one in layers]
    return [float(one) for one in induction], [float(one) for one in previous]


def by_counting(seed: int) -> float:
    """Return the accuracy of predicting the value that occurs most often in a sequence, ignoring the key."""
    sources, _ = _drawn(_TESTS, _tests(seed))
    most = functional.one_hot(sources[:, 1::2]).sum(1).max(1).values
    return float(most.double().mean()) / TASK.num_kv_pairs


def _tests(seed: int) -> torch.Generator:
    """Return the generator of sequences that a model is not trained on."""
    return torch.Generator().manual_seed(seed + 10_000)


def _drawn(count: int, generator: torch.Generator) -> tuple[Int[Tensor, "count n"], Int[Tensor, " count"]]:
    sources, targets = TASK.sample(count, generator=generator)
    return torch.tensor(sources), torch.tensor(targets)[:, 0]


def _last(model: Transformer, sources: Tensor) -> Tensor:
    logits = model(sources, logits_to_keep=1).logits
    assert isinstance(logits, Tensor)
    return logits[:, 0]
