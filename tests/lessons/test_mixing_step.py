"""The step on the weighted sum: each part has its number, a sign stays beside its matrix, on a narrow screen too."""

from pathlib import Path

import pytest

from chromium import chromium, needs_chromium
from lessons.browser_lesson import act, open_lesson, random_state, scrolls_sideways, start_state, values

pytestmark = [pytest.mark.browser, needs_chromium]

STEPS = ("scores", "mask", "softmax", "mixing", "heads", "other_scores")


@pytest.fixture(scope="module")
def browser():
    with chromium() as running:
        yield running


@pytest.fixture
def opened(browser, tmp_path: Path):
    def open_page(state, **context):
        return open_lesson(browser, tmp_path / "lesson.html", state, "mixing", **context)

    return open_page


@pytest.mark.parametrize(("language", "end"), [("en", " Its parts: {}."), ("zh", "各份：{}。")])
def test_parts_too_narrow_for_a_name_stand_in_the_sentence(opened, language, end):
    with opened(start_state(language=language)) as tab:
        about = tab.locator("#step-mixing .about")
        assert about.inner_text().endswith(end.format("我 0.486 + 爱 0.0287 + 你 0.486"))
        act(tab, lambda: tab.locator("button[name='hide-row']").click())
        assert "0.486" not in about.inner_text()


def test_the_bars_are_the_weights_times_the_values(opened):
    with opened(start_state(), viewport={"width": 360, "height": 800}) as tab:
        shares, weights, v = (values(tab, f"{name}-0", "mixing") for name in ("shares", "weights", "values"))
        assert shares[:-1] == pytest.approx(weights[0][:, None] * v)
        assert shares[-1] == pytest.approx(weights[0] @ v)


def test_a_sign_stays_on_the_line_of_the_matrix_after_it(opened):
    with opened(start_state(), viewport={"width": 360, "height": 800}) as tab:
        for name, sign in (("values", "·"), ("output", "=")):
            matrix = tab.locator(f"#step-mixing [data-name='{name}-0']").bounding_box()
            place = tab.locator("#step-mixing .operator", has_text=sign).bounding_box()
            assert matrix["y"] < place["y"] < matrix["y"] + matrix["height"]
            assert place["x"] + place["width"] <= matrix["x"]


@pytest.mark.parametrize("language", ["en", "zh"])
def test_a_word_of_64_letters_widens_no_step_beyond_a_narrow_screen(opened, language):
    state = random_state(tokens=3) | {"tokens": ["w" * 64, "b", "c"], "language": language}
    with opened(state, viewport={"width": 360, "height": 800}) as tab:
        for step in STEPS:
            assert not scrolls_sideways(tab, step), step
