"""Characters of the scripts that are written without spaces between words: Chinese and Japanese."""

__all__ = ["is_cjk"]

# Radicals, iteration marks, kana, Bopomofo and Han with its extensions. Hangul is left out: Korean has spaces.
_CJK = (
    (0x2E80, 0x2FDF),
    (0x3005, 0x3007),
    (0x3021, 0x3029),
    (0x3031, 0x3035),
    (0x3038, 0x303C),
    (0x3040, 0x312F),
    (0x31A0, 0x31BF),
    (0x31F0, 0x31FF),
    (0x3400, 0x4DBF),
    (0x4E00, 0x9FFF),
    (0xF900, 0xFAFF),
    (0xFF66, 0xFF9F),
    (0x1AFF0, 0x1B16F),
    (0x20000, 0x3FFFF),
)


def is_cjk(mark: str) -> bool:
    """Return whether this character is Han, kana or Bopomofo.

    >>> is_cjk("貓"), is_cjk("カ"), is_cjk("한"), is_cjk("a"), is_cjk("")
    (True, True, False, False, False)
    """
    return len(mark) == 1 and any(first <= ord(mark) <= last for first, last in _CJK)
