"""What a person should know of a corpus before hours of training: its first rows, and what looks unlike it should."""

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence

from regard.data.corpus import Corpus
from regard.data.tokenizer import Tokenizer
from regard.languages import find_language

__all__ = ["corpus_notes", "first_rows", "unknown_characters"]

_WIDTH = 100  # characters of a row that is shown
_LONG = 10_000  # characters of a text that is hardly a sentence or a paragraph
_SHARE = 0.05  # of the rows, above which something is no accident


def first_rows(corpus: Corpus, count: int = 3) -> tuple[str, ...]:
    """Return the first rows as they were understood, a line each: source → target, text [label], or text.

    A line end within a text is shown as "↵". Long texts are cut.

    >>> first_rows(Corpus({"source": ("Hi.",), "target": ("嗨。",)}))
    ('row 1: Hi. → 嗨。',)
    """
    names = list(corpus.columns)
    shown = []
    for index in range(min(count, len(corpus))):
        texts = [_shown(corpus[name][index], _WIDTH // len(names)) for name in names]
        row = f"{texts[0]} [{texts[1]}]" if names[1:] == ["label"] else " → ".join(texts)
        shown.append(f"row {index + 1}: {row}")
    return tuple(shown)


def corpus_notes(corpus: Corpus, languages: Sequence[str] = ()) -> tuple[str, ...]:
    """Return what looks unlike it should in the rows of a corpus, a sentence each; none of it is changed.

    Args:
        corpus: The rows.
        languages: The codes of the languages of source and target.
    """
    texts = [name for name in corpus.columns if name != "label"]
    notes = [*corpus.notes, *_letters(corpus, languages)]
    if not corpus.is_running_text:
        repeated = len(corpus) - len(set(zip(*(corpus[name] for name in corpus.columns), strict=True)))
        notes += [f"{repeated:,} rows are the same as an earlier one"] if repeated else []
    if texts == ["source", "target"]:
        same = sum(source == target for source, target in zip(corpus["source"], corpus["target"], strict=True))
        notes += (
            [f"{_percent(same, corpus)} of the targets are equal to their source"] if _is_much(same, corpus) else []
        )
    if "label" in corpus.columns:
        counts = Counter(corpus["label"])
        single = [label for label, count in counts.items() if count == 1]
        notes += (
            [f"{len(single):,} of {len(counts):,} labels are on one row only, such as {single[0]!r}"] if single else []
        )
    for name in texts:
        longest = max(corpus[name], key=len)
        notes += [f"the longest {name} has {len(longest):,} characters"] if len(longest) > _LONG else []
        broken = [text for text in corpus[name] if _is_mojibake(text)]
        notes += (
            [f"{len(broken):,} rows of {name} look like UTF-8 read in another encoding: {_shown(broken[0], 40)}"]
            if broken
            else []
        )
    return tuple(notes)


def unknown_characters(
    name: str, trained: Sequence[str], held: Sequence[str], tokenizer: Tokenizer, way: str
) -> tuple[str, ...]:
    """Return the share of the characters of texts that their tokenizer does not know, with the most frequent ones.

    Args:
        name: What the texts are called: "target".
        trained, held: The texts that are trained on, and those that are held out.
        tokenizer: The tokenizer.
        way: What makes more characters known.
    """
    counts = [Counter(unicodedata.normalize("NFC", "".join(texts))) for texts in (trained, held)]
    signs = sorted(counts[0] | counts[1])
    encoded = tokenizer.encode(signs)
    unknown = [sign for sign, row in zip(signs, encoded, strict=True) if tokenizer.unk_token_id in row]
    if not unknown:
        return ()
    shares = [sum(count[sign] for sign in unknown) / max(1, count.total()) for count in counts]
    ordered = sorted(unknown, key=lambda sign: (-(counts[0] + counts[1])[sign], sign))
    most = " ".join(sign if sign.isprintable() and not sign.isspace() else f"U+{ord(sign):04X}" for sign in ordered[:5])
    trained_on, of_held = (f"{100 * share:.2g} %" for share in shares)
    way = way if shares[0] else "no training text has them"
    return (
        f"{trained_on} of the characters of the {name}, {of_held} of the held-out ones, are unknown to its tokenizer "
        f"({most}): {way}",
    )


def _shown(text: str, width: int) -> str:
    """A text in one line of so many characters."""
    line = "".join("↵" if sign == "\n" else sign if sign.isprintable() else "�" for sign in text.replace("\t", "    "))
    return line if len(line) <= width else line[: width - 1] + "…"


def _is_much(count: int, corpus: Corpus) -> bool:
    return count > 3 and count > 0.5 * len(corpus)


def _percent(count: int, corpus: Corpus) -> str:
    return f"{100 * count / len(corpus):.0f} %"


def _is_mojibake(text: str) -> bool:
    """Whether a text is UTF-8 that was decoded as CP1252 or Latin-1, such as "Ã¤" for "ä"."""
    if not re.search("[ÂÃâäåæçèéðï][\x80-\xbf€‚ƒ„…†‡ˆ‰Š‹ŒŽ‘’“”•–—˜™š›œžŸ]", text):
        return False
    for encoding in ("cp1252", "latin-1"):
        try:
            return not text.encode(encoding).decode("utf-8").isascii()
        except UnicodeError:
            continue
    return False


# The letters in which a language is written, for those that no other letters are mixed with; Latin for all others.
_LETTERS = {
    "Han characters": ("zh yue lzh wuu nan hak gan hsn cjy", "\u3400-\u9fff"),
    "kana or Han characters": ("ja", "\u3041-\u30ff\u3400-\u9fff"),
    "Hangul": ("ko", "\u1100-\u11ff\uac00-\ud7a3"),
    "Cyrillic letters": ("ru uk be bg mk ky tg kk mn ba tt cv os sah", "\u0400-\u04ff"),
    "Greek letters": ("el grc", "\u0370-\u03ff\u1f00-\u1fff"),
    "Hebrew letters": ("he yi hbo", "\u0590-\u05ff"),
    "Arabic letters": ("ar arz ary fa prs ps ur ug ckb sd azb", "\u0600-\u06ff"),
    "Thai letters": ("th", "\u0e00-\u0e7f"),
    "Lao letters": ("lo", "\u0e80-\u0eff"),
    "Khmer letters": ("km", "\u1780-\u17ff"),
    "Burmese letters": ("my", "\u1000-\u109f"),
    "Tibetan letters": ("bo dz", "\u0f00-\u0fff"),
    "Devanagari": ("hi mr ne mai bho", "\u0900-\u097f"),
    "Bengali letters": ("bn as", "\u0980-\u09ff"),
    "Tamil letters": ("ta", "\u0b80-\u0bff"),
    "Telugu letters": ("te", "\u0c00-\u0c7f"),
    "Georgian letters": ("ka", "\u10a0-\u10ff"),
    "Armenian letters": ("hy", "\u0530-\u058f"),
}
_LATIN = ("Latin letters", "a-zA-Z\u00c0-\u024f")
_IN_LATIN = set(
    "en de fr es it pt nl sv da nb nn no fi et lv lt pl cs sk sl hr hu ro tr id ms vi sw eo la ca eu".split()
)


def _letters(corpus: Corpus, languages: Sequence[str]) -> list[str]:
    """Sides that are not written in the letters of their language."""
    if len(languages) != 2:
        return []
    sides = {}
    for name, code in zip(("source", "target"), languages, strict=True):
        language = find_language(code)
        if re.search("[-_](latn|cyrl|arab|deva|hebr)", code.lower()):
            continue  # a script of its own
        letters = next(
            ((what, signs) for what, (codes, signs) in _LETTERS.items() if language.code in codes.split()), None
        )
        letters = letters or (_LATIN if language.code in _IN_LATIN else None)
        if letters is not None:
            sides[name] = language, letters[0], re.compile(f"[{letters[1]}]")
    found = {}
    for name, (language, what, pattern) in sides.items():
        lettered = [text for text in corpus[name] if any(map(str.isalpha, text))]
        share = sum(bool(pattern.search(text)) for text in lettered) / max(1, len(lettered))
        if lettered and share < _SHARE:
            found[name] = f"{100 * share:.0f} % of the rows of {name} have {what}, and its language is {language}"
    if len(found) == 2:
        crossed = [
            sum(bool(sides[name][2].search(text)) for text in corpus[other]) > 0.9 * len(corpus)
            for name, other in (("source", "target"), ("target", "source"))
        ]
        if all(crossed):
            return [
                f"source and target look swapped: {found['source']}, {found['target']}; swap `source_lang` and "
                "`target_lang`, or name the columns in a first line"
            ]
    return list(found.values())
