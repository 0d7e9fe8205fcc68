"""The page in a real browser: the number that is read is the weight, by mouse and by keyboard."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from chromium import address, chromium, needs_chromium, rest, view
from regard.record.records import Record
from regard.record.tokens import Token
from regard.render.page import client_text
from web.cases import HOSTILE, SINK, attention, layer_of, serving, web

pytestmark = [pytest.mark.browser, needs_chromium]


@pytest.fixture(scope="module")
def browser():
    with chromium() as running:
        yield running


@pytest.fixture
def opened(browser):
    """Open the page of a server; nothing may complain, ask another host or open a dialog."""

    @contextmanager
    def open_page(client, view: str = "", *, allowed: str = "", **context) -> Iterator:
        trouble: list[str] = []

        def note(kind: str, text: str) -> None:
            if not allowed or not re.search(allowed, text):
                trouble.append(f"{kind}: {text}")

        with browser.new_context(**{"viewport": {"width": 1200, "height": 900}, **context}) as fresh:
            tab = fresh.new_page()
            tab.on("console", lambda message: note("console", message.text))
            tab.on("pageerror", lambda error: note("error", str(error)))
            tab.on("dialog", lambda dialog: (note("dialog", dialog.message), dialog.dismiss()))
            tab.on("request", lambda asked: asked.url.startswith((client.url, "data:")) or note("request", asked.url))
            tab.goto(client.url + view)
            settled(tab)
            yield tab
        assert trouble == []

    return open_page


def settled(tab) -> None:
    """Wait until the page is drawn and no tile is on its way."""
    tab.wait_for_selector("html[data-ready]", timeout=20_000)
    rest(tab, 150)
    until(tab, "(document.documentElement.dataset.waiting ?? '0') === '0'")
    rest(tab, 150)


def until(tab, claim: str, seconds: float = 20) -> None:
    """Wait until something holds; the page's policy forbids Playwright's own waiting, which evaluates text in it."""
    for _ in range(int(seconds * 20)):
        if tab.evaluate(claim):
            return
        tab.wait_for_timeout(50)
    raise AssertionError(f"never true: {claim}")


def place(tab, query: float, key: float) -> tuple[float, float]:
    """Where on the screen a query looks at a key."""
    said = view(tab)
    left, top, width, height = map(float, tab.locator("#map").get_attribute("data-frame").split(","))
    box, zoom = tab.locator("#map").bounding_box(), float(said["zoom"])
    across = left + width / 2 + (key + 0.5 - float(said["x"])) * zoom
    down = top + height / 2 + (query + 0.5 - float(said["y"])) * zoom
    return box["x"] + across, box["y"] + down


def read(tab, query: int | None = None, key: int | None = None) -> tuple[int, int, float]:
    """The single weight that the page tells, once it does."""
    until(tab, "document.getElementById('readout').dataset.weight > ''")
    box = tab.locator("#readout")
    if query is not None:
        tab.wait_for_selector(f"#readout[data-query='{query}'][data-key='{key}']", timeout=10_000)
        until(tab, "document.getElementById('readout').dataset.weight > ''")
    return tuple(
        kind(box.get_attribute(f"data-{name}")) for kind, name in ((int, "query"), (int, "key"), (float, "weight"))
    )


def links(tab, slot: str = "a") -> dict[int, float]:
    items = tab.locator(f"#weights-{slot} li").all()
    return {int(item.get_attribute("data-key")): float(item.locator(".number").inner_text()) for item in items}


def strongest(row: np.ndarray) -> dict[int, float]:
    return {int(key): pytest.approx(row[key], abs=6e-5) for key in np.argsort(-row)[:10] if row[key] > 0}


def test_zooming_from_the_whole_to_one_weight_reads_it(opened, small) -> None:
    with serving(small.record) as client, opened(client, "#head=1") as tab:
        assert tab.locator("h2#map-title").inner_text() == "Layer 0 head 1: 300 × 300"
        tab.mouse.move(*place(tab, 200, 90))
        for _ in range(20):
            tab.mouse.wheel(0, -200)
            tab.wait_for_timeout(30)
        settled(tab)
        tab.mouse.move(*place(tab, 200, 90))
        query, key, weight = read(tab, 200, 90)
        assert (query, key) == (200, 90)
        assert weight == pytest.approx(small.weights[0][1, 200, 90], abs=1e-5)
        shown = tab.locator("#readout").inner_text()
        assert shown.startswith("w200 → w90: ")
        assert "w198 w199 w200 w201 w202" in " ".join(shown.split())
        assert float(re.search(r": ([\d.e-]+)", shown)[1]) == pytest.approx(small.weights[0][1, 200, 90], rel=2e-3)


@pytest.mark.slow
def test_the_first_picture_stands_within_two_seconds(opened, small) -> None:
    with serving(small.record) as client, opened(client) as tab:
        spent = tab.evaluate(
            "performance.getEntriesByType('resource').filter(e => e.name.includes('/tile')).map(e => e.responseEnd)"
        )
        assert spent
        assert min(spent) < 2000


@pytest.mark.slow
def test_colours_follow_the_weights(opened, small) -> None:
    dense = small.weights[1][2]
    middle = int(dense[200].argmax())
    look = f"#layer=1&head=2&scale=linear&x={middle + 0.5}&y=200.5&zoom=40"
    with serving(small.record) as client, opened(client, look, allowed="willReadFrequently") as tab:
        box, keys = tab.locator("#map").bounding_box(), range(middle - 2, middle + 3)
        places = [place(tab, 200, key) for key in keys]
        lights = [
            tab.evaluate(
                "([x, y]) => { const c = document.getElementById('map'); const r = devicePixelRatio; const pixel = "
                "c.getContext('2d').getImageData(x * r, y * r, 1, 1).data; return pixel[0] + pixel[1] + pixel[2]; }",
                [x - box["x"] + 8, y - box["y"] + 8],
            )
            for x, y in places
        ]
        row = dense[200, keys][np.argsort(lights)]  # from dark to light: from large to small, but for equal colours
        assert (np.diff(row) < dense.max() / 255).all()
        assert max(lights) - min(lights) > 50


@pytest.mark.slow
def test_logarithmic_colours_are_the_decades_below_the_largest_weight(opened, small) -> None:
    """In black and white the lightness is 1 + log₁₀(p / largest) / 3 of the way, 0 below a thousandth."""
    dense = small.weights[1][2]
    look = "#layer=1&head=2&scale=log&x=150.5&y=200.5&zoom=40"
    with serving(small.record) as client, opened(client, look, allowed="willReadFrequently") as tab:
        box, keys = tab.locator("#map").bounding_box(), range(146, 155)
        spots = [(x - box["x"] + 8, y - box["y"] + 8) for x, y in (place(tab, 200, key) for key in keys)]
        pixel = (
            "([x, y]) => { const c = document.getElementById('map'); const r = devicePixelRatio; "
            "return Array.from(c.getContext('2d').getImageData(x * r, y * r, 1, 1).data).slice(0, 3); }"
        )
        seen = np.array([tab.evaluate(pixel, [x, y]) for x, y in spots])
    levels = np.clip(1 + np.log10(dense[200, list(keys)] / dense.max()) / 3, 0, 1)
    assert np.ptp(levels) > 0.3
    stops = np.array([[255, 255, 255], [0x9E, 0xCA, 0xE9], [0, 0x72, 0xB2], [0, 0x20, 0x3F]])
    expected = np.stack([np.interp(3 * levels, range(4), stops[:, part]) for part in range(3)], -1)
    assert np.abs(seen - expected).max() <= 3  # a 255th of the way, and rounding


@pytest.mark.slow
def test_a_tile_that_failed_is_asked_for_again_after_a_rest(opened, small, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    tile = web.HeadTiles.tile

    def failing(*given, **named):
        asked.append(given)
        raise FloatingPointError("bits")

    with serving(small.record) as client, opened(client, allowed="Failed to load resource") as tab:
        monkeypatch.setattr(web.HeadTiles, "tile", failing)
        tab.locator("#pool").select_option("mean")
        tab.wait_for_selector("#trouble:not([hidden])")
        tab.wait_for_timeout(1500)
        assert len(asked) < 10  # not at every frame
        monkeypatch.setattr(web.HeadTiles, "tile", tile)
        until(tab, "document.getElementById('trouble').hidden")
        settled(tab)
        tab.mouse.move(*place(tab, 200, 90))
        assert read(tab, 200, 90)[2] == pytest.approx(small.weights[0][0, 200, 90], abs=1e-5)


@pytest.mark.slow
def test_a_head_is_switched_by_its_small_map_by_lists_and_by_keys(opened, small) -> None:
    with serving(small.record) as client, opened(client, "#query=200&key=3") as tab:
        tab.locator("#heads .head[data-layer='1'][data-head='2']").click()
        until(tab, "document.getElementById('map-title').textContent.startsWith('Layer 1 head 2')")
        settled(tab)
        assert links(tab) == strongest(small.weights[1][2, 200])
        tab.locator("#layer-a").select_option("0")
        settled(tab)
        assert links(tab) == strongest(small.weights[0][2, 200])
        tab.locator("#map").focus()
        tab.keyboard.press("h")
        settled(tab)
        assert links(tab) == strongest(small.weights[0][1, 200])
        assert view(tab)["head"] == "1"


@pytest.mark.slow
def test_searching_jumps_through_the_places(opened, small) -> None:
    with serving(small.record) as client, opened(client) as tab:
        tab.locator("#wanted").fill("W29")
        tab.locator("#next").click()
        settled(tab)
        assert tab.locator("#hits").inner_text() == "1 of 11"  # w29, and w290 to w299
        assert tab.locator(".token.chosen").inner_text() == "w29"
        tab.locator("#next").click()
        settled(tab)
        assert tab.locator(".token.chosen").inner_text() == "w290"
        assert links(tab) == strongest(small.weights[0][0, 290])
        tab.locator("#before").click()
        tab.locator("#before").click()
        settled(tab)
        assert tab.locator(".token.chosen").inner_text() == "w299"
        tab.locator("#wanted").fill("nowhere")
        assert tab.locator("#hits").inner_text() == "not found"


@pytest.mark.slow
def test_the_address_shows_another_page_the_same(opened, small) -> None:
    with serving(small.record) as client, opened(client, "#layer=1&head=1&pool=mean&scale=log") as tab:
        tab.mouse.move(*place(tab, 120, 80))
        tab.mouse.wheel(0, -700)
        tab.locator("#wanted").fill("w150")
        tab.locator("#next").click()
        tab.locator("#floor").fill("0.2")
        tab.mouse.move(2, 2)
        settled(tab)
        picture = "document.getElementById('map').toDataURL()"
        before, said = tab.evaluate(picture), view(tab)
        assert said | {"layer": "1", "head": "1", "pool": "mean", "query": "150", "floor": "0.2"} == said
        with opened(client, address(tab)) as other:
            other.mouse.move(2, 2)
            settled(other)
            assert view(other) == said
            assert other.evaluate(picture) == before


@pytest.mark.slow
def test_sinks_are_named_and_hidden_with_the_rows_renormalized(opened, small) -> None:
    with serving(small.record) as client, opened(client, "#x=40.5&y=200.5&zoom=30&query=200&key=40") as tab:
        assert f"w{SINK} ({SINK}: 0." in tab.locator("#sink-note").inner_text()
        tab.mouse.move(*place(tab, 200, 40))
        _, _, weight = read(tab, 200, 40)
        tab.locator("#sinks").uncheck()
        settled(tab)
        assert "each row is divided by what remains" in tab.locator("#sink-note").inner_text()
        row = small.weights[0][0, 200].copy()
        rest = 1 - row[SINK]
        row[SINK] = 0
        assert links(tab) == strongest(row / rest)
        tab.mouse.move(*place(tab, 200, 40))
        until(tab, "document.getElementById('readout').textContent.includes('with sinks')")
        said = [float(one) for one in re.findall(r"\d\.\d+(?:e-\d+)?", tab.locator("#readout").inner_text())]
        assert said[0] == pytest.approx(row[40] / rest, rel=2e-3)
        assert said[1] == pytest.approx(weight, rel=2e-3)
        tab.locator("#layer-a").select_option("1")
        settled(tab)
        assert tab.locator("#sink-note").inner_text().startswith("This layer has no sinks")
        assert tab.locator("#sinks").is_disabled()


@pytest.mark.slow
def test_everything_works_by_keyboard_alone(opened, small) -> None:
    with serving(small.record) as client, opened(client) as tab:
        for _ in range(30):
            tab.keyboard.press("Tab")
            if tab.evaluate("document.activeElement.id") == "map":
                break
        assert tab.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
        for _ in range(6):
            tab.keyboard.press("+")
        settled(tab)
        query, key, weight = read(tab)
        assert weight == pytest.approx(small.weights[0][0, query, key], abs=1e-5)
        tab.keyboard.press("ArrowDown")
        tab.keyboard.press("ArrowDown")
        tab.keyboard.press("ArrowLeft")
        query, key, weight = read(tab, query + 2, key - 1)
        assert weight == pytest.approx(small.weights[0][0, query, key], abs=1e-5)
        tab.keyboard.press("Enter")
        settled(tab)
        assert view(tab)["query"] == str(query)
        assert links(tab) == strongest(small.weights[0][0, query])
        tab.keyboard.press("]")
        tab.keyboard.press("j")
        settled(tab)
        assert links(tab) == strongest(small.weights[1][1, query])
        tab.keyboard.press("/")
        tab.keyboard.type("w77")
        tab.keyboard.press("Enter")
        settled(tab)
        assert view(tab)["query"] == "77"
        tab.keyboard.press("Escape")
        assert tab.evaluate("document.activeElement.id") == "map"
        tab.keyboard.press("Escape")
        settled(tab)
        assert "query" not in view(tab)
        for key, name, value in (("m", "pool", "mean"), ("c", "scale", "linear"), ("0", "x", "150")):
            tab.keyboard.press(key)
            assert view(tab)[name] == value
        tab.keyboard.press("-")
        tab.locator("#help summary").press("Enter")
        assert "search a token" in tab.locator("#help-list").inner_text()


def test_hostile_tokens_are_text_to_the_reader(opened, hostile) -> None:
    with serving(hostile.record) as client, opened(client, "#query=0&key=1&x=1.5&y=0.5&zoom=60") as tab:
        texts = tab.locator("#queries .token").all_inner_texts()
        assert texts[0] == HOSTILE[0]
        assert texts[2] == "\\u202eevil"
        tab.mouse.move(*place(tab, 0, 1))
        read(tab, 0, 1)
        assert tab.locator("#readout").inner_text().startswith(f"{HOSTILE[0]} → {HOSTILE[1]}: ")
        assert tab.evaluate("document.querySelectorAll('body script, body img, body b, body i').length") == 0
        assert "<i>model</i>" in tab.title()


@pytest.mark.slow
def test_a_token_of_thousands_of_characters_is_read_in_short(opened) -> None:
    tokens = Token("a"), Token("x" * 10_000, space=True), Token("b", space=True)
    record = Record((layer_of(np.full((1, 3, 3), 1 / 3)),), {"text": (tokens,)})
    with serving(record) as client, opened(client, "#query=1&key=2") as tab:
        tab.mouse.move(*place(tab, 1, 2))
        read(tab, 1, 2)
        first, second = tab.locator("#readout div").all_inner_texts()
        assert first.startswith("x" * 79 + "… → b: ")
        assert second.endswith("… a " + "x" * 79 + "… b")


@pytest.mark.slow
def test_two_pages_at_once_do_not_disturb_each_other(opened, small) -> None:
    with (
        serving(small.record) as client,
        opened(client, "#query=50") as one,
        opened(client, "#layer=1&query=60") as other,
    ):
        for at in range(3):
            one.locator("#head-a").select_option(str(at))
            other.locator("#head-a").select_option(str(2 - at))
            settled(one)
            settled(other)
            assert links(one) == strongest(small.weights[0][at, 50])
            assert links(other) == strongest(small.weights[1][2 - at, 60])


@pytest.mark.slow
def test_cross_attention_has_two_texts_and_two_axes(opened, crossing) -> None:
    with serving(crossing.record) as client, opened(client, "#query=2") as tab:
        assert tab.locator("#queries .token").all_inner_texts() == [f"wort{at}" for at in range(5)]
        assert tab.locator("#keys .token").all_inner_texts() == [f"word{at}" for at in range(9)]
        assert links(tab) == strongest(crossing.weights[0][0, 2])
        assert tab.locator("#lines .line-a").count() == 8
        tab.mouse.move(*place(tab, 4, 8))
        _, _, weight = read(tab, 4, 8)
        assert weight == pytest.approx(crossing.weights[0][0, 4, 8], abs=1e-5)
        assert tab.locator("#readout").inner_text().startswith("wort4 → word8: ")


@pytest.mark.slow
def test_two_heads_are_compared(opened, small) -> None:
    with serving(small.record) as client, opened(client, "#query=200&layer2=1&head2=2") as tab:
        assert links(tab) == strongest(small.weights[0][0, 200])
        assert links(tab, "b") == strongest(small.weights[1][2, 200])
        assert tab.locator("#lines .line-b").count() == 8
        tab.locator("#show-b").uncheck()
        until(tab, "document.getElementById('side-b').hidden")
        assert view(tab).keys().isdisjoint({"head2"})


@pytest.mark.slow
def test_pieces_are_merged_into_words(opened) -> None:
    """Of words, the weight is the sum over the pieces of the key and the mean over those of the query."""
    dense = attention(1, 5, 5, causal=False, seed=7)
    tokens = (Token("a"), Token("ab", word=1, space=True), Token("c", word=1), Token("d", word=2, space=True))
    record = Record((layer_of(dense),), {"text": ((*tokens, Token("e", word=2)),)})
    with serving(record) as client, opened(client, "#query=1&key=3&words=1") as tab:
        assert tab.locator("#queries .token").all_inner_texts() == ["a", "abc", "de"]
        assert tab.locator("#map-title").inner_text() == "Layer 0 head 0: 3 × 3"
        weight = dense[0, 1:3, 3:5].sum(-1).mean()
        assert links(tab)[3] == pytest.approx(weight, abs=6e-5)
        tab.mouse.move(*place(tab, 1, 2))
        assert read(tab, 1, 3)[2] == pytest.approx(weight, abs=1e-5)


@pytest.mark.slow
def test_records_are_chosen_from_a_list(opened, small, crossing) -> None:
    with serving(small.record, crossing.record) as client, opened(client, "#query=200") as tab:
        tab.locator("#record").select_option("1")
        settled(tab)
        assert tab.locator("#map-title").inner_text() == "Layer 0 head 0: 5 × 9"
        assert "query" not in view(tab)
        tab.locator("#record").select_option("0")
        settled(tab)
        assert tab.locator("#map-title").inner_text() == "Layer 0 head 0: 300 × 300"


@pytest.mark.slow
def test_an_address_that_names_too_much_shows_what_there_is(opened, small) -> None:
    far = "#record=8&layer=99&head=99&sequence=5&x=1e9&y=-3&zoom=99999&query=4000&pool=none&floor=7&scale=%3Cb%3E"
    with serving(small.record) as client, opened(client, far) as tab:
        assert view(tab) | {"record": "0", "layer": "1", "head": "2", "query": "299", "pool": "max"} == view(tab)


@pytest.mark.slow
def test_of_a_pooled_map_the_page_says_what_a_cell_is(opened, pooled_record) -> None:
    with serving(pooled_record.record) as client, opened(client, "#x=500&y=700&zoom=20&pool=mean") as tab:
        assert (
            "A cell spans 4 × 4 positions. Single weights of this layer were not kept"
            in tab.locator("#map-hint").inner_text()
        )
        tab.mouse.move(*place(tab, 701, 502))
        tab.wait_for_selector("#readout[data-query='700'][data-key='500']")
        cell = pooled_record.weights[0][0, 700:704, 500:504].mean()
        assert float(tab.locator("#readout").get_attribute("data-cell")) == pytest.approx(cell, rel=1e-4)
        assert "rows 701–704, columns 501–504" in tab.locator("#readout").inner_text()


class Typist:
    """A reader that knows one text."""

    name = "typist"

    def __init__(self, record) -> None:
        self.record = record

    def read(self, text: str):
        return self.record, None


@pytest.mark.slow
def test_a_page_without_an_atlas_waits_for_a_text(opened, crossing) -> None:
    with serving(reader=Typist(crossing.record)) as client, opened(client) as tab:
        assert tab.locator("h1").inner_text() == "Nothing is open yet: type a text and press “See it”."
        tab.locator("#sentence").fill("five words")
        tab.locator("#sentence").press("Enter")
        tab.wait_for_selector("main:not([hidden])")
        settled(tab)
        assert tab.locator("#map-title").inner_text() == "Layer 0 head 0: 5 × 9"
        assert "five words" in tab.locator("h1").inner_text()


@pytest.mark.slow
def test_an_error_of_the_server_is_told_in_the_page(opened, small) -> None:
    with serving(small.record, reader=Typist(None)) as client, opened(client, allowed="Failed to load resource") as tab:
        tab.locator("#sentence").fill("anything")
        tab.locator("#send").click()
        tab.wait_for_selector("#trouble:not([hidden])")
        assert tab.locator("#trouble").inner_text().endswith("is the file whole?")
        assert tab.locator("#send").is_enabled()


@pytest.mark.slow
@pytest.mark.models
def test_a_sentence_is_typed_and_seen(opened, small) -> None:
    bundled = pytest.importorskip("regard.hub")
    if not bundled.is_installed("minilm"):
        pytest.skip("the bundled models are missing: regard models get")
    import torch

    reader = web.ModelReader("minilm")
    sentence = "The animal didn't cross the street because it was too tired"
    with serving(small.record, reader=reader) as client, opened(client) as tab:
        tab.locator("#sentence").fill(sentence)
        tab.locator("#send").click()
        until(tab, "document.getElementById('reading').textContent === 'read'", 60)
        settled(tab)
        assert sentence in tab.locator("h1").inner_text()
        tab.locator("#heads .head[data-layer='5'][data-head='11']").click()
        tab.locator("#wanted").fill("it")
        tab.locator("#next").click()
        settled(tab)
        loaded = reader._loaded
        ids = loaded.tokenizer(sentence, return_tensors="pt")
        loaded.model.set_attn_implementation("eager")
        with torch.no_grad():
            dense = loaded.model(**ids, output_attentions=True).attentions[5][0, 11].numpy()
        query = int(view(tab)["query"])
        assert tab.locator(".token.chosen").inner_text() == "it"
        assert links(tab) == strongest(dense[query])
        tab.mouse.move(*place(tab, query, 2))
        _, _, weight = read(tab, query, 2)
        assert weight == pytest.approx(dense[query, 2], abs=1e-5)


def luminance(colour: str) -> float:
    channels = [float(part) / 255 for part in re.findall(r"[\d.]+", colour)[:3]]
    linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_the_page(opened, small, scheme: str) -> None:
    with serving(small.record) as client, opened(client, "#query=9", color_scheme=scheme) as tab:
        page = tab.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (luminance(page) < 0.1) == (scheme == "dark")
        for selector in ("h1", ".hint", "#readout", "#weights-a li", "footer"):
            ink = tab.evaluate("name => getComputedStyle(document.querySelector(name)).color", selector)
            light, dark = sorted((luminance(ink), luminance(page)), reverse=True)
            assert (light + 0.05) / (dark + 0.05) >= 4.5


@pytest.mark.slow
@pytest.mark.parametrize("width", [320, 420, 760])
def test_a_narrow_screen_needs_no_sideways_scrolling(opened, hostile, width: int) -> None:
    with serving(hostile.record) as client, opened(client, viewport={"width": width, "height": 800}) as tab:
        assert tab.evaluate("document.documentElement.scrollWidth") <= width
        assert tab.locator("#map").bounding_box()["width"] > 250


@pytest.mark.slow
def test_the_page_speaks_chinese(opened, small) -> None:
    with serving(small.record) as client, opened(client, locale="zh-CN") as tab:
        assert tab.locator("#map-title").inner_text() == "第 0 层第 0 头：300 × 300"
        assert tab.evaluate("document.documentElement.lang") == "zh"
        tab.locator("#language").select_option("en")
        settled(tab)
        assert tab.locator("#map-title").inner_text() == "Layer 0 head 0: 300 × 300"


def test_both_languages_say_the_same_things() -> None:
    entry = re.compile(r'^  (\w+):((?:\s*\+?\s*"(?:[^"\\]|\\.)*")+),$', re.MULTILINE)
    english, chinese = (entry.findall(client_text(f"words_{language}.js")) for language in ("en", "zh"))
    assert len(english) > 90
    assert [name for name, _ in english] == [name for name, _ in chinese]
    for (name, one), (_, other) in zip(english, chinese, strict=True):
        assert set(re.findall(r"\{\w+\}", one)) == set(re.findall(r"\{\w+\}", other)), name


@pytest.mark.slow
def test_a_long_text_zooms_from_its_map_to_weights_that_are_computed(opened) -> None:
    """2,000 tokens, kept as a map of 8 × 8 and as q and k: at every depth what is read is what the model computes."""
    import torch
    from torch import nn

    import regard

    torch.manual_seed(1)
    attention = nn.MultiheadAttention(16, 2, batch_first=True).eval()
    x = 4 * torch.randn(1, 2000, 16)
    with torch.no_grad():
        with regard.watch(attention, keep="qk") as seen:
            attention(x, x, x)
        dense = attention.double()(x.double(), x.double(), x.double(), average_attn_weights=False)[1][0, 1].numpy()
    with serving(seen.record) as client, opened(client, "#head=1&pool=mean") as tab:
        tab.mouse.move(*place(tab, 1234, 567))
        steps = set()
        for _ in range(40):
            step = tab.evaluate("Number(document.documentElement.dataset.step)")
            if step not in steps and step > 1:
                settled(tab)
                tab.mouse.move(*place(tab, 1234, 567))
                row, column = 1234 // step * step, 567 // step * step
                tab.wait_for_selector(f"#readout[data-query='{row}'][data-key='{column}']")
                until(tab, "document.getElementById('readout').dataset.cell > ''")
                cell = dense[row : row + step, column : column + step].mean()
                assert float(tab.locator("#readout").get_attribute("data-cell")) == pytest.approx(cell, rel=1e-3)
            steps.add(step)
            tab.mouse.wheel(0, -60)
            tab.wait_for_timeout(40)
        assert {1, 2, 4} <= steps
        settled(tab)
        tab.mouse.move(*place(tab, 1234, 567))
        _, _, weight = read(tab, 1234, 567)
        assert weight == pytest.approx(dense[1234, 567], abs=1e-5)
