"""Fonts: the system's first, also those installed a moment ago; the bundled one where the system has none."""

import dataclasses
import hashlib
import io
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from fontTools.fontBuilder import FontBuilder
from fontTools.pens.ttGlyphPen import TTGlyphPen
from fontTools.ttLib import TTFont
from matplotlib import font_manager

from regard.cli.console import TextConsole
from regard.cli.doctor import _fonts
from regard.errors import ObservationError
from regard.render import fonts
from sweeps import sweep


def make_font(path: Path, family: str, signs: str) -> Path:
    """A font that has these signs, each drawn as a triangle."""
    pen = TTGlyphPen(None)
    for move, at in zip((pen.moveTo, pen.lineTo, pen.lineTo), ((0, 0), (0, 800), (800, 0)), strict=True):
        move(at)
    pen.closePath()
    glyph = pen.glyph()
    names = {ord(sign): f"u{ord(sign):04X}" for sign in signs}
    builder = FontBuilder(1000, isTTF=True)
    builder.setupGlyphOrder([".notdef", *names.values()])
    builder.setupCharacterMap(names)
    builder.setupGlyf(dict.fromkeys([".notdef", *names.values()], glyph))
    builder.setupHorizontalMetrics(dict.fromkeys([".notdef", *names.values()], (1000, 0)))
    builder.setupHorizontalHeader(ascent=800, descent=-200)
    builder.setupNameTable({"familyName": family, "styleName": "Regular"})
    builder.setupOS2()
    builder.setupPost()
    path.parent.mkdir(parents=True, exist_ok=True)
    builder.save(path)
    return path


@pytest.fixture
def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of all fonts that the system has, besides matplotlib's own."""
    own = str(Path(font_manager.findfont("DejaVu Sans")).parent)
    listed = [entry for entry in font_manager.fontManager.ttflist if own in entry.fname]
    search = partial(font_manager.findSystemFonts, fontpaths=[str(tmp_path / "system")])
    monkeypatch.setattr(font_manager.fontManager, "ttflist", listed)
    monkeypatch.setattr(font_manager, "findSystemFonts", search)
    fonts._candidates.cache_clear()
    yield tmp_path / "system"
    fonts._candidates.cache_clear()


