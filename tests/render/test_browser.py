"""The page in a real browser: what is shown is what the record holds, by mouse and by keyboard."""

import dataclasses
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch

import regard
from chromium import chromium, needs_chromium, rest, view, visit
from named_places import PLACES
from regard.nn import MultiHeadAttention
from regard.record.highlight import Focus
from regard.record.places import find_place
from regard.record.tokens import Word
from regard.record.word_looks import Look
from regard.render.page import client_text, write_page
from regard.render.page.record_data import tokens_json
from render.conftest import Case, head_weights, make_layer, make_record

pytestmark = [pytest.mark.browser, needs_chromium]


@pytest.fixture(scope="module")
def browser():
    with chromium() as running:
        yield running


@pytest.fixture
def opened(browser, tmp_path: Path):
    """Open the page of a record; after the test, nothing may have complained, asked the network or opened a dialog."""

    @contextmanager
    def open_page(case, **context) -> Iterator:
        path = tmp_path / "page.html"
        write_page(case.record, case.focus, path, title="<b>it</b>", command="regard steps")
        trouble: list[str] = []
        with browser.new_context(viewport={"width": 1100, "height": 900}, **context) as fresh:
            tab = fresh.new_page()
            tab.on("console", lambda message: trouble.append(f"console: {message.text}"))
            tab.on("pageerror", lambda error: trouble.append(f"error: {error}"))
            tab.on("dialog", lambda dialog: (trouble.append(f"dialog: {dialog.message}"), dialog.dismiss()))
            tab.on("request", lambda request: request.url == path.as_uri() or trouble.append(f"request: {request.url}"))
            tab.goto(path.as_uri())
            tab.wait_for_selector("html[data-ready]", timeout=20_000)
            yield tab
        assert trouble == []

    return open_page


def shown(tab, slot: str = "a") -> dict[tuple[int, int], float]:
    """The weights in the list, as a reader sees them."""
    items = tab.locator(f"#weights-{slot} li").all()
    return {
        (int(item.get_attribute("data-query")), int(item.get_attribute("data-key"))): float(
            item.locator(".number").inner_text()
        )
        for item in items
    }


def settled(tab, act) -> None:
    """Do something that redraws the page, and wait until it has."""
    before = tab.evaluate("document.documentElement.dataset.ready")
    act()
    tab.wait_for_function("before => document.documentElement.dataset.ready !== before", arg=before)


def place(tab, query: float, key: float) -> dict[str, float]:
    """Where on the map a row and a column cross, as the address and the frame tell."""
    shown_at = view(tab)
    left, top, width, height = map(float, tab.locator("#map").get_attribute("data-frame").split(","))
    zoom = float(shown_at["zoom"])
    return {
        "x": left + width / 2 + (key + 0.5 - float(shown_at["x"])) * zoom,
        "y": top + height / 2 + (query + 0.5 - float(shown_at["y"])) * zoom,
    }


def read(tab) -> str:
    """The first line of what is read from the map."""
    rest(tab, 200)  # a single weight is read once the pointer rests
    return tab.locator("#readout div").first.inner_text()


def expect(weights: dict[tuple[int, int], float], matrix: np.ndarray, query: int, count: int = 10) -> None:
    best = np.argsort(-matrix[query], kind="stable")[:count]
    assert {key for _, key in weights} == set(best.tolist())
    for (row, key), weight in weights.items():
        assert row == query
        assert weight == pytest.approx(matrix[query, key], abs=1e-4)


@pytest.mark.slow
def test_it_opens_with_the_two_heads_of_the_focus(opened, english) -> None:
    with opened(english) as tab:
        expect(shown(tab, "a"), english.record.weights(layer=5, head=11)[0], 8)
        expect(shown(tab, "b"), english.record.weights(layer=5, head=3)[0], 8)
        assert tab.locator("#weights-a li").first.inner_text().split("\n")[0] == "it → animal"
        assert tab.locator(".token.active").inner_text() == "it"
        assert tab.locator("path.line-a").count() > 0
        assert tab.locator("path.line-b").count() > 0
        assert tab.locator("h1").inner_text() == "<b>it</b>"


