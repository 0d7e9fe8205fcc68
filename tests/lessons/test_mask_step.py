"""The step on masks: what is hidden, what that does to the weights, how pairs are counted; by mouse, touch and keys."""

from collections.abc import Iterator
from pathlib import Path

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
    visible_pairs,
)
from regard import masks

pytestmark = [pytest.mark.browser, needs_chromium]

KINDS = ["none", "causal", "window", "padding", "longformer", "bigbird", "prefix", "drawn"]


@pytest.fixture(scope="module")
def browser():
    with chromium() as running:
        yield running


@pytest.fixture
def opened(browser, tmp_path: Path):
    def open_page(state, **context) -> Iterator:
        return open_lesson(browser, tmp_path / "lesson.html", state, "mask", **context)

    return open_page


def choose(tab, kind: str) -> None:
    tab.locator(f"#step-mask input[value='{kind}']").check()
    settle(tab)


def fill(tab, name: str, value: object) -> None:
    field = tab.locator(f"#step-mask input[name='mask-{name}']")
    field.fill(str(value))
    field.press("Tab")
    settle(tab)


def cell(tab, query: int, key: int):
    return tab.locator(f"#step-mask button[data-query='{query}'][data-key='{key}']")


def check_against_regard(tab, start) -> dict:
    state = state_of(tab, start)
    queries, keys = len(state["x"]), len(state["keyX"] or state["x"])
    visible = visible_pairs(state["mask"], queries, keys)
    assert (values(tab, "mask-cells", "mask") == visible).all(), state["mask"]
    _, weights = attend(state, state["head"])
    np.testing.assert_allclose(values(tab, f"weights-{state['head']}", "mask"), weights, atol=1e-12, rtol=0)
    assert (np.isneginf(values(tab, f"logits-{state['head']}", "mask")) == ~visible).all()
    return state["mask"]


SIZES = {
    "window": [{"left": 2, "right": 0}, {"left": 0, "right": 3}],
    "longformer": [{"window": 4}, {"window": 0}],
    "bigbird": [{"windowOdd": 1, "randomKeys": 2}, {"globalEnds": 0}, {"windowOdd": 5, "randomKeys": 0}],
    "prefix": [{"length": 4}, {"length": 0}],
}


@pytest.mark.parametrize("keys", [6, 8])
def test_every_mask_hides_what_regards_mask_hides(opened, keys: int) -> None:
    start = random_state(tokens=6)
    if keys != 6:
        other = random_state(tokens=keys, seed=1)
        start |= {"keyX": other["x"], "keyTokens": other["tokens"]}
    with opened(start) as tab:
        found = []
        for kind in KINDS:
            choose(tab, kind)
            found.append(check_against_regard(tab, start))
            for fields in SIZES.get(kind, []):
                for name, value in fields.items():
                    fill(tab, name, value)
                found.append(check_against_regard(tab, start))
        assert [mask["kind"] for mask in found if mask["kind"] not in SIZES] == ["none", "causal", "padding", "drawn"]
        assert found[2:5] == [
            {"kind": "window", "left": 1, "right": 1},
            {"kind": "window", "left": 2, "right": 0},
            {"kind": "window", "left": 0, "right": 3},
        ]


def test_tokens_are_chosen_as_padding_and_as_global(opened) -> None:
    start = random_state(tokens=6)
    with opened(start) as tab:
        choose(tab, "padding")
        act(tab, lambda: tab.get_by_role("group", name="Padding").get_by_label("t1", exact=True).check())
        assert check_against_regard(tab, start) == {"kind": "padding", "hidden": [1, 5]}
        choose(tab, "longformer")
        act(tab, lambda: tab.get_by_role("group", name="Global tokens").get_by_label("t4", exact=True).check())
        act(tab, lambda: tab.get_by_role("group", name="Global tokens").get_by_label("t0", exact=True).uncheck())
        assert check_against_regard(tab, start) == {"kind": "longformer", "window": 2, "globals": [4]}


