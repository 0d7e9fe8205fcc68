"""What is made of the last states: logits of tokens or of labels, or one vector for a sentence.

A head is a frozen value in a model's configuration; `build` makes the module, which is called with the states
(batch, n, width), which of them are real, and the embedding that is read backwards where weights are tied.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional

from regard.errors import InputError
from regard.nn.feed_forward import FUNCTIONS, Activation

__all__ = [
    "HEADS",
    "Head",
    "LanguageModel",
    "MaskedLanguageModel",
    "SentenceEmbedding",
    "SequenceClassification",
    "TokenClassification",
    "pool",
]

Pool = Literal["first", "last", "mean"]


@dataclass(frozen=True)
class Head:
    """What all heads are."""

    kinds: ClassVar[tuple[str, ...]] = ("encoder", "decoder", "encoder-decoder")
    each: ClassVar[bool] = True  # whether it says something of every token, not of a whole text
    fresh: ClassVar[bool] = True  # whether it may begin at random on a checkpoint that lacks it: to be trained

    def check(self, kind: str) -> None:
        """Raise where a model of this kind cannot have it."""
        if kind not in self.kinds:
            raise InputError(
                f"`head` {type(self).__name__} is for a model of kind {' or '.join(self.kinds)}, not {kind}"
            )

    def build(self, width: int, vocabulary: int, eps: float, dropout: float) -> nn.Module:
        """Make the module."""
        raise NotImplementedError  # each head defines it


@dataclass(frozen=True)
class LanguageModel(Head):
    """Logits of the next token: W (scale · h) + b (batch, n, vocabulary).

    Args:
        tied: Whether W is the embedding (Press & Wolf 2017, arXiv:1608.05859).
        bias: Whether there is a b.
        scale: T5's is 1/√width where W is tied.
    """

    tied: bool = True
    bias: bool = False
    scale: float = 1.0
    kinds: ClassVar[tuple[str, ...]] = ("decoder", "encoder-decoder")
    fresh: ClassVar[bool] = False

    def build(self, width: int, vocabulary: int, eps: float, dropout: float) -> nn.Module:
        """Make the module."""
        return _Vocabulary(width, vocabulary, self.tied, self.bias, self.scale)


@dataclass(frozen=True)
class MaskedLanguageModel(Head):
    """Logits of the token at each place: W LayerNorm(φ(W_t h + b_t)) + b (Devlin et al. 2019, arXiv:1810.04805).

    Args:
        tied: Whether W is the embedding.
        activation: φ, one of FeedForward's that has no gate.
    """

    tied: bool = True
    activation: Activation = "gelu"
    kinds: ClassVar[tuple[str, ...]] = ("encoder",)
    fresh: ClassVar[bool] = False

    def build(self, width: int, vocabulary: int, eps: float, dropout: float) -> nn.Module:
        """Make the module."""
        return _Masked(width, vocabulary, self, eps)


@dataclass(frozen=True)
class SequenceClassification(Head):
    """Logits of labels for a whole text (batch, labels), from one state.

    Args:
        labels: How many there are.
        pooled: Which state: that of the first token (BERT), of the last real one (GPT, Llama, BART), or their mean.
        hidden: Whether a layer with tanh comes between: W tanh(W_h h + b_h) + b.
        bias: Whether there is a b.
    """

    labels: int = 2
    pooled: Pool = "first"
    hidden: bool = True
    bias: bool = True
    each: ClassVar[bool] = False

    def build(self, width: int, vocabulary: int, eps: float, dropout: float) -> nn.Module:
        """Make the module."""
        return _Sequence(width, self, dropout)


@dataclass(frozen=True)
class TokenClassification(Head):
    """Logits of labels for each token (batch, n, labels)."""

    labels: int = 2

    def build(self, width: int, vocabulary: int, eps: float, dropout: float) -> nn.Module:
        """Make the module."""
        return _Tokens(width, self.labels, dropout)


@dataclass(frozen=True)
class SentenceEmbedding(Head):
    """One vector for a text (batch, width): the mean of its real states (Reimers & Gurevych 2019, arXiv:1908.10084).

    Args:
        pooled: Which states it is made of.
        normalize: Whether it has length 1, so that the product of two is their cosine.
    """

    pooled: Pool = "mean"
    normalize: bool = True
    each: ClassVar[bool] = False

    def build(self, width: int, vocabulary: int, eps: float, dropout: float) -> nn.Module:
        """Make the module."""
        return _Sentence(self)


HEADS: tuple[type[Head], ...] = (
    LanguageModel,
    MaskedLanguageModel,
    SequenceClassification,
    TokenClassification,
    SentenceEmbedding,
)


def pool(
    states: Float[Tensor, "batch n width"], real: Bool[Tensor, "batch n"] | None, which: Pool
) -> Float[Tensor, "batch width"]:
    """One state for each text: of its first real token, of its last, or the mean of all real ones."""
    if which == "mean":
        if real is None:
            return states.mean(1)
        counted = real[..., None].to(states.dtype)
        return (states * counted).sum(1) / counted.sum(1).clamp_min(1.0)
    if real is None:
        return states[:, 0 if which == "first" else -1]
    at = real.int().argmax(1) if which == "first" else real.shape[1] - 1 - real.flip(1).int().argmax(1)
    return states[torch.arange(len(states), device=states.device), at]


class _Vocabulary(nn.Module):
    def __init__(self, width: int, vocabulary: int, tied: bool, bias: bool, scale: float) -> None:
        super().__init__()
        self.scale = scale
        self.weight = None if tied else nn.Parameter(torch.empty(vocabulary, width))
        self.bias = nn.Parameter(torch.zeros(vocabulary)) if bias else None
        if self.weight is not None:
            nn.init.normal_(self.weight, std=width**-0.5)

    def forward(self, states: Tensor, real: Tensor | None, embedding: Tensor) -> Tensor:
        states = states if self.scale == 1.0 else states * self.scale
        return functional.linear(states, embedding if self.weight is None else self.weight, self.bias)


class _Masked(nn.Module):
    def __init__(self, width: int, vocabulary: int, head: MaskedLanguageModel, eps: float) -> None:
        super().__init__()
        self.activation = FUNCTIONS[head.activation]
        self.transform, self.norm = nn.Linear(width, width), nn.LayerNorm(width, eps)
        self.vocabulary = _Vocabulary(width, vocabulary, head.tied, True, 1.0)

    def forward(self, states: Tensor, real: Tensor | None, embedding: Tensor) -> Tensor:
        logits: Tensor = self.vocabulary(self.norm(self.activation(self.transform(states))), real, embedding)
        return logits


class _Sequence(nn.Module):
    def __init__(self, width: int, head: SequenceClassification, dropout: float) -> None:
        super().__init__()
        self.pooled, self.dropout = head.pooled, dropout
        self.hidden = nn.Linear(width, width) if head.hidden else None
        self.classify = nn.Linear(width, head.labels, bias=head.bias)

    def forward(self, states: Tensor, real: Tensor | None, embedding: Any) -> Tensor:
        state = pool(states, real, self.pooled)
        if self.hidden is not None:
            state = torch.tanh(self.hidden(functional.dropout(state, self.dropout, self.training)))
        logits: Tensor = self.classify(functional.dropout(state, self.dropout, self.training))
        return logits


class _Tokens(nn.Module):
    def __init__(self, width: int, labels: int, dropout: float) -> None:
        super().__init__()
        self.dropout, self.classify = dropout, nn.Linear(width, labels)

    def forward(self, states: Tensor, real: Tensor | None, embedding: Any) -> Tensor:
        logits: Tensor = self.classify(functional.dropout(states, self.dropout, self.training))
        return logits


class _Sentence(nn.Module):
    def __init__(self, head: SentenceEmbedding) -> None:
        super().__init__()
        self.pooled, self.normalize = head.pooled, head.normalize

    def forward(self, states: Tensor, real: Tensor | None, embedding: Any) -> Tensor:
        vector = pool(states, real, self.pooled)
        return functional.normalize(vector, dim=-1) if self.normalize else vector
