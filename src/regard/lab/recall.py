"""Associative recall over steps of training, in a model of one layer and in one of two.

A source is pairs of a key and a value, then one of the keys; its value is asked for.

An induction head finds it: one layer writes into each token what came before it, and a head of the next looks for the
token before which the key stood (Olsson et al. 2022, arXiv:2209.11895). One layer alone has nothing to look for.
"""

from dataclasses import dataclass, field

import torch
from jaxtyping import Int
from torch import Tensor
from torch.nn import functional

from regard.data import AssociativeRecall
from regard.interpret.watch import watch
from regard.lab.training import fit, seeded
from regard.models import Transformer, TransformerConfig, output_heads
from regard.models.config import Learned

__all__ = ["TASK", "Course", "by_counting", "course", "model_of", "scores"]

TASK = AssociativeRecall(num_symbols=32, num_pairs=8)
WIDTH, HEADS, HIDDEN = 64, 2, 128
_BATCH, _RATE = 64, 2e-3
_TESTS, _WATCHED = 500, 32  # sources that accuracy is measured on, and those of them that are watched


@dataclass(frozen=True)
class Course:
    """What was measured at steps of training; the scores are those of every layer's strongest head."""

    parameters: int
    steps: list[int] = field(default_factory=list)
    accuracy: list[float] = field(default_factory=list)
    induction: list[list[float]] = field(default_factory=list)
    previous: list[list[float]] = field(default_factory=list)


def model_of(layers: int) -> Transformer:
    """A decoder of one or two layers with as many weights.

    A layer without biases has 4 w² + 2 w h + 2 w of them, w wide with h hidden ones: 2 w + h + 1 more hidden ones, of
    2 w weights each, are one layer more.
    """
    config = TransformerConfig(
        vocab_size=TASK.vocab_size,
        hidden_size=WIDTH,
        num_attention_heads=HEADS,
        intermediate_size=HIDDEN if layers == 2 else 2 * WIDTH + 2 * HIDDEN + 1,
        decoder_layers=layers,
        norm_first=True,
        hidden_act="gelu",
        positions=Learned(2 * TASK.num_pairs + 1),
        bias=False,
        dropout=0.0,
        output_head=output_heads.LanguageModel(),
    )
    return Transformer(config)


def course(layers: int, steps: int, seed: int, *, looks: int = 20) -> Course:
    """Train one, and measure it `looks` times on sources that it is not trained on."""
    sources, answers = _drawn(_TESTS, _tests(seed))
    with seeded(seed) as generator:
        model = model_of(layers)
        found = Course(sum(one.numel() for one in model.parameters()))

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
    """Of each layer's strongest head: what share of its weight the asked key gives to what stands behind that key, its
    value; and what share values give to the token before, their key. Means over the sources.
    """
    with watch(model, statistics=["induction", "previous"]) as seen:
        model(sources)
    layers = [one.statistics for one in seen.record.layers]
    induction = [one["induction"][:, :, -1].mean(0).max() for one in layers]
    previous = [one["previous"][:, :, 1::2].mean((0, 2)).max() for one in layers]
    return [float(one) for one in induction], [float(one) for one in previous]


def by_counting(seed: int) -> float:
    """The share that is right by naming the value that stands most often in a source, without a look at the key."""
    sources, _ = _drawn(_TESTS, _tests(seed))
    most = functional.one_hot(sources[:, 1::2]).sum(1).max(1).values
    return float(most.double().mean()) / TASK.num_pairs


def _tests(seed: int) -> torch.Generator:
    """Of sources that a model is not trained on."""
    return torch.Generator().manual_seed(seed + 10_000)


def _drawn(count: int, generator: torch.Generator) -> tuple[Int[Tensor, "count n"], Int[Tensor, " count"]]:
    sources, targets = TASK.sample(count, generator=generator)
    return torch.tensor(sources), torch.tensor(targets)[:, 0]


def _last(model: Transformer, sources: Tensor) -> Tensor:
    logits = model(sources, logits_to_keep=1).logits
    assert isinstance(logits, Tensor)
    return logits[:, 0]
