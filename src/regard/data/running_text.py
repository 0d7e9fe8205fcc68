"""Token ids of running text, such as code and verse: one text of many lines, which decode to the text as it was."""

from collections.abc import Iterator, Sequence

from regard.data.tokenizer import Tokenizer

__all__ = ["encode_running_text", "parts_of"]

_CHARACTERS = 100_000  # in a part: an encoding takes a few hundred bytes a character


def parts_of(lines: Sequence[str], num_characters: int = _CHARACTERS) -> Iterator[str]:
    """Yield the lines joined to parts of at least so many characters, each before a line that begins with no space."""
    part: list[str] = []
    length = 0
    for line in lines:
        if length >= num_characters and not line[:1].isspace():
            yield "".join(part)
            part, length = [], 0
        part.append(line)
        length += len(line)
    if part:
        yield "".join(part)


def encode_running_text(tokenizer: Tokenizer, lines: Sequence[str], num_characters: int = _CHARACTERS) -> list[int]:
    """Return the token ids of lines, which end with their line ends, as those of one text.

    Long texts are encoded in parts. Many tokenizers begin a text with a space that is not there, and would do so within
    this one: so each part but the first is encoded after a line end, whose tokens are left out.
    """
    parts = list(parts_of(lines, num_characters))
    texts = [*parts[:1], *(f"\n{part}" for part in parts[1:])]
    token_ids: list[int] = []
    for first in range(0, len(texts), 16):  # some at a time, by all threads
        encoded = tokenizer.backend_tokenizer.encode_batch(texts[first : first + 16], add_special_tokens=False)
        for index, one in enumerate(encoded, start=first):
            ids = one.ids
            if index:
                ids = [token for token, (_, end) in zip(ids, one.offsets, strict=True) if end > 1]
            token_ids += ids
    return token_ids
