"""The classifier of sentences from the debate on attention as explanation: embeddings, optionally a GRU, additive
attention.

The data are sentences of Python's own documentation, which is installed with Python. The classes are sentences of the
library reference and sentences of the language reference.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from regard.nn import AttentionPooling
from regard_lab.texts import chapters

__all__ = [
    "CHAPTERS",
    "Classifier",
    "Encoder",
    "Permuted",
    "Sentences",
    "accuracy",
    "numbered",
    "permuted",
    "sentences",
    "trained",
]

Encoder = Literal["gru", "none"]

LIBRARY = ("string-methods", "formatstrings", "typesseq", "typesmapping", "debugger")
LANGUAGE = ("compound", "types", "import")
CHAPTERS = (LANGUAGE, LIBRARY)  # chapters of class 0 and of class 1
SHORTEST, LONGEST = 6, 50  # minimum and maximum number of words of a sentence
RARE = 2  # words in fewer sentences are unknown
PADDING, UNKNOWN = 0, 1
WIDTH = 64
_BATCH, _RATE, _DROPOUT = 32, 2e-3, 0.3


@dataclass(frozen=True)
class Sentences:
    """Sentences as words and as ids, each with its class; `vocabulary` is the number of ids."""

    words: tuple[tuple[str, ...], ...]
    ids: tuple[tuple[int, ...], ...]
    classes: tuple[int, ...]
    vocabulary: int

    def __len__(self) -> int:
        return len(self.classes)


@dataclass(frozen=True, eq=False)
class Permuted:
    """p(class 1) of each sentence with its own weights and with permuted weights, and the weights."""

    before: Float[Tensor, " sentences"]
    after: Float[Tensor, "sentences permutations"]
    weights: tuple[Float[Tensor, " n"], ...]

    @property
    def moves(self) -> Float[Tensor, "sentences permutations"]:
        """|p − p'|, the total variation distance; for two classes also the largest difference of a probability."""
        return (self.after - self.before[:, None]).abs()

    @property
    def turns(self) -> Bool[Tensor, "sentences permutations"]:
        """Whether the predicted class of the sentence changes."""
        return (self.after > 0.5) != (self.before > 0.5)[:, None]