@pytest.mark.slow
@pytest.mark.parametrize("query", range(1, 10))
def test_hovering_shows_the_weights_of_that_token_whatever_it_is(opened, hostile, query: int) -> None:
    with opened(hostile) as tab:
        tab.locator(f"#queries [data-unit='{query}']").hover()
        matrix = hostile.record.weights(layer=0, head=0)[0]
        weights = shown(tab)
        for (row, key), weight in weights.items():
            assert row == query
            assert weight == pytest.approx(matrix[query, key], abs=1e-4)
        assert max(weights, key=weights.get) == (query, int(matrix[query].argmax()))
        tab.locator("h1").hover()
        assert {row for row, _ in shown(tab)} == {3}  # back to the word that was chosen


def test_hostile_tokens_are_text_to_the_reader(opened, hostile) -> None:
    with opened(hostile) as tab:
        texts = tab.locator("#queries .token").all_inner_texts()
        assert texts[1:4] == ["<script>alert(1)</script>", "-->", "[red]x"]
        assert tab.evaluate("document.querySelectorAll('#text script').length") == 0


@pytest.mark.slow
def test_the_statistics_of_both_heads_are_beside_their_names(opened, measured) -> None:
    largest = measured.record.layers[5].statistics["largest"]
    with opened(measured) as tab:
        for slot, head in (("a", 11), ("b", 3)):
            shown = tab.locator(f"#pattern-{slot}").inner_text().split(" · ")
            assert shown[1:] == [f"largest {float(f'{largest[0, head, 1:-1].mean():.3g}')}", "shared 0.125"]


@pytest.mark.slow
def test_lines_are_as_wide_as_their_weights(opened, english) -> None:
    with opened(english) as tab:
        lines = tab.locator("path.line-a").all()
        pairs = [
            (float(line.get_attribute("data-weight")), float(line.get_attribute("stroke-width"))) for line in lines
        ]
        assert pairs == sorted(pairs)
        assert max(pairs)[0] == pytest.approx(0.6, abs=1e-4)
        assert all(width == pytest.approx(1 + 5 * weight, abs=1e-3) for weight, width in pairs)


@pytest.mark.slow
def test_the_longest_line_ends_at_the_word_it_is_about(opened, english) -> None:
    with opened(english) as tab:
        tip = tab.locator("path.tip-a").last.bounding_box()
        animal = tab.locator("#queries [data-unit='2']").bounding_box()
        assert tip["x"] + tip["width"] / 2 == pytest.approx(animal["x"] + animal["width"] / 2, abs=6)
        assert abs(tip["y"] + tip["height"] - animal["y"]) < 4


def test_layer_and_head_pickers_change_what_is_shown(opened, english) -> None:
    with opened(english) as tab:
        settled(tab, lambda: tab.locator("#layer-a").select_option("2"))
        settled(tab, lambda: tab.locator("#head-a").select_option("7"))
        expect(shown(tab, "a"), english.record.weights(layer=2, head=7)[0], 8)
        assert tab.locator("#map-title").inner_text() == "Layer 2 head 7: 13 × 13"
        settled(tab, lambda: tab.locator("#show-b").uncheck())
        assert tab.locator("path.line-b").count() == 0
        assert not tab.locator("#weights-b").is_visible()


@pytest.mark.slow
def test_a_click_on_a_small_map_chooses_its_head(opened, english) -> None:
    with opened(english) as tab:
        settled(tab, lambda: tab.locator(".head[data-layer='1'][data-head='4']").click())
        expect(shown(tab, "a"), english.record.weights(layer=1, head=4)[0], 8)
        tab.locator("input[name=slot][value=b]").check()
        settled(tab, lambda: tab.locator(".head[data-layer='0'][data-head='2']").click())
        expect(shown(tab, "b"), english.record.weights(layer=0, head=2)[0], 8)
        assert tab.locator("#head-b").input_value() == "2"


