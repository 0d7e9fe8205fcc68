"""The frame of a lesson and its matrices in a real browser: edits, undo, addresses, files, languages, themes, keys."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote, unquote

import numpy as np
import pytest

from chromium import address, chromium, needs_chromium, rest
from regard.lessons.lesson import example_lesson
from regard.lessons.page import lesson_html

pytestmark = [pytest.mark.browser, needs_chromium]

X = [[1, 0, 1, 0], [0, 2, 0, 1], [1, 1, 1, 1]]  # of 我 爱 你
W = [[1, 0], [0, 1], [1, 0], [0, 1]]


@pytest.fixture(scope="module")
def browser():
    with chromium() as running:
        yield running


@pytest.fixture
def opened(browser, tmp_path: Path):
    """Open a lesson; after the test, nothing may have complained, asked the network or opened a dialog."""

    @contextmanager
    def open_page(hash_="", fields=None, *, ready="html[data-settled]", **context) -> Iterator:
        path = tmp_path / "lesson.html"
        path.write_text(lesson_html(dict(example_lesson().start) | (fields or {}), {}), encoding="utf-8")
        trouble: list[str] = []
        size = context.pop("viewport", {"width": 1100, "height": 900})
        with browser.new_context(viewport=size, **context) as fresh:
            tab = fresh.new_page()
            tab.on("console", lambda message: trouble.append(f"console: {message.text}"))
            tab.on("pageerror", lambda error: trouble.append(f"error: {error}"))
            tab.on("dialog", lambda dialog: (trouble.append(f"dialog: {dialog.message}"), dialog.dismiss()))
            tab.on(
                "request",
                lambda request: (
                    request.url.startswith((path.as_uri(), "blob:", "data:"))
                    or trouble.append(f"request: {request.url}")
                ),
            )
            tab.goto(path.as_uri() + hash_)
            tab.wait_for_selector(ready, timeout=20_000)
            yield tab
        assert trouble == []

    return open_page


def values(tab, name: str) -> list[list[float]]:
    """The exact numbers of a matrix on the page."""
    return tab.evaluate("name => document.querySelector(`[data-name='${name}']`).values", name)


def cell(tab, name: str, row: int, column: int, step: str = "projections"):
    return tab.locator(f"#step-{step} [data-name='{name}'] tbody tr").nth(row).locator("td").nth(column)


def settled(tab, act) -> None:
    """Do something that redraws the page, and wait until all of it is drawn, what is off the screen too."""
    before = tab.evaluate("document.documentElement.dataset.ready")
    act()
    tab.wait_for_function(
        """before => {
          const { ready, settled } = document.documentElement.dataset;
          return ready !== before && settled === ready;
        }""",
        arg=before,
    )


def type_in(tab, target, text: str, key: str = "Enter") -> None:
    target.focus()
    tab.keyboard.press("F2")
    tab.locator(".cell-input:visible").fill(text)
    tab.keyboard.press(key)


def alerts(tab) -> list[str]:
    return [text for text in tab.locator("[role=alert]:visible").all_inner_texts() if text]


def fragment(fields) -> str:
    return "#" + quote(json.dumps(fields))


def fields_of(tab) -> dict:
    return json.loads(unquote(address(tab).removeprefix("#")) or "{}")


def test_a_number_that_is_typed_changes_all_that_is_made_of_it(opened) -> None:
    with opened() as tab:
        target = cell(tab, "w-key-0", 0, 1)
        target.focus()
        tab.keyboard.type("-2.5")  # the first character begins
        settled(tab, lambda: tab.keyboard.press("Enter"))
        weight = np.array(W, float)
        weight[0, 1] = -2.5
        keys = np.array(X) @ weight
        scores = (np.array(X) @ np.array(W)) @ keys.T
        powers = np.exp(scores / np.sqrt(2))
        weights = powers / powers.sum(axis=1, keepdims=True)
        tab.wait_for_selector("html[data-settled]")
        np.testing.assert_allclose(values(tab, "keys-0"), keys, atol=1e-12)
        tab.evaluate("dispatchEvent(new Event('beforeprint'))")  # draws what is off the screen
        np.testing.assert_allclose(values(tab, "weights-0"), weights, atol=1e-12)
        np.testing.assert_allclose(values(tab, "output-0"), weights @ (np.array(X) @ np.array(W)), atol=1e-12)
        assert target.inner_text() == "−2.5"
        assert tab.evaluate("document.activeElement.tagName") == "TD"  # Enter keeps the focus


def test_arrow_keys_and_enter_commit_what_is_typed(opened) -> None:
    with opened() as tab:
        for number, (key, place) in enumerate({"ArrowDown": (1, 0), "ArrowRight": (0, 1), "Enter": (0, 0)}.items()):
            cell(tab, "x", 0, 0).focus()
            tab.keyboard.type(str(number + 7))
            settled(tab, lambda key=key: tab.keyboard.press(key))
            assert values(tab, "x")[0][0] == number + 7
            assert tab.evaluate("[document.activeElement.row, document.activeElement.column]") == list(place), key


def test_tab_commits_and_leaves_the_matrix(opened) -> None:
    with opened() as tab:
        cell(tab, "w-query-0", 0, 0).focus()
        tab.keyboard.type("7")
        settled(tab, lambda: tab.keyboard.press("Tab"))
        assert values(tab, "w-query-0")[0][0] == 7
        assert tab.evaluate("document.activeElement.closest('figure').dataset.name") == "queries-0"


def test_a_matrix_is_one_tab_stop(opened) -> None:
    with opened() as tab:
        for figure in tab.locator("#step-projections figure:visible").all():
            assert figure.locator("[tabindex='0']").count() == 1


def test_escape_gives_up_what_is_typed(opened) -> None:
    with opened() as tab:
        cell(tab, "x", 0, 0).focus()
        tab.keyboard.type("7")
        tab.keyboard.press("Escape")
        assert values(tab, "x") == X
        assert tab.locator("#undo").is_disabled()


def test_what_is_no_number_gets_a_sentence_beside_the_cell_and_changes_nothing(opened) -> None:
    with opened() as tab:
        target = cell(tab, "x", 1, 1)
        target.scroll_into_view_if_needed()
        for text in ["abc", "1e400", "", "NaN", "Infinity", "1,5", "1 2", "0x10", "--1"]:
            type_in(tab, target, text)
            assert len(alerts(tab)) == 1, text
            field = tab.locator(".cell-input:visible")
            assert field.get_attribute("aria-invalid") == "true", text
            box, table = tab.locator("[role=alert]:visible").bounding_box(), target.locator("xpath=ancestor::tbody")
            below = box["y"] - table.bounding_box()["y"] - table.bounding_box()["height"]
            assert abs(below) < 12  # just below the matrix, and over none of its numbers
            assert values(tab, "x") == X, text
            field.blur()
            assert len(alerts(tab)) == 1, text  # it can still be read
            assert values(tab, "x") == X, text
            assert tab.locator("#undo").is_disabled(), text


def test_numbers_are_read_as_people_write_them(opened) -> None:
    written = {"１．５": 1.5, "−3": -3, " 2 ": 2, "+4e-1": 0.4, ".5": 0.5, "－2": -2}
    with opened() as tab:
        for text, value in written.items():
            settled(tab, lambda text=text: type_in(tab, cell(tab, "x", 0, 0), text))
            assert values(tab, "x")[0][0] == value, text


def test_a_drag_follows_the_mouse_and_is_one_change(opened) -> None:
    with opened() as tab:
        target = cell(tab, "w-query-0", 1, 0)
        target.scroll_into_view_if_needed()
        box = target.bounding_box()
        x, y = box["x"] + 10, box["y"] + 10
        tab.mouse.move(x, y)
        tab.mouse.down()
        seen = []
        for up in (10, 20, 30):
            settled(tab, lambda up=up: tab.mouse.move(x, y - up))
            seen.append(values(tab, "queries-0")[1][0])
        tab.mouse.up()
        assert seen == sorted(seen)  # upwards is more, and the product follows
        assert seen[0] > 0
        assert values(tab, "w-query-0")[1][0] == 1.0  # 30 pixels are 10 steps of a tenth
        settled(tab, lambda: tab.keyboard.press("Control+z"))
        assert values(tab, "w-query-0") == W
        assert tab.locator("#undo").is_disabled()


def test_a_drag_that_escape_ends_changes_nothing(opened) -> None:
    with opened() as tab:
        target = cell(tab, "w-query-0", 1, 0)
        target.scroll_into_view_if_needed()
        box = target.bounding_box()
        tab.mouse.move(box["x"] + 10, box["y"] + 10)
        tab.mouse.down()
        settled(tab, lambda: tab.mouse.move(box["x"] + 10, box["y"] - 40))
        assert values(tab, "w-query-0") != W
        settled(tab, lambda: tab.keyboard.press("Escape"))
        tab.mouse.up()
        assert values(tab, "w-query-0") == W
        assert tab.locator("#undo").is_disabled()


def test_by_touch_a_tap_chooses_a_cell_and_then_it_can_be_dragged(opened) -> None:
    with opened(viewport={"width": 360, "height": 740}, has_touch=True, is_mobile=True) as tab:
        target = cell(tab, "x", 0, 0)
        target.scroll_into_view_if_needed()
        tab.evaluate("scrollBy(0, 200)")
        rest(tab, 100)
        box = target.bounding_box()
        x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
        pen = tab.context.new_cdp_session(tab)

        def drag() -> None:
            def send(kind, points):
                pen.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})

            send("touchStart", [{"x": x, "y": y}])
            for up in range(0, 34, 3):
                send("touchMove", [{"x": x, "y": y - up}])
                rest(tab, 16)
            send("touchEnd", [])
            rest(tab, 100)

        tab.touchscreen.tap(x, y)
        rest(tab, 100)
        before = tab.evaluate("scrollY")
        drag()
        dragged = values(tab, "x")[0][0]
        assert dragged > 1
        assert tab.evaluate("scrollY") == before
        assert tab.locator(".cell-input:visible").count() == 0
        tab.touchscreen.tap(x, y)  # a second tap types
        tab.locator(".cell-input:visible").fill("4")
        tab.keyboard.press("Enter")
        assert values(tab, "x")[0][0] == 4


def test_by_touch_a_tap_on_a_strip_reads_the_number_that_was_tapped_and_a_second_tap_types_it(opened) -> None:
    rng = np.random.default_rng(2)
    x = rng.normal(size=(4, 32)).round(3).tolist()
    head = {name: rng.normal(size=(32, 4)).round(3).tolist() for name in ("query", "key", "value")}
    fields = {"tokens": list("abcd"), "x": x, "heads": [head]}
    with opened(fields=fields, viewport={"width": 360, "height": 740}, has_touch=True, is_mobile=True) as tab:
        canvas = tab.locator("#step-projections [data-name='x'] canvas")
        canvas.evaluate("canvas => canvas.scrollIntoView({ block: 'center' })")
        box = canvas.bounding_box()

        def tap(row: int, column: int) -> None:
            tab.touchscreen.tap(
                box["x"] + box["width"] * (column + 0.5) / 32, box["y"] + box["height"] * (row + 0.5) / 4
            )
            rest(tab, 100)

        for row, column in ((2, 20), (3, 31), (0, 1)):
            tap(row, column)
            assert f"= {x[row][column]} ".replace("-", "−") in tab.locator("#readout").inner_text()
            assert tab.locator(".cell-input:visible").count() == 0
        tap(0, 1)
        tab.locator(".cell-input:visible").fill("5")
        tab.keyboard.press("Enter")
        assert values(tab, "x")[0][1] == 5


@pytest.mark.parametrize("width", [768, 1280])
def test_the_bar_shows_the_whole_name_of_each_step(opened, width: int) -> None:
    with opened(viewport={"width": width, "height": 900}) as tab:
        shown, needed = tab.evaluate(
            """() => {
              const select = document.getElementById("steps");
              const shown = select.offsetWidth;
              select.style.width = select.style.maxWidth = "max-content";
              return [shown, select.offsetWidth];
            }"""
        )
        assert shown >= needed


def test_alt_and_arrow_keys_change_a_number_by_steps(opened) -> None:
    with opened() as tab:
        cell(tab, "x", 0, 0).focus()
        settled(tab, lambda: tab.keyboard.press("Alt+ArrowUp"))
        assert values(tab, "x")[0][0] == 1.1
        settled(tab, lambda: tab.keyboard.press("Alt+Shift+ArrowDown"))
        assert values(tab, "x")[0][0] == 1.09
        settled(tab, lambda: tab.keyboard.press("Control+z"))
        assert values(tab, "x")[0][0] == 1.1


def test_what_made_a_cell_is_written_out_and_lit_up(opened) -> None:
    with opened() as tab:
        cell(tab, "queries-0", 1, 1).hover()
        assert tab.locator("#readout").inner_text().endswith("= 0·0 + 2·1 + 0·0 + 1·1 = 3")
        lit = """name => [...document.querySelectorAll(`#step-projections [data-name='${name}'] td.lit`)]
            .map(cell => [cell.row, cell.column])"""
        assert tab.evaluate(lit, "x") == [[1, column] for column in range(4)]
        assert tab.evaluate(lit, "w-query-0") == [[row, 1] for row in range(4)]
        assert tab.evaluate(lit, "w-key-0") == []
        tab.locator("h1").hover()
        assert tab.evaluate("document.querySelectorAll('.lit').length") == 0
        cell(tab, "queries-0", 1, 1).focus()  # by keyboard too
        tab.keyboard.press("ArrowLeft")
        assert tab.locator("#readout").inner_text().endswith("= 0·1 + 2·0 + 0·1 + 1·0 = 0")


def test_undo_redo_and_reset(opened) -> None:
    with opened() as tab:
        for value in ("5", "6"):
            settled(tab, lambda value=value: type_in(tab, cell(tab, "x", 0, 0), value))

        def read() -> float:
            return values(tab, "x")[0][0]

        settled(tab, lambda: tab.locator("#undo").click())
        assert read() == 5
        settled(tab, lambda: tab.locator("#undo").click())
        assert read() == 1
        assert tab.locator("#undo").is_disabled()
        settled(tab, lambda: tab.locator("#redo").click())
        assert read() == 5
        settled(tab, lambda: tab.locator("#reset").click())
        assert values(tab, "x") == X
        assert tab.locator("#reset").is_disabled()
        settled(tab, lambda: tab.locator("#undo").click())  # a reset can be undone
        assert read() == 5


def test_the_address_holds_what_differs_and_opens_the_same(opened) -> None:
    with opened() as tab:
        settled(tab, lambda: type_in(tab, cell(tab, "x", 2, 3), "-0.125"))
        settled(tab, lambda: tab.locator("#language").select_option("zh"))
        fields = fields_of(tab)
        changed = [*X[:2], [1, 1, 1, -0.125]]
        assert fields.pop("step") in {"vectors", "projections"}
        assert fields == {"language": "zh", "x": changed}
        hash_ = tab.evaluate("location.hash")
    with opened(hash_) as tab:
        assert values(tab, "x") == changed
        assert tab.evaluate("document.documentElement.lang") == "zh"


def test_an_edited_address_is_followed_and_back_returns(opened) -> None:
    with opened() as tab:
        tab.evaluate("hash => { location.hash = hash; }", fragment({"x": [[9, 9, 9, 9], *X[1:]]}))
        tab.wait_for_function("() => document.querySelector(\"[data-name='x']\").values[0][0] === 9")
        tab.go_back()
        tab.wait_for_function("() => document.querySelector(\"[data-name='x']\").values[0][0] === 1")


BAD_ADDRESSES = [
    "#not-json",
    "#%E0%A4%A",
    fragment([1]),
    fragment({"x": [["a"]]}),
    fragment({"x": [[1, 2], [3]]}),
    fragment({"nothing": 1}),
    '#{"__proto__":{"x":1}}',
    fragment({"language": "fr"}),
    fragment({"heads": [{"query": [[1]], "key": [[1]], "value": [[1]]}]}),
    "#" + quote('{"x":[[1e400,0,1,0],[0,2,0,1],[1,1,1,1]]}'),
]


def test_a_bad_address_gets_a_sentence_and_nothing_changes(opened) -> None:
    with opened(BAD_ADDRESSES[0]) as tab:  # the page opens with it …
        assert len(alerts(tab)) == 1
        assert values(tab, "x") == X
        settled(tab, lambda: type_in(tab, cell(tab, "x", 0, 0), "5"))
        for hash_ in BAD_ADDRESSES:  # … or has changes already
            tab.evaluate(
                """hash => {
                  document.getElementById("trouble").hidden = true;
                  location.hash = hash;
                }""",
                hash_,
            )
            tab.wait_for_selector("#trouble:visible")
            assert values(tab, "x")[0][0] == 5, hash_


def test_more_than_an_address_holds_goes_into_a_file_that_opens_again(opened, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    wide = rng.normal(size=(8, 64)).round(3).tolist()
    start = {
        "tokens": list("abcdefgh"),
        "x": wide,
        "heads": [{k: rng.normal(size=(64, 8)).round(3).tolist() for k in ("query", "key", "value")}],
    }
    with opened(fields=start) as tab:
        assert tab.locator("#long").is_hidden()
        settled(tab, lambda: type_in(tab, cell(tab, "w-key-0", 0, 0), "3"))
        tab.wait_for_selector("#long:visible")
        assert address(tab) in {"", "#"}
        with tab.expect_download() as saved:
            tab.locator("#save").click()
        file = tmp_path / saved.value.suggested_filename
        saved.value.save_as(file)
        settled(tab, lambda: tab.locator("#reset").click())
        assert values(tab, "w-key-0") == start["heads"][0]["key"]
        settled(tab, lambda: tab.locator("#file").set_input_files(file))
        assert values(tab, "w-key-0")[0][0] == 3


def test_a_file_of_another_kind_is_refused(opened, tmp_path: Path) -> None:
    with opened() as tab:
        for text in ["", "{}", "[]", "null", '{"regard_lesson": 2}', '{"regard_lesson": 1, "x": [[1]]}']:
            (tmp_path / "other.json").write_text(text)
            tab.evaluate("document.getElementById('trouble').hidden = true")
            tab.locator("#file").set_input_files(tmp_path / "other.json")
            tab.wait_for_selector("#trouble:visible")
            assert values(tab, "x") == X, text
            assert tab.locator("#undo").is_disabled(), text


def test_numbers_that_overflow_are_taken_back_with_a_sentence(opened) -> None:
    with opened(fields={"score": {"kind": "bilinear", "weight": [[1e70, 0], [0, 1e70]]}}) as tab:
        for row in range(3):
            type_in(tab, cell(tab, "w-query-0", row, 0), "1e70")
            rest(tab, 30)
        type_in(tab, cell(tab, "x", 0, 0), "1e70")
        type_in(tab, cell(tab, "w-key-0", 0, 0), "1e70")
        tab.wait_for_selector("#trouble:visible")
        tab.evaluate("dispatchEvent(new Event('beforeprint'))")
        for name in ("x", "w-query-0", "w-key-0", "scores-0", "weights-0", "output-0"):
            assert np.isfinite(values(tab, name)).all()


def test_both_languages_say_everything(opened) -> None:
    with opened() as tab:
        english, titles = tab.locator("body").inner_text(), tab.locator("main h2").all_inner_texts()
        settled(tab, lambda: tab.locator("#language").select_option("zh"))
        tab.wait_for_function(
            "() => document.documentElement.dataset.settled === document.documentElement.dataset.ready"
        )
        chinese = tab.locator("body").inner_text()
        assert set(titles).isdisjoint(tab.locator("main h2").all_inner_texts())
        assert tab.evaluate("document.documentElement.lang") == "zh"
        assert tab.title() == "注意力：每个数都可以动手改"
        for text in (english, chinese):
            assert "undefined" not in text
            assert re.search(r"\{[a-z]+\}", text) is None  # a name that was not filled in
        assert "查询、键、值" in chinese
        assert "Undo" not in chinese


def test_only_what_is_near_the_screen_is_drawn_at_once(opened) -> None:
    with opened(viewport={"width": 600, "height": 400}) as tab:
        last = "document.querySelector(\"#step-mixing [data-name='output-0']\").values"
        before = tab.evaluate(last)
        tab.evaluate("document.getElementById('step-vectors').scrollIntoView()")
        rest(tab, 100)
        # the edit, and what was drawn when it was done
        changed = tab.evaluate(
            f"""() => {{
              const target = document.querySelector("#step-vectors [data-name='x'] td[tabindex='0']");
              target.focus();
              target.dispatchEvent(new KeyboardEvent("keydown", {{ key: "ArrowUp", altKey: true, bubbles: true }}));
              return [document.querySelector("#step-vectors [data-name='x']").values[0][0], {last}];
            }}"""
        )
        assert changed == [1.1, before]
        rest(tab, 800)
        assert tab.evaluate(last) != before


def test_everything_is_drawn_before_printing_and_answers_are_shown(opened) -> None:
    with opened() as tab:
        tab.evaluate("dispatchEvent(new Event('beforeprint'))")
        assert tab.evaluate("[...document.querySelectorAll('details.question')].every(answer => answer.open)")
        tab.evaluate("dispatchEvent(new Event('afterprint'))")
        assert not tab.evaluate("[...document.querySelectorAll('details.question')].some(answer => answer.open)")
        tab.emulate_media(media="print")
        buttons = """content => [...document.querySelectorAll("main button")].filter(button => button.checkVisibility()
          && Boolean(button.closest(".mask-grid, .real-sentence, .real-table, .written")) === content).length"""
        assert tab.evaluate(buttons, False) == 0  # nothing to press
        assert tab.evaluate(buttons, True) > 9 + 15 + 15  # but pairs of the mask, words and keys can be read


def test_the_overview_follows_and_leads_to_the_step(opened) -> None:
    with opened() as tab:
        picture = "document.querySelector(\"[data-stage='K'] canvas\").toDataURL()"
        before = tab.evaluate(picture)
        settled(tab, lambda: type_in(tab, cell(tab, "w-key-0", 0, 0), "-3"))
        assert tab.evaluate(picture) != before
        tab.locator("[data-stage='O']").click()
        assert fields_of(tab)["step"] == "mixing"
        top = tab.locator("#step-mixing h2").bounding_box()["y"]
        nav = tab.locator("#nav").bounding_box()
        assert nav["y"] + nav["height"] <= top < 300
        tab.evaluate("document.getElementById('step-projections').scrollIntoView()")
        rest(tab, 200)
        assert fields_of(tab)["step"] == "projections"


def test_the_row_that_is_chosen_is_that_of_all_steps(opened) -> None:
    with opened() as tab:
        tab.locator("#step-projections").scroll_into_view_if_needed()
        settled(tab, lambda: tab.locator("#row").select_option("2"))
        assert tab.locator("#step-projections [data-name='queries-0'] tr.chosen").inner_text().startswith("你")
        tab.locator("#step-mixing [data-name='output-0'] tbody th").nth(1).click()
        assert tab.locator("#row").input_value() == "1"
        assert tab.locator("#undo").is_disabled()  # nothing was changed


def test_python_is_copied_or_selected(opened) -> None:
    with opened() as tab:
        tab.locator("#copy").click()
        tab.wait_for_function("() => document.getElementById('note').textContent")
        tab.locator("#python summary").click()
        if not tab.locator("#lines").is_visible():
            tab.locator("#python summary").click()
        assert "import torch" in tab.locator("#lines").inner_text()


def test_a_step_is_saved_as_a_picture(opened) -> None:
    with opened() as tab:
        for kind in ("PNG", "SVG"):
            with tab.expect_download() as saved:
                tab.locator("#step-projections .pictures button", has_text=kind).click()
            assert saved.value.suggested_filename == f"attention-projections.{kind.lower()}"


def test_a_picture_has_the_numbers_and_names_of_the_step(opened, tmp_path: Path) -> None:
    from xml.etree import ElementTree

    with opened() as tab:
        settled(tab, lambda: type_in(tab, cell(tab, "x", 0, 0), "-0.375"))
        with tab.expect_download() as saved:
            tab.locator("#step-projections .pictures button", has_text="SVG").click()
        saved.value.save_as(tmp_path / "picture.svg")
    tree = ElementTree.parse(tmp_path / "picture.svg")
    texts = [text.text for text in tree.iter("{http://www.w3.org/2000/svg}text")]
    assert "−0.375" in texts
    assert {"我", "爱", "你"} <= set(texts)
    assert "var(" not in (tmp_path / "picture.svg").read_text(encoding="utf-8")


def test_wide_matrices_are_strips_that_are_read_and_changed_and_shown_as_tables(opened) -> None:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(4, 64)).round(3).tolist()
    head = {name: rng.normal(size=(64, 4)).round(3).tolist() for name in ("query", "key", "value")}
    with opened(fields={"tokens": list("abcd"), "x": x, "heads": [head]}) as tab:
        figure = tab.locator("#step-projections [data-name='x']")
        canvas = figure.locator("canvas")
        canvas.focus()
        for key in ("ArrowDown", "ArrowRight", "ArrowRight"):
            tab.keyboard.press(key)
        assert f"= {x[1][2]}".replace("-", "−") in tab.locator("#readout").inner_text()
        box = canvas.bounding_box()
        tab.mouse.move(box["x"] + box["width"] * 60.5 / 64, box["y"] + box["height"] * 3.5 / 4)
        assert f"= {x[3][60]}".replace("-", "−") in tab.locator("#readout").inner_text()
        canvas.focus()
        tab.keyboard.type("5")
        settled(tab, lambda: tab.keyboard.press("Enter"))
        assert values(tab, "x")[1][2] == 5
        np.testing.assert_allclose(
            values(tab, "queries-0"), np.array(values(tab, "x")) @ np.array(head["query"]), atol=1e-9
        )
        largest = 5  # of what was typed
        scale = figure.locator(".strip-scale").inner_text().replace("−", "-").split()
        assert [float(end) for end in scale] == pytest.approx([-largest, largest], rel=6e-3)
        hints = tab.locator("#step-projections .strip-hint:visible").all_inner_texts()
        assert len(hints) == 1  # once in a step
        assert "arrow keys" in hints[0]
        figure.locator(".flip").click()
        assert figure.locator("tbody td").count() == 4 * 64
        assert figure.locator("tbody tr").nth(1).locator("td").nth(2).inner_text() == "5"


def test_words_are_renamed_added_removed_and_exchanged(opened) -> None:
    with opened(fields={"mask": {"kind": "drawn", "rows": ["111", "101", "111"]}}) as tab:
        first = tab.locator("#step-vectors .words input").first
        first.fill("她")
        settled(tab, lambda: first.press("Enter"))
        assert tab.locator("#step-projections [data-name='queries-0'] tbody th").first.inner_text().endswith("她")
        settled(tab, lambda: tab.locator("#step-vectors .swap").first.click())
        assert values(tab, "x") == [X[1], X[0], X[2]]
        settled(tab, lambda: tab.locator("#step-vectors .add").first.click())
        assert np.shape(values(tab, "x")) == (4, 4)
        tab.evaluate("dispatchEvent(new Event('beforeprint'))")
        assert np.shape(values(tab, "weights-0")) == (4, 4)
        settled(tab, lambda: tab.locator("#step-vectors .remove").nth(1).click())
        assert values(tab, "x")[:2] == [X[1], X[2]]


def test_exchanging_words_moves_rows_and_changes_nothing_else_until_positions_are_added(opened) -> None:
    def output(tab) -> np.ndarray:
        tab.evaluate("dispatchEvent(new Event('beforeprint'))")
        return np.array(values(tab, "output-0"))

    with opened() as tab:
        before = output(tab)
        settled(tab, lambda: tab.locator("#step-vectors .swap").first.click())
        np.testing.assert_allclose(output(tab), before[[1, 0, 2]], atol=1e-12)
        settled(tab, lambda: tab.locator("#step-vectors input[value=sinusoidal]").check())
        with_positions = output(tab)
        settled(tab, lambda: tab.locator("#step-vectors .swap").first.click())
        assert np.abs(output(tab) - with_positions[[1, 0, 2]]).max() > 0.01


def test_the_page_never_scrolls_sideways(opened) -> None:
    with opened(fields={"positions": "sinusoidal"}) as tab:
        for language in ("en", "zh"):
            if language == "zh":
                settled(tab, lambda: tab.locator("#language").select_option("zh"))
            for width in (360, 768, 1280):
                tab.set_viewport_size({"width": width, "height": 800})
                rest(tab, 100)
                assert tab.evaluate("document.documentElement.scrollWidth") <= width, (language, width)


@pytest.mark.parametrize("theme", ["light", pytest.param("dark", marks=pytest.mark.slow)])
def test_axe_finds_no_violation(opened, theme: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    with opened(color_scheme="light") as tab:
        settled(tab, lambda: tab.locator("#theme").select_option(theme))
        settled(tab, lambda: tab.locator("#step-vectors input[value=sinusoidal]").check())
        type_in(tab, cell(tab, "w-key-0", 0, 0), "abc")
        tab.evaluate("for (const details of document.querySelectorAll('details')) details.open = true")
        found = axe.Axe().run(tab).response["violations"]
        assert [(rule["id"], [node["target"] for node in rule["nodes"]][:3]) for rule in found] == []


def test_a_link_leads_to_a_step(opened) -> None:
    with opened("#step-mixing") as tab:
        assert alerts(tab) == []
        assert 0 < tab.locator("#step-mixing h2").bounding_box()["y"] < 300
        assert fields_of(tab)["step"] == "mixing"


def test_queries_keys_and_values_that_are_given_are_changed_themselves(opened) -> None:
    rng = np.random.default_rng(2)
    query, key, value = (rng.normal(size=size).round(3).tolist() for size in ((2, 4), (3, 4), (3, 5)))
    sides = {"tokens": ["I", "love"], "x": query, "keyTokens": list("我爱你"), "keyX": key, "valueX": value}
    with opened(fields=sides | {"heads": None}) as tab:
        settled(tab, lambda: type_in(tab, cell(tab, "keys-0", 2, 3), "2.5"))
        key[2][3] = 2.5
        powers = np.exp(np.array(query) @ np.array(key).T / 2)
        weights = powers / powers.sum(axis=1, keepdims=True)
        tab.evaluate("dispatchEvent(new Event('beforeprint'))")
        np.testing.assert_allclose(values(tab, "output-0"), weights @ np.array(value), atol=1e-12)
        settled(tab, lambda: tab.locator("#step-vectors .remove").last.click())  # a key and its value
        tab.evaluate("dispatchEvent(new Event('beforeprint'))")
        assert np.shape(values(tab, "weights-0")) == (2, 2)


def test_a_new_change_forgets_what_could_be_redone(opened) -> None:
    with opened() as tab:
        settled(tab, lambda: type_in(tab, cell(tab, "x", 0, 0), "5"))
        settled(tab, lambda: tab.locator("#undo").click())
        settled(tab, lambda: type_in(tab, cell(tab, "x", 0, 0), "6"))
        assert tab.locator("#redo").is_disabled()


def test_light_and_dark_are_chosen_on_the_page_whatever_the_system_has(opened) -> None:
    paper = "getComputedStyle(document.body).backgroundColor"
    strip = "document.querySelector(\"[data-stage='X'] canvas\").toDataURL()"
    with opened(color_scheme="dark") as tab:
        dark, dark_strip = tab.evaluate(paper), tab.evaluate(strip)
        settled(tab, lambda: tab.locator("#theme").select_option("light"))
        assert tab.evaluate(paper) == "rgb(255, 255, 255)"
        assert tab.evaluate(strip) != dark_strip
        settled(tab, lambda: tab.locator("#theme").select_option("system"))
        assert (tab.evaluate(paper), tab.evaluate(strip)) == (dark, dark_strip)


def test_matrices_are_tables_with_headers_and_captions(opened) -> None:
    with opened() as tab:
        tables = tab.evaluate(
            """() => [...document.querySelectorAll("main figure.matrix table")].map(table => ({
              caption: table.caption.textContent.trim(),
              values: table.closest("figure").values,
              columns: [...table.querySelectorAll("thead th[scope=col]")].map(cell => cell.textContent),
              rows: [...table.querySelectorAll("tbody th[scope=row]")].length,
            }))"""
        )
        assert len(tables) > 10
        for table in tables:
            assert table["caption"]
            assert (table["rows"], len(table["columns"])) == np.shape(table["values"])
            assert all(table["columns"])


def test_names_are_text_whatever_they_look_like(opened) -> None:
    hostile = ["<img src=x onerror=alert(1)>", "</script><script>alert(1)</script>", "\u202e{one}"]
    with opened(fields={"tokens": hostile}) as tab:
        settled(tab, lambda: tab.locator("#step-vectors .swap").first.click())
        tab.locator("#step-vectors [data-name='x'] td").first.hover()
        assert tab.locator("main img, main script").count() == 0
        assert hostile[0] in tab.locator("#step-vectors .exchanged").inner_text()
        with tab.expect_download():
            tab.locator("#step-vectors .pictures button", has_text="PNG").click()


def test_the_focus_stays_in_a_matrix_whose_size_changes(opened) -> None:
    with opened() as tab:
        settled(tab, lambda: tab.locator("#step-vectors .add").first.click())
        cell(tab, "x", 3, 1, step="vectors").focus()
        settled(tab, lambda: tab.keyboard.press("Control+z"))
        assert tab.evaluate("[document.activeElement.row, document.activeElement.column]") == [2, 1]


def test_undo_stays_in_sight_on_a_phone(opened) -> None:
    with opened(viewport={"width": 360, "height": 740}) as tab:
        settled(tab, lambda: type_in(tab, cell(tab, "x", 0, 0, step="projections"), "7"))
        tab.locator("#step-mixing").scroll_into_view_if_needed()
        box = tab.locator("#undo").bounding_box()
        assert 0 <= box["y"] < 120
        assert 0 <= box["x"] <= 360 - box["width"]
        assert min(box["width"], box["height"]) >= 24
        settled(tab, lambda: tab.locator("#undo").click())
        assert values(tab, "x") == X


HUGE = {  # one more 1e70 in X, and scores × scale overflow
    "heads": [{"query": [[1e70, 0], *W[1:]], "key": [[1e70, 0], *W[1:]], "value": W}],
    "score": {"kind": "bilinear", "weight": [[1e70, 0], [0, 1]]},
    "scale": 1e60,
}


def test_a_refused_change_keeps_what_can_be_redone(opened) -> None:
    with opened(fields=HUGE) as tab:
        settled(tab, lambda: type_in(tab, cell(tab, "w-value-0", 0, 0), "2"))
        settled(tab, lambda: tab.locator("#undo").click())
        settled(tab, lambda: type_in(tab, cell(tab, "x", 0, 0), "1e70"))
        assert tab.locator("#trouble").is_visible()
        assert values(tab, "x") == X
        assert tab.locator("#undo").is_disabled()
        settled(tab, lambda: tab.locator("#redo").click())
        assert values(tab, "w-value-0")[0][0] == 2


def test_a_start_that_overflows_gets_a_sentence(opened) -> None:
    with opened(fields=HUGE | {"x": [[1e70, 0, 0, 0], *X[1:]]}, ready="#trouble:visible") as tab:
        tab.locator("#language").select_option("zh")
        assert "64 位" in tab.locator("#trouble").inner_text()


def test_a_link_to_a_step_keeps_the_changes(opened) -> None:
    with opened() as tab:
        settled(tab, lambda: type_in(tab, cell(tab, "x", 0, 0), "7"))
        rest(tab, 300)  # the address is written
        tab.evaluate("() => { location.hash = '#step-mixing'; }")
        tab.wait_for_function("() => document.getElementById('steps').value === 'mixing'")
        assert values(tab, "x")[0][0] == 7
        tab.locator("[data-stage='A']").hover()
        link = tab.locator("[data-stage='A']").get_attribute("href")
    with opened(link) as tab:
        assert values(tab, "x")[0][0] == 7
        assert fields_of(tab)["step"] == "softmax"


def test_the_theme_survives_reloading_and_is_not_in_the_address(opened) -> None:
    with opened(color_scheme="light") as tab:
        settled(tab, lambda: tab.locator("#theme").select_option("dark"))
        settled(tab, lambda: type_in(tab, cell(tab, "x", 0, 0), "7"))
        assert "theme" not in fields_of(tab)
        tab.reload()
        tab.wait_for_selector("html[data-settled]")
        assert tab.locator("#theme").input_value() == "dark"
        assert tab.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(20, 23, 28)"
        assert values(tab, "x")[0][0] == 7


def test_the_readout_covers_no_cell_that_it_is_about_and_does_not_linger(opened) -> None:
    with opened(viewport={"width": 360, "height": 500}) as tab:
        target = cell(tab, "queries-0", 1, 1)
        for edge in (2, 250):  # pixels from the cell to the lower edge of the window
            tab.evaluate(
                "([cell, edge]) => scrollBy(0, cell.getBoundingClientRect().bottom - innerHeight + edge)",
                [target.element_handle(), edge],
            )
            rest(tab, 100)
            before = target.bounding_box()
            tab.mouse.move(before["x"] + 10, before["y"] + 10)
            assert tab.locator("#readout").is_visible()
            box, bar = target.bounding_box(), tab.locator("#readout").bounding_box()
            assert bar["y"] >= box["y"] + box["height"] or bar["y"] + bar["height"] <= box["y"]
            tab.evaluate("scrollBy(0, 600)")
            tab.wait_for_function("() => document.getElementById('readout').hidden")
            assert tab.locator(".lit").count() == 0


def test_escape_ends_the_readout(opened) -> None:
    with opened() as tab:
        cell(tab, "queries-0", 1, 1).focus()
        assert tab.locator("#readout").is_visible()
        tab.keyboard.press("Escape")
        assert tab.locator("#readout").is_hidden()


def test_boxes_that_scroll_show_on_which_side_there_is_more(opened) -> None:
    wide = {"tokens": list("abcdefghijkl"), "x": (X * 4)[:12]}
    with opened(viewport={"width": 360, "height": 740}, fields=wide) as tab:
        box = "#step-softmax [data-name='weights-0'] .matrix-box"
        sides = f"[...document.querySelector(\"{box}\").classList].filter(name => name.startsWith('more'))"
        assert tab.evaluate(sides) == ["more-right"]
        assert tab.evaluate(f'getComputedStyle(document.querySelector("{box}")).boxShadow') != "none"
        tab.evaluate(f'document.querySelector("{box}").scrollBy(30, 0)')
        tab.wait_for_function(f"() => {sides}.length === 2")
        tab.evaluate(f'document.querySelector("{box}").scrollBy(9999, 0)')
        tab.wait_for_function(f"() => {sides}.join() === 'more-left'")
        tab.set_viewport_size({"width": 1280, "height": 740})
        tab.wait_for_function(f"() => {sides}.length === 0")
        tab.set_viewport_size({"width": 360, "height": 740})
        tab.emulate_media(media="print")
        hidden = "(box => box.scrollWidth > box.clientWidth && getComputedStyle(box).overflowX !== 'visible')"
        selector = ".matrix-box, .scroll, .wide, pre"
        assert not tab.evaluate(f"[...document.querySelectorAll('{selector}')].filter({hidden}).length")


def test_words_of_the_example_are_translated_for_readers_of_english(opened) -> None:
    with opened() as tab:
        assert tab.locator("#gloss").inner_text().endswith("我 (I), 爱 (love), 你 (you).")
        assert tab.locator("#row option").all_inner_texts() == ["1. 我 (I)", "2. 爱 (love)", "3. 你 (you)"]
        settled(tab, lambda: tab.locator("#language").select_option("zh"))
        assert tab.locator("#gloss").is_hidden()
        assert tab.locator("#row option").first.inner_text() == "1. 我"
    with opened(fields={"tokens": ["a", "b", "toString"]}) as tab:
        assert tab.locator("#gloss").is_hidden()


def test_the_row_is_offered_only_where_tables_are_about_it(opened) -> None:
    with opened("#step-real") as tab:
        assert not tab.locator("#row").is_visible()
        height = tab.locator("#nav").bounding_box()["height"]
        tab.locator("#steps").select_option("mask")
        tab.wait_for_selector("#row:visible")
        assert tab.locator("#nav").bounding_box()["height"] == height  # nothing moves


def test_the_steps_have_the_order_of_the_road(opened) -> None:
    with opened() as tab:
        steps = tab.evaluate("[...document.querySelectorAll('main > section')].map(({ id }) => id.slice(5))")
        road = "why vectors projections scores mask softmax mixing heads real transformer other_scores"
        assert steps == road.split()


def test_typing_replaces_a_number_also_after_its_cell_was_opened_and_closed(opened) -> None:
    with opened() as tab:
        target = cell(tab, "x", 0, 0)
        for close in ("Escape", "Enter"):
            target.focus()
            tab.keyboard.press("F2")
            tab.keyboard.press(close)
            before = str(values(tab, "x")[0][0])
            tab.keyboard.type(f"{before}5")  # begins as the number that is there
            settled(tab, lambda: tab.keyboard.press("Enter"))
            assert values(tab, "x")[0][0] == float(f"{before}5")


def paste(tab, text: str) -> None:
    tab.evaluate(
        """text => {
          const clipboardData = new DataTransfer();
          clipboardData.setData("text/plain", text);
          document.activeElement.dispatchEvent(new ClipboardEvent("paste", { clipboardData, bubbles: true }));
        }""",
        text,
    )


def test_numbers_are_pasted_as_one_change(opened) -> None:
    with opened() as tab:
        cell(tab, "x", 1, 2).focus()
        settled(tab, lambda: paste(tab, "2.5\t−1\r\n3\t4e-1\r\n"))
        assert values(tab, "x") == [X[0], [0, 2, 2.5, -1], [1, 1, 3, 0.4]]
        settled(tab, lambda: tab.locator("#undo").click())
        assert values(tab, "x") == X
        assert tab.locator("#undo").is_disabled()
        for text in ("1 2 3", "1\n2\n3", "1 a"):
            cell(tab, "x", 1, 2).focus()
            paste(tab, text)
            assert len(alerts(tab)) == 1, text
            assert values(tab, "x") == X, text


def test_a_decimal_comma_is_named(opened) -> None:
    with opened() as tab:
        type_in(tab, cell(tab, "x", 1, 1), "0,5")
        assert "comma" in alerts(tab)[0]


def test_a_file_that_is_no_lesson_is_named_so(opened, tmp_path: Path) -> None:
    with opened() as tab:
        for text, reason in {'{"a": 1}': "regard_lesson", "[1, 2]": "regard_lesson", "{": "not JSON"}.items():
            (tmp_path / "other.json").write_text(text)
            tab.locator("#file").set_input_files(tmp_path / "other.json")
            tab.wait_for_function(
                "reason => document.getElementById('trouble').textContent.includes(reason)", arg=reason
            )


def test_the_list_of_keys_is_one_key_away(opened) -> None:
    with opened() as tab:
        tab.keyboard.press("?")
        assert tab.locator("#help-list").is_visible()
        assert tab.evaluate("document.activeElement.parentElement.id") == "help"
        tab.evaluate("() => { document.getElementById('help').open = false; scrollTo(0, 0); }")
        tab.locator("#keys").click()
        assert tab.locator("#help-list").is_visible()


def test_a_picture_has_the_tables_of_a_step_too(opened, tmp_path: Path) -> None:
    from xml.etree import ElementTree

    svg = "{http://www.w3.org/2000/svg}"
    with opened(fields={"mask": {"kind": "drawn", "rows": ["110", "111", "111"]}}) as tab:
        for step, words in {"mask": {"✓", "4096"}, "scores": {"entropy", "Variance of q·k up to d = 64"}}.items():
            with tab.expect_download() as saved:
                tab.locator(f"#step-{step} .pictures button", has_text="SVG").click()
            saved.value.save_as(tmp_path / "picture.svg")
            tree = ElementTree.parse(tmp_path / "picture.svg")
            texts = [text.text or "" for text in tree.iter(f"{svg}text")]
            assert all(any(text.startswith(word) for text in texts) for word in words), step
            if step == "mask":
                assert texts.count("✓") == 8