class Classifier(nn.Module):
    """p(class 1) = σ(w · Σ_j α_j h_j + b), α by additive attention (Jain & Wallace 2019, arXiv:1902.10186, 2).

    Args:
        vocabulary: Number of ids; 0 is padding.
        encoder: "gru" for states h_j of a bidirectional GRU, "none" for the word embeddings.
        uniform: Whether all words have the same weight (Wiegreffe & Pinter 2019, arXiv:1908.04626, 3.2).
    """

    def __init__(self, vocabulary: int, encoder: Encoder, *, uniform: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, WIDTH, padding_idx=PADDING)
        self.dropout = nn.Dropout(_DROPOUT)
        both = nn.GRU(WIDTH, WIDTH // 2, batch_first=True, bidirectional=True)
        self.encoder = both if encoder == "gru" else None
        self.pool = None if uniform else AttentionPooling(WIDTH)
        self.out = nn.Linear(WIDTH, 1)

    def forward(
        self, ids: Int[Tensor, "batch n"]
    ) -> tuple[Float[Tensor, " batch"], Float[Tensor, "batch n"], Float[Tensor, "batch n"]]:
        """Return the logits, the weights, and the contribution of each word: logit = Σ_j weight_j · said_j."""
        real = ids != PADDING
        states = self._states(self.dropout(self.embedding(ids)), real)
        if self.pool is None:
            weights = real / real.sum(1, keepdim=True)
        else:
            _, weights = self.pool(states, key_padding_mask=~real, need_weights=True)
        said = self.out(self.dropout(states)).squeeze(-1)  # weights add up to 1, so b can be added inside the sum
        return (weights * said).sum(1), weights, said

    def _states(self, x: Float[Tensor, "batch n width"], real: Bool[Tensor, "batch n"]) -> Tensor:
        if self.encoder is None:
            return x
        packed = pack_padded_sequence(x, real.sum(1), batch_first=True, enforce_sorted=False)
        states, _ = pad_packed_sequence(self.encoder(packed)[0], batch_first=True, total_length=x.shape[1])
        return states


def sentences() -> list[tuple[tuple[str, ...], int]]:
    """Return the sentences of Python's reference as lower-case words, without duplicates, and their classes.

    Raises:
        InputError: This Python was installed without the reference.
    """
    reference = chapters()
    found: dict[tuple[str, ...], int] = {}
    for label, names in enumerate(CHAPTERS):
        for name in names:
            for words in _split(reference.get(name, "")):
                found.setdefault(words, label)
    return list(found.items())


def _split(text: str) -> Iterable[tuple[str, ...]]:
    """Yield the sentences of a chapter, without paragraphs of code and of grammar."""
    for paragraph in re.split(r"\n\s*\n", text):
        if ">>>" in paragraph or "::=" in paragraph:
            continue
        for one in re.split(r"(?<=[.:;])\s+(?=[A-Z*(])", " ".join(paragraph.split())):
            words = tuple(re.findall(r"[a-z]+(?:'[a-z]+)?", one.lower()))
            if SHORTEST <= len(words) <= LONGEST and one[-1] in ".:;":
                yield words


def numbered(
    trained_on: Sequence[tuple[tuple[str, ...], int]], held: Sequence[tuple[tuple[str, ...], int]]
) -> tuple[Sentences, Sentences]:
    """Return ids by the words of the training sentences; rare and new words get the same unknown id.

    >>> first, second = numbered([(("a", "b"), 0), (("a", "c"), 1)], [(("a", "d"), 1)])
    >>> first.ids, second.ids, first.vocabulary
    (((2, 1), (2, 1)), ((2, 1),), 3)
    """
    counts = Counter(word for words, _ in trained_on for word in set(words))
    ids = {word: 2 + rank for rank, word in enumerate(sorted(one for one in counts if counts[one] >= RARE))}
    found = []
    for part in (trained_on, held):
        rows = tuple(tuple(ids.get(word, UNKNOWN) for word in words) for words, _ in part)
        found.append(Sentences(tuple(words for words, _ in part), rows, tuple(one for _, one in part), 2 + len(ids)))
    return found[0], found[1]


def trained(data: Sentences, encoder: Encoder, epochs: int, seed: int, *, uniform: bool = False) -> Classifier:
    """Train a classifier from random weights, and return it in eval mode."""
    torch.manual_seed(seed)
    model = Classifier(data.vocabulary, encoder, uniform=uniform)
    optimizer = torch.optim.Adam(model.parameters(), lr=_RATE, weight_decay=1e-5)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(epochs):
        for rows in torch.randperm(len(data), generator=generator).split(_BATCH):
            logits, _, _ = model(_padded(data, rows.tolist()))
            classes = torch.tensor([float(data.classes[row]) for row in rows])
            loss = functional.binary_cross_entropy_with_logits(logits, classes)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return model.eval()


def accuracy(model: Classifier, data: Sentences) -> float:
    """Return the share of sentences whose class gets a probability above one half."""
    with torch.no_grad():
        logits, _, _ = model(_padded(data, range(len(data))))
    return float(((logits > 0) == torch.tensor(data.classes, dtype=torch.bool)).double().mean())


def permuted(model: Classifier, data: Sentences, permutations: int, seed: int) -> Permuted:
    """Permute each sentence's weights over its words, `permutations` times, and predict again."""
    generator = torch.Generator().manual_seed(seed)
    after, weights = [], []
    with torch.no_grad():
        logits, every, said = model(_padded(data, range(len(data))))
    for row, words in enumerate(data.ids):
        n = len(words)
        dealt = torch.rand(permutations, n, generator=generator).argsort(1)
        after.append((every[row, :n][dealt] @ said[row, :n]).sigmoid())
        weights.append(every[row, :n])
    return Permuted(logits.sigmoid(), torch.stack(after), tuple(weights))


def _padded(data: Sentences, rows: Iterable[int]) -> Int[Tensor, "batch n"]:
    texts = [torch.tensor(data.ids[row]) for row in rows]
    return nn.utils.rnn.pad_sequence(texts, batch_first=True, padding_value=PADDING)