def test_bigbird_draws_again_and_each_row_draws_keys_that_it_does_not_see(opened) -> None:
    start = random_state(tokens=12)
    with opened(start) as tab:
        choose(tab, "bigbird")
        fill(tab, "randomKeys", 3)
        tables = []
        for _ in range(3):
            mask = check_against_regard(tab, start)
            near = visible_pairs({**mask, "table": []}, 12, 12)
            both = visible_pairs(mask, 12, 12)
            assert (both.sum(1) == np.minimum(12, near.sum(1) + 3)).all()
            tables.append(str(mask["table"]))
            act(tab, lambda: tab.get_by_role("button", name="Draw again").click())
        assert len(set(tables)) == 3


def test_a_cell_that_is_clicked_touched_or_pressed_changes_alone(opened) -> None:
    start = start_state()
    with opened(start, has_touch=True) as tab:
        choose(tab, "causal")
        act(tab, lambda: cell(tab, 0, 2).click())
        assert check_against_regard(tab, start) == {"kind": "drawn", "rows": ["101", "110", "111"]}
        act(tab, lambda: cell(tab, 2, 0).tap())
        assert check_against_regard(tab, start)["rows"] == ["101", "110", "011"]
        cell(tab, 2, 0).focus()
        tab.keyboard.press("ArrowUp")
        tab.keyboard.press("ArrowRight")
        act(tab, lambda: tab.keyboard.press("Space"))
        assert check_against_regard(tab, start)["rows"] == ["101", "100", "011"]
        act(tab, lambda: tab.keyboard.press("Enter"))
        assert check_against_regard(tab, start)["rows"] == ["101", "110", "011"]
        assert tab.locator("#step-mask input[value='drawn']").is_checked()
        assert tab.locator("#step-mask .counter").inner_text() == "6 of 9 pairs are visible (66.7\u00a0%)."


def test_a_drag_paints_and_is_undone_as_one_change(opened) -> None:
    start = random_state(tokens=6)
    with opened(start) as tab:
        boxes = [cell(tab, row, 2).bounding_box() for row in range(6)]
        centres = [(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2) for box in boxes]
        tab.mouse.move(*centres[1])
        tab.mouse.down()
        for centre in centres[2:5]:
            tab.mouse.move(*centre, steps=3)
        tab.mouse.up()
        settle(tab)
        assert check_against_regard(tab, start)["rows"] == ["111111", *["110111"] * 4, "111111"]
        act(tab, lambda: tab.locator("#undo").click())
        assert check_against_regard(tab, start) == {"kind": "none"}
        act(tab, lambda: cell(tab, 0, 0).click())
        assert check_against_regard(tab, start)["rows"] == ["011111", *["111111"] * 5]


