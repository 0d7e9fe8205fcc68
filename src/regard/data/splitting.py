"""Splits into training and validation data that share no text, in whatever case or punctuation."""

import hashlib
import unicodedata
from collections.abc import Iterable

from regard.data.corpus import Corpus
from regard.errors import InputError

__all__ = ["references", "split", "without_sources"]

_KEPT = {"Ll", "Lm", "Lo", "Lt", "Lu", "Mc", "Me", "Mn", "Nd", "Nl", "No", "Sc", "Sm", "So"}  # all but space and stops


def split(corpus: Corpus, validation_size: int, *, column: str = "source", seed: int = 0) -> tuple[Corpus, Corpus]:
    """Return the training and the validation part of a corpus, which share no text in a column.

    Two texts count as equal if they differ only in case, spaces and punctuation. The validation part has
    `validation_size` lines with different source texts. If a text is on several lines of the corpus, the validation
    part has the first of these lines. The other lines are in neither part, and `references` returns their translations.
    The selection depends only on the texts and on `seed`, not on the order of the lines, the process or the machine:
    the texts with the smallest SHA-256 of seed and text are held out.

    Args:
        corpus: The lines.
        validation_size: The number of validation lines; at least 1, and less than there are different texts.
        column: The column whose texts are kept apart.
        seed: Another seed holds other texts out.

    Returns:
        The training and the validation part, each in the order of the corpus.

    Raises:
        InputError: `validation_size` is no whole number, or out of range.

    >>> corpus = Corpus({"source": ("Hi.", "Run.", "run!", "Wait"), "target": ("嗨。", "跑！", "你用跑的。", "等等")})
    >>> training, held = split(corpus, 1, seed=3)
    >>> training["source"], held["source"]
    (('Hi.', 'Wait'), ('Run.',))
    """
    keys = [_key(text) for text in corpus[column]]
    first = {key: index for index, key in reversed(list(enumerate(keys)))}
    is_int = isinstance(validation_size, int) and not isinstance(validation_size, bool)
    if not is_int or not 1 <= validation_size < len(first):
        raise InputError(
            f"`validation_size` must be a whole number of at least 1 that leaves something to train on: "
            f"{corpus.name} has {len(first):,} different texts in `{column}`, got {validation_size!r}"
        )
    ordered = sorted(first, key=lambda key: hashlib.sha256(f"{seed}\0{key}".encode()).digest())
    held = set(ordered[:validation_size])
    training = corpus.select(index for index, key in enumerate(keys) if key not in held)
    return training, corpus.select(sorted(first[key] for key in held))


def without_sources(corpus: Corpus, validation: Corpus, *, column: str = "source") -> Corpus:
    """Return a corpus without the lines whose text is in the validation part, in whatever case and punctuation.

    >>> corpus = Corpus({"source": ("Hi.", "hi!", "Run.")})
    >>> without_sources(corpus, corpus.select([0]))["source"]
    ('Run.',)
    """
    kept_out = {_key(text) for text in validation[column]}
    return corpus.select(index for index, text in enumerate(corpus[column]) if _key(text) not in kept_out)


def references(
    corpus: Corpus, validation: Corpus, *, source_column: str = "source", target_column: str = "target"
) -> list[list[str]]:
    """Return all translations that a corpus has of each validation line, its own first, none twice.

    >>> corpus = Corpus({"source": ("Hi.", "Run.", "run!", "Wait"), "target": ("嗨。", "跑！", "你用跑的。", "等等")})
    >>> references(corpus, split(corpus, 1, seed=3)[1])
    [['跑！', '你用跑的。']]
    """
    known: dict[str, dict[str, None]] = {
        _key(text): {target: None} for text, target in _pairs(validation, source_column, target_column)
    }
    for text, target in _pairs(corpus, source_column, target_column):
        if (found := known.get(_key(text))) is not None:
            found[target] = None
    return [
        list(dict.fromkeys([target, *known[_key(text)]]))
        for text, target in _pairs(validation, source_column, target_column)
    ]


def _pairs(corpus: Corpus, source: str, target: str) -> Iterable[tuple[str, str]]:
    return zip(corpus[source], corpus[target], strict=True)


def _key(text: str) -> str:
    """What is left of a text without case, spaces and punctuation; the text itself where nothing else is left."""
    folded = unicodedata.normalize("NFKC", text).casefold()
    return "".join(character for character in folded if unicodedata.category(character) in _KEPT) or text.strip()
