"""Choose what a figure shows: a word, two heads that attend from it to different words, and one head's heat map.

A pronoun with a large weight on a word is preferred, since readers first ask what it refers to. Otherwise the word
with the two largest weights is chosen. `word_looks` determines which pairs of words count, and `findings` which weights
are more than a head's habit. If there is none, the largest weight is shown, and the note says what it is.
"""

from dataclasses import dataclass

from regard.errors import InputError
from regard.record.layers import Stream, head_at
from regard.record.names import visible
from regard.record.places import Name
from regard.record.records import Record
from regard.record.tokens import Word, is_word
from regard.record.word_looks import REACHES, Look, Reach, WordLooks

__all__ = ["Focus", "Look", "choose_focus"]


@dataclass(frozen=True)
class Focus:
    """The chosen word (an index into `queries`) and the heads that attend from it; the map of the first one is drawn.

    `queries` and `keys` are the words of the query and the key stream, which differ only in cross-attention. `part` is
    the part of the chosen word that is meant, such as 它 in 因为它, or empty for the whole word. `note` is a remark on
    the choice for the reader, mostly empty: that no weight is large, or that the weight shown is no finding.
    """

    queries: tuple[Word, ...]
    keys: tuple[Word, ...]
    word: int
    looks: tuple[Look, ...]
    batch_index: int = 0
    part: str = ""
    note: str = ""


def choose_focus(
    record: Record,
    *,
    token: Name | None = None,
    layer: int | str | None = None,
    head: int | None = None,
    batch_index: int = 0,
    stream: Stream | None = None,
    among: frozenset[str] | None = None,
    sources: frozenset[int] | None = None,
) -> Focus:
    """Choose the word and the two heads with the largest weights on two content words, within the given restrictions.

    Only findings are chosen (`regard.record.findings`), unless there is none. A requested head is shown as it is, and
    the note says what its weight is.

    Args:
        record: The record, with its tokens.
        token: The place to look from, as `find_place` takes it; by default a pronoun with a large weight on a word,
            else the word with the two largest weights.
        layer: The layer of the first head, by its number or name; by default any.
        head: The first head, in that layer; by default any.
        batch_index: The sequence of the batch, counted from 0; negative numbers count from the end.
        stream: The stream of the layers; by default that of cross-attention, if there is any, or of the first text.
        among: Lower-case words; other key words are ignored.
        sources: Indices of words; other query words are ignored.

    Raises:
        InputError: The word, layer, head or sequence does not exist, a head is given without its layer, or the text has
            one word.
        ObservationError: The record has no layer, or its tokens are unknown.
    """
    if head is not None and layer is None:
        raise InputError(f"`head` {head} needs a `layer` too: heads are counted within their layer")
    looks, lead = WordLooks.of(record, layer, batch_index, stream, among)
    head = None if head is None else head_at(lead, head)
    pinned = None if layer is None else (record.layers.index(lead), head)
    named = place = None
    if token is not None:
        looks, named, place = looks.find(token)
    name = None if place is None else place.text
    pairs, reach, are_findings = _pairs(looks, named, sources, pinned)
    if not pairs:
        raise InputError(_nothing(looks, name))
    sharp = {row: pair for row, pair in pairs.items() if any(map(looks.is_sharp, pair))}
    row = _chosen(looks, pairs, sharp)
    part = (looks.pronoun(row) or "") if place is None else place.text if place.within else ""
    part = "" if part == looks.queries[row].text else part
    where = " in this layer" if layer is not None else ""
    first = pairs[row][0]
    shown = pairs[row] if are_findings else looks.pair(row, first)
    feeble = head is None and not (sharp if layer is None else looks.is_sharp(first))
    notes = [_feeble(name, reach, where)] if feeble else []
    if (habit := looks.habit(row, first)) is not None:
        said = f"{habit[:1].upper()}{habit[1:]}, not a finding."
        notes.append(said if feeble or head is not None else f"There is no finding{where}; {habit}.")
    else:
        notes += _stronger(looks, row, first, pinned) if feeble or head is not None else []
        notes += [] if looks.is_compared(row, first) else [_not_compared(looks, first)]
    notes += [_within(part, looks.queries[row])] if part and place is None else []
    notes += [place.note] if place is not None and place.note else []
    notes += [] if all(looks.is_known(row, one) for one in shown) else [_AT_LEAST]
    return Focus(looks.queries, looks.keys, row, shown, batch_index, part, " ".join(notes))


