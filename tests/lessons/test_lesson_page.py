"""The page that a lesson of Python opens with, in Chromium: its numbers are those of the lesson's text."""

import dataclasses
import json
from pathlib import Path
from urllib.parse import unquote

import numpy as np
import pytest
import torch

import regard
from chromium import needs_chromium
from lessons.browser_lesson import settle
from lessons.page_functions import computed, page_functions, refusal
from regard import masks
from regard.lessons.page import lesson_html
from sweeps import sweep

pytestmark = [pytest.mark.browser, needs_chromium]


def drawn(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=torch.float64)


CROSSED = {"x": drawn(3, 4), "key_x": drawn(5, 4), "value_x": drawn(5, 6)}
HEADS = {"w_query": drawn(3, 4, 2), "w_key": drawn(3, 4, 2)}
LARGE = {f"w_{part}": [[1e-22], [1]] for part in ("query", "key", "value")}
WHOLE = {"x": [[1, 0], [0, 1]]} | {f"w_{part}": [[1, 0], [0, 1]] for part in ("query", "key", "value")}
EIGHT = {f"w_{part}": drawn(8, 3, 2) for part in ("query", "key", "value")}
LESSONS = {
    "example": {},
    "example in Chinese, causal": {"mask": masks.Causal(), "lang": "zh", "token": "你"},
    "scale": {"scale": -0.25},
    "whole numbers beyond 2 to the power of 53": {"x": [[1e22, 1], [3, 2**60]], **LARGE},
    "three heads and W_O": {"x": drawn(6, 4), **HEADS, "w_value": drawn(3, 4, 5), "w_output": drawn(15, 2), "head": 2},
    "cross-attention": {**CROSSED, **HEADS, "w_value": drawn(3, 6, 1), "tokens": "a b c d e"},
    "keys of others alone": {"x": drawn(2, 4), "key_x": drawn(3, 4), **HEADS, "w_value": drawn(3, 4, 2)},
    "values of others alone": {"x": drawn(5, 4), "value_x": drawn(5, 6), **HEADS, "w_value": drawn(3, 6, 2)},
    "Q, K and V": CROSSED,
    "window over the other side": {**CROSSED, "mask": masks.Window(left=1, right=1)},
    "a window wider than the text": {"mask": masks.Window(2000)},
    "padding": {"mask": masks.Padding(torch.tensor([[0, 1, 0]]))},
    "prefix longer than the text": {"mask": masks.prefix_lm(9)},
    "longformer with a token that is not there": {"mask": masks.longformer(2, [1, 7])},
    "longformer over the other side": {**CROSSED, "mask": masks.longformer(0, [4])},
    "a row that sees nothing": {"mask": ~masks.Causal()},
    "bigbird": {"x": drawn(9, 4), **HEADS, "w_value": drawn(3, 4, 5), "mask": masks.bigbird(1, 1, 1, block=1)},
    "most tokens, most heads": {"x": drawn(32, 3), **EIGHT},
}


def expected(lesson):
    """The matrices of a page by name, from what the text shows."""
    heads = lesson.steps.joined.heads if lesson.steps.joined else [lesson.steps.worked]
    names = ("queries", "keys", "values", "scores", "scaled", "logits", "visible", "weights", "output")
    numbers = {f"{name}-{head}": getattr(worked, name) for head, worked in enumerate(heads) for name in names}
    if lesson.steps.joined:
        numbers["joined"] = lesson.steps.joined.joined
    if lesson.steps.joined and lesson.steps.joined.result is not None:
        numbers["result"] = lesson.steps.joined.result
    return numbers


@pytest.fixture(scope="module")
def functions():
    with page_functions() as tab:
        yield tab


