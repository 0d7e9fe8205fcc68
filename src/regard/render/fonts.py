"""Find fonts that have the glyphs of a text, so that no figure shows empty boxes.

If matplotlib's font lacks a glyph, it draws a box and warns. Here the system's fonts are searched first, including
those that were installed since matplotlib listed them, then the font that `regard models get` installs. Letters that
no font has raise an error with the way to get one; other characters (emoji, rare symbols) are spelled `U+1F600`.
"""

import contextlib
import dataclasses
import functools
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regard.errors import ObservationError
from regard.hub.catalogue import FONT

__all__ = ["Fonts", "fonts_for"]


_BASE = "DejaVu Sans"  # shipped with matplotlib
_NO_FONT = "Last Resort"  # also shipped with matplotlib: it has a box for every character
_IN_FONT = ("CJK", "HIRAGANA", "KATAKANA", "BOPOMOFO", "IDEOGRAPHIC", "FULLWIDTH")  # prefix of the names of its glyphs
_CJK = (*_IN_FONT, "HANGUL", "HALFWIDTH")

_Face = tuple[str, str, int]  # family, path, number of the face in the file


@dataclass(frozen=True)
class Fonts:
    """The families to use in this order, with the file of each, and the characters that none of them has."""

    families: tuple[str, ...]
    files: tuple[str, ...]
    missing: frozenset[str]

    def spell(self, text: str) -> str:
        """Return the text with every character without a glyph replaced by its code."""
        return "".join(f"U+{ord(sign):04X}" if sign in self.missing else sign for sign in text)


def fonts_for(texts: Iterable[str]) -> Fonts:
    """Return fonts that together have every letter of the texts: the system's, and the bundled one if these lack some.

    Raises:
        ObservationError: Some letters are in no font, or the bundled font is needed and damaged.
    """
    wanted = frozenset("".join(texts)) | frozenset("U+0123456789ABCDEF")
    region, base = _region(wanted), _base()
    unseen = wanted - _glyphs(*base[1:])
    chosen, missing = _cover(unseen, _candidates(region)) if unseen else ((), unseen)
    if _letters(missing) and _list_new_fonts():
        chosen, missing = _cover(unseen, _candidates(region))
    if missing and (path := FONT.find()):
        added, missing = _cover(missing, (_bundled_face(path),))
        chosen = (*chosen, *added)
    if letters := _letters(missing):
        raise ObservationError(_no_font(letters))
    for face in chosen:
        _list_as_bold(face)
    families, files, _ = zip(base, *chosen, strict=True)
    return Fonts(families, files, missing)


def _cover(missing: frozenset[str], candidates: Iterable[_Face]) -> tuple[tuple[_Face, ...], frozenset[str]]:
    """Choose fonts, the one with the most missing characters first, and return the characters missing in all of
    them.
    """
    chosen: list[_Face] = []
    while missing:
        best, gain = None, 0
        for face in candidates:
            covered = len(missing & _glyphs(*face[1:]))
            if covered > gain:
                best, gain = face, covered
            if covered == len(missing):
                break
        if best is None:
            break
        chosen.append(best)
        missing -= _glyphs(*best[1:])
    return tuple(chosen), missing


def _letters(signs: frozenset[str]) -> list[str]:
    return sorted(sign for sign in signs if unicodedata.category(sign)[0] in "LM")


def _no_font(letters: list[str]) -> str:
    names = [unicodedata.name(letter, "") for letter in letters]
    package = "fonts-noto-cjk" if any(name.startswith(_CJK) for name in names) else "fonts-noto-core"
    bundled = FONT.find() is None and any(name.startswith(_IN_FONT) for name in names)
    first = f"run `regard models get {FONT.name}`, or " if bundled else ""
    return (
        "the figure needs a font that has the letters of its text, no installed font has "
        f"{' '.join(letters[:5])} ({len(letters)} missing): {first}install one, such as the package `{package}` on "
        "Debian and Ubuntu, or write a page (.html) instead"
    )


def _region(wanted: frozenset[str]) -> str:
    """Return which of the four regional forms of Chinese characters to prefer."""
    names = [unicodedata.name(sign, "") for sign in wanted]
    if any(name.startswith(("HIRAGANA", "KATAKANA")) for name in names):
        return "JP"
    return "KR" if any(name.startswith("HANGUL") for name in names) else "SC"


@functools.cache
def _candidates(region: str) -> tuple[_Face, ...]:
    """Return the system's fonts, with upright sans-serif fonts of regular weight first."""
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

    bundled = str(FONT.find())
    usable = [one for one in fontManager.ttflist if not one.name.startswith(_NO_FONT) and one.fname != bundled]
    ranked = sorted(usable, key=lambda entry: (rank(entry), entry.name))
    return tuple((entry.name, str(entry.fname), getattr(entry, "index", 0)) for entry in ranked)


def _list_new_fonts() -> bool:
    """Add the fonts that were installed after matplotlib cached its list of fonts."""
    from matplotlib.font_manager import findSystemFonts, fontManager

    listed = {entry.fname for entry in fontManager.ttflist}
    before = len(fontManager.ttflist)
    for path in sorted(set(findSystemFonts()) - listed):
        with contextlib.suppress(Exception):  # as in matplotlib's own list, files that it cannot read are skipped
            fontManager.addfont(path)
    _candidates.cache_clear()
    return len(fontManager.ttflist) > before


@functools.cache
def _list_as_bold(face: _Face) -> None:
    """List a face as its own bold face if its family has none: matplotlib uses it anyway, but logs a warning."""
    from matplotlib.font_manager import fontManager

    family, path, index = face
    relatives = [entry for entry in fontManager.ttflist if entry.name == family]
    if not any(entry.weight in (700, "bold") for entry in relatives):
        same = next(entry for entry in relatives if (entry.fname, getattr(entry, "index", 0)) == (path, index))
        fontManager.ttflist.append(dataclasses.replace(same, weight=700))


@functools.cache
def _bundled_face(path: Path) -> _Face:
    from matplotlib.font_manager import fontManager

    if flaw := FONT.flaw():
        raise ObservationError(f"the figure has signs that no font of the system has, and {flaw}")
    fontManager.addfont(path)  # matplotlib finds fonts by family in this list; it is not saved
    return next(entry.name for entry in fontManager.ttflist if entry.fname == str(path)), str(path), 0


@functools.cache
def _glyphs(path: str, index: int) -> frozenset[str]:
    """Return the characters of a font face, or none if it cannot be drawn at any size (colour bitmaps)."""
    from matplotlib.ft2font import FT2Font

    try:
        font = FT2Font(path, face_index=index) if index else FT2Font(path)
    except (OSError, RuntimeError, TypeError):
        return frozenset()
    return frozenset(map(chr, font.get_charmap())) if font.scalable else frozenset()


@functools.cache
def _base() -> _Face:
    from matplotlib.font_manager import findfont

    return _BASE, str(findfont(_BASE)), 0