def _pairs(
    looks: WordLooks, row: int | None, sources: frozenset[int] | None, pinned: tuple[int, int | None] | None
) -> tuple[dict[int, tuple[Look, ...]], Reach, bool]:
    """Return the looks of each word that may be shown, which pairs of words they are among, and whether they are
    findings; if there are none, the largest weights. A requested head is shown with its sharp findings, or its largest
    weight on any word.
    """
    one_head = pinned is not None and pinned[1] is not None
    for findings in (True, False):
        for reach in REACHES:
            readable = looks.readable(reach) if row is None else [row]
            rows = [one for one in readable if row is not None or sources is None or one in sources]
            kept: dict[int, tuple[Look, ...]] = {}
            if one_head and not findings:
                kept = {one: (looks.strongest(one, pinned),) for one in rows}
            elif rows:
                pairs = zip(rows, looks.pairs(rows, pinned, reach, findings=findings), strict=True)
                kept = {one: pair for one, pair in pairs if pair and (not one_head or looks.is_sharp(pair[0]))}
            if kept:
                return kept, reach, findings
    return {}, REACHES[-1], False


def _stronger(looks: WordLooks, row: int, first: Look, pinned: tuple[int, int | None] | None) -> list[str]:
    """Return what the largest weight of all is, if another is shown because that one is no finding."""
    strongest = looks.strongest(row, pinned)
    if strongest.weight <= first.weight or (habit := looks.habit(row, strongest)) is None:
        return []
    return [f"The largest weight is {strongest.weight:.2f}; {habit}."]


def _chosen(looks: WordLooks, pairs: dict[int, tuple[Look, ...]], sharp: dict[int, tuple[Look, ...]]) -> int:
    """Return the index of a pronoun if one has a large weight, else of the word with the largest weights."""
    if not sharp:
        return max(pairs, key=lambda row: max(look.weight for look in pairs[row]))
    pronouns = [row for row in sharp if looks.pronoun(row) is not None]
    return max(pronouns or sharp, key=lambda row: sum(look.weight for look in sharp[row]))


_AT_LEAST = 'The weights are at least these, from the strongest keys of each token: keep="qk" keeps all of them.'

_OTHERS: dict[Reach, str] = {
    "apart": "a content word that is not beside it",
    "beside": "another content word",
    "words": "another word",
    "signs": "another",
}


def _not_compared(looks: WordLooks, look: Look) -> str:
    """Return the note if it is not known whether a head gives a word its weight from every word."""
    name = visible(looks.keys[look.target].text)
    return f"No other word was recorded that can see {name}: its weight may be the same from every word."


def _feeble(token: str | None, reach: Reach, where: str) -> str:
    """Return the note if no weight is large."""
    if token is None:
        return f"No word looks sharply at {_OTHERS[reach]}{where}: this is the sharpest such look there is."
    return f"{token} does not look sharply at {_OTHERS[reach]}{where}: this is its sharpest such look."


def _within(part: str, word: Word) -> str:
    unit = "token" if len(word.pieces) == 1 else "word"
    return f"“{part}” is a part of the {unit} “{word.text}”: the weights are those of the whole {unit}."


def _nothing(looks: WordLooks, token: str | None) -> str:
    """Return why no pair of words can be shown, and the way out."""
    words = [word.text for word in looks.queries if not word.special and is_word(word.text)]
    if looks.one_text and len(words) == 1:
        return f"the text is one word, {words[0]}, and a picture is of a word that looks at another: write two or more"
    if not words:
        return "the text has no word that could look at another one: write two words or more"
    if token is not None:
        why = "in a causal model the first word sees none before it"
        return f"{token!r} looks at no other word ({why}): name another word"
    return "the text has no word that looks at another one: give it a few more words"
