"""The steps on scores and on softmax in a browser: what is chosen and typed, and what is then on the page."""

import math
from pathlib import Path

import pytest
import torch

from chromium import chromium, needs_chromium
from lessons.browser_lesson import act, open_lesson, random_state, scrolls_sideways, start_state, state_of, values

pytestmark = [pytest.mark.browser, needs_chromium]


@pytest.fixture(scope="module")
def browser():
    with chromium() as running:
        yield running


@pytest.fixture
def opened(browser, tmp_path: Path):
    def open_page(step, state=None, **context):
        return open_lesson(browser, tmp_path / "lesson.html", state or start_state(), step, **context)

    return open_page


def number(text):
    return float(text.replace("−", "-").replace("-∞", "-inf") or "nan")


def rows_of(tab, selector):
    return [row.locator("td") for row in tab.locator(f"{selector} tbody tr").all()]


def table(tab, selector):
    """The body of a table: the head of each row, and its numbers."""
    rows = tab.locator(f"{selector} tbody tr").all()
    return {
        row.locator("th").inner_text(): [number(cell) for cell in row.locator("td").all_inner_texts()] for row in rows
    }


def test_the_chosen_row_is_worked_out_line_by_line(opened):
    with opened("softmax") as tab:
        act(tab, lambda: tab.locator("#row").select_option("1"))
        found = table(tab, "#step-softmax .working")
        assert tab.locator("#step-softmax .working caption").inner_text() == "Row “爱”, worked out"
    logits = [0, 9 / math.sqrt(2), 6 / math.sqrt(2)]
    powers = [math.exp(logit - max(logits)) for logit in logits]
    score, shifted, power, weight = found.values()
    assert score[:3] == pytest.approx(logits, rel=5e-3)
    assert shifted[:3] == pytest.approx([logit - max(logits) for logit in logits], rel=5e-3)
    assert power == pytest.approx([*powers, sum(powers)], rel=5e-3)
    assert weight == pytest.approx([*(each / sum(powers) for each in powers), 1], rel=5e-3)


def test_the_temperature_is_a_slider_and_a_field_that_refuses_what_is_none(opened):
    with opened("softmax") as tab:
        slider = tab.locator("input[name='temperature']")
        act(tab, lambda: slider.press("Home"))
        assert state_of(tab, start_state())["temperature"] == 0.01
        assert values(tab, "logits-0", "softmax")[1].tolist() == pytest.approx([0, 900 / 2**0.5, 600 / 2**0.5])
        assert values(tab, "weights-0", "softmax")[1].tolist() == pytest.approx([0, 1, 0])
        field = tab.locator("input[name='temperature-exact']")
        act(tab, lambda: (field.fill("37"), field.press("Enter")))
        assert values(tab, "logits-0", "softmax")[1].tolist() == pytest.approx([0, 9 / 2**0.5 / 37, 6 / 2**0.5 / 37])
        for bad in ("0", "-1", ""):
            field.fill(bad)
            field.press("Enter")
            assert tab.locator("#step-softmax .problem").inner_text() == "A number from 0.000001 to 1,000,000, please."
        assert state_of(tab, start_state())["temperature"] == 37
        act(tab, lambda: tab.get_by_role("button", name="T = 1").click())
        assert state_of(tab, start_state())["temperature"] == 1


def test_a_drag_of_a_slider_is_one_change_to_undo(opened):
    with opened("softmax") as tab:
        slider = tab.locator("input[name='temperature']")
        slider.scroll_into_view_if_needed()
        box = slider.bounding_box()
        middle = box["y"] + box["height"] / 2
        tab.mouse.move(box["x"] + box["width"] / 2, middle)
        tab.mouse.down()
        for part in (0.6, 0.7, 0.8, 0.9):
            act(tab, lambda part=part: tab.mouse.move(box["x"] + box["width"] * part, middle))
        tab.mouse.up()
        assert state_of(tab, start_state())["temperature"] > 10
        act(tab, lambda: tab.locator("#undo").click())
        assert state_of(tab, start_state())["temperature"] == 1
        assert tab.locator("#undo").is_disabled()


def test_the_page_shows_that_the_weights_which_others_print_are_no_softmax(opened):
    """Equal differences of scores, 4 − 0 and 8 − 4, give equal ratios of weights, whatever divides the scores."""
    with opened("softmax") as tab:
        printed = tab.locator("#printed-weights")
        for temperature in (1, 2):
            field = tab.locator("input[name='temperature-exact']")
            if temperature > 1:
                act(tab, lambda field=field: (field.fill("2"), field.press("Enter")))
            text = printed.inner_text()
            assert f"Here it is {math.exp(4 / math.sqrt(2) / temperature):.3g} both times" in text
            assert "0.43 / 0.14 = 3.07 and 0.69 / 0.05 = 13.8" in text
        act(tab, lambda: tab.locator("button[name='hide-row']").click())
        assert printed.is_hidden()


