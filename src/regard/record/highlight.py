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
    pairs, sharp, reach, are_findings = _pairs(looks, named, sources, pinned)
    if not pairs:
        raise InputError(_nothing(looks, name))
    row = _chosen(looks, pairs, sharp, layer is not None)
    part = (looks.pronoun(row) or "") if place is None else place.text if place.within else ""
    part = "" if part == looks.queries[row].text else part
    first = pairs[row][0]
    shown = pairs[row] if are_findings else looks.pair(row, first)
    saying = _Saying(looks, row, first, pinned, name or part or looks.queries[row].text)
    asked = saying.asked(name, len(pairs))
    if head is not None:
        notes = saying.requested()
    elif not are_findings:
        notes = saying.no_finding(asked)
    else:
        notes = [] if sharp else saying.none_sharp(asked, reach)
    notes += saying.not_compared()
    notes += [_within(part, looks.queries[row])] if part and place is None else []
    notes += [place.note] if place is not None and place.note else []
    notes += [] if all(looks.is_known(row, one) for one in shown) else [_AT_LEAST]
    return Focus(looks.queries, looks.keys, row, shown, batch_index, part, " ".join(notes))


def _pairs(
    looks: WordLooks, row: int | None, sources: frozenset[int] | None, pinned: tuple[int, int | None] | None
) -> tuple[dict[int, tuple[Look, ...]], set[int], Reach, bool]:
    """Return the looks of each word that may be shown, the words with a sharp one, which pairs of words they are
    among, and whether they are findings; if there are none, the largest weights. A requested head is shown with its
    sharp findings, or its largest weight on any word.
    """
    one_head = pinned is not None and pinned[1] is not None
    for findings in (True, False):
        for reach in REACHES:
            readable = looks.readable(reach) if row is None else [row]
            rows = [one for one in readable if row is not None or sources is None or one in sources]
            kept: dict[int, tuple[Look, ...]] = {}
            sharp: set[int] = set()
            if one_head and not findings:
                kept = {one: (looks.strongest(one, pinned),) for one in rows}
            elif rows:
                pairs = zip(rows, looks.pairs(rows, pinned, reach, findings=findings), strict=True)
                for one, (pair, is_sharp) in pairs:
                    if pair and (not one_head or looks.is_sharp(pair[0])):
                        kept[one] = pair
                        sharp |= {one} if is_sharp else set()
            if kept:
                sharp = sharp if findings else {one for one, pair in kept.items() if looks.is_sharp(pair[0])}
                return kept, sharp, reach, findings
    return {}, set(), REACHES[-1], False


def _chosen(looks: WordLooks, pairs: dict[int, tuple[Look, ...]], sharp: set[int], in_layer: bool) -> int:
    """Return the index of a pronoun if one has a large weight, else of the word with the largest weights; of a
    requested layer, only the first of them counts, because the second may be of another.
    """
    if not sharp:
        return max(pairs, key=lambda row: pairs[row][0].weight)
    pronouns = [row for row in sharp if looks.pronoun(row) is not None]
    count = 1 if in_layer else 2
    return max(pronouns or sharp, key=lambda row: sum(look.weight for look in pairs[row][:count]))


_AT_LEAST = 'The weights are at least these, from the strongest keys of each token: keep="qk" keeps all of them.'

_OTHERS: dict[Reach, str] = {
    "apart": "another content word, not beside it,",
    "beside": "another content word",
    "words": "another word",
    "signs": "another sign",
}


@dataclass(frozen=True)
class _Saying:
    """What is said of the weight that is shown; `name` is the word that looks."""

    looks: WordLooks
    row: int
    first: Look
    pinned: tuple[int, int | None] | None
    name: str

    @property
    def where(self) -> str:
        """The layer or head that was requested."""
        if self.pinned is None:
            return ""
        return " in this layer" if self.pinned[1] is None else " in this head"

    def asked(self, name: str | None, count: int) -> str:
        """Return which words were asked: one by name, all (empty), or those that were compared in a long text."""
        if name is not None:
            return f"“{name}”"
        return f"the {count} words compared" if self.looks.is_long else ""

    def requested(self) -> list[str]:
        """Return what the weight of a requested head is, if it is no finding or not its largest."""
        habit = self.looks.habit(self.row, self.first)
        return self.larger() if habit is None else [f"{habit[:1].upper()}{habit[1:]}, not a finding."]

    def no_finding(self, asked: str) -> list[str]:
        """Return what the weight is if there is no finding."""
        none = f"{asked} has no finding" if asked.startswith("“") else "There is no finding"
        none += f" of {asked}" if asked and not asked.startswith("“") else ""
        none += self.where
        habit = self.looks.habit(self.row, self.first)
        return [none + ("." if habit is None else f"; {habit}."), *self.larger()]

    def none_sharp(self, asked: str, reach: Reach) -> list[str]:
        """Return that no finding is sharp, and the largest weight that is none."""
        of = f" of {asked}" if asked else ""
        said = f"No finding{of} on {_OTHERS[reach]} is sharp{self.where}: this is the clearest."
        such, _ = self.looks.pairs([self.row], self.pinned, reach)[0]
        return [said, *(self.larger(such[0], " on such a word") if such and self.is_larger(such[0]) else self.larger())]

    def not_compared(self) -> list[str]:
        """Return that it is not known whether a head gives the word its weight from every word, if it is not."""
        looks, first = self.looks, self.first
        if looks.habit(self.row, first) is not None or looks.is_compared(self.row, first):
            return []
        seen = visible(looks.keys[first.target].text)
        return [f"No other word was recorded that can see {seen}: its weight may be the same from every word."]

    def is_larger(self, look: Look) -> bool:
        """Return whether a weight is larger than the one that is shown, as both are written."""
        return round(look.weight, 2) > round(self.first.weight, 2)

    def larger(self, look: Look | None = None, on: str = "") -> list[str]:
        """Return the largest weight, or this one, and what it is, if it is larger than the one that is shown."""
        look = look or self.looks.strongest(self.row, self.pinned)
        if not self.is_larger(look):
            return []
        what = self.looks.habit(self.row, look) or self.looks.unshown(self.row, look)
        return [f"The largest weight from “{self.name}”{self.where}{on} is {look.weight:.2f}; {what}."]


def _within(part: str, word: Word) -> str:
    unit = "token" if len(word.pieces) == 1 else "word"
    return f"“{part}” is a part of the {unit} “{word.text}”: the weights are those of the whole {unit}."


def _nothing(looks: WordLooks, token: str | None) -> str:
    """Return why no pair of words can be shown, and the way out."""
    words = [word.text for word in looks.queries if not word.special and is_word(word.text)]
    if looks.one_text and len(words) == 1:
        return (
            f"the text is one word, {words[0]}, and looks are those of a word at another: write two or more, or name "
            "`layer` and `head`, whose weights can be shown"
        )
    if not words:
        return "the text has no word that could look at another one: write two words or more"
    if token is not None:
        why = "in a causal model the first word sees none before it"
        return f"{token!r} looks at no other word ({why}): name another word"
    return "the text has no word that looks at another one: give it a few more words"
