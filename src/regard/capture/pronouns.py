"""Lists of pronouns by language, used to choose the word that a figure shows.

Only pronouns of the third person that refer to something in the text: "I" and "you" refer to nothing in it.
"""

from regard.capture.stopwords import is_function_word

__all__ = ["pronoun_in"]

_ENGLISH = "it its itself they them their themselves he him his himself she her hers herself"
_GERMAN = "er ihn ihm es sie ihr ihnen"
_CHINESE = "它 他 她 牠 祂 它们 它們 他们 他們 她们 她們 牠們"
_JAPANESE = "それ それら その これ この 彼 彼女 彼ら"
_SPACED = frozenset(f"{_ENGLISH} {_GERMAN}".split())
_UNSPACED = frozenset(f"{_CHINESE} {_JAPANESE}".split())
_OTHERS = frozenset("其他 其它 その他".split())  # "other" is written with the character for "he"


def pronoun_in(text: str) -> str | None:
    """Return the pronoun in a word, also if a Chinese or Japanese piece contains function words as well.

    >>> pronoun_in("It"), pronoun_in("因为它"), pronoun_in("彼女は"), pronoun_in("animal"), pronoun_in("其他")
    ('It', '它', '彼女', None, None)
    """
    text = text.strip()
    if text.casefold() in _SPACED:
        return text
    if text in _OTHERS:
        return None
    cuts = [(start, stop) for start in range(len(text)) for stop in range(start + 1, len(text) + 1)]
    for start, stop in sorted(
        cuts, key=lambda cut: cut[0] - cut[1]
    ):  # the longest first, so that 他们 is not read as 他
        rest = [part for part in (text[:start], text[stop:]) if part]
        if text[start:stop] in _UNSPACED and all(map(is_function_word, rest)):
            return text[start:stop]
    return None
