"""How tokens, layers and heads are written: visible text, names, and sentences on a record.

Unknown tokens are named by position. Rows that the model has generated are told apart from those of the prompt.
"""

import html
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from regard.errors import InputError
from regard.heads.patterns import head_patterns
from regard.record.headline import head_lines, source_name
from regard.record.highlight import Focus
from regard.record.layers import head_at
from regard.record.names import BLANK, head_name, layer_name, visible
from regard.record.records import Layer, Record
from regard.record.statistic_axes import PER_KEY
from regard.record.tokens import Token, Word, spell_word, words_of
from regard.record.visible import Visible, first_share, is_causal, padding_of

__all__ = [
    "all_heads",
    "apart",
    "check_focus",
    "describe",
    "head_name",
    "key_labels",
    "layer_name",
    "lede",
    "prompt_rows",
    "query_labels",
    "says_written",
    "shown_words",
    "size",
    "source_name",
    "statistic_means",
    "visible",
]


def prompt_rows(record: Record, layer: Layer) -> int | None:
    """Return the number of a layer's rows that belong to the prompt, or None if nothing was generated or it is
    unknown.

    `watch` stores it as `notes["prompt"]` if later passes continued with the cache of the first.
    """
    rows = record.notes.get("prompt")
    if not isinstance(rows, int) or layer.query_tokens == "source" or not 0 < rows < layer.queries:
        return None
    return rows


def says_written(record: Record) -> str:
    """Return a clause for captions, such as "a prompt of 12 tokens, then 30 written", or an empty string."""
    for layer in record:
        rows = prompt_rows(record, layer)
        if rows is not None and layer.kind == "self":
            return f"a prompt of {rows:,} token{'s' if rows > 1 else ''}, then {layer.queries - rows:,} written"
    return ""


def _tokens(record: Record, stream: str, count: int, batch_index: int) -> tuple[Token, ...]:
    """Return `count` tokens of a stream with visible text, or their numbers if the stream has not as many: they may be
    pooled or chosen positions.
    """
    sequences = record.tokens.get(stream, ())
    known = sequences[batch_index] if batch_index < len(sequences) else ()
    if len(known) == count:
        return tuple(map(_shown, known))
    return tuple(Token(str(position), space=True) for position in range(count))


def _shown(token: Token) -> Token:
    text = visible(token.text)
    return token if text == token.text else replace(token, text=text)


def query_labels(record: Record, layer: Layer, batch_index: int) -> tuple[Token, ...]:
    """Return the tokens of a layer's rows."""
    return _tokens(record, layer.query_tokens, layer.queries, batch_index)


def key_labels(record: Record, layer: Layer, batch_index: int) -> tuple[Token, ...]:
    """Return the tokens of a layer's columns."""
    return _tokens(record, layer.key_tokens, layer.keys, batch_index)


def apart(text: str) -> str:
    """Return a token's text for HTML, escaped and isolated, so that right-to-left text does not reorder its
    neighbours.
    """
    return f"<bdi>{html.escape(text)}</bdi>"


def shown_words(tokens: Sequence[Token], words: Sequence[Word] | None = None) -> tuple[tuple[Word, bool], ...]:
    """Return the words of a text, and for each whether white space precedes it; words without text count as special.

    With the `words` of a focus, they are these: a place of several words is one of them.
    """
    if words is None or words[-1].pieces[-1] + 1 != len(tokens):
        words = words_of(tokens)
    return tuple((_without_blanks(_visible_word(tokens, word)), tokens[word.pieces[0]].space) for word in words)


def _visible_word(tokens: Sequence[Token], word: Word) -> Word:
    """Spell a word of tokens in visible text."""
    spelled = spell_word(tokens, word.pieces)
    several = len({tokens[piece].word for piece in word.pieces}) > 1
    return Word(visible(word.text) if several else spelled, word.pieces, word.special)


def _without_blanks(word: Word) -> Word:
    text = word.text.replace(BLANK, "")
    return Word(text or BLANK, word.pieces, word.special or not text)


def check_focus(record: Record, focus: Focus) -> None:
    """Refuse a focus that does not fit the record, before anything is drawn."""
    if not focus.looks:
        raise InputError("`focus.looks` must hold at least one head to draw, got none")
    if not 0 <= focus.word < len(focus.queries):
        raise InputError(f"`focus.word` must be from 0 to {len(focus.queries) - 1}, got {focus.word}")
    for look in focus.looks:
        layer = record.layers[look.layer]
        if not 0 <= look.head < layer.heads:
            raise InputError(f"`focus.looks` must name heads from 0 to {layer.heads - 1}, got {look.head}")
        head_at(layer, look.head)
        if not 0 <= look.target < len(focus.keys):
            raise InputError(f"`focus.looks` must name words from 0 to {len(focus.keys) - 1}, got {look.target}")
        if not 0 <= focus.batch_index < layer.batch:
            raise InputError(f"`focus.sequence` must be from 0 to {layer.batch - 1}, got {focus.batch_index}")


