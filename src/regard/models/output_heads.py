"""What is computed from the last hidden states: logits of tokens or labels, a vector for a sentence; and losses.

An output head is a frozen value in a model's configuration; `build` makes the module, which is called with the last
hidden states (batch, n, hidden_size), which of them are tokens, and the embedding, whose matrix is used where weights
are tied. The loss of `labels` is for each output head as transformers computes it; labels of −100 count for nothing.
"""

from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional

from regard.errors import InputError
from regard.nn.feed_forward import FUNCTIONS, HiddenAct, check_hidden_act, feed_forward_activation

__all__ = [
    "HEADS",
    "IGNORED",
    "LanguageModel",
    "MaskedLanguageModel",
    "OutputHead",
    "SentenceEmbedding",
    "SequenceClassification",
    "TokenClassification",
    "pool",
]

Pooling = Literal["first", "last", "mean"]


@dataclass(frozen=True)
class OutputHead:
    """What all heads are."""

    kinds: ClassVar[tuple[str, ...]] = ("encoder", "decoder", "encoder-decoder")
    each: ClassVar[bool] = True  # whether it says something of every token, not of a whole text
    fresh: ClassVar[bool] = True  # whether it may begin at random on a checkpoint that lacks it: to be trained

    def __post_init__(self) -> None:
        for one in fields(self):
            if one.type is bool and not isinstance(value := getattr(self, one.name), bool):
                raise InputError(f"`{one.name}` of {type(self).__name__} must be True or False, got {value!r}")

    def check(self, kind: str) -> None:
        """Raise where a model of this kind cannot have it."""
        if kind not in self.kinds:
            raise InputError(
                f"`output_head` {type(self).__name__} is for a model of kind {' or '.join(self.kinds)}, not {kind}"
            )

    def build(self, hidden_size: int, vocab_size: int, eps: float, dropout: float) -> nn.Module:
        """Make the module."""
        raise NotImplementedError  # each head defines it


@dataclass(frozen=True)
class LanguageModel(OutputHead):
    """Logits of the next token: W (scale · h) + b (batch, n, vocab_size).

    Args:
        tie_word_embeddings: Whether W is the embedding (Press & Wolf 2017, arXiv:1608.05859).
        bias: Whether there is a b.
        scale: T5's is 1/√hidden_size where W is tied.
    """

    tie_word_embeddings: bool = True
    bias: bool = False
    scale: float = 1.0
    kinds: ClassVar[tuple[str, ...]] = ("decoder", "encoder-decoder")
    fresh: ClassVar[bool] = False

    def build(self, hidden_size: int, vocab_size: int, eps: float, dropout: float) -> nn.Module:
        """Make the module."""
        return _Vocabulary(hidden_size, vocab_size, self.tie_word_embeddings, self.bias, self.scale)


@dataclass(frozen=True)
class MaskedLanguageModel(OutputHead):
    """Logits of the token at each place: W LayerNorm(φ(W_t h + b_t)) + b (Devlin et al. 2019, arXiv:1810.04805).

    Args:
        tie_word_embeddings: Whether W is the embedding.
        hidden_act: φ, as in TransformerConfig.
    """

    tie_word_embeddings: bool = True
    hidden_act: HiddenAct = "gelu"
    kinds: ClassVar[tuple[str, ...]] = ("encoder",)
    fresh: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_hidden_act(self.hidden_act)

    def build(self, hidden_size: int, vocab_size: int, eps: float, dropout: float) -> nn.Module:
        """Make the module."""
        return _Masked(hidden_size, vocab_size, self, eps)


@dataclass(frozen=True)
class SequenceClassification(OutputHead):
    """Logits of labels for a whole text (batch, num_labels), from one state.

    Args:
        num_labels: Number of labels.
        pooling: Which state: that of the "first" token (BERT), of the "last" one that is no padding (GPT, Llama, BART),
            or the "mean" of all.
        use_tanh_layer: Whether a layer with tanh comes between: W tanh(W_h h + b_h) + b.
        bias: Whether there is a b.
    """

    num_labels: int = 2
    pooling: Pooling = "first"
    use_tanh_layer: bool = True
    bias: bool = True
    each: ClassVar[bool] = False

    def build(self, hidden_size: int, vocab_size: int, eps: float, dropout: float) -> nn.Module:
        """Make the module."""
        return _Sequence(hidden_size, self, dropout)


@dataclass(frozen=True)
class TokenClassification(OutputHead):
    """Logits of labels for each token (batch, n, num_labels)."""

    num_labels: int = 2

    def build(self, hidden_size: int, vocab_size: int, eps: float, dropout: float) -> nn.Module:
        """Make the module."""
        return _Tokens(hidden_size, self.num_labels, dropout)


