"""Recurrent encoder–decoders on a synthetic task, measured at each length within and beyond the trained ones.

Accuracy is that of greedy generation, not of predictions with the true beginning of the target as input.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Int
from torch import Generator, Tensor
from torch.nn import functional

from regard.data import Synthetic
from regard.metrics import translation_scores
from regard.models import RecurrentConfig, RecurrentSeq2Seq
from regard.train.loss_and_optimizer import Schedule
from regard_lab.training import fit, seeded

__all__ = ["ByLength", "Lesson", "bleu", "by_length", "config_of", "learned", "parameters_of", "share_right", "without"]

_WARMUP, _CLIP = 50, 1.0


@dataclass(frozen=True, kw_only=True)
class Lesson:
    """The training data of a model: texts of a task, with lengths uniform from `shortest` to `longest`.

    A batch has `texts` texts of one length, so it has no padding. `rate` is the peak learning rate of Adam, with a
    warm-up and a half-cosine decay.
    """

    task: Synthetic
    shortest: int
    longest: int
    steps: int
    texts: int = 64
    rate: float = 3e-3

    def batch(
        self, generator: Generator
    ) -> tuple[Int[Tensor, "texts n"], Int[Tensor, "texts m"], Int[Tensor, "texts m"]]:
        """Return sources, decoder inputs (with the start token first) and labels (with the end token last).

        >>> from regard.data import Reverse
        >>> lesson = Lesson(task=Reverse(), shortest=3, longest=3, steps=1, texts=1)
        >>> lesson.batch(Generator().manual_seed(0))
        (tensor([[18,  5,  8]]), tensor([[ 1,  8,  5, 18]]), tensor([[ 8,  5, 18,  2]]))
        """
        length = int(torch.randint(self.shortest, self.longest + 1, (), generator=generator))
        sources, targets = self.task.sample(self.texts, length_range=(length, length), generator=generator)
        written = torch.tensor(targets)
        start, end = (
            written.new_full((len(written), 1), one) for one in (self.task.bos_token_id, self.task.eos_token_id)
        )
        return torch.tensor(sources), torch.cat([start, written], 1), torch.cat([written, end], 1)


@dataclass(frozen=True)
class ByLength:
    """The share of right tokens (0 to 1) and BLEU (0 to 100) of texts of each length, and the model's parameters."""

    parameters: int
    accuracy: dict[int, float]
    bleu: dict[int, float]


def config_of(task: Synthetic, hidden: int) -> RecurrentConfig:
    """Return the config of a GRU with Bahdanau's attention over a bidirectional GRU; hidden states and embeddings have
    `hidden` units.
    """
    size = task.vocab_size
    return RecurrentConfig(
        src_vocab_size=size, tgt_vocab_size=size, embedding_dim=hidden, hidden_size=hidden, attention="bahdanau",
        pad_token_id=task.pad_token_id, bos_token_id=task.bos_token_id, eos_token_id=task.eos_token_id,
    )  # fmt: skip


def without(config: RecurrentConfig) -> RecurrentConfig:
    """Return the config without attention, with a larger hidden size so that it has about as many parameters.

    The fixed vector, the last states of both directions, is an input of every step (Cho et al. 2014, arXiv:1406.1078).
    Bahdanau et al. compare with this network.

    >>> from regard.data import Copy
    >>> with_it = config_of(Copy(), 64)
    >>> without(with_it).hidden_size, parameters_of(with_it), parameters_of(without(with_it))
    (67, 120729, 121078)
    """
    plain = replace(config, attention=None, feed_context=True)
    wanted = parameters_of(config)

    def count(hidden: int) -> int:
        return parameters_of(replace(plain, hidden_size=hidden))

    enough = bisect_left(range(4 * config.hidden_size), wanted, lo=1, key=count)
    return replace(plain, hidden_size=min((enough - 1, enough), key=lambda hidden: abs(count(hidden) - wanted)))


def parameters_of(config: RecurrentConfig) -> int:
    """Return the number of parameters of a model with this config."""
    with torch.device("meta"):
        return sum(one.numel() for one in RecurrentSeq2Seq(config).parameters())


def learned(config: RecurrentConfig, lesson: Lesson, seed: int) -> RecurrentSeq2Seq:
    """Train a model on one thread, and return it in eval mode."""
    with seeded(seed) as generator:
        model = RecurrentSeq2Seq(config)

        def loss() -> Tensor:
            sources, read, asked = lesson.batch(generator)
            return functional.cross_entropy(
                model(sources, decoder_input_ids=read).logits.flatten(0, 1), asked.flatten()
            )

        schedule = Schedule("cosine", _WARMUP)
        fit(model, loss, lesson.steps, learning_rate=lesson.rate, schedule=schedule, max_grad_norm=_CLIP)
    return model


def by_length(model: RecurrentSeq2Seq, task: Synthetic, lengths: Sequence[int], texts: int, seed: int) -> ByLength:
    """Generate outputs for new texts of each length, and compare them with the targets.

    Raises:
        MissingExtraError: sacrebleu is not installed.
    """
    generator = Generator().manual_seed(seed + 10_000)
    accuracy, scores = {}, {}
    for length in lengths:
        sources, targets = task.sample(texts, length_range=(length, length), generator=generator)
        with torch.inference_mode():
            # An output that is too long is wrong too, so generation can stop.
            written = model.generate(sources, max_new_tokens=2 * length, return_dict_in_generate=True).new_tokens
        said = [one[:-1] if one[-1] == task.eos_token_id else one for one in written]
        accuracy[length], scores[length] = share_right(said, targets), bleu(said, targets)
    return ByLength(sum(one.numel() for one in model.parameters()), accuracy, scores)


def share_right(said: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> float:
    """Return the share of the targets' tokens that the output has at the same position.

    >>> share_right([[5, 6, 9], [5]], [[5, 6, 7], [5]])
    0.75
    >>> share_right([[6, 7]], [[5, 6, 7, 8]])  # all behind a missing token are in the wrong place
    0.0
    """
    right = sum(
        one == other for row, target in zip(said, targets, strict=True) for one, other in zip(row, target, strict=False)
    )
    return right / sum(map(len, targets))


def bleu(said: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> float:
    """Return BLEU of sequences of tokens, which are joined by spaces and need no tokenizer.

    Raises:
        MissingExtraError: sacrebleu is not installed.
    """
    texts, references = ([" ".join(map(str, row)) for row in rows] for rows in (said, targets))
    return translation_scores(texts, [[one] for one in references], "en").bleu
