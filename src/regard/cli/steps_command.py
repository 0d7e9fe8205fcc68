"""The command that shows a look's weight step by step, as a person can copy it into a shell."""

import shlex

from regard.capture.highlight import Focus
from regard.capture.records import Record
from regard.capture.tokens import token_row
from regard.errors import InputError
from regard.render.labels import visible

__all__ = ["quote", "steps_command"]


def steps_command(record: Record, focus: Focus, model: str, text: str) -> tuple[str, ...]:
    """The options and the text of `regard steps` for the first look, or nothing where steps cannot show it.

    It cannot for an encoder–decoder, whose target `regard steps` does not take. `text` is what `regard look` was given.
    """
    token = _token(record, focus)
    if token is None:
        return ()
    first = focus.looks[0]
    options = ["--model", model, "--layer", str(first.layer), "--head", str(first.head), "--token", token]
    words = " ".join(["regard", "steps", *map(quote, options)])
    dashes = "-- " if text.startswith("-") and text != "-" else ""  # else the text is taken for an option
    return words, dashes + quote(text)


def _token(record: Record, focus: Focus) -> str | None:
    """The word where that says which token is meant, else the number of its first piece."""
    if len(record.tokens) != 1:
        return None
    (stream,) = record.tokens.values()
    tokens, word = stream[focus.batch_index], focus.queries[focus.word]
    alone = sum(other.text.casefold() == word.text.casefold() for other in focus.queries) == 1
    number = str(word.pieces[0] + 1)
    for name in (word.text, number) if alone and len(word.pieces) == 1 else (number,):
        try:
            if not name.startswith("-") and token_row(tokens, name).row == word.pieces[0]:
                return name
        except InputError:
            continue
    return None


def quote(word: str) -> str:
    r"""A word as a shell takes it, so that people can read it and no terminal obeys it.

    >>> print(quote("didn't cross"), quote("a\tb's"), quote("cat"))
    "didn't cross" $'a\tb\'s' cat
    """
    if word and visible(word) != word and word.strip(" "):
        return "$'" + "".join(map(_spell, word)) + "'"
    plain = not set(word) & set('"$`\\!\n')
    return f'"{word}"' if plain and ("'" in word or " " in word or not word.isascii()) else shlex.quote(word)


def _spell(character: str) -> str:
    r"""A character within $'…', where \x stands for a byte and \u for a character."""
    if character in "\\'":
        return "\\" + character
    shown, code = visible(character), ord(character)
    if character == " " or shown == character:
        return character
    return f"\\u{code:04x}" if 128 <= code < 256 else shown
