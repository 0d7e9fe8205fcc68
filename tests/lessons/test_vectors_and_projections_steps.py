"""The steps of words and of queries, keys and values in Chromium: what readers of the page stumbled over."""

import numpy as np
import pytest

from chromium import chromium, needs_chromium, rest
from lessons.browser_lesson import open_lesson, start_state

pytestmark = [pytest.mark.browser, needs_chromium]


@pytest.fixture(scope="module")
def browser():
    with chromium() as running:
        yield running


@pytest.fixture
def opened(browser, tmp_path):
    def open_page(step, width=1100, **fields):
        viewport = {"width": width, "height": 900}
        return open_lesson(browser, tmp_path / "page.html", start_state(**fields), step, viewport=viewport)

    return open_page


def values(tab, name, step):
    return np.array(tab.locator(f"#step-{step} [data-name='{name}']").evaluate("element => element.values"))


def names(tab):
    return [field.input_value() for field in tab.locator("#step-vectors .words input").all()]


def rename(tab, row, text):
    field = tab.locator("#step-vectors .words input").nth(row)
    field.fill(text)
    field.press("Enter")
    rest(tab, 50)


def test_exchanging_words_moves_rows_of_the_output_that_stands_beside(opened):
    with opened("vectors") as tab:
        before = values(tab, "output-0", "vectors")
        tab.locator("#step-vectors .swap").first.click()
        tab.wait_for_function("() => document.querySelector('#step-vectors .exchanged').textContent")
        np.testing.assert_allclose(values(tab, "output-0", "vectors"), before[[1, 0, 2]], atol=1e-12)
        said = tab.locator("#step-vectors .exchanged")
        assert "Only the order" in said.inner_text()
        tab.locator("#step-vectors input[value=sinusoidal]").check()
        tab.wait_for_function("() => !document.querySelector('#step-vectors .exchanged').textContent")
        assert np.abs(values(tab, "output-0", "vectors") - before[[1, 0, 2]]).max() > 0.1


def test_the_rows_of_positions_and_the_formula_count_from_0(opened):
    with opened("vectors", positions="sinusoidal") as tab:
        rows = tab.locator("#step-vectors [data-name='positions'] tbody th").all_inner_texts()
        assert [row.split(",")[0] for row in rows] == ["i = 0", "i = 1", "i = 2"]
        assert values(tab, "positions", "vectors")[0].tolist() == [0, 1, 0, 1]


def test_a_name_is_neither_empty_nor_that_of_another_row_and_a_new_word_says_what_it_is(opened):
    with opened("vectors") as tab:
        rename(tab, 1, "  ")
        assert names(tab) == ["我", "爱", "你"]
        assert "“爱”" in tab.locator("#step-vectors .exchanged").inner_text()
        rename(tab, 1, "我")
        assert names(tab) == ["我", "我#2", "你"]
        rename(tab, 2, "我")
        assert names(tab) == ["我", "我#2", "我#3"]
        rename(tab, 1, "我#2")  # its own
        assert names(tab)[1] == "我#2"
        tab.locator("#step-vectors .add").first.click()
        rest(tab, 50)
        assert names(tab)[3] == "word 4"
        row = values(tab, "x", "vectors")[3].tolist()
        assert f"({' '.join(str(int(value)) for value in row)})" in tab.locator("#step-vectors .exchanged").inner_text()


def test_where_a_word_is_removed_the_mask_stays_with_the_others(opened):
    with opened("vectors", mask={"kind": "padding", "hidden": [2]}) as tab:
        assert (values(tab, "weights-0", "projections") > 0).tolist() == [[True, True, False]] * 3
        tab.locator("#step-vectors .remove").first.click()
        tab.wait_for_function("() => document.querySelectorAll('#step-vectors .words li').length === 2")
        tab.evaluate("document.getElementById('step-projections').scrollIntoView()")
        tab.wait_for_function(
            """() => document.querySelector("#step-projections [data-name='weights-0']").values.length === 2"""
        )
        assert values(tab, "weights-0", "projections").tolist() == [[1, 0]] * 2


@pytest.mark.parametrize("language", ["en", "zh"])
def test_three_different_matrices_can_be_made_of_one(opened, language):
    with opened("projections", language=language) as tab:
        q, k, v = (values(tab, f"{name}-0", "projections") for name in ("queries", "keys", "values"))
        assert (q == k).all()
        assert (k == v).all()
        tab.locator("#step-projections .different").click()
        tab.wait_for_function("() => document.querySelector('#step-projections .different').hidden")
        q, k, v = (values(tab, f"{name}-0", "projections") for name in ("queries", "keys", "values"))
        assert min(np.abs(q - k).max(), np.abs(k - v).max(), np.abs(q - v).max()) >= 1
        x = values(tab, "x", "projections")
        np.testing.assert_array_equal(x @ values(tab, "w-key-0", "projections"), k)
        logits = q @ k.T / np.sqrt(2)
        weights = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
        np.testing.assert_allclose(values(tab, "weights-0", "projections"), weights, atol=1e-12)
        tab.locator("#undo").click()
        tab.wait_for_function("() => !document.querySelector('#step-projections .different').hidden")


def test_long_names_widen_neither_step_on_a_phone(opened):
    long = ["W" * 60, "爱", "你"]
    for step in ("vectors", "projections"):
        with opened(step, width=360, tokens=long, positions="sinusoidal") as tab:
            others = tab.locator(f"#road > section:not(#step-{step})")
            others.evaluate_all("sections => sections.forEach(section => section.remove())")
            if step == "vectors":
                tab.locator("#step-vectors .swap").first.click()
                rest(tab, 100)
            assert tab.evaluate("document.documentElement.scrollWidth") <= 360, step