@pytest.mark.slow
def test_small_maps_are_painted_from_the_weights(opened, english) -> None:
    with opened(english) as tab:
        pixels = tab.evaluate(
            """() => { const canvas = document.querySelector(".head[data-layer='0'][data-head='3'] canvas");
            const pen = canvas.getContext("2d"); const data = pen.getImageData(0, 0, canvas.width, canvas.height).data;
            return Array.from({length: canvas.width * canvas.height}, (_, i) => data[4 * i]); }"""
        )
        weights = english.record.weights(layer=0, head=3)[0]
        red = np.array(pixels).reshape(weights.shape)  # red falls as the weight grows
        assert (red.argmin(-1) == weights.argmax(-1)).all()
        assert (red[:, -1] < 40).all()  # the column of [SEP] in this head


@pytest.mark.slow
def test_the_map_names_the_cell_under_the_pointer(opened, english) -> None:
    with opened(english) as tab:
        tab.locator("#map").hover(position=place(tab, 8, 2))
        assert read(tab) == "it → animal: 0.6000 (row 9, column 3)"
        settled(tab, lambda: tab.locator("#map").click(position=place(tab, 10, 2)))
        assert tab.locator(".token.active").inner_text() == "too"


@pytest.mark.slow
def test_everything_works_by_keyboard_alone(opened, english) -> None:
    with opened(english) as tab:
        stops = []
        for _ in range(24):
            tab.keyboard.press("Tab")
            stops.append(tab.evaluate("document.activeElement.id || document.activeElement.className"))
            if stops[-1].startswith("token"):
                assert tab.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
                tab.keyboard.press("ArrowLeft")
                expect(shown(tab), english.record.weights(layer=5, head=11)[0], 7)
                tab.keyboard.press("End")
                expect(shown(tab), english.record.weights(layer=5, head=11)[0], 12)
            if stops[-1] == "map":
                tab.keyboard.press("ArrowUp")
                tab.keyboard.press("ArrowUp")
                tab.keyboard.press("ArrowLeft")
                assert read(tab).startswith("too → tired: ")
            if stops[-1].startswith("head "):
                tab.keyboard.press("ArrowUp")
                settled(tab, lambda: tab.keyboard.press("Enter"))
                assert tab.locator("#layer-a").input_value() == "4"
        assert [stop for stop in stops if stop.startswith(("layer", "head-", "show"))] == [
            "layer-a", "head-a", "layer-b", "head-b", "show-b",
        ]  # fmt: skip
        assert "map" in stops
        assert any(stop.startswith("token") for stop in stops)
        assert any(stop.startswith("head ") for stop in stops)


@pytest.mark.slow
def test_words_are_means_over_their_query_pieces_and_sums_over_their_key_pieces(opened, pieces) -> None:
    with opened(pieces) as tab:
        words = pieces.focus.queries
        weight = pieces.record.word_weight(0, words[2], words[1])[0]
        assert shown(tab)[4, 1] == pytest.approx(weight, abs=1e-4)
        assert tab.locator("#queries .token").all_inner_texts() == ["[CLS]", "unbelievable", "tokenizer", "[SEP]"]
        settled(tab, lambda: tab.locator("#words").uncheck())
        assert tab.locator("#queries .token").all_inner_texts()[1:4] == ["un", "believ", "able"]
        assert tab.locator(".token.active").inner_text() == "token"
        expect(shown(tab), pieces.record.weights(layer=0, head=0)[0], 4, count=7)


@pytest.mark.slow
def test_the_merge_switch_is_hidden_where_every_word_is_one_piece(opened, english) -> None:
    with opened(english) as tab:
        assert not tab.locator("#words").is_visible()


@pytest.mark.slow
def test_cross_attention_shows_both_sentences(opened, cross) -> None:
    with opened(cross) as tab:
        assert "Tier" in tab.locator("#keys").inner_text()
        assert tab.locator("#keys button").count() == 0
        tab.locator("#queries [data-unit='4']").hover()
        expect(shown(tab), cross.record.weights(layer=1, head=0)[0], 4, count=7)
        assert tab.locator("#weights-a li").first.inner_text().startswith("tired → ")


@pytest.mark.slow
def test_a_long_text_shows_its_strongest_keys_and_turns_its_parts(opened, long_text) -> None:
    with opened(long_text) as tab:
        weights = shown(tab)
        top = dict(long_text.record.top(layer=5, head=1, query=101))
        assert len(weights) == 8
        assert {key: pytest.approx(weight, abs=1e-4) for (_, key), weight in weights.items()} == top
        tab.locator("#later").click()
        assert tab.locator("#where").inner_text() == "words 401 to 512 of 512"
        tab.locator("#queries [data-unit='450']").hover()
        assert {row for row, _ in shown(tab)} == {450}
        tab.locator("#map").hover(position=place(tab, 101, 21))
        assert read(tab) == "rows 97–104, columns 17–24: 0.60 at most"


