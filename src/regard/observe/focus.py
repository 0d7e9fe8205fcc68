"""What a picture shows: one word, two heads that look from it to different words, and one head's heat map."""

from dataclasses import dataclass

from regard.observe.tokens import Word

__all__ = ["Focus", "Look"]


@dataclass(frozen=True)
class Look:
    """One head looking from the chosen word to the word it weighs most."""

    layer: int
    head: int
    target: int  # index into the words of the layer's key stream
    weight: float


@dataclass(frozen=True)
class Focus:
    """The chosen word (index into `queries`) and the heads that look from it, the one whose map is drawn first.

    `queries` and `keys` are the words of the query and the key stream: the same ones except in cross-attention.
    """

    queries: tuple[Word, ...]
    keys: tuple[Word, ...]
    word: int
    looks: tuple[Look, ...]
    sequence: int = 0
