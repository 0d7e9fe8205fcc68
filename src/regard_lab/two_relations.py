"""One head against several with equal parameters, on a task that needs two relations at once.

The target at each position is (the token before) − (the token three before) modulo the vocabulary, so a head must
attend to both tokens and distinguish them.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from regard.masks import Causal
from regard.nn import MultiHeadAttention
from regard_lab.training import fit

__all__ = ["TwoRelations", "TwoRelationsRun", "accuracy_over_steps", "batch"]

VOCABULARY, LENGTH, WIDTH = 11, 16, 32
NEAR, FAR = 1, 3  # distances of the two tokens
_BATCH, _RATE = 64, 3e-3


class TwoRelations(nn.Module):
    """Embeddings, one layer of causal attention, one feed-forward layer; the number of parameters does not depend on
    the heads.
    """

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.places = nn.Embedding(LENGTH, WIDTH)
        self.attention = MultiHeadAttention(WIDTH, heads, mask=Causal())
        self.feed = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.ReLU(), nn.Linear(4 * WIDTH, VOCABULARY))

    def forward(self, tokens: Int[Tensor, "batch n"]) -> Float[Tensor, "batch n vocabulary"]:
        """Return the logits of the target at each position."""
        x = self.embedding(tokens) + self.places(torch.arange(tokens.shape[1]))
        logits: Tensor = self.feed(x + self.attention(x))
        return logits


@dataclass(frozen=True)
class TwoRelationsRun:
    """Accuracies on fresh sequences, at steps of training."""

    steps: tuple[int, ...]
    accuracy: tuple[float, ...]
    parameters: int


def batch(size: int, generator: torch.Generator) -> tuple[Int[Tensor, "size n"], Int[Tensor, "size n"]]:
    """Return random tokens, and the target at each position; −100 where the farther token would be before the first.

    >>> tokens, answers = batch(1, torch.Generator().manual_seed(0))
    >>> bool(answers[0, 5] == (tokens[0, 4] - tokens[0, 2]) % VOCABULARY), answers[0, :3].tolist()
    (True, [-100, -100, -100])
    """
    tokens = torch.randint(VOCABULARY, (size, LENGTH), generator=generator)
    answers = (tokens.roll(NEAR, 1) - tokens.roll(FAR, 1)) % VOCABULARY
    answers[:, :FAR] = -100
    return tokens, answers


def accuracy_over_steps(heads: int, steps: int, seed: int) -> TwoRelationsRun:
    """Train a model with this number of heads, and measure its accuracy twenty times."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    model = TwoRelations(heads)
    tests = batch(512, torch.Generator().manual_seed(seed + 10_000))
    at: list[int] = []
    accuracy: list[float] = []

    def loss() -> Tensor:
        tokens, answers = batch(_BATCH, generator)
        return functional.cross_entropy(model(tokens).flatten(0, 1), answers.flatten(), ignore_index=-100)

    def look(step: int) -> None:
        at.append(step)
        accuracy.append(_accuracy(model, *tests))

    fit(model, loss, steps, learning_rate=_RATE, evaluate=look, eval_steps=max(steps // 20, 1))
    return TwoRelationsRun(tuple(at), tuple(accuracy), sum(one.numel() for one in model.parameters()))


def _accuracy(model: nn.Module, tokens: Tensor, answers: Tensor) -> float:
    right = model(tokens).argmax(-1) == answers
    return float(right[:, FAR:].float().mean())
