"""The step on other scores: each for the whole lesson, and the chosen row by all four; against regard.scores."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chromium import chromium, needs_chromium
from lessons.browser_lesson import (
    act,
    attend,
    open_lesson,
    random_state,
    scrolls_sideways,
    settle,
    start_state,
    state_of,
    values,
)
from lessons.lesson_numbers import matrix, score_of
from regard.scores import Cosine

pytestmark = [pytest.mark.browser, needs_chromium]

KINDS = ["dot", "additive", "bilinear", "cosine"]


@pytest.fixture(scope="module")
def browser():
    with chromium() as running:
        yield running


@pytest.fixture
def opened(browser, tmp_path: Path):
    def open_page(state, **context) -> Iterator:
        return open_lesson(browser, tmp_path / "lesson.html", state, "other_scores", **context)

    return open_page


def choose(tab, kind: str) -> None:
    tab.locator(f"#step-other_scores input[value='{kind}']").check()
    settle(tab)


def comparison(tab) -> dict[str, dict[str, Any]]:
    rows = tab.evaluate("document.querySelector('#step-other_scores .comparison').values")
    return {row["kind"]: row for row in rows}


def edit(tab, matrix: str, row: int, column: int, text: str) -> None:
    table = tab.locator(f"#step-other_scores [data-name='{matrix}'] tbody tr").nth(row).locator("td").nth(column)
    table.click()
    tab.keyboard.type(text)
    act(tab, lambda: tab.keyboard.press("Enter"))


def scores_by_formula(state: Mapping[str, Any], head: int) -> np.ndarray:
    """The scores without scale, written out in NumPy."""
    x = np.array(state["x"], dtype=np.float64)
    q, k = (x @ np.array(state["heads"][head][part], dtype=np.float64) for part in ("query", "key"))
    score = {name: np.array(value, dtype=np.float64) for name, value in state["score"].items() if name != "kind"}
    match state["score"]["kind"]:
        case "dot":
            return q @ k.T
        case "additive":
            return np.tanh((q @ score["query"].T)[:, None] + (k @ score["key"].T)[None]) @ score["vector"]
        case "bilinear":
            return q @ score["weight"] @ k.T
        case "cosine":
            return q @ k.T / np.linalg.norm(q, axis=1)[:, None] / np.linalg.norm(k, axis=1)
    raise AssertionError(state["score"])


def check_against_regard(tab, start: Mapping[str, Any]) -> dict[str, Any]:
    state = state_of(tab, start)
    _, weights = attend(state, state["head"])
    head = state["head"]
    np.testing.assert_allclose(values(tab, f"weights-{head}", "mask"), weights, atol=1e-12, rtol=0)
    np.testing.assert_allclose(
        values(tab, f"scores-{head}", "other_scores"), scores_by_formula(state, head), atol=1e-12, rtol=0
    )
    chosen = comparison(tab)[state["score"]["kind"]]
    factor = state["otherScores"]["factor"]
    _, weights = attend(state, head, factor=factor)
    np.testing.assert_allclose(chosen["weights"], weights[state["row"]], atol=1e-12, rtol=0)
    return state


@pytest.mark.parametrize("mask", [{"kind": "none"}, {"kind": "causal"}])
def test_each_score_is_regards_with_the_parameters_that_are_on_the_page(opened, mask) -> None:
    start = random_state(tokens=5, dim=3, seed=2) | {"mask": mask, "row": 3, "head": 1}
    edits = {"additive": ["score-query", "score-key", "score-vector"], "bilinear": ["score-weight"]}
    with opened(start) as tab:
        for kind in KINDS:
            choose(tab, kind)
            state = check_against_regard(tab, start)
            assert state["score"]["kind"] == kind
            assert state["scale"] == "default"
            assert tab.locator(f"#step-other_scores input[value='{kind}']").is_checked()
            for name in edits.get(kind, []):
                edit(tab, name, 0, 1, "2.5")
                part = name.removeprefix("score-")
                assert matrix(check_against_regard(tab, start)["score"][part]).reshape(-1, 3)[0, 1] == 2.5


def test_the_table_compares_the_row_by_all_four_scores(opened) -> None:
    start = random_state(tokens=5, dim=3, seed=2) | {"mask": {"kind": "causal"}, "row": 3}
    with opened(start) as tab:
        seen = {}
        for kind in ["additive", "bilinear", "cosine", "dot"]:  # their parameters are kept while others are chosen
            choose(tab, kind)
            if kind == "additive":
                edit(tab, "score-vector", 0, 0, "-2")
            seen[kind] = check_against_regard(tab, start)["score"]
        for factor in ("1", "2.5"):
            tab.locator("#step-other_scores input[name=query-factor]").fill(factor)
            settle(tab)
            for kind, row in comparison(tab).items():
                _, weights = attend(start, 0, factor=float(factor), score=score_of(seen[kind]))
                np.testing.assert_allclose(row["weights"], weights[3], atol=1e-12, rtol=0, err_msg=kind)
        choose(tab, "additive")
        assert check_against_regard(tab, start)["score"] == seen["additive"]
        table = tab.locator("#step-other_scores .comparison table")
        assert table.locator("thead th").all_inner_texts() == ["key", *start["tokens"]]
        groups = ["dot product", "additive (chosen)", "bilinear", "cosine"]
        assert table.locator("th[scope=rowgroup]").all_inner_texts() == groups
        for lines in table.locator("tbody").all():
            assert lines.locator("th[scope=row]").all_inner_texts() == ["score s", "logit z", "weight a"]
            hidden = [line.locator("td").last.inner_text() for line in lines.locator("tr").all()[1:]]
            assert hidden[1:] == ["−∞", "0"]


def test_a_longer_query_changes_no_weight_of_the_cosine(opened) -> None:
    with opened(random_state(tokens=5, seed=4)) as tab:
        before = comparison(tab)
        tab.locator("#step-other_scores input[name=query-factor]").fill("10")
        settle(tab)
        after = comparison(tab)
        np.testing.assert_allclose(after["cosine"]["weights"], before["cosine"]["weights"], atol=1e-12)
        for kind in ("dot", "bilinear"):
            assert max(after[kind]["weights"]) > max(before[kind]["weights"])
            np.testing.assert_allclose(after[kind]["scores"], 10 * np.array(before[kind]["scores"]), rtol=1e-12)
        state = {"score": {"kind": "additive"}}
        choose(tab, state["score"]["kind"])
        bound = np.abs(values(tab, "score-vector", "other_scores")).sum()
        assert np.abs(after["additive"]["scores"]).max() <= bound


def test_a_longer_query_changes_the_additive_weights_that_the_page_begins_with(opened) -> None:
    """By the factor 3, its first parameters gave the weights of the factor 1 again, to three digits."""
    with opened(start_state()) as tab:
        for row in range(3):
            act(tab, lambda row=row: tab.locator("#row").select_option(str(row))) if row else None
            largest = []
            for factor in ("1", "2", "3", "5"):
                tab.locator("#step-other_scores input[name=query-factor]").fill(factor)
                settle(tab)
                largest.append(max(comparison(tab)["additive"]["weights"]))
            assert np.diff(largest).max() < 0, largest  # less at each
            assert largest[0] - largest[2] > 0.1, largest
            tab.locator("#step-other_scores input[name=query-factor]").fill("1")
            settle(tab)


def test_all_four_scores_are_in_sight_on_a_narrow_screen(opened) -> None:
    with opened(start_state(), viewport={"width": 360, "height": 800}) as tab:
        box = tab.locator("#step-other_scores .comparison")
        assert box.evaluate("box => box.scrollWidth <= box.clientWidth")


def test_bilinear_begins_as_the_dot_product_without_its_scale(opened) -> None:
    start = random_state(tokens=4, seed=5)
    with opened(start) as tab:
        dot = values(tab, "scores-0", "other_scores")
        choose(tab, "bilinear")
        np.testing.assert_allclose(values(tab, "scores-0", "other_scores"), dot, atol=1e-12)
        _, weights = attend(start, 0, scale=1.0)
        np.testing.assert_allclose(values(tab, "weights-0", "mask"), weights, atol=1e-12)


def test_tau_is_the_temperature_of_the_cosine(opened) -> None:
    start = random_state(tokens=4, seed=6)
    with opened(start) as tab:
        choose(tab, "cosine")
        tau = tab.locator("#step-other_scores input[name=tau]")
        assert tau.input_value() == "0.1"
        act(tab, lambda: (tau.fill("0.5"), tau.press("Tab")))
        state = check_against_regard(tab, start)
        assert state["scale"] == 2
        _, weights = attend(start, 0, score=Cosine(0.5))
        np.testing.assert_allclose(values(tab, "weights-0", "mask"), weights, atol=1e-12)
        for text in ("0", "-1", "1e400", ""):
            tau.fill(text)
            tau.press("Tab")
            settle(tab)
            assert state_of(tab, start)["scale"] == 2
            assert tab.locator("#step-other_scores .problem").is_visible(), text


def test_the_step_says_that_the_lesson_has_another_score_and_leads_back(opened) -> None:
    start = start_state()
    with opened(start) as tab:
        warning = tab.locator("#step-other_scores .warning")
        assert warning.is_hidden()
        choose(tab, "cosine")
        assert "cosine" in warning.inner_text()
        act(tab, lambda: tab.get_by_role("button", name="Back to the dot product").click())
        assert warning.is_hidden()
        state = state_of(tab, start)
        assert (state["score"], state["scale"]) == ({"kind": "dot"}, "default")
        assert tab.locator("#step-other_scores input[value=dot]").evaluate("radio => radio === document.activeElement")


def test_queries_and_keys_that_were_given_are_scored_too(opened) -> None:
    other = random_state(tokens=6, seed=3)
    start = random_state(tokens=4, seed=1) | {
        "keyX": other["x"],
        "keyTokens": other["tokens"],
        "valueX": [[1, 2]] * 6,
        "heads": None,
    }
    with opened(start) as tab:
        for kind in KINDS:
            choose(tab, kind)
            _, weights = attend(state_of(tab, start), 0)
            np.testing.assert_allclose(values(tab, "weights-0", "mask"), weights, atol=1e-12, rtol=0)


@pytest.mark.parametrize("language", ["en", "zh"])
def test_nothing_makes_a_narrow_page_scroll_sideways(opened, language: str) -> None:
    start = random_state(tokens=8, width=8, dim=8) | {"language": language}
    with opened(start, viewport={"width": 360, "height": 800}) as tab:
        for kind in KINDS:
            choose(tab, kind)
            assert not scrolls_sideways(tab, "other_scores"), kind
