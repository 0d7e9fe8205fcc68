"""The step on heads: each head's numbers, heads that are added and removed, and W_O; against torch in float64."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

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
from lessons.lesson_numbers import matrix

pytestmark = [pytest.mark.browser, needs_chromium]


@pytest.fixture(scope="module")
def browser():
    with chromium() as running:
        yield running


@pytest.fixture
def opened(browser, tmp_path: Path):
    def open_page(state, **context) -> Iterator:
        return open_lesson(browser, tmp_path / "lesson.html", state, "heads", **context)

    return open_page


def press(tab, name: str) -> None:
    """Press a button. The name that it has for screen readers is without the underscore of an index."""
    act(tab, lambda: tab.locator("#step-heads").get_by_role("button", name=name, exact=True).click())


def edit(tab, matrix: str, row: int, column: int, text: str) -> None:
    """Type a number over a cell."""
    table = tab.locator(f"#step-heads [data-name='{matrix}'] tbody tr").nth(row).locator("td").nth(column)
    table.click()
    tab.keyboard.type(text)
    act(tab, lambda: tab.keyboard.press("Enter"))


def check_against_regard(tab, start: Mapping[str, Any]) -> dict[str, Any]:
    state = state_of(tab, start)
    count = len(state["heads"]) if state["heads"] else 1
    outputs = []
    for head in range(count):
        output, weights = attend(state, head)
        np.testing.assert_allclose(values(tab, f"weights-{head}", "heads"), weights, atol=1e-12, rtol=0)
        np.testing.assert_allclose(values(tab, f"output-{head}", "heads"), output, atol=1e-10, rtol=0)
        outputs.append(output)
        if state["heads"]:
            for part in ("query", "key", "value"):
                shown = values(tab, f"w-{part}-{head}", "heads")
                assert shown.tolist() == matrix(state["heads"][head][part]).tolist()
    joined = torch.cat(outputs, -1)
    np.testing.assert_allclose(values(tab, "joined", "heads"), joined, atol=1e-10, rtol=0)
    assert tab.locator("#step-heads .head-card").count() == count
    assert tab.locator("#step-heads .concat span").count() == count
    shown = tab.locator("#step-heads [data-name=w-output]")
    assert shown.is_visible() == (state["output"] is not None)
    if state["output"] is not None:
        assert values(tab, "w-output", "heads").tolist() == matrix(state["output"]).tolist()
        result = joined @ matrix(state["output"])
        np.testing.assert_allclose(values(tab, "result", "heads"), result, atol=1e-9, rtol=0)
    return state


def test_heads_come_and_go_and_all_numbers_follow(opened) -> None:
    start = random_state(tokens=4, heads=2)
    with opened(start) as tab:
        assert check_against_regard(tab, start)["output"] is None
        press(tab, "WO = random numbers")
        two = check_against_regard(tab, start)
        assert np.shape(two["output"]) == (4, 4)  # H·dv rows, and as wide as X
        press(tab, "Add a head")
        three = check_against_regard(tab, start)
        assert three["heads"][:2] == two["heads"]
        assert three["heads"][2] != three["heads"][0]
        assert three["output"][:4] == two["output"]
        assert np.shape(three["output"]) == (6, 4)
        press(tab, "Remove head 1")
        rest = check_against_regard(tab, start)
        assert rest["heads"] == [three["heads"][0], three["heads"][2]]
        assert rest["output"] == [*three["output"][:2], *three["output"][4:]]
        act(tab, lambda: tab.locator("#undo").click())
        undone = check_against_regard(tab, start)
        assert (undone["heads"], undone["output"]) == (three["heads"], three["output"])
        press(tab, "Without WO")
        assert check_against_regard(tab, start)["output"] is None


def test_numbers_of_any_head_and_of_w_o_are_changed_by_typing(opened) -> None:
    start = random_state(tokens=4, heads=3)
    with opened(start) as tab:
        press(tab, "WO = identity")
        before = check_against_regard(tab, start)
        for part in ("query", "key", "value"):
            edit(tab, f"w-{part}-2", 1, 1, "-3.25")
            assert check_against_regard(tab, start)["heads"][2][part][1][1] == -3.25
        edit(tab, "w-output", 5, 0, "0.5")
        after = check_against_regard(tab, start)
        assert after["output"][5][0] == 0.5
        assert after["heads"][:2] == before["heads"][:2]


def test_an_identity_stays_one_and_the_result_is_concat(opened) -> None:
    start = random_state(tokens=4, heads=1)
    with opened(start) as tab:
        press(tab, "WO = identity")
        for name, size in [("Add a head", 4), ("Add a head", 6), ("Remove head 0", 4)]:
            press(tab, name)
            state = check_against_regard(tab, start)
            assert state["output"] == np.eye(size).tolist()
            assert (values(tab, "result", "heads") == values(tab, "joined", "heads")).all()


def test_there_are_1_to_8_heads(opened) -> None:
    start = start_state()
    with opened(start) as tab:
        assert tab.locator("#step-heads").get_by_role("button", name="Remove head 0").is_hidden()
        for _ in range(7):
            press(tab, "Add a head")
        state = check_against_regard(tab, start)
        assert len(state["heads"]) == 8
        assert len({str(head) for head in state["heads"]}) == 8  # no two alike
        assert tab.locator("#step-heads [name=add-head]").is_disabled()
        assert "8 heads" in tab.locator("#step-heads .controls .hint").first.inner_text()


def test_the_head_that_is_looked_at_stays_the_same_head(opened) -> None:
    start = random_state(tokens=4, heads=4)
    with opened(start) as tab:
        press(tab, "Look at head 2 in the other steps")
        looks = tab.locator("#step-heads .head-card button[aria-pressed]").all()
        assert [look.get_attribute("aria-pressed") for look in looks] == ["false", "false", "true", "false"]
        assert ["✓" in look.inner_text() for look in looks] == [False, False, True, False]
        press(tab, "Remove head 0")
        state = check_against_regard(tab, start)
        assert state["head"] == 1
        assert state["heads"][1] == start["heads"][2]
        press(tab, "Remove head 2")
        assert check_against_regard(tab, start)["head"] == 1
        press(tab, "Remove head 1")
        assert check_against_regard(tab, start)["head"] == 0


def test_other_sides_and_given_queries_keys_and_values(opened) -> None:
    other = random_state(tokens=6, seed=3)
    start = random_state(tokens=4) | {"keyX": other["x"], "keyTokens": other["tokens"]}
    with opened(start) as tab:
        press(tab, "Add a head")
        check_against_regard(tab, start)
    given = random_state(tokens=4, seed=1) | {
        "keyX": other["x"],
        "keyTokens": other["tokens"],
        "valueX": [[1, 2, 3]] * 6,
        "heads": None,
    }
    with opened(given) as tab:
        check_against_regard(tab, given)
        assert tab.locator("#step-heads [name=add-head]").is_disabled()
        press(tab, "WO = random numbers")
        assert np.shape(check_against_regard(tab, given)["output"]) == (3, 4)


def test_shapes_are_written_at_every_place(opened) -> None:
    start = start_state(heads=start_state()["heads"] * 2, output=np.eye(4).tolist())
    with opened(start) as tab:
        text = tab.locator("#step-heads").inner_text()
        assert "n × H·dv = 3 × 2·2 = 3 × 4" in text.replace("\n", "")
        assert "WO is H·dv × D′ = 4 × 4" in text.replace("\n", "")
        assert (
            tab.locator("#step-heads caption sub").all_inner_texts().count("v") == 6
        )  # of W_V, of the output of each head, of Concat and of W_O
        assert "X is n × D = 3 × 4" in text
        sizes = {
            "w-query-1": "4 × 2",
            "weights-1": "3 × 3",
            "output-1": "3 × 2",
            "w-output": "4 × 4",
            "result": "3 × 4",
        }
        for name, size in sizes.items():
            assert size in tab.locator(f"#step-heads [data-name='{name}'] caption").inner_text(), name


def test_the_question_is_answered_by_what_it_asks_for(opened) -> None:
    with opened(random_state(tokens=4, heads=1)) as tab:
        question = tab.locator("#step-heads .question summary").inner_text().replace("\n", "")
        assert "“WO = random numbers”" in question
        press(tab, "WO = random numbers")
        before = {name: values(tab, name, "heads") for name in ("w-output", "joined", "output-0")}
        press(tab, "Add a head")
        after = {name: values(tab, name, "heads") for name in before}
        assert after["w-output"].shape == (4, 4)
        assert after["joined"].shape == (4, 4)
        for name in before:
            rows, columns = before[name].shape
            assert (after[name][:rows, :columns] == before[name]).all()


@pytest.mark.parametrize("language", ["en", "zh"])
def test_nothing_makes_a_narrow_page_scroll_sideways(opened, language: str) -> None:
    start = random_state(tokens=8, width=8, heads=3) | {"language": language}
    with opened(start, viewport={"width": 360, "height": 800}) as tab:
        tab.locator("#step-heads [name=useRandom]").click()
        settle(tab)
        assert not scrolls_sideways(tab, "heads")