def test_a_finger_scrolls_over_a_large_matrix_and_a_tap_changes_a_cell(opened) -> None:
    start = random_state(tokens=13)
    with opened(start, has_touch=True, viewport={"width": 360, "height": 700}) as tab:
        act(tab, lambda: cell(tab, 3, 12).tap())
        expected = ["1" * 13] * 13
        expected[3] = "1" * 12 + "0"
        assert check_against_regard(tab, start)["rows"] == expected
        cell(tab, 6, 4).scroll_into_view_if_needed()
        box = cell(tab, 6, 4).bounding_box()
        finger = tab.context.new_cdp_session(tab)
        before = tab.evaluate("scrollY")
        point = {"x": box["x"] + 8, "y": box["y"] + 8}
        finger.send("Input.dispatchTouchEvent", {"type": "touchStart", "touchPoints": [point]})
        for distance in (20, 60, 100):
            moved = point | {"y": point["y"] - distance}
            finger.send("Input.dispatchTouchEvent", {"type": "touchMove", "touchPoints": [moved]})
        finger.send("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})
        tab.wait_for_function("before => scrollY > before", arg=before)
        assert check_against_regard(tab, start)["rows"] == expected
        grid = tab.locator("#step-mask .mask-grid")
        assert grid.evaluate("table => getComputedStyle(table).touchAction") == "manipulation"
    with opened(start_state(), has_touch=True) as tab:
        assert tab.locator("#step-mask .mask-grid").evaluate("table => getComputedStyle(table).touchAction") == "none"


def test_a_row_that_sees_nothing_has_weights_of_0_and_is_named(opened) -> None:
    start = start_state()
    with opened(start) as tab:
        warning = tab.locator("#step-mask .warning")
        assert warning.is_hidden()
        choose(tab, "drawn")
        for key in range(3):
            act(tab, lambda key=key: cell(tab, 1, key).click())
        check_against_regard(tab, start)
        assert values(tab, "weights-0", "mask")[1].tolist() == [0, 0, 0]
        assert "爱" in warning.inner_text()
        act(tab, lambda: tab.get_by_role("button", name="Show all", exact=True).click())
        assert check_against_regard(tab, start)["rows"] == ["111"] * 3
        act(tab, lambda: tab.get_by_role("button", name="Hide all", exact=True).click())
        assert check_against_regard(tab, start)["rows"] == ["000"] * 3


def test_causal_leaves_the_first_row_a_weight_of_exactly_1(opened) -> None:
    with opened(start_state()) as tab:
        choose(tab, "causal")
        assert values(tab, "weights-0", "mask")[0].tolist() == [1, 0, 0]


def pairs_by_regard(mask: dict, length: int) -> int:
    """The visible pairs for this many tokens. Each row of BigBird has as many more as it draws."""
    if mask["kind"] != "bigbird":
        return int(visible_pairs(mask, length, length).sum())
    near = masks.bigbird(mask["window"], mask["globals"], 0, block=1).bind(length, length).dense()[0, 0].sum(-1)
    return int((near + len(mask["table"][0])).clamp(max=length).sum())


def test_pairs_for_128_1024_and_4096_tokens_are_those_of_regards_masks(opened) -> None:
    start = random_state(tokens=6)
    with opened(start) as tab:
        for kind in ["none", "causal", "window", "longformer", "bigbird", "prefix"]:
            choose(tab, kind)
            for fields in [{}, *SIZES.get(kind, [])[:1]]:
                for name, value in fields.items():
                    fill(tab, name, value)
                mask = state_of(tab, start)["mask"]
                rows = tab.locator("#step-mask .mask-growth tbody tr").all()
                cells = [
                    [int(text.replace(",", "")) for text in row.locator("th, td").all_inner_texts()[:3]] for row in rows
                ]
                expected = [[n, n * n, pairs_by_regard(mask, n)] for n in (128, 1024, 4096)]
                assert cells == expected, mask


@pytest.mark.parametrize("language", ["en", "zh"])
def test_what_is_said_of_the_growth_is_that_of_the_chosen_mask(opened, language: str) -> None:
    """Twice the tokens, from 1024 to 2048: four times the pairs under some masks, twice under others."""
    said = {"en": ("four times", "twice as many"), "zh": ("四倍", "只变成两倍")}[language]
    with opened(random_state(tokens=6) | {"language": language}) as tab:
        start = random_state(tokens=6)
        for kind in ["none", "causal", "window", "longformer", "bigbird", "prefix"]:
            choose(tab, kind)
            mask = state_of(tab, start)["mask"]
            factor = pairs_by_regard(mask, 2048) / pairs_by_regard(mask, 1024)
            sentence = tab.locator("#step-mask .mask-growth .hint").inner_text()
            grows_less = said[1] in sentence.removeprefix("Twice as many")
            assert grows_less == (factor < 2.1), (kind, factor, sentence)
            assert grows_less or factor > 3.9
            assert said[0] in sentence
            # two lines only where there are two
            assert tab.locator("#step-mask .growth .line-mask").count() == (kind != "none")
            assert tab.locator("#step-mask .mask-growth .legend li").count() == 1 + (kind != "none")
        text = tab.locator("#step-mask").inner_text()
        assert "对数" not in text  # the word for a logarithm
        assert "e^" not in text


def test_cells_that_mean_these_tokens_alone_have_no_growth(opened) -> None:
    with opened(random_state(tokens=6)) as tab:
        for kind in ("padding", "drawn"):
            choose(tab, kind)
            assert tab.locator("#step-mask .mask-growth tbody td:nth-of-type(2)").all_inner_texts() == ["–"] * 3
            assert tab.locator("#step-mask .pattern").is_hidden()


def test_the_pattern_shows_the_rule_for_its_own_number_of_tokens(opened) -> None:
    start = random_state(tokens=6)
    names = {"longformer": {"window", "global"}, "bigbird": {"window", "global"}, "prefix": {"causal", "prefix"}}
    with opened(start) as tab:
        for kind in ["none", "causal", "window", "longformer", "bigbird", "prefix"]:
            choose(tab, kind)
            mask = state_of(tab, start)["mask"]
            for length in (3, 10, 24):
                tab.locator("#step-mask input[name='mask-pattern-length']").fill(str(length))
                settle(tab)
                parts = np.array(tab.evaluate("document.querySelector('#step-mask .mask-pattern').pattern"))
                if kind == "bigbird":
                    near = visible_pairs({**mask, "table": []}, length, length)
                    assert (np.isin(parts, ["window", "global"]) == near).all()
                    assert ((parts == "random").sum(1) == np.minimum(1, length - near.sum(1))).all()
                else:
                    assert ((parts != "") == visible_pairs(mask, length, length)).all(), (mask, length)
                if length > 3:
                    assert names.get(kind, {kind}) <= set(parts.flat)
            assert len(values(tab, "mask-cells", "mask")) == 6  # the example's own


def test_a_number_that_does_not_fit_gets_one_sentence_and_changes_nothing(opened) -> None:
    start = random_state(tokens=6)
    cases = [
        ("window", "left", ("-1", "1.5", "", "7"), 3),
        ("window", "right", ("1e400",), 3),
        ("longformer", "window", ("3",), 4),
        ("bigbird", "windowOdd", ("2",), 5),
        ("prefix", "length", ("7",), 3),
    ]
    with opened(start) as tab:
        problem = tab.locator("#step-mask .problem:visible")
        for kind, name, texts, good in cases:
            choose(tab, kind)
            before = check_against_regard(tab, start)
            for text in texts:
                fill(tab, name, text)
                assert check_against_regard(tab, start) == before, (kind, name, text)
                assert problem.count() == 1, (kind, name, text)
                assert problem.inner_text().count(".") == 1
            fill(tab, name, good)
            assert problem.count() == 0, (kind, name)
            assert check_against_regard(tab, start) != before


def test_a_screen_reader_reads_the_matrix_as_a_table_of_named_cells(opened) -> None:
    with opened(start_state()) as tab:
        assert cell(tab, 0, 1).get_attribute("aria-label") == "我 may see 爱"
        assert cell(tab, 0, 1).get_attribute("aria-pressed") == "true"
        act(tab, lambda: cell(tab, 0, 1).click())
        assert cell(tab, 0, 1).get_attribute("aria-label") == "我 may see 爱"
        assert cell(tab, 0, 1).get_attribute("aria-pressed") == "false"
        grid = tab.locator("#step-mask .mask-grid")
        assert grid.locator("caption").text_content() == "Who may see whom: rows are queries, columns are keys"
        assert grid.locator("th[scope=row]").all_inner_texts() == ["我", "爱", "你"]
        assert grid.locator("th[scope=col]").all_inner_texts() == ["我", "爱", "你"]
        assert grid.locator("button[tabindex='0']").count() == 1


@pytest.mark.parametrize("language", ["en", "zh"])
def test_nothing_makes_a_narrow_page_scroll_sideways(opened, language: str) -> None:
    start = random_state(tokens=12) | {"language": language}
    with opened(start, viewport={"width": 360, "height": 800}) as tab:
        for kind in KINDS:
            choose(tab, kind)
            assert not scrolls_sideways(tab, "mask"), kind
