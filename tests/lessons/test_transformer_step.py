"""The step of a layer and a Transformer in Chromium: sizes, the residual and LayerNorm, and a recorded translation."""

import dataclasses
import json
import math
import re

import numpy as np
import pytest
import torch

import regard
from chromium import chromium, needs_chromium
from documents import ROOT
from lessons.browser_lesson import open_lesson
from regard.lessons.lesson import example_lesson
from sweeps import sweep

pytestmark = [pytest.mark.browser, needs_chromium]

DATA = json.loads((ROOT / "src/regard/lessons/data/translation.json").read_text("utf-8"))
STEPS, SOURCE = DATA["steps"], DATA["source"]
HEADS = len(STEPS[0]["weights"][0])


@pytest.fixture(scope="module")
def browser():
    with chromium() as running:
        yield running


@pytest.fixture
def opened(browser, tmp_path):
    def open_page(lesson, width=1100, **context):
        viewport = {"width": width, "height": 900}
        path = tmp_path / "page.html"
        return open_lesson(browser, path, lesson.start, "transformer", lesson.data, viewport=viewport, **context)

    return open_page


def row_of(step, head):
    rows = np.array(step["weights"]).reshape(-1, len(SOURCE))
    return rows.mean(0) if head < 0 else rows[head]


def shown_bars(tab, table):
    """Name, number as it is shown, and number of each bar."""
    lines = tab.locator(f"#{table} tbody tr").all()
    shown = [float(line.locator(".number").inner_text()) for line in lines]
    names = [line.locator("th").inner_text() for line in lines]
    return list(zip(names, shown, [float(line.get_attribute("data-value")) for line in lines], strict=True))


def check_step(tab, number, head):
    """Everything that is shown of a step equals the recording."""
    step = STEPS[number - 1]
    bars = shown_bars(tab, "translation-row")
    assert [name for name, _, _ in bars] == SOURCE
    assert [value for _, _, value in bars] == pytest.approx(row_of(step, head).tolist(), abs=1e-9)
    assert [shown for _, shown, _ in bars] == pytest.approx(row_of(step, head).tolist(), rel=0.0051)
    likely = shown_bars(tab, "translation-likeliest")
    assert [[name, value] for name, _, value in likely] == step["likeliest"]
    written = [item.inner_text() for item in tab.locator("#translation-written li:visible").all()]
    assert written == [one["token"] for one in STEPS[:number]]
    current = tab.locator("#translation-written [aria-current='step']")
    assert current.all_inner_texts() == [step["token"]]
    readout = tab.locator("#translation-readout").inner_text()
    assert f"“{step['token']}”" in readout
    assert f"{step['probability']:.3g}" in readout  # as many digits as in the matrix
    assert f"{row_of(step, head).max():.3g}" in readout
    strongest = SOURCE[int(row_of(step, head).argmax())]
    assert f"“{strongest}”" in readout


@pytest.mark.parametrize("language", ["en", "zh"])
def test_each_step_shows_the_recorded_row_and_the_likeliest_tokens(opened, language):
    with opened(example_lesson(language)) as tab:
        check_step(tab, 1, -1)
        for number in range(2, len(STEPS) + 1):
            tab.locator("#translation-next").click()
            check_step(tab, number, -1)
        assert tab.locator("#translation-next").get_attribute("aria-disabled") == "true"
        tab.locator("#translation-next").press("Enter")  # where nothing follows
        check_step(tab, len(STEPS), -1)
        assert tab.evaluate("document.activeElement.id") == "translation-next"
        tab.locator("#translation-first").click()
        check_step(tab, 1, -1)
        assert tab.locator("#translation-back").get_attribute("aria-disabled") == "true"


def test_deep_is_looked_at_before_its_first_character_is_written(opened):
    with opened(example_lesson()) as tab:
        tab.locator("#translation-next").click()
        tab.locator("#translation-next").click()
        readout = tab.locator("#translation-readout").inner_text()
        assert "“深”" in readout
        assert "“deep”" in readout


