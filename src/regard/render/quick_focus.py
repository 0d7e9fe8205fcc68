"""What to show of a record at once, however long its text is: the sharpest look among the strongest keys.

`choose_focus` weighs words against words, which takes a minute at 500 words and 72 heads; here only the strongest keys
that were kept are compared, all in one go.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from regard.errors import RegardError
from regard.observe.content import is_content, is_word
from regard.observe.focus import Focus, Look, choose_focus
from regard.observe.records import Layer, Record
from regard.observe.tokens import Word
from regard.render.labels import key_labels, query_labels, shown_words

__all__ = ["quick_focus"]

_SHORT = 64  # words that `choose_focus` compares in no time
_NEAR = 2  # positions
_Best = tuple[float, int, int, int]  # weight, layer, head, key


def quick_focus(record: Record, *, sequence: int = 0) -> Focus:
    """Choose a word and two heads; where no word is known or none looks at another one, the first head's last row."""
    lead = next((seen for seen in record if seen.kind == "cross"), record.layers[0])
    queries = tuple(word for word, _ in shown_words(query_labels(record, lead, sequence)))
    keys = tuple(word for word, _ in shown_words(key_labels(record, lead, sequence)))
    if max(len(queries), len(keys)) <= _SHORT:
        try:
            return choose_focus(record, sequence=sequence)
        except RegardError:
            return _plain(record, lead, queries, keys, sequence)
    same = [index for index, seen in enumerate(record) if _alike(seen, lead)]
    sharp = np.max([_far(record.layers[index], queries, keys, sequence).max((0, 2)) for index in same], axis=0)
    row = int(sharp.argmax())
    if sharp[row] <= 0:
        return _plain(record, lead, queries, keys, sequence)
    looks = sorted(_looks(record, same, row, queries, keys, sequence), reverse=True)
    owner = _owners(keys)
    first = looks[0]
    second = [one for one in looks if owner[one[3]] != owner[first[3]] and one[1:3] != first[1:3]][:1]
    chosen = tuple(Look(layer, head, int(owner[key]), weight) for weight, layer, head, key in (first, *second))
    return Focus(queries, keys, int(_owners(queries)[row]), chosen, sequence)


def _alike(seen: Layer, lead: Layer) -> bool:
    streams = seen.query_tokens, seen.key_tokens, seen.queries, seen.keys
    return streams == (lead.query_tokens, lead.key_tokens, lead.queries, lead.keys)


def _far(seen: Layer, queries: Sequence[Word], keys: Sequence[Word], sequence: int) -> npt.NDArray[np.float32]:
    """The kept weights (heads, queries, k), 0 where they are not from a word to a content word further off."""
    content = _marked(keys, [is_content(word.text) and not word.special for word in keys])
    readable = _marked(queries, [is_word(word.text) and not word.special for word in queries])
    top = seen.top_keys[sequence]
    numbers = {text: number for number, text in enumerate({_text(word) for word in (*queries, *keys)})}
    asking, asked = (_marked(words, [numbers[_text(word)] for word in words]) for words in (queries, keys))
    worth = (content[top] > 0) & (top >= 0) & (readable[:, None] > 0) & (asked[top] != asking[:, None])
    if seen.kind == "self":
        worth &= np.abs(top - np.arange(seen.queries)[:, None]) > _NEAR
    return np.where(worth, seen.top_weights[sequence], 0).astype(np.float32)


def _looks(
    record: Record, layers: Sequence[int], row: int, queries: Sequence[Word], keys: Sequence[Word], sequence: int
) -> Iterator[_Best]:
    for index in layers:
        seen = record.layers[index]
        weights = _far(seen, queries, keys, sequence)[:, row]
        for head, at in enumerate(weights.argmax(-1)):
            yield float(weights[head, at]), index, head, int(seen.top_keys[sequence, head, row, at])


def _text(word: Word) -> str:
    return word.text.casefold()


def _marked(words: Sequence[Word], marks: Sequence[int]) -> npt.NDArray[np.intp]:
    """The mark of its word for each piece."""
    return np.repeat(np.array(marks, dtype=np.intp), [len(word.pieces) for word in words])


def _owners(words: Sequence[Word]) -> npt.NDArray[np.intp]:
    return _marked(words, range(len(words)))


def _plain(record: Record, lead: Layer, queries: tuple[Word, ...], keys: tuple[Word, ...], sequence: int) -> Focus:
    layer = record.layers.index(lead)
    query = len(queries) - 1
    best = record.top(layer=layer, head=0, query=queries[query].pieces[0], sequence=sequence)
    key, weight = best[0] if best else (0, 0.0)
    return Focus(queries, keys, query, (Look(layer, 0, int(_owners(keys)[key]), weight),), sequence)
