"""The first step of a lesson in Chromium: what it shows is what was measured, by mouse and by keyboard."""

import json
import re

import pytest

from chromium import chromium, needs_chromium, rest
from documents import ROOT
from lessons.browser_lesson import open_lesson
from regard.lessons.lesson import example_lesson
from sweeps import sweep

pytestmark = [pytest.mark.browser, needs_chromium]

DATA = json.loads((ROOT / "src/regard/lessons/data/bottleneck.json").read_text("utf-8"))
LENGTHS = DATA["settings"]["lengths"]


@pytest.fixture(scope="module")
def browser():
    with chromium() as running:
        yield running


@pytest.fixture
def opened(browser, tmp_path):
    def open_page(language="en", width=1100):
        state, viewport = example_lesson(language).start, {"width": width, "height": 900}
        return open_lesson(browser, tmp_path / "page.html", state, "why", viewport=viewport)

    return open_page


def numbers(text):
    return [float(number) for number in re.findall(r"[\d.]*\d", text)]


def expected(model, what, length):
    """Mean, least and largest share of the runs, in percent."""
    shares = [100 * share for share in DATA["models"][model][what][str(length)]]
    return [sum(shares) / len(shares), min(shares), max(shares)]


def choose(tab, length):
    """Move the slider as a keyboard does."""
    slider = tab.locator("#why-length")
    slider.focus()
    slider.press("Home")
    for _ in range(LENGTHS.index(length)):
        slider.press("ArrowRight")


def test_the_table_has_the_measured_shares_with_their_spread(opened):
    with opened() as tab:
        for length in LENGTHS:
            cells = tab.locator(f"#step-why tr[data-length='{length}'] td").all()
            kinds = [(model, what) for what in ("words_right", "sentences_right") for model in ("fixed", "attention")]
            assert len(cells) == len(kinds)
            for cell, (model, what) in zip(cells, kinds, strict=True):
                shares = expected(model, what, length)
                assert numbers(cell.inner_text()) == pytest.approx(shares, abs=0.0501)
                width = cell.locator(".bar > span").evaluate("element => element.style.width")
                assert float(width.rstrip("%")) == pytest.approx(shares[0], abs=0.01)


@pytest.mark.parametrize("language", ["en", "zh"])
def test_each_word_of_an_example_is_shown_as_right_or_wrong(opened, language):
    vocabulary = DATA["vocabulary"][language]
    with opened(language) as tab:
        for case in sweep([(length, number) for length in (5, 20, 50) for number in (0, 1)]):
            with case as (length, number):
                choose(tab, length)
                tab.locator("#why-example").select_option(str(number))
                example = [one for one in DATA["examples"] if one["length"] == length][number]
                for model in ("fixed", "attention"):
                    items = tab.locator(f"#step-why [data-model='{model}'] li").all()
                    assert len(items) == max(length, len(example[model]))
                    for at, item in enumerate(items):
                        source = example["source"][at] if at < length else None
                        said = example[model][at] if at < len(example[model]) else None
                        text = item.locator(".word-said").text_content()
                        if said == source:
                            assert item.get_attribute("class") == "right"
                            assert text == vocabulary[source]
                            continue
                        assert item.get_attribute("class") == "wrong"
                        assert text.startswith("✗")  # not by colour alone
                        if said is not None and said >= 0:
                            assert text == f"✗ {vocabulary[said]}"
                        if source is not None:
                            assert item.locator(".word-read").text_content() == vocabulary[source]
                            assert vocabulary[source] in item.locator(".spoken").text_content()
                    right = sum(a == b for a, b in zip(example["source"], example[model], strict=False))
                    counted = tab.locator(f"#step-why [data-model='{model}'] > .hint").inner_text()
                    assert sorted(numbers(counted)) == sorted([right, length])
                    picture = tab.locator(f"#step-why [data-model='{model}'] svg")
                    assert picture.locator(".why-read").count() == length
                    assert picture.locator(".why-wrong").count() == length - right
                    assert picture.locator(".wrong-mark").count() == length - right
                    assert right in numbers(picture.get_attribute("aria-label"))


def test_with_attention_a_line_leads_to_the_word_with_the_largest_weight(opened):
    with opened() as tab:
        choose(tab, 10)
        example = next(one for one in DATA["examples"] if one["length"] == 10)
        picture = tab.locator("#step-why [data-model='attention'] svg")
        squares = [float(one.get_attribute("x")) for one in picture.locator(".why-read").all()]
        size = float(picture.locator(".why-read").first.get_attribute("width"))
        ends = [re.findall(r"[\d.]+", line.get_attribute("d")) for line in picture.locator(".why-line").all()]
        starts = [float(end[0]) - size / 2 for end in ends]
        assert starts == pytest.approx([squares[place] for place in example["strongest"]], abs=0.01)


def test_the_readout_speaks_of_the_chosen_length(opened):
    with opened() as tab:
        readout = tab.locator("#why-readout")
        assert readout.get_attribute("aria-live") == "polite"
        for length in (5, 50):
            choose(tab, length)
            said = numbers(readout.inner_text())
            assert said[0] == length
            assert said[1:] == pytest.approx(
                expected("fixed", "words_right", length) + expected("attention", "words_right", length), abs=0.0501
            )
            assert tab.locator("#step-why tbody tr.chosen").get_attribute("data-length") == str(length)
            assert str(length) in tab.locator("#why-length").get_attribute("aria-valuetext")


def test_the_setting_is_named_with_its_sizes(opened):
    with opened() as tab:
        text = tab.locator("#step-why").inner_text()
        models, settings = DATA["models"], DATA["settings"]
        for number in (
            f"{models['fixed']['parameters']:,}",
            f"{models['attention']['parameters']:,}",
            str(models["fixed"]["vector"]),
            f"{settings['steps']} steps",
            f"Means of {len(settings['seeds'])} training runs",
            f"{settings['sentences']} sentences",
        ):
            assert number in text


def test_what_was_chosen_is_in_the_address_and_bad_choices_do_no_harm(opened):
    with opened() as tab:
        choose(tab, 20)
        rest(tab, 300)
        address = tab.evaluate("location.href")
        tab.goto("about:blank")
        tab.goto(address)
        tab.wait_for_selector("html[data-ready]")
        assert tab.locator("#step-why tbody tr.chosen").get_attribute("data-length") == "20"
        tab.evaluate("""() => { location.hash = encodeURIComponent('{"why":{"length":7,"example":99}}'); }""")
        rest(tab, 300)
        tab.reload()
        tab.wait_for_selector("html[data-ready]")
        assert tab.locator("#step-why tbody tr.chosen").count() == 1


@pytest.mark.parametrize("language", ["en", "zh"])
def test_nothing_scrolls_sideways_on_a_phone(opened, language):
    with opened(language, width=360) as tab:
        others = tab.locator("#road > section:not(#step-why)")
        others.evaluate_all("sections => sections.forEach(section => section.remove())")
        assert tab.evaluate("document.documentElement.scrollWidth") <= 360
