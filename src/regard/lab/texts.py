"""What the lab's small language models read: a made-up language, and Python's own language reference.

Neither is fetched. The made-up language is learned in seconds, for what is to be foreseen in it stands a few characters
before; the reference is prose with some code in it, about 350,000 characters once what stands there twice is taken out.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from regard.errors import InputError

__all__ = ["Text", "chapters", "made_up", "reference", "split"]

_PART, _HELD = 4096, 10  # every tenth part of so many characters is held out
_LETTERS, _WORDS, _NEXT = 16, 50, 4


@dataclass(frozen=True, eq=False)
class Text:
    """The characters that are trained on, and parts that are held out; ASCII codes."""

    trained: Int[Tensor, " n"]
    held: Int[Tensor, "parts part"]

    def batch(self, size: int, length: int, generator: torch.Generator) -> Int[Tensor, "size length+1"]:
        """Rows from anywhere in what is trained on, each with the character that comes next."""
        starts = torch.randint(len(self.trained) - length, (size, 1), generator=generator)
        return self.trained[starts + torch.arange(length + 1)]

    def rows(self, length: int, most: int) -> Int[Tensor, "rows length+1"]:
        """Rows of what is held out, evenly over it, each with the character that comes next."""
        found = self.held.unfold(1, length + 1, length).flatten(0, 1)
        return found[torch.linspace(0, len(found) - 1, min(most, len(found))).long()]


def made_up(characters: int, seed: int) -> str:
    """A text of 50 words of two to five letters, behind each of which one of four others comes, each as likely.

    So ln 4 nats a word cannot be foreseen, and all else can from the letters of a word so far and the word before it.

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
    """Python's language reference, which every machine with Python has, by the names of its chapters.

    Raises:
        InputError: This Python was installed without it.
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
    """All chapters in ASCII, every paragraph once, spaces and line ends as one space."""
    paragraphs = (" ".join(one.split()) for chapter in chapters().values() for one in chapter.split("\n\n"))
    once = dict.fromkeys(one for one in paragraphs if one)
    return "\n".join(once).encode("ascii", "replace").decode()


def split(text: str) -> Text:
    """ASCII characters as numbers, every tenth part of 4,096 held out.

    >>> one = split("ab" * 2048 * 20)
    >>> one.trained[:3], one.held.shape, len(one.trained) + one.held.numel()
    (tensor([97, 98, 97]), torch.Size([2, 4096]), 81920)
    """
    ids = torch.tensor(list(text.encode("ascii")))
    parts = ids[: len(ids) // _PART * _PART].view(-1, _PART)
    held = torch.arange(len(parts)) % _HELD == _HELD - 1
    return Text(parts[~held].flatten(), parts[held])