@pytest.fixture
def bundled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package as `regard models get font` leaves it; its font has a few signs."""
    path = make_font(tmp_path / "site/carrier/Bundled.ttf", "Bundled SC", "貓追ネ体头體頭")
    metadata = tmp_path / "site/carrier-1.dist-info/METADATA"
    metadata.parent.mkdir()
    metadata.write_text("Metadata-Version: 2.1\nName: carrier\nVersion: 1\n")
    path.with_name("__init__.py").write_text("raise SystemExit('the package was imported')")
    monkeypatch.syspath_prepend(tmp_path / "site")
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    changed = {"package": "carrier", "version": "1", "file": "carrier/Bundled.ttf", "file_sha256": sha256}
    monkeypatch.setattr(fonts, "FONT", dataclasses.replace(fonts.FONT, **changed))
    return path


@pytest.fixture
def none_bundled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fonts, "FONT", dataclasses.replace(fonts.FONT, package="no-such-package"))


def test_the_bundled_font_serves_where_the_system_has_none(system: Path, bundled: Path) -> None:
    found = fonts.fonts_for(["貓追"])
    assert found.families == ("DejaVu Sans", "Bundled SC")
    assert found.files[1] == str(bundled)
    assert not found.missing
    assert fonts.fonts_for(["plain"]).families == ("DejaVu Sans",)


def test_matplotlib_draws_with_it_in_bold_too_and_logs_nothing(system: Path, bundled: Path, caplog) -> None:
    family = fonts.fonts_for(["貓"]).families[1]
    for weight in ("normal", "bold"):
        sought = font_manager.FontProperties(family=family, weight=weight)
        assert font_manager.findfont(sought, fallback_to_default=False) == str(bundled)
    assert caplog.records == []


def test_a_font_of_the_system_is_preferred_and_the_bundled_one_fills_its_gaps(system: Path, bundled: Path) -> None:
    make_font(system / "own.ttf", "Own SC", "追")
    assert fonts.fonts_for(["追"]).families == ("DejaVu Sans", "Own SC")
    assert fonts.fonts_for(["追", "貓"]).families == ("DejaVu Sans", "Own SC", "Bundled SC")
    assert fonts.fonts_for(["追ネ"]).families == ("DejaVu Sans", "Own SC", "Bundled SC")
    assert fonts.fonts_for(["追"]).families == ("DejaVu Sans", "Own SC")


def test_a_font_installed_after_matplotlib_listed_the_fonts_is_found(system: Path, none_bundled: None) -> None:
    with pytest.raises(ObservationError, match="no installed font has 貓"):
        fonts.fonts_for(["貓"])
    (system / "sub").mkdir(parents=True)
    (system / "sub" / "broken.otf").write_bytes(b"no font")
    path = make_font(system / "sub" / "new.ttf", "New SC", "貓")
    assert fonts.fonts_for(["貓"]).files[1] == str(path)


MISSING = [
    ("貓", r"\(1 missing\): run `regard models get font`, or install one, such as the package `fonts-noto-cjk`"),
    ("ネコ", r"\(2 missing\): run `regard models get font`, or install one, such as the package `fonts-noto-cjk`"),
    ("한국", r"\(2 missing\): install one, such as the package `fonts-noto-cjk`"),
    ("ไทย", r"\(3 missing\): install one, such as the package `fonts-noto-core`"),
]


def test_letters_without_a_font_are_refused_with_the_way_to_one(system: Path, none_bundled: None) -> None:
    for case in sweep(MISSING):
        with case as (letters, way), pytest.raises(ObservationError, match=f"no installed font has .* {way} on Debian"):
            fonts.fonts_for([letters])


def test_letters_that_the_bundled_font_lacks_are_refused_with_the_package_of_the_system(
    system: Path, bundled: Path
) -> None:
    with pytest.raises(
        ObservationError, match=r"no installed font has 鼠 \(1 missing\): install one, such as the pack"
    ):
        fonts.fonts_for(["貓鼠"])


def test_a_damaged_bundled_font_is_not_opened(system: Path, bundled: Path) -> None:
    bundled.write_bytes(b"damaged")
    with pytest.raises(ObservationError, match=r"the SHA-256 must be .* of `font`: run `regard models get font`"):
        fonts.fonts_for(["貓"])


def test_signs_without_a_font_are_spelled(system: Path, none_bundled: None) -> None:
    assert fonts.fonts_for(["a🦀"]).spell("a🦀") == "aU+1F980"


def test_the_font_of_boxes_is_never_taken() -> None:
    assert not any(
        family.startswith("Last Resort") for family, *_ in (*fonts._candidates("SC"), *fonts._candidates("JP"))
    )


def test_doctor_shows_the_font_of_each_script_and_the_way_to_those_that_lack(system: Path, bundled: Path) -> None:
    make_font(system / "[b]own.ttf", "Own JP", "あア")
    screen = TextConsole(file=io.StringIO())
    screen.width = 500
    screen.print(_fonts())
    rows = [line.split(maxsplit=1)[1].rstrip() for line in screen.file.getvalue().splitlines()[1:]]
    assert [" ".join(row.split()) for row in rows[:3]] == [
        f"simplified Bundled SC {bundled}",
        f"traditional Bundled SC {bundled}",
        f"Own JP {system}/[b]own.ttf",
    ]
    assert rows[3].startswith("missing: install one, such as the package `fonts-noto-cjk` on Debian and Ubuntu")


@pytest.mark.models
def test_the_bundled_font_has_chinese_of_both_kinds_and_japanese() -> None:
    if (path := fonts.FONT.find()) is None:
        pytest.skip("the font is not installed: regard models get font")
    assert fonts.FONT.flaw() is None
    with TTFont(path, lazy=True) as file:
        has = file.getBestCmap()
    for encoding, first, last in (("gb2312", 0xB0A1, 0xF7FE), ("big5", 0xA440, 0xF9D5), ("euc_jp", 0xA4A1, 0xF4A6)):
        codes = (code.to_bytes(2, "big") for code in range(first, last + 1))
        signs = "".join(code.decode(encoding, "ignore") for code in codes)
        assert len(signs) > 6000
        assert [sign for sign in signs if ord(sign) >= 0x2E80 and ord(sign) not in has] == [], encoding