@dataclass(frozen=True)
class SentenceEmbedding(OutputHead):
    """One vector for a text (batch, hidden_size): the mean of its tokens' states.

    Reimers & Gurevych 2019, arXiv:1908.10084.

    Args:
        pooling: Which states it is made of.
        normalize: Whether it has length 1, so that the product of two is their cosine.
    """

    pooling: Pooling = "mean"
    normalize: bool = True
    each: ClassVar[bool] = False

    def build(self, hidden_size: int, vocab_size: int, eps: float, dropout: float) -> nn.Module:
        """Make the module."""
        return _Sentence(self)


HEADS: tuple[type[OutputHead], ...] = (
    LanguageModel,
    MaskedLanguageModel,
    SequenceClassification,
    TokenClassification,
    SentenceEmbedding,
)


def pool(
    states: Float[Tensor, "batch n hidden_size"], attention_mask: Bool[Tensor, "batch n"] | None, pooling: Pooling
) -> Float[Tensor, "batch hidden_size"]:
    """Return one state for each text: that of its first token, of its last, or the mean of all, padding left out."""
    if pooling == "mean":
        if attention_mask is None:
            return states.mean(1)
        counted = attention_mask[..., None].to(states.dtype)
        return (states * counted).sum(1) / counted.sum(1).clamp_min(1.0)
    if attention_mask is None:
        return states[:, 0 if pooling == "first" else -1]
    first = pooling == "first"
    at = (attention_mask if first else attention_mask.flip(1)).int().argmax(1)
    at = at if first else attention_mask.shape[1] - 1 - at
    return states[torch.arange(states.shape[0], device=states.device), at]


class _Vocabulary(nn.Module):
    def __init__(self, width: int, vocabulary: int, tied: bool, bias: bool, scale: float) -> None:
        super().__init__()
        self.scale = scale
        self.weight = None if tied else nn.Parameter(torch.empty(vocabulary, width))
        self.bias = nn.Parameter(torch.zeros(vocabulary)) if bias else None
        if self.weight is not None:
            nn.init.normal_(self.weight, std=width**-0.5)

    def forward(self, states: Tensor, attention_mask: Tensor | None, embedding: Tensor) -> Tensor:
        states = states if self.scale == 1.0 else states * self.scale
        return functional.linear(states, embedding if self.weight is None else self.weight, self.bias)


class _Masked(nn.Module):
    def __init__(self, width: int, vocabulary: int, head: MaskedLanguageModel, eps: float) -> None:
        super().__init__()
        self.activation = FUNCTIONS[feed_forward_activation(head.hidden_act)]
        self.transform, self.norm = nn.Linear(width, width), nn.LayerNorm(width, eps)
        self.vocabulary = _Vocabulary(width, vocabulary, head.tie_word_embeddings, True, 1.0)

    def forward(self, states: Tensor, attention_mask: Tensor | None, embedding: Tensor) -> Tensor:
        logits: Tensor = self.vocabulary(self.norm(self.activation(self.transform(states))), attention_mask, embedding)
        return logits


class _Sequence(nn.Module):
    def __init__(self, width: int, head: SequenceClassification, dropout: float) -> None:
        super().__init__()
        self.pooling, self.dropout = head.pooling, dropout
        self.tanh_layer = nn.Linear(width, width) if head.use_tanh_layer else None
        self.classify = nn.Linear(width, head.num_labels, bias=head.bias)

    def forward(self, states: Tensor, attention_mask: Tensor | None, embedding: Any) -> Tensor:
        state = pool(states, attention_mask, self.pooling)
        if self.tanh_layer is not None:
            state = torch.tanh(self.tanh_layer(functional.dropout(state, self.dropout, self.training)))
        logits: Tensor = self.classify(functional.dropout(state, self.dropout, self.training))
        return logits


class _Tokens(nn.Module):
    def __init__(self, width: int, labels: int, dropout: float) -> None:
        super().__init__()
        self.dropout, self.classify = dropout, nn.Linear(width, labels)

    def forward(self, states: Tensor, attention_mask: Tensor | None, embedding: Any) -> Tensor:
        logits: Tensor = self.classify(functional.dropout(states, self.dropout, self.training))
        return logits


class _Sentence(nn.Module):
    def __init__(self, head: SentenceEmbedding) -> None:
        super().__init__()
        self.pooling, self.normalize = head.pooling, head.normalize

    def forward(self, states: Tensor, attention_mask: Tensor | None, embedding: Any) -> Tensor:
        vector = pool(states, attention_mask, self.pooling)
        return functional.normalize(vector, dim=-1) if self.normalize else vector


IGNORED = -100