def test_each_head_can_be_chosen_and_the_whole_matrix_is_there(opened):
    with opened(example_lesson()) as tab:
        tab.locator("#translation-written button").nth(0).focus()
        for case in sweep(range(-1, HEADS * len(STEPS[0]["weights"]))):
            with case as head:
                tab.locator("#translation-head").select_option(str(head))
                check_step(tab, 1, head)
                matrix = tab.locator("[data-name='cross-attention']").evaluate("element => element.values")
                np.testing.assert_allclose(matrix, [row_of(STEPS[0], head)], atol=1e-12)  # no more than is written
        for _ in STEPS[1:]:
            tab.locator("#translation-next").click()
        matrix = tab.locator("[data-name='cross-attention']").evaluate("element => element.values")
        np.testing.assert_allclose(matrix, [row_of(step, HEADS * len(STEPS[0]["weights"]) - 1) for step in STEPS])
        names = tab.locator("#translation-head option").all_inner_texts()
        assert names[1:] == [f"layer {layer}, head {head}" for layer in range(2) for head in range(HEADS)]
        assert "from 0" in tab.locator("label[for='translation-head']").inner_text()


def test_it_works_by_keyboard(opened):
    with opened(example_lesson()) as tab:
        tab.locator("#translation-next").focus()
        tab.keyboard.press("Enter")
        tab.keyboard.press("Space")
        check_step(tab, 3, -1)
        tab.locator("#translation-written button").nth(1).focus()
        tab.keyboard.press("Enter")
        check_step(tab, 2, -1)


def test_playing_writes_to_the_end_and_is_paused_by_the_same_button(opened):
    with opened(example_lesson()) as tab:
        tab.clock.install(time=0)
        tab.clock.pause_at(1000)  # else the page's clock goes on by itself, and farther on a busy machine
        play = tab.locator("#translation-play")
        assert play.inner_text() == "Play"
        tab.clock.run_for(20_000)
        check_step(tab, 1, -1)  # nothing plays by itself
        play.click()
        assert play.inner_text() == "Pause"
        tab.clock.run_for(1500)
        check_step(tab, 2, -1)
        play.click()
        tab.clock.run_for(20_000)
        check_step(tab, 2, -1)
        play.click()
        tab.clock.run_for(60_000)
        check_step(tab, len(STEPS), -1)
        assert play.inner_text() == "Play"


def test_who_wants_no_motion_gets_no_play_button(opened):
    with opened(example_lesson(), reduced_motion="reduce") as tab:
        assert tab.locator("#translation-play").is_hidden()
        tab.locator("#translation-next").click()
        check_step(tab, 2, -1)


def places(tab, side):
    """The places of a diagram in the order in which a screen reader reads them."""
    items = tab.locator(f"[data-side='{side}'] svg [role='list'] [role='listitem']").all()
    return [" ".join(item.locator("text").all_text_contents()) for item in items]


def test_the_diagrams_are_lists_whose_sizes_follow_the_state(opened):
    rng = np.random.default_rng(0)
    lesson = regard.lesson(
        x=rng.normal(size=(5, 6)), w_query=rng.normal(size=(3, 6, 2)), w_key=rng.normal(size=(3, 6, 2)),
        w_value=rng.normal(size=(3, 6, 4)), w_output=rng.normal(size=(12, 6)), tokens="a b c d e",
    )  # fmt: skip
    with opened(lesson) as tab:
        assert places(tab, "encoder") == [
            "source: embeddings + positions 5 × 6",
            "attention 3 × (5 × 2), joined 5 × 12, out 5 × 6",
            "+ what came in: 5 × 6",
            "LayerNorm 5 × 6",
            "feed-forward 5 × 6 → 5 × 24 → 5 × 6",
            "+ what came in: 5 × 6",
            "LayerNorm 5 × 6",
            "to each decoder layer: keys and values 5 × 6 K, V",
        ]
        assert places(tab, "decoder")[4] == "cross-attention queries m × 6; keys and values 5 × 6 K, V"
        tab.locator("input[name='norm'][value='pre']").check()
        assert [place.split(" ")[0] for place in places(tab, "encoder")] == (
            ["source:", "LayerNorm", "attention", "+", "LayerNorm", "feed-forward", "+", "LayerNorm,", "to"]
        )


