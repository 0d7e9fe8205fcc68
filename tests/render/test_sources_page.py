"""The page of sources in a real browser: its numbers are the record's, by pointer and by keyboard, and text is text."""

import numpy as np
import pytest

from chromium import chromium, needs_chromium
from regard.render.sources_page import sources_card, write_sources_page
from render.sources_made import ANSWER, made_sources


@pytest.fixture(scope="module")
def tab(tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "found.html"
    write_sources_page(made_sources(), path, question="Why <b>pears</b>?")
    with chromium() as running:
        tab = running.new_page(viewport={"width": 400, "height": 800})
        trouble: list[str] = []
        tab.on("pageerror", lambda error: trouble.append(str(error)))
        tab.on("console", lambda message: trouble.append(message.text))
        tab.on("request", lambda request: trouble.append(request.url) if request.url != path.as_uri() else None)
        tab.goto(path.as_uri())
        yield tab
        assert trouble == []


def numbers(tab):
    return [float(one) for one in tab.locator(".part sup").all_text_contents()]


def shares(tab):
    return tab.evaluate("[...document.querySelectorAll('.part')].map((one) => +one.style.getPropertyValue('--share'))")


@pytest.mark.browser
@needs_chromium
def test_it_opens_with_the_scores_of_the_whole_answer(tab):
    found = made_sources()
    np.testing.assert_allclose(numbers(tab), found.scores, atol=0.0051)
    np.testing.assert_allclose(shares(tab), found.scores / found.scores.max(), atol=1e-3)
    assert tab.locator("#answer").inner_text() == ANSWER
    assert tab.locator("h1").inner_text() == "Why <b>pears</b>?"
    assert tab.evaluate("document.documentElement.scrollWidth") <= 400
    assert tab.locator("#p2 .drop").inner_text() == "without it −7.31"
    assert tab.locator("#p1 .drop").inner_text() == "without it −0.04"


@pytest.mark.browser
@needs_chromium
def test_a_token_shows_its_own_scores_by_pointer_and_by_keyboard(tab):
    found = made_sources()
    tab.locator("#t9").hover()
    np.testing.assert_allclose(numbers(tab), found.token_scores[9], atol=0.0051)
    tab.mouse.move(1, 790)
    np.testing.assert_allclose(numbers(tab), found.scores, atol=0.0051)
    tab.locator("#answer").focus()
    for key, token in (("ArrowRight", 0), ("ArrowRight", 1), ("End", -1), ("ArrowLeft", -2), ("Home", 0)):
        tab.keyboard.press(key)
        np.testing.assert_allclose(numbers(tab), found.token_scores[token], atol=0.0051)
        assert tab.locator("[aria-selected=true]").count() == 1
    assert "most from 1.3 (0.6" in tab.locator("#says").inner_text()
    tab.keyboard.press("Escape")
    np.testing.assert_allclose(numbers(tab), found.scores, atol=0.0051)


@pytest.mark.browser
@needs_chromium
def test_a_hostile_document_is_text(tab):
    assert tab.evaluate("window.hit") is None
    assert tab.locator("main b, main i, main script").count() == 0
    shown = tab.locator("#p7").inner_text()
    assert "<script>window.hit = 1</script><b>this</b>" in shown
    assert "\\x1b[31mred\\u202e" in shown
    assert "\u202e" not in tab.content()


def test_a_card_has_no_script_and_the_same_numbers():
    card = sources_card(made_sources())
    assert "<script" not in card
    assert "\u202e" not in card
    assert f"{made_sources().scores[2]:.2f}" in card
    assert "妈妈喜欢梨。" in card
    assert "Ignore &lt;script&gt;" in card
