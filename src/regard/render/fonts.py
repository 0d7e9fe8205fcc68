"""Fonts that have the glyphs of a text, so that no figure shows empty boxes.

matplotlib draws a box, and warns, where its font has no glyph; here the installed fonts are asked first. Letters that
no font has are an error that names the package to install; other signs (emoji, rare symbols) are spelled `U+1F600`.
"""

import functools
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from regard.errors import ObservationError

__all__ = ["Fonts", "fonts_for"]

_BASE = "DejaVu Sans"  # shipped with matplotlib
_NO_FONT = "Last Resort"  # shipped with matplotlib too: a box for every character
_CJK = ("CJK", "HIRAGANA", "KATAKANA", "HANGUL", "BOPOMOFO", "IDEOGRAPHIC", "FULLWIDTH", "HALFWIDTH")


@dataclass(frozen=True)
class Fonts:
    """Families to try in turn, and the characters none of them has."""

    families: tuple[str, ...]
    missing: frozenset[str]

    def spell(self, text: str) -> str:
        """The text with every sign that has no glyph spelled by its code."""
        return "".join(f"U+{ord(sign):04X}" if sign in self.missing else sign for sign in text)


def fonts_for(texts: Iterable[str]) -> Fonts:
    """Find installed fonts that together have every letter of the texts."""
    wanted = frozenset("".join(texts)) | frozenset("U+0123456789ABCDEF")
    families, missing = [_BASE], wanted - _base_glyphs()
    candidates = _candidates(_region(wanted)) if missing else ()
    while missing:
        best, gain = None, 0
        for family, path, index in candidates:
            covered = len(missing & _glyphs(path, index))
            if covered > gain:
                best, gain = (family, path, index), covered
            if covered == len(missing):
                break
        if best is None:
            break
        families.append(best[0])
        missing -= _glyphs(best[1], best[2])
    letters = sorted(sign for sign in missing if unicodedata.category(sign)[0] in "LM")
    if letters:
        raise ObservationError(_no_font(letters))
    return Fonts(tuple(families), missing)


def _no_font(letters: list[str]) -> str:
    names = [unicodedata.name(letter, "") for letter in letters]
    package = "fonts-noto-cjk" if any(name.startswith(_CJK) for name in names) else "fonts-noto-core"
    few = " ".join(letters[:5])
    return (
        f"the figure needs a font that has the letters of its text, no installed font has {few} ({len(letters)} "
        f"missing): install one, such as the package `{package}` on Debian and Ubuntu, or write a page (.html) instead"
    )


def _region(wanted: frozenset[str]) -> str:
    """Which of the four drawings of a Chinese character to prefer."""
    names = [unicodedata.name(sign, "") for sign in wanted]
    if any(name.startswith(("HIRAGANA", "KATAKANA")) for name in names):
        return "JP"
    return "KR" if any(name.startswith("HANGUL") for name in names) else "SC"


@functools.cache
def _candidates(region: str) -> tuple[tuple[str, str, int], ...]:
    """Installed fonts as (family, path, face), upright sans-serif ones of usual weight first."""
    from matplotlib.font_manager import fontManager

    def rank(entry: Any) -> tuple[bool, ...]:
        other_region = "CJK" in entry.name and not entry.name.endswith(region)
        return (
            entry.weight not in (400, "normal", "regular"),
            entry.style != "normal",
            "Sans" not in entry.name,
            "Mono" in entry.name,
            other_region,
        )

    usable = [entry for entry in fontManager.ttflist if not entry.name.startswith(_NO_FONT)]
    ranked = sorted(usable, key=lambda entry: (rank(entry), entry.name))
    return tuple((entry.name, str(entry.fname), getattr(entry, "index", 0)) for entry in ranked)


@functools.cache
def _glyphs(path: str, index: int) -> frozenset[str]:
    """The characters a font face has, empty for one that cannot be drawn at any size (colour bitmaps)."""
    from matplotlib.ft2font import FT2Font

    try:
        font = FT2Font(path, face_index=index) if index else FT2Font(path)
    except (OSError, RuntimeError, TypeError):
        return frozenset()
    return frozenset(map(chr, font.get_charmap())) if font.scalable else frozenset()


@functools.cache
def _base_glyphs() -> frozenset[str]:
    from matplotlib.font_manager import findfont

    return _glyphs(str(findfont(_BASE)), 0)