def describe(record: Record, *, batch_index: int = 0) -> str:
    """Return a sentence on the rules of all heads, starting with the most frequent."""
    habits = (habit for seen in record for habit in head_patterns(record, seen, batch_index=batch_index))
    counts = Counter(filter(None, habits))  # those of heads that were not recorded are unknown
    places = {
        "special_tokens": f"at {_specials(record, batch_index)}",
        "first": "at the first token",
        "previous": "at the previous token",
        "next": "at the next",
        "self": "at the token itself",
    }
    ranked = sorted((habit for habit in places if counts[habit]), key=lambda habit: -counts[habit])
    parts = [f"{counts[habit]} {places[habit]}" for habit in ranked]
    if parts:
        parts[0] = f"{counts[ranked[0]]} {_verb(counts[ranked[0]], 'look')} mostly {places[ranked[0]]}"
    if counts["spread"]:
        parts.append(f"{counts['spread']} {_verb(counts['spread'], 'spread')} over all tokens alike")
    if counts["other"]:
        parts.append(f"{counts['other']} {_verb(counts['other'], 'follow')} no such rule")
    joined = parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
    return f"Of the {_many(counts.total(), 'head')}, {joined}."


def _verb(count: int, verb: str) -> str:
    return verb if count != 1 else f"{verb}s"


def _specials(record: Record, batch_index: int) -> str:
    names = dict.fromkeys(
        token.text
        for seen in record
        for token, special in zip(
            key_labels(record, seen, batch_index), Visible.of(record.tokens, seen, batch_index).special, strict=True
        )
        if special
    )
    return "/".join(list(names)[:3])


def size(record: Record) -> str:
    """Return a description of the record's size."""
    heads, recorded = sum(seen.heads for seen in record), sum(len(seen.recorded_heads) for seen in record)
    longest = max(record, key=lambda seen: seen.queries * seen.keys)
    tokens = f"{longest.queries:,}" if longest.kind == "self" else f"{longest.queries:,} × {longest.keys:,}"
    name = f"{visible(record.model)}: " if record.model else ""
    padded = int(padding_of(longest, 0)[0].sum())
    batch = f", {padded:,} of them padding" if padded else ""
    batch += f", the first of {longest.batch} sequences" if longest.batch > 1 else ""
    written = says_written(record)
    some = f"{recorded} of " if recorded < heads else ""
    counts = f"{_many(len(record), 'layer')}, {some}{_many(heads, 'head')}, {tokens} tokens{batch}"
    return f"{name}{counts}{f' ({written})' if written else ''}"


def all_heads(record: Record) -> str:
    """Return what a grid of heads shows."""
    return "all heads" if all(seen.head_numbers is None for seen in record) else "the recorded heads"


def _many(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' if count != 1 else ''}"


def statistic_means(record: Record, layer: Layer, head: int, batch_index: int) -> dict[str, float]:
    """Return the mean of each requested statistic of a head that has one number for each of its rows or columns: over
    the rows of visible tokens with a weight, unlike those of queries that were not chosen (`Visible.rows`), and over
    all columns but padding; "sink" is that of the first position (`first_share`), as in `regard heads`.
    """
    found = {}
    weighed = layer.top_weights[batch_index, head].any(-1)
    tokens = Visible.of(record.tokens, layer, batch_index)
    causal = is_causal(layer, batch_index) if layer.statistics else False
    for name, values in layer.statistics.items():
        if values.ndim == 3 and values.shape[2] in (layer.queries, layer.keys) and values.dtype.kind in "fiu":
            of_head = values[batch_index, head if values.shape[1] > 1 else 0]
            per_key = name in PER_KEY or layer.axes.get(name) == (("keys", None),)
            if len(of_head) == layer.queries and not per_key:
                rows = weighed & tokens.rows(name, causal=causal)
                of_head = of_head[rows if rows.any() else weighed]
            elif name == "sink":
                of_head = first_share(layer, of_head[None], batch_index)
            elif len(of_head) == layer.keys:
                of_head = of_head[~tokens.padding]
            if np.isfinite(of_head).any():
                found[name] = float(of_head[np.isfinite(of_head)].mean())
    return found


def lede(record: Record, focus: Focus) -> str:
    """Return the headline as HTML: the lines of the heads, and the note."""
    said = [
        f"{html.escape(line.head)}: {apart(line.query)} → {apart(line.key)} {line.weight}"
        for line in head_lines(record, focus)
    ]
    # Its words of scripts from right to left are isolated, so that they do not reorder the sentence.
    note = _RIGHT_TO_LEFT.sub(lambda run: apart(run[0]), html.escape(visible(focus.note))) if focus.note else ""
    return f"{'; '.join(said)}. {note}".rstrip()


_RIGHT_TO_LEFT = re.compile("[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc]+")