@pytest.mark.slow
def test_a_very_long_record_opens_and_switches_layers(opened, very_long) -> None:
    with opened(very_long) as tab:
        assert tab.locator(".head").count() == 270
        settled(tab, lambda: tab.locator("#layer-a").select_option("3"))
        # Random weights hardly deflate: the page carries as many of the strongest keys as fit.
        count = tab.evaluate("JSON.parse(document.getElementById('meta').textContent).layers[3].top")
        assert count >= 1
        top = very_long.record.top(layer=3, head=0, query=2000)[:count]
        assert sum(shown(tab).values()) == pytest.approx(sum(weight for _, weight in top), abs=2e-4)


@pytest.mark.slow
def test_the_page_speaks_chinese(opened, english) -> None:
    with opened(english, locale="zh-CN") as tab:
        assert tab.locator("#map-title").inner_text() == "第 5 层第 11 头：13 × 13"
        assert tab.locator("#patterns").inner_text().startswith("共 72 个头：")
        settled(tab, lambda: tab.locator("#language").select_option("en"))
        assert tab.locator("#name-a").inner_text() == "layer 5 head 11"


@pytest.mark.slow
def test_sinks_are_hidden_with_the_rows_renormalized(opened, english) -> None:
    """Of layer 0, every third head rests on [SEP], so that it is a sink of the layer."""
    weights = np.stack([head_weights(13, 13, "special_tokens", np.random.default_rng(seed)) for seed in range(3)])
    case = Case(dataclasses.replace(english.record, layers=(make_layer(weights, "layer.0"),)), english.focus)
    looks = tuple(dataclasses.replace(look, layer=0, head=at) for at, look in enumerate(case.focus.looks))
    with opened(case._replace(focus=dataclasses.replace(case.focus, looks=looks))) as tab:
        assert "[SEP] (12: " in tab.locator("#sink-note").inner_text()
        settled(tab, lambda: tab.locator("#sinks").uncheck())
        row = weights[0, 8] / (1 - weights[0, 8, 12])
        row[12] = 0
        for (_, key), weight in shown(tab).items():
            assert weight == pytest.approx(row[key], abs=2e-3)  # of the weights' 1/65535, by 1 − s
        tab.locator("#map").hover(position=place(tab, 8, 2))
        assert f"; with sinks {weights[0, 8, 2]:.4f} " in read(tab)


@pytest.mark.slow
def test_unknown_tokens_go_by_position(opened, nameless) -> None:
    with opened(nameless) as tab:
        assert tab.locator("#queries .token").all_inner_texts() == [str(number) for number in range(13)]
        expect(shown(tab), nameless.record.weights(layer=1, head=0)[0], 8)


@pytest.mark.slow
def test_pooled_rows_of_a_layer_go_by_number(opened, english) -> None:
    """They had the first words of the text, the longest of the stream."""
    weights = np.stack([head_weights(5, 13, "other", np.random.default_rng(head)) for head in range(12)])
    layers = (*english.record.layers[1:], make_layer(weights, "pooled"))
    case = Case(dataclasses.replace(english.record, layers=(english.record.layers[0], *layers)), english.focus)
    with opened(case) as tab:
        words = tab.locator("#queries .token").all_inner_texts()
        settled(tab, lambda: tab.locator("#layer-a").select_option("6"))
        assert tab.locator("#queries .token").all_inner_texts() == [str(number) for number in range(5)]
        assert tab.locator("#keys .token").all_inner_texts() == words
        tab.locator("#queries [data-unit='3']").hover()
        expect(shown(tab), weights[11], 3)  # the head of the focus


def luminance(colour: str) -> float:
    channels = [float(part) / 255 for part in colour.removeprefix("rgb(").rstrip(")").split(",")]
    linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("selector", ["h1", ".lede", ".hint", "#name-a", "#name-b", "#weights-a li"])
