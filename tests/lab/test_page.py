"""The page of the lab in a real browser: every claim and figure is there, light and dark, and nothing is asked for."""

from pathlib import Path

import pytest

from chromium import chromium, needs_chromium
from regard_lab.charts import Bars, LabeledMatrix, Line, Lines, Matrices
from regard_lab.experiment import Claim, Finding, Part, Setting, Verdict
from regard_lab.page import page
from regard_lab.report import about, write
from regard_lab.running import Result

HOSTILE = "<script>alert(1)</script> & <img src=x onerror=alert(2)>"
CHARTS = (
    Lines("線 <b>", HOSTILE, "x", "y", (Line("one", (1.0, 2.0), (1.0, 2.0)), Line("two", (1.0, 2.0), (2.0, 1.0)))),
    Bars("bars", "bars", "share", ("a", "b"), ("s",), ((1.0, 2.0),)),
    Matrices("matrices", "a matrix", (LabeledMatrix("我爱你", ("我",), ("爱", "你"), ((0.1, 0.9),)),)),
)
SETTING = Setting(quick=True, seed=3)


def result(number, verdict=Verdict.HOLDS, charts=()):
    claim = Claim(
        number, f"claim-{number}", f"Title {number} {HOSTILE}", f"Said {HOSTILE}", "Somebody, arXiv:1706.03762"
    )
    numbers = {"a number": 0.123456789, "many": list(range(30)), HOSTILE: {"deep": [1.5, True, None]}}
    parts = (Part(f"part {HOSTILE}", verdict),)
    return Result(claim, 1.25, Finding(parts, numbers, "key", f"Text {HOSTILE}", "Limits here.", charts))


RESULTS = [
    result(1, charts=CHARTS),
    result(2, Verdict.FAILS, CHARTS[:1]),
    result(4, Verdict.WITHIN),
    result(5, Verdict.GPU),
    Result(Claim(6, "claim-6", "Broken", "It is said.", "Nobody"), 0.5, problem=f"ValueError: {HOSTILE}"),
]


def test_nothing_of_a_claim_is_taken_for_html():
    text = page(RESULTS, about(SETTING), planned=7)
    assert "<script" not in text
    assert "<img" not in text
    assert text.count("&lt;script&gt;") > 10


def test_the_lede_counts_verdicts_failures_and_what_was_not_reached():
    text = page(RESULTS, about(SETTING), planned=7)
    assert (
        "5 claims: holds 1, holds within limits 1, does not hold 1, needs a GPU 1. 1 could not be run. "
        "2 more were to be run and were not reached. From a quick run"
    ) in text


def test_the_figures_of_a_claim_are_drawn_once_though_the_page_is_written_after_every_claim(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr("regard_lab.page.figure", lambda chart, name: drawn.append(name) or f"<figure>{name}</figure>")
    results = [result(1, charts=CHARTS), result(2, charts=CHARTS[:1])]
    for number in (0, 1, 2):
        write(tmp_path, results[:number], SETTING, planned=2)
    assert drawn == ["n1f0", "n1f1", "n1f2", "n2f0"]
    assert (tmp_path / "index.html").read_text("utf-8").count("<figure>") == 4


@pytest.fixture(scope="module")
def browser():
    with chromium() as running:
        yield running


def opened(browser, path: Path, scheme: str, width: int, look):
    """Open a page, hand it to `look`; nothing may complain, be asked for or open a dialog."""
    trouble: list[str] = []
    with browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme) as fresh:
        tab = fresh.new_page()
        tab.on("console", lambda message: trouble.append(message.text))
        tab.on("pageerror", lambda error: trouble.append(str(error)))
        tab.on("dialog", lambda dialog: (trouble.append(dialog.message), dialog.dismiss()))
        tab.on("request", lambda asked: asked.url == path.as_uri() or trouble.append(asked.url))
        tab.goto(path.as_uri())
        found = look(tab)
    assert trouble == []
    return found


@pytest.mark.slow
@pytest.mark.browser
@needs_chromium
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_claim_and_figure_is_shown(browser, tmp_path, scheme):
    write(tmp_path, RESULTS, SETTING, planned=7)

    def look(tab):
        assert tab.locator(".contents li").count() == 5
        assert tab.locator(".contents .badge").all_inner_texts() == [
            "✓ holds", "✗ does not hold", "≈ holds within limits", "… needs a GPU", "! not run",
        ]  # fmt: skip
        assert tab.locator("section").count() == 5
        pictures = tab.locator("figure svg")
        assert pictures.count() == 4
        for picture in pictures.all():
            box = picture.bounding_box()
            assert box["width"] > 120
            assert box["height"] > 80
        assert pictures.first.get_attribute("aria-label") == HOSTILE
        assert "regard lab claim-2 --quick --seed 3 --threads 2" in tab.locator("#claim-2").inner_text()
        assert "ValueError: <script>" in tab.locator("#claim-6").inner_text()
        tab.locator("#claim-1 summary").click()
        assert "0.12346" in tab.locator("#claim-1 table").inner_text()
        tab.locator('.contents a[href="#claim-5"]').click()
        assert tab.evaluate("scrollY") > 500

    opened(browser, tmp_path / "index.html", scheme, 1000, look)


@pytest.mark.slow
@pytest.mark.browser
@needs_chromium
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_lines_and_words_of_figures_stand_out_from_the_page(browser, tmp_path, scheme):
    """Contrast after WCAG 2.2: at least 3 for lines and 4.5 for words."""
    write(tmp_path, RESULTS, SETTING, planned=7)
    script = """() => {
        const part = one => { const c = one / 255; return c <= .04045 ? c / 12.92 : ((c + .055) / 1.055) ** 2.4; };
        const light = colour => { const [r, g, b] = colour.match(/[\\d.]+/g).map(Number);
            return .2126 * part(r) + .7152 * part(g) + .0722 * part(b); };
        const page = light(getComputedStyle(document.body).backgroundColor);
        const ratio = one => { const it = light(one); return (Math.max(it, page) + .05) / (Math.min(it, page) + .05); };
        const svg = document.querySelector('figure svg');
        const strokes = [...svg.querySelectorAll('[id*=line2d] path[style*="stroke-width: 2"]')];
        const words = [...svg.querySelectorAll('[id*=text_] g[style*=fill]')];
        return {
            lines: strokes.map(one => ratio(getComputedStyle(one).stroke)),
            words: words.map(one => ratio(getComputedStyle(one).fill)),
        };
    }"""
    found = opened(browser, tmp_path / "index.html", scheme, 1000, lambda tab: tab.evaluate(script))
    assert len(found["lines"]) >= 2
    assert len(found["words"]) >= 2
    assert min(found["lines"]) >= 3
    assert min(found["words"]) >= 4.5


@pytest.mark.slow
@pytest.mark.browser
@needs_chromium
def test_a_narrow_screen_is_not_scrolled_sideways(browser, tmp_path):
    write(tmp_path, RESULTS, SETTING, planned=7)
    wide = opened(
        browser, tmp_path / "index.html", "light", 380, lambda tab: tab.evaluate("document.documentElement.scrollWidth")
    )
    assert wide <= 380
