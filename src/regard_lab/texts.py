"""Training texts of the lab's small language models: a made-up language, and Python's own language reference.

Neither is downloaded. The made-up language is learned in seconds, since its predictable characters depend only on a
few characters before them. The reference is prose with some code, about 350,000 characters without duplicate
paragraphs.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from regard.errors import InputError

__all__ = ["Text", "chapters", "made_up", "reference", "split"]

_PART, _HELD = 4096, 10  # size in characters of the parts, of which every tenth is held out
_LETTERS, _WORDS, _NEXT = 16, 50, 4


@dataclass(frozen=True, eq=False)
class Text:
    """The training characters, and the held-out parts, as ASCII codes."""

    trained: Int[Tensor, " n"]
    held: Int[Tensor, "parts part"]

    def batch(self, size: int, length: int, generator: torch.Generator) -> Int[Tensor, "size length+1"]:
        """Draw rows at random from the training characters, each with the character that follows."""
        starts = torch.randint(len(self.trained) - length, (size, 1), generator=generator)
        return self.trained[starts + torch.arange(length + 1)]

    def rows(self, length: int, most: int) -> Int[Tensor, "rows length+1"]:
        """Return evenly spaced rows of the held-out parts, each with the character that follows."""
        found = self.held.unfold(1, length + 1, length).flatten(0, 1)
        return found[torch.linspace(0, len(found) - 1, min(most, len(found))).long()]


def made_up(characters: int, seed: int) -> str:
    """Return a text of 50 words of two to five letters, where each word is followed by one of four words with equal
    probability.

    Thus ln 4 nats per word are unpredictable, and everything else follows from the word before and the first letters
    of a word.

    >>> made_up(30, seed=0)
    'ljm pnhi ie doefn lmgnj kln ak'
    """
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(2, 6, (4 * _WORDS,), generator=generator).tolist()
    letters = torch.randint(_LETTERS, (4 * _WORDS, 5), generator=generator).tolist()
    spelled = (
        "".join(chr(ord("a") + one) for one in row[:length]) for row, length in zip(letters, lengths, strict=True)
    )
    words = list(dict.fromkeys(spelled))[:_WORDS]
    follows = torch.rand(_WORDS, _WORDS, generator=generator).argsort(1)[:, :_NEXT].tolist()
    said, at = [], 0
    for choice in torch.randint(_NEXT, (math.ceil(characters / 3),), generator=generator).tolist():
        at = follows[at][choice]
        said.append(words[at])
    return " ".join(said)[:characters]


def chapters() -> Mapping[str, str]:
    """Return Python's language reference, which is installed with Python, by the names of its chapters.

    Raises:
        InputError: This Python was installed without the reference.
    """
    try:
        from pydoc_data.topics import topics
    except ImportError as error:
        raise InputError(
            "this experiment reads Python's own reference (pydoc_data.topics), which this Python lacks: install the "
            "whole standard library, on Debian the package `libpython3-stdlib`"
        ) from error
    known: Mapping[str, str] = topics
    return known


def reference() -> str:
    """Return all chapters in ASCII, every paragraph once, with spaces and line ends as one space."""
    paragraphs = (" ".join(one.split()) for chapter in chapters().values() for one in chapter.split("\n\n"))
    once = dict.fromkeys(one for one in paragraphs if one)
    return "\n".join(once).encode("ascii", "replace").decode()


def split(text: str) -> Text:
    """Return ASCII characters as numbers, with every tenth part of 4,096 held out.

    >>> one = split("ab" * 2048 * 20)
    >>> one.trained[:3], one.held.shape, len(one.trained) + one.held.numel()
    (tensor([97, 98, 97]), torch.Size([2, 4096]), 81920)
    """
    ids = torch.tensor(list(text.encode("ascii")))
    parts = ids[: len(ids) // _PART * _PART].view(-1, _PART)
    held = torch.arange(len(parts)) % _HELD == _HELD - 1
    return Text(parts[~held].flatten(), parts[held])