def test_of_given_queries_and_keys_the_other_side_is_the_source(opened):
    rng = np.random.default_rng(3)
    lesson = regard.lesson(x=rng.normal(size=(2, 3)), key_x=rng.normal(size=(5, 3)), value_x=rng.normal(size=(5, 3)))
    with opened(lesson) as tab:
        assert places(tab, "encoder")[0].endswith("5 × 3")
        assert "5 tokens are read, 2 are written" in tab.locator("#step-transformer").inner_text()
        assert places(tab, "decoder")[4] == "cross-attention queries 2 × 3; keys and values 5 × 3 K, V"
        assert values(tab, "residual").shape == (2, 3)


def test_known_models_have_the_sizes_of_their_papers(opened):
    published = {  # layers, width, heads, feed-forward, of the papers' tables
        "Transformer base (2017)": ("6 + 6", 512, 8, 2048, "after"),
        "BERT base": ("12", 768, 12, 3072, "after"),
        "GPT-2 small": ("12", 768, 12, 3072, "before"),
    }
    with opened(example_lesson()) as tab:
        rows = tab.locator("#step-transformer table.numbers tbody tr").all()
        shown = {row.locator("th").inner_text(): row.locator("td").all_inner_texts() for row in rows}
        for name, (layers, width, heads, inner, norm) in published.items():
            assert shown[name] == [layers, str(width), str(heads), str(width // heads), str(inner), norm]
        assert shown["the translator below"] == ["2 + 2", "192", "4", "48", "768", "before"]
        for case in sweep([("base", True, True, "post"), ("bert", True, False, "post"), ("gpt2", False, True, "pre")]):
            with case as (name, encodes, decodes, norm):
                tab.locator("#transformer-model").select_option(name)
                assert tab.locator("[data-side='encoder']").is_visible() == encodes
                assert tab.locator("[data-side='decoder']").is_visible() == decodes
                assert tab.locator(f"input[name='norm'][value='{norm}']").is_checked()
        assert "no encoder" in tab.locator("#step-transformer").inner_text()
        assert not any("cross" in place for place in places(tab, "decoder"))
        assert "n × 768" not in " ".join(places(tab, "decoder"))
        assert "12 × (m × 64), joined m × 768, out m × 768" in " ".join(places(tab, "decoder"))


def values(tab, name):
    return np.array(tab.locator(f"#step-transformer [data-name='{name}']").evaluate("element => element.values"))


def test_the_residual_and_its_normalization_are_those_of_pytorch(opened):
    rng = np.random.default_rng(1)
    x, w_query, w_key = rng.normal(size=(4, 6)), rng.normal(size=(6, 3)), rng.normal(size=(6, 3))
    w_value, w_output = rng.normal(size=(6, 5)), rng.normal(size=(5, 6))
    lesson = regard.lesson(x=x, w_query=w_query, w_key=w_key, w_value=w_value, w_output=w_output)
    q, k, v = (torch.from_numpy(x @ matrix) for matrix in (w_query, w_key, w_value))
    attention = torch.softmax(q @ k.T / math.sqrt(3), -1) @ v @ torch.from_numpy(w_output)
    with opened(lesson) as tab:
        np.testing.assert_allclose(values(tab, "residual"), torch.from_numpy(x) + attention, atol=1e-9)
        oracle = torch.nn.functional.layer_norm(torch.from_numpy(x) + attention, [6])
        np.testing.assert_allclose(values(tab, "normalized"), oracle, atol=1e-9)
        tab.locator("input[name='norm'][value='pre']").check()
        assert tab.locator("[data-name='residual']").is_hidden()
        oracle = torch.nn.functional.layer_norm(torch.from_numpy(x), [6])
        np.testing.assert_allclose(values(tab, "normalized"), oracle, atol=1e-9)


def test_where_the_widths_differ_one_sentence_says_so(opened):
    rng = np.random.default_rng(2)
    matrices = [rng.normal(size=(6, 3)) for _ in range(3)]
    lesson = regard.lesson(x=rng.normal(size=(4, 6)), w_query=matrices[0], w_key=matrices[1], w_value=matrices[2])
    with opened(lesson) as tab:
        shown = places(tab, "encoder")
        assert shown[1].replace("\u200b", "") == "attention 1 × (4 × 3), joined 4 × 3, no WO"
        assert shown[2] == "✗ cannot be added to what came in: 4 × 6"
        warning = tab.locator("#step-transformer .warning")
        assert re.findall(r"\d+", warning.inner_text()) == ["3", "6", "6", "2", "1", "3", "6"]
        assert "Or have 2 heads there" in warning.inner_text()
        assert "“Several heads”" in warning.inner_text()
        assert tab.locator("[data-name='residual']").is_hidden()
        assert tab.locator("[data-name='normalized']").is_hidden()
        tab.locator("#step-heads").scroll_into_view_if_needed()
        tab.locator("#step-heads").get_by_role("button", name="random numbers").click()  # the way out that it names
        tab.locator("#step-transformer").scroll_into_view_if_needed()
        tab.locator("[data-name='residual']").wait_for()
        assert warning.is_hidden()
        assert values(tab, "normalized").mean(1) == pytest.approx([0] * 4, abs=1e-9)


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_formula_follows_the_normalization(opened, language):
    with opened(example_lesson(language)) as tab:
        formula = tab.locator("#step-transformer .formula").first
        assert formula.inner_text().startswith("y = LayerNorm(x + Attention(x))")
        tab.locator("input[name='norm'][value='pre']").check()
        assert formula.inner_text().startswith("y = x + Attention(LayerNorm(x))")


def test_of_a_row_of_equal_numbers_it_is_not_claimed_that_its_variance_is_1(opened):
    with opened(example_lesson()) as tab:
        tab.locator("input[name='norm'][value='pre']").check()
        assert values(tab, "normalized")[2] == pytest.approx([0] * 4)  # of 1 1 1 1
        text = tab.locator("#step-transformer").inner_text()
        assert "the numbers of “你” are all equal" in text
        tab.evaluate("document.getElementById('step-vectors').scrollIntoView()")
        cell = tab.locator("#step-vectors [data-name='x'] tbody tr").nth(2).locator("td").first
        cell.click()
        tab.keyboard.type("3")
        tab.keyboard.press("Enter")
        tab.evaluate("document.getElementById('step-transformer').scrollIntoView()")
        tab.wait_for_function("() => !document.getElementById('step-transformer').innerText.includes('are all equal')")
        assert values(tab, "normalized")[2].std() == pytest.approx(1, abs=1e-4)


def test_a_translation_of_ones_own_is_shown_instead(opened):
    """A model of one head that did not come to an end, whose tokens are no markup and whose sizes are not known."""
    step = {
        "input": "<s>",
        "token": "<b>",
        "special": False,
        "probability": 0.5,
        "likeliest": [["<b>", 0.5], ["", 0.25]],
    }
    steps = [step | {"weights": [[[0.25, 0.75]]]}, step | {"input": "<b>", "weights": [[[1.0, 0.0]]]}]
    own = {"model": "my/run", "sentence": "a <i>b</i>", "translation": "<b><b>", "source": ["a", "<i>b</i>"]}
    own |= {"special": [False, False], "steps": steps, "ended": False, "sizes": None}
    with opened(dataclasses.replace(example_lesson(), data={"translation": own})) as tab:
        assert shown_bars(tab, "translation-row") == [("a", 0.25, 0.25), ("<i>b</i>", 0.75, 0.75)]
        assert tab.locator("#translation-source").inner_text() == "The encoder reads: a <i>b</i>"
        tops = [tab.locator(name).bounding_box()["y"] for name in ("#translation-source", ".layer-sides")]
        assert tops[0] < tops[1]  # what the page was made for comes first
        assert tab.locator("#translation-head option").count() == 2
        tab.locator("#translation-next").click()
        assert tab.locator("#translation-written li:visible").all_inner_texts() == ["<b>", "<b>"]
        text = tab.locator("#step-transformer").inner_text()
        assert "my/run" in text
        assert "stopped after 2 tokens" in text
        assert "learning_machines" not in text
        assert "深" not in text
        assert "the translator below" not in text


@pytest.mark.parametrize("language", ["en", "zh"])
def test_nothing_scrolls_sideways_on_a_phone(opened, language):
    with opened(example_lesson(language), width=360) as tab:
        others = tab.locator("#road > section:not(#step-transformer)")
        others.evaluate_all("sections => sections.forEach(section => section.remove())")
        assert tab.evaluate("document.documentElement.scrollWidth") <= 360