def test_the_page_takes_every_start_and_computes_the_numbers_of_the_text(functions):
    for case in sweep(LESSONS):
        with case as name:
            lesson = regard.lesson(**LESSONS[name])
            state = dict(lesson.start)
            assert refusal(functions, state) is None
            shown = computed(functions, state)
            for matrix, numbers in expected(lesson).items():
                found = np.array(shown[matrix], dtype=np.float64)
                np.testing.assert_allclose(found, numbers.astype(np.float64), rtol=1e-9, atol=1e-9, err_msg=matrix)


@pytest.fixture(scope="module")
def browser(functions):
    return functions.context.browser  # two would not start in one thread


def watched(context, address, trouble):
    """A tab in which nothing may complain, ask the network or open a dialog."""
    tab = context.new_page()
    tab.on("console", lambda message: trouble.append(f"console: {message.text}"))
    tab.on("pageerror", lambda error: trouble.append(f"error: {error}"))
    tab.on("dialog", lambda dialog: (trouble.append(f"dialog: {dialog.message}"), dialog.dismiss()))
    tab.on("request", lambda request: request.url == address or trouble.append(f"request: {request.url}"))
    return tab


def test_pages_of_python_open_without_complaint_with_their_numbers_in_sight(browser, tmp_path: Path):
    names = [
        "example in Chinese, causal",
        "three heads and W_O",
        "cross-attention",
        "Q, K and V",
        "a row that sees nothing",
    ]
    for case in sweep(names):
        with case as name, browser.new_context(viewport={"width": 1000, "height": 900}) as context:
            lesson = regard.lesson(**LESSONS[name])
            path = tmp_path / "lesson.html"
            lesson.to_html(path)
            trouble = []
            tab = watched(context, path.as_uri(), trouble)
            tab.goto(path.as_uri())
            tab.wait_for_selector("html[data-ready]", timeout=20_000)
            tab.locator("#step-softmax").scroll_into_view_if_needed()
            settle(tab)
            shown = tab.evaluate(
                "name => document.querySelector(`#step-softmax [data-name='${name}']`)?.values",
                f"weights-{lesson.start['head']}",
            )
            np.testing.assert_allclose(np.array(shown), lesson.steps.worked.weights, rtol=1e-9, atol=1e-9)
            assert trouble == []
            assert tab.evaluate("document.documentElement.lang") == lesson.start["language"]


LARGE_LESSONS = {
    "long names": {**WHOLE, "tokens": ["a" * 70, "b"]},
    "W_V of 600 columns": {**WHOLE, "w_value": [[1] * 600] * 2},
    "a window wider than any text": {**WHOLE, "mask": masks.Window(2**31)},
}


def test_a_lesson_of_ones_own_opens_again_from_its_address(browser, tmp_path: Path):
    for case in sweep(LARGE_LESSONS):
        with case as name, browser.new_context(viewport={"width": 1000, "height": 900}) as context:
            path = tmp_path / "lesson.html"
            regard.lesson(**LARGE_LESSONS[name]).to_html(path)
            tab = context.new_page()
            tab.goto(path.as_uri())
            tab.wait_for_selector("html[data-settled]", timeout=20_000)
            cell = tab.locator("#step-projections [data-name='w-query-0'] tbody td").first
            cell.focus()
            tab.keyboard.type("7\n")
            tab.wait_for_function("() => decodeURIComponent(location.hash).includes('7')")
            tab.reload()
            tab.wait_for_selector("html[data-settled]", timeout=20_000)
            assert tab.locator("#trouble").inner_text() == ""
            first = "document.querySelector(\"#step-projections [data-name='w-query-0']\").values[0][0]"
            assert tab.evaluate(first) == 7


WORDS = [  # a mask, and what it is after the first two words have changed places, and after the first is removed
    (masks.Padding(torch.tensor([[0, 1, 1]])), {"kind": "padding", "hidden": [1]}, {"kind": "padding", "hidden": [0]}),
    (
        ~masks.Window(1),
        {"kind": "drawn", "rows": ["011", "101", "110"]},
        {"kind": "drawn", "rows": ["01", "10"]},
    ),
    (masks.longformer(0, [2]), *({"kind": "longformer", "window": 0, "globals": [at]} for at in (2, 1))),
    (masks.prefix_lm(2), *({"kind": "prefix", "length": length} for length in (2, 1))),
]