def test_a_row_that_sees_nothing_has_weights_and_output_0_and_the_page_says_why(opened):
    with opened("softmax") as tab:
        button = tab.locator("button[name='hide-row']")
        act(tab, button.click)
        assert state_of(tab, start_state())["mask"] == {"kind": "drawn", "rows": ["000", "111", "111"]}
        assert values(tab, "weights-0", "softmax")[0].tolist() == [0, 0, 0]
        assert values(tab, "sums-0", "softmax").ravel().tolist() == pytest.approx([0, 1, 1])
        warning = tab.locator("#step-softmax .warning").inner_text()
        assert "−∞ − (−∞) is NaN" in warning
        assert "the output (0, 0)" in warning
        rows = [row.all_inner_texts() for row in rows_of(tab, "#step-softmax .working")]
        assert rows == [["−∞"] * 3 + [""], ["NaN"] * 3 + [""], ["NaN"] * 4, ["0 (set)"] * 3 + ["0"]]
        act(tab, button.click)
        assert state_of(tab, start_state())["mask"] == {"kind": "drawn", "rows": ["111", "111", "111"]}
        assert tab.locator("#step-softmax .warning").is_hidden()


def test_scores_are_divided_by_the_root_of_d_or_not_or_multiplied_by_any_number(opened):
    scores = [[4, 0, 4], [0, 9, 6], [4, 6, 8]]
    with opened("scores") as tab:
        assert values(tab, "scores-0", "scores").tolist() == scores
        assert values(tab, "scaled-0", "scores")[1].tolist() == pytest.approx([0, 9 / 2**0.5, 6 / 2**0.5])
        act(tab, lambda: tab.locator("input[name='scale'][value='none']").check())
        assert values(tab, "scaled-0", "scores").tolist() == scores
        act(tab, lambda: tab.locator("input[name='scale'][value='own']").check())
        field = tab.locator("input[name='scale-exact']")
        act(tab, lambda: (field.fill("-0.25"), field.press("Enter")))
        assert values(tab, "scaled-0", "scores")[2].tolist() == [-1, -1.5, -2]
        assert state_of(tab, start_state())["scale"] == -0.25
        slider = tab.locator("input[name='scale-slider']")
        act(tab, lambda: slider.press("End"))
        assert values(tab, "scaled-0", "scores")[2].tolist() == [8, 12, 16]


FORMULAS = {
    "dot": ("S = Q K⊤ → S / √d", "O = softmax(Q K⊤ / √d / T + M) V", "scores S = Q K⊤", "S / √d = S · 0.707"),
    "additive": ("Sij = va · tanh(Wa qi + Ua kj)", "O = softmax(S / T + M) V", "scores S", "= S"),
    "bilinear": ("S = Q W K⊤", "O = softmax(S / T + M) V", "scores S = Q W K⊤", "= S"),
    "cosine": ("Sij = qi · kj / (|qi| |kj|) → S / τ", "O = softmax(S / τ / T + M) V", "scores S", "S / τ = S · 10"),
}


def test_formula_text_and_titles_of_the_scores_follow_the_score_and_the_scale(opened):
    def shown(tab):
        step = tab.locator("#step-scores")
        whole = step.locator(".formula .whole").text_content()
        own = step.locator(".formula").text_content().removesuffix(whole)
        titles = [
            step.locator(f"[data-name='{name}-0'] caption span").first.text_content() for name in ("scores", "scaled")
        ]
        return own, whole, titles[0], titles[1].removeprefix("scaled scores ")

    with opened("scores") as tab:
        for kind, formulas in FORMULAS.items():
            act(
                tab,
                lambda kind=kind: (
                    tab.locator("#step-other_scores .choices input").first.focus(),
                    tab.locator(f"#step-other_scores input[value='{kind}']").check(),
                ),
            ) if kind != "dot" else None
            assert shown(tab) == formulas
            assert ("dot product:" in tab.locator("#step-scores .text").inner_text()) == (kind == "dot")
        act(tab, lambda: tab.locator("input[name='scale'][value='none']").check())
        assert shown(tab)[1:] == ("O = softmax(S / T + M) V", "scores S", "= S")
        act(tab, lambda: tab.locator("#step-other_scores input[value='dot']").check())
        act(tab, lambda: tab.locator("input[name='scale'][value='own']").check())
        field = tab.locator("input[name='scale-exact']")
        act(tab, lambda: (field.fill("-0.25"), field.press("Enter")))
        whole = "O = softmax(Q K⊤ · (−0.25) / T + M) V"
        assert shown(tab) == ("S = Q K⊤ → S · (−0.25)", whole, "scores S = Q K⊤", "S · (−0.25)")


MARKED = {
    "scores": ["Q", " K⊤", " / √d"],
    "mask": [" + M"],
    "softmax": ["softmax(", " / T", ")"],
    "mixing": ["O", "V"],
    "heads": ["Oi"],
    "other_scores": ["Q", " K⊤"],
}