def test_text_stands_out_from_the_page(opened, english, scheme: str, selector: str) -> None:
    with opened(english, color_scheme=scheme) as tab:
        ink = tab.evaluate("name => getComputedStyle(document.querySelector(name)).color", selector)
        page = tab.evaluate("getComputedStyle(document.body).backgroundColor")
        light, dark = sorted((luminance(ink), luminance(page)), reverse=True)
        limit = 3.0 if selector.startswith("#name") else 4.5  # WCAG: large text, text
        assert (light + 0.05) / (dark + 0.05) >= limit
        assert (luminance(page) < 0.1) == (scheme == "dark")


@pytest.mark.slow
@pytest.mark.parametrize("width", [320, 420, 760])
def test_a_narrow_screen_needs_no_sideways_scrolling(opened, hostile, width: int) -> None:
    with opened(hostile) as tab:
        tab.set_viewport_size({"width": width, "height": 800})
        rest(tab, 150)
        assert tab.evaluate("document.documentElement.scrollWidth") <= width
        assert math.isfinite(tab.locator("#map").bounding_box()["width"])


def test_heads_that_were_not_recorded_have_no_map_and_cannot_be_chosen(english, opened) -> None:
    first, second = english.record.layers[:2]
    record = dataclasses.replace(english.record, layers=(first, dataclasses.replace(second, head_numbers=(1, 4))))
    look = dataclasses.replace(english.focus.looks[0], layer=1, head=4)
    with opened(Case(record, dataclasses.replace(english.focus, looks=(look,)))) as tab:
        grid = [(one.get_attribute("data-layer"), one.get_attribute("data-head")) for one in tab.locator(".head").all()]
        assert grid == [*(("0", str(head)) for head in range(first.heads)), ("1", "1"), ("1", "4")]
        assert tab.locator("#head-a option").all_inner_texts() == ["1", "4"]
        assert str(first.heads + 2) in tab.locator("#patterns").inner_text()
        tab.locator('.head[data-layer="1"][data-head="4"]').focus()
        tab.keyboard.press("ArrowLeft")
        assert tab.evaluate("document.activeElement.dataset.head") == "1"
        before = int(tab.evaluate("document.documentElement.dataset.ready"))
        visit(tab, "head=4", "head=2")  # an address of another record
        tab.wait_for_selector(f'html[data-ready="{before + 1}"]', timeout=20_000)
        assert tab.locator("#head-a").input_value() == "4"


def test_a_row_that_was_not_recorded_is_named_instead_of_a_list_of_its_keys(opened) -> None:
    torch.manual_seed(0)
    attention = MultiHeadAttention(16, num_heads=2).eval()
    with torch.no_grad(), regard.watch(attention, queries=[2]) as seen:
        attention(torch.randn(1, 4, 16))
    words = tuple(Word(word, (at,), special=False) for at, word in enumerate("abcd"))
    with opened(Case(seen.record, Focus(words, words, 2, (Look(0, 0, 0, 0.5),)))) as tab:
        hint = tab.locator("#weights-hint")
        assert "strongest keys" in hint.inner_text()
        assert len(shown(tab)) == 4
        settled(tab, lambda: visit(tab, "query=2", "query=1"))
        assert "was not recorded" in hint.inner_text()
        assert not shown(tab)


def test_the_search_finds_first_what_a_name_means_in_python(browser) -> None:
    asked, expected = [], []
    for tokens, name, *_ in PLACES:
        if isinstance(name, tuple):
            name = f"{name[0]}#{name[1]}"
        if isinstance(name, str):
            record = make_record({"text": tuple(tokens)}, {}, layers=1, heads=1)
            asked.append([tokens_json(record, record.layers[0], 0)["queries"], name])
            expected.append(list(find_place(tokens, name).positions))
    tab = browser.new_page()
    tab.goto("about:blank")
    client = client_text("places.js").replace("export const", "const")
    found = tab.evaluate(
        f"(asked) => {{ {client}\n return asked.map((one) => findPlaces(...one)[0] ?? null); }}", asked
    )
    tab.close()
    wrong = [(one[1], got, right) for one, got, right in zip(asked, found, expected, strict=True) if got != right]
    assert not wrong