def test_masks_follow_the_words(browser, tmp_path: Path):
    """Where words change places, only padding goes with them: the page says that other masks go by places."""
    for case in sweep(WORDS, name=lambda case: str(case[1])):
        with case as (mask, exchanged, removed), browser.new_context() as context:
            path = tmp_path / "lesson.html"
            regard.lesson(mask=mask).to_html(path)
            tab = context.new_page()
            tab.goto(path.as_uri())
            tab.wait_for_selector("html[data-settled]", timeout=20_000)
            for button, wanted in (("swap", exchanged), ("remove", removed)):
                before = tab.evaluate("location.hash")
                tab.locator(f"#step-vectors .{button}").first.click()
                tab.wait_for_function("before => location.hash !== before", arg=before)
                fields = json.loads(unquote(tab.evaluate("location.hash")[1:]))
                assert fields.get("mask", regard.lesson(mask=mask).start["mask"]) == wanted, button


def test_a_start_that_overflows_says_so(browser, tmp_path: Path):
    """Python refuses it; a page that is made by hand must not hang."""
    start = dict(regard.lesson(**WHOLE).start) | {"x": [[1e70, 0], [0, 1]], "scale": 1e70, "step": "mask"}
    start["heads"] = [{part: [[1e70, 0], [0, 1]] for part in ("query", "key", "value")}]
    path = tmp_path / "lesson.html"
    path.write_text(lesson_html(start, {}), encoding="utf-8")
    with browser.new_context() as context:
        trouble = []
        tab = watched(context, path.as_uri(), trouble)
        tab.goto(path.as_uri())
        tab.wait_for_selector("#trouble:visible", timeout=20_000)
        assert "scaled-0" in tab.locator("#trouble").inner_text()
        assert trouble == []


def test_a_lesson_of_a_step_opens_with_it_in_sight(browser, tmp_path: Path):
    lesson = regard.lesson()
    path = tmp_path / "lesson.html"
    for case in sweep(["why", "softmax", "transformer"]):
        with case as step, browser.new_context(viewport={"width": 1000, "height": 900}) as context:
            dataclasses.replace(lesson, start={**lesson.start, "step": step}).to_html(path)
            trouble = []
            tab = watched(context, path.as_uri(), trouble)
            tab.goto(path.as_uri())
            tab.wait_for_selector("html[data-ready]", timeout=20_000)
            settle(tab)
            heading = tab.locator(f"#step-{step} h2").bounding_box()
            assert 0 <= heading["y"] < 450
            assert tab.evaluate("document.getElementById('steps').value") == step
            assert trouble == []


def test_the_frame_of_a_notebook_runs_the_page_apart_from_the_notebook(browser, tmp_path: Path):
    """The frame is sandboxed: its page has no address of its own, and reaches nothing of the page around it."""
    path = tmp_path / "notebook.html"
    path.write_text(f"<!doctype html><title>a notebook</title>{regard.lesson()._repr_html_()}", encoding="utf-8")
    with browser.new_context(viewport={"width": 1000, "height": 900}) as context:
        trouble = []
        tab = watched(context, path.as_uri(), trouble)
        tab.goto(path.as_uri())
        frame = tab.frame_locator("iframe")
        frame.locator("html[data-ready]").wait_for(state="attached", timeout=20_000)
        # what is off the screen is drawn when the page is at rest
        frame.locator("#step-softmax [data-name='weights-0']").wait_for(state="attached", timeout=20_000)
        inside = tab.frames[1]
        assert inside.evaluate("window.origin") == "null"
        assert [message for message in trouble if "about:srcdoc" not in message] == []