@pytest.mark.parametrize(("language", "scaled"), [("en", "scaled scores S / √d"), ("zh", "缩放后的分数 S / √d")])
def test_scores_scaled_scores_and_logits_have_one_name_and_each_step_its_part_of_one_formula(opened, language, scaled):
    def title(tab, step, name):
        return tab.locator(f"#step-{step} [data-name='{name}-0'] caption span").first.text_content()

    with opened("scores", start_state(language=language)) as tab:
        assert title(tab, "scores", "scaled").startswith(scaled)
        assert values(tab, "scaled-0", "scores").tolist() != values(tab, "scores-0", "scores").tolist()
        for step in ("mask", "softmax"):
            assert title(tab, step, "logits") == "logits Z = S / √d / T + M"
        for step, parts in MARKED.items():
            formula = tab.locator(f"#step-{step} .formula .whole").first
            assert formula.locator("mark").all_text_contents() == parts, step
            index = "i" if step == "heads" else ""
            expected = f"O{index} = softmax(Q{index} K{index}⊤ / √d / T + M) V{index}"
            assert formula.text_content() == expected


def test_a_score_says_which_products_made_it(opened):
    with opened("scores") as tab:
        cells = tab.locator("#step-scores [data-name='scores-0'] tbody tr").nth(2).locator("td")
        cells.nth(1).hover()
        assert "2·0 + 2·3 = 6" in tab.locator("#readout").inner_text()


def test_the_slider_for_d_shows_variance_softmax_and_gradient(opened):
    with opened("scores") as tab:
        slider = tab.locator("input[name='width']")
        for key, width in (("Home", 1), ("End", 1024)):
            act(tab, lambda key=key: slider.press(key))
            found = list(table(tab, "#step-scores .measured").values())
            result = tab.evaluate("() => document.querySelector('.measured').values")
            plain, divided = result["plain"], result["divided"]
            assert result["width"] == width
            assert tab.locator(".measured caption").inner_text() == f"q·k of random vectors, d = {width}"
            assert found[0] == pytest.approx([result["variance"], result["variance"] / width], rel=5e-3)
            assert found[1] == [width, 1]
            names = ("largest", "entropy", "gradient")
            assert found[2:] == [pytest.approx([plain[name], divided[name]], rel=5e-3) for name in names]
            bars = [
                list(map(number, tab.locator(f".weight-bars.{kind} .number").all_inner_texts()))
                for kind in ("plain", "divided")
            ]
            assert bars == [pytest.approx(kind["weights"], abs=5e-4) for kind in (plain, divided)]
            points = tab.locator("#step-scores .plot circle.plain").count()
            assert points == 2 * (1 + round(math.log2(width)))  # in the plot of the variance, and of the gradient
        assert 0.8 * 1024 < result["variance"] < 1.2 * 1024
        act(tab, lambda: tab.get_by_role("button", name="Draw other numbers").click())
        assert tab.evaluate("() => document.querySelector('.measured').values")["variance"] != result["variance"]


def test_a_row_of_scores_of_ones_own_shows_what_is_left_of_the_gradient(opened):
    with opened("scores") as tab:
        text = tab.locator(".trial-result")
        assert text.inner_text() == (
            "In nine digits: 1, 1.01122149e−43, 1.01122149e−43. The largest weight is 1 − 2.02e−43; a 64-bit number "
            "has no room for that beside the 1, so it shows 1. Size of the gradient: 3.19776314e−43 (root of the sum "
            "of its squares)."
        )
        act(tab, lambda: tab.locator("button[name='divide-scores']").click())
        assert values(tab, "trial-scores", "scores").tolist() == [[10, 0.1, 0.1]]
        act(tab, lambda: tab.get_by_role("button", name="Take 10, 1, 1").click())
        weights = torch.tensor([10.0, 1, 1], dtype=torch.float64).softmax(-1)
        assert values(tab, "trial-weights", "scores")[0].tolist() == pytest.approx(weights.tolist(), rel=1e-12)
        assert f"1 − {float(1 - weights[0]):.3g}" in text.inner_text()
        act(tab, lambda: tab.get_by_role("button", name="Take 1, 1, 1").click())
        assert "The largest weight is 0.333." in text.inner_text()
        act(tab, lambda: tab.get_by_role("button", name="Take 10, 1, 1").click())
        act(tab, lambda: tab.locator("button[name='add-score']").click())
        assert values(tab, "trial-scores", "scores").tolist() == [[10, 1, 1, 1]]
        for _ in range(3):
            act(tab, lambda: tab.locator("button[name='remove-score']").click())
        assert values(tab, "trial-weights", "scores").tolist() == [[1]]
        assert tab.locator("button[name='remove-score']").is_disabled()


@pytest.mark.parametrize("step", ["scores", "softmax"])
@pytest.mark.parametrize("language", ["en", "zh"])
def test_many_tokens_on_a_narrow_screen_scroll_in_their_own_box_in_both_languages(opened, step, language):
    state = random_state(tokens=32, dim=20) | {"language": language, "mask": {"kind": "causal"}}
    with opened(step, state, viewport={"width": 360, "height": 800}) as tab:
        assert not scrolls_sideways(tab, step)
        text = tab.locator(f"#step-{step}").inner_text()
        assert "undefined" not in text
        assert "{" not in text
        chinese = sum("一" <= character <= "鿿" for character in text)
        assert chinese > 100 if language == "zh" else chinese == 0
