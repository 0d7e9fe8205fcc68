"""Held out: no text of the held-out part's sources occurs in the training part, in whatever case or punctuation."""

import hashlib
import unicodedata
from collections.abc import Iterable

from regard.data.corpus import Corpus
from regard.errors import InputError

__all__ = ["references", "split", "without_sources"]

_KEPT = {"Ll", "Lm", "Lo", "Lt", "Lu", "Mc", "Me", "Mn", "Nd", "Nl", "No", "Sc", "Sm", "So"}  # all but space and stops


def split(corpus: Corpus, held_out: int, *, by: str = "source", seed: int = 0) -> tuple[Corpus, Corpus]:
    """Split a corpus into training and held-out lines that share no text in the column `by`.

    Texts are the same when they differ only in case, spaces and punctuation. The held-out part has `held_out` lines,
    one for each of as many different texts, the first that the corpus has of it. Its other lines are in neither part:
    `references` finds their translations. Which texts are held out depends on the texts and `seed` alone, not on the
    order of the lines, the process or the machine: they are the first by SHA-256 of seed and text.

    Args:
        corpus: The lines.
        held_out: The number of held-out lines; at least 1, and less than there are different texts.
        by: The column whose texts are kept apart.
        seed: Another seed holds other texts out.

    Returns:
        The training and the held-out part, each in the order of the corpus.

    Raises:
        InputError: `held_out` is no whole number, or out of range.

    >>> corpus = Corpus({"source": ("Hi.", "Run.", "run!", "Wait"), "target": ("嗨。", "跑！", "你用跑的。", "等等")})
    >>> training, held = split(corpus, 1, seed=3)
    >>> training["source"], held["source"]
    (('Hi.', 'Wait'), ('Run.',))
    """
    keys = [_key(text) for text in corpus[by]]
    first = {key: index for index, key in reversed(list(enumerate(keys)))}
    if not isinstance(held_out, int) or isinstance(held_out, bool) or not 1 <= held_out < len(first):
        raise InputError(
            f"`held_out` must be a whole number of at least 1 that leaves something to train on: {corpus.name} has "
            f"{len(first):,} different texts in `{by}`, got {held_out!r}"
        )
    ordered = sorted(first, key=lambda key: hashlib.sha256(f"{seed}\0{key}".encode()).digest())
    held = set(ordered[:held_out])
    training = corpus.select(index for index, key in enumerate(keys) if key not in held)
    return training, corpus.select(sorted(first[key] for key in held))


def without_sources(corpus: Corpus, held: Corpus, *, by: str = "source") -> Corpus:
    """Leave out the lines whose text in the column `by` is held out, in whatever case and punctuation.

    >>> corpus = Corpus({"source": ("Hi.", "hi!", "Run.")})
    >>> without_sources(corpus, corpus.select([0]))["source"]
    ('Run.',)
    """
    kept_out = {_key(text) for text in held[by]}
    return corpus.select(index for index, text in enumerate(corpus[by]) if _key(text) not in kept_out)


def references(corpus: Corpus, held: Corpus, *, by: str = "source", of: str = "target") -> list[list[str]]:
    """List all translations that the corpus has of each held-out line, its own one first, none twice.

    >>> corpus = Corpus({"source": ("Hi.", "Run.", "run!", "Wait"), "target": ("嗨。", "跑！", "你用跑的。", "等等")})
    >>> references(corpus, split(corpus, 1, seed=3)[1])
    [['跑！', '你用跑的。']]
    """
    known: dict[str, dict[str, None]] = {_key(text): {target: None} for text, target in _pairs(held, by, of)}
    for text, target in _pairs(corpus, by, of):
        if (found := known.get(_key(text))) is not None:
            found[target] = None
    return [list(dict.fromkeys([target, *known[_key(text)]])) for text, target in _pairs(held, by, of)]


def _pairs(corpus: Corpus, by: str, of: str) -> Iterable[tuple[str, str]]:
    return zip(corpus[by], corpus[of], strict=True)


def _key(text: str) -> str:
    """What is left of a text without case, spaces and punctuation; the text itself where nothing else is left."""
    folded = unicodedata.normalize("NFKC", text).casefold()
    return "".join(character for character in folded if unicodedata.category(character) in _KEPT) or text.strip()
