"""What a notebook shows: small, without requests or clashes, in light and dark, and honest about what is left out."""

import dataclasses
import html
import re
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import regard
from chromium import chromium, needs_chromium
from regard.interpret.observation import Observation
from regard.record.highlight import choose_focus
from regard.record.records import Record
from regard.render.notebook import LARGEST, SHADES, forwards_html, record_html, shaded_png
from sweeps import sweep

NAMES = ["english", "chinese", "cross", "hostile", "pieces", "nameless", "long_text"]


def test_every_record_is_small_and_names_the_way_to_the_whole(request: pytest.FixtureRequest) -> None:
    for case in sweep(NAMES):
        with case as name:
            _check_card(name, request)


@pytest.mark.slow
def test_a_very_long_record_is_small_and_names_the_way_to_the_whole(request: pytest.FixtureRequest) -> None:
    _check_card("very_long", request)


def _check_card(name: str, request: pytest.FixtureRequest) -> None:
    shown = record_html(request.getfixturevalue(name).record)
    assert len(shown.encode()) <= LARGEST
    assert 'seen.save("it.atlas")</code>, then <code>regard open it.atlas</code>' in shown
    assert "seen.to_html(" in shown
    assert not re.search(r'(src|href)="(?!data:)', shown)
    assert "<script" not in shown  # only within the frame's own document, where it is escaped
    assert " id=" not in re.sub(r'srcdoc="[^"]*"', "", shown)  # nothing that a second output could clash with
    assert ("Not shown here" in shown) == (name in ("long_text", "very_long"))


def test_a_record_a_sight_and_one_of_several_show_themselves(english, chinese) -> None:
    assert english.record._repr_html_() == record_html(english.record) == Observation((english.record,))._repr_html_()
    both = Observation((english.record, chinese.record))
    assert both[1]._repr_html_() == record_html(chinese.record)
    listed = both._repr_html_()
    assert "2 forward passes were seen" in listed
    assert [name for name in ("seen[0]", "seen[1]") if f"<code>{name}</code></td>" in listed] == ["seen[0]", "seen[1]"]
    assert "貓追老鼠" in listed
    assert [one.record for one in both] == [english.record, chinese.record]
    assert "Nothing has been seen yet" in Observation()._repr_html_()
    assert "no layers" in record_html(Record(()))


def test_many_passes_are_listed_up_to_fifty(pieces) -> None:
    listed = forwards_html([pieces.record] * 400)
    assert len(listed) < 30_000
    assert "… and 350 more." in listed


def test_hostile_tokens_stay_text(hostile) -> None:
    several = forwards_html([hostile.record, hostile.record])
    assert "<script>" not in several
    assert "&lt;script&gt;" in several


@pytest.mark.parametrize(("name", "looks"), [("english", {(5, 11), (5, 3)}), ("long_text", {(5, 1), (5, 2)})])
def test_the_focus_is_the_word_that_looks_at_two_others_however_long_the_text(
    name: str, looks: set, request: pytest.FixtureRequest
) -> None:
    case = request.getfixturevalue(name)
    found = choose_focus(case.record)
    assert found.queries[found.word].text == "it"
    assert {(look.layer, look.head) for look in found.looks} == looks
    assert {found.keys[look.target].text for look in found.looks} == {"animal", "street"}
    for look in found.looks:
        assert look.weight == pytest.approx(0.6, abs=1e-6)


def test_weights_that_are_no_numbers_do_not_break_a_notebook(pieces) -> None:
    layer = pieces.record.layers[0]
    broken = dataclasses.replace(layer, mean=layer.mean * np.nan, max=layer.max * np.nan, top_weights=layer.top_weights)
    assert "1 layer, 2 heads" in record_html(Record((broken,), pieces.record.tokens), pieces.focus)


def test_of_a_batch_it_says_which_one_is_shown() -> None:
    attention = nn.MultiheadAttention(8, 2, batch_first=True).eval()
    x = torch.randn(3, 5, 8)
    with torch.no_grad(), regard.watch(attention) as seen:
        attention(x, x, x)
    assert "5 tokens, the first of 3 sequences" in seen._repr_html_()


def decoded(png: bytes) -> np.ndarray:
    """Read a PNG of four bits and no filters back, by the letter of its specification."""
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    chunks, at = {}, 8
    while at < len(png):
        length, name = struct.unpack(">I4s", png[at : at + 8])
        data = png[at + 8 : at + 8 + length]
        assert struct.unpack(">I", png[at + 8 + length : at + 12 + length])[0] == zlib.crc32(name + data)
        chunks[name], at = data, at + 12 + length
    width, height, depth, kind = struct.unpack(">IIBB", chunks[b"IHDR"][:10])
    assert (depth, kind) == (4, 3)
    lines = np.frombuffer(zlib.decompress(chunks[b"IDAT"]), np.uint8).reshape(height, -1)
    assert (lines[:, 0] == 0).all()
    pixels = np.stack([lines[:, 1:] >> 4, lines[:, 1:] & 15], -1).reshape(height, -1)[:, :width]
    return np.frombuffer(chunks[b"PLTE"], np.uint8).reshape(-1, 3)[pixels]


def test_a_picture_holds_the_shades_of_its_numbers() -> None:
    for case in sweep([1, 2, 7]):
        with case as width:
            values = np.linspace(0, 1, 3 * width).reshape(3, width)
            expected = SHADES[np.rint(values * 15).astype(int)]
            np.testing.assert_array_equal(decoded(shaded_png(values)), expected)
            np.testing.assert_array_equal(decoded(shaded_png(np.array([[-1.0, np.nan, 2.0]])))[0], SHADES[[0, 0, 15]])
            pil = pytest.importorskip("PIL.Image")
            import io

            np.testing.assert_array_equal(np.asarray(pil.open(io.BytesIO(shaded_png(values))).convert("RGB")), expected)


@pytest.fixture(scope="module")
def browser():
    with chromium() as running:
        yield running


@contextmanager
def notebook(browser, tmp_path: Path, outputs: list[str], scheme: str) -> Iterator:
    """Outputs one under the other as notebooks put them, once more within a sandboxed frame; no trouble, no request."""
    paper = {"light": "#ffffff;color:#111", "dark": "#111111;color:#eee"}[scheme]
    cells = "".join(f'<div class="output">{one}</div>' for one in outputs)
    inner = f'<body style="background:{paper}">{cells}</body>'
    path = tmp_path / "notebook.html"
    frame = (
        f'<iframe id="hosted" sandbox="allow-scripts" srcdoc="{html.escape(inner)}" style="width:100%;height:3000px">'
    )
    path.write_text(f'<!doctype html><meta charset="utf-8">{inner}<hr>{frame}</iframe>', encoding="utf-8")
    trouble: list[str] = []
    with browser.new_context(viewport={"width": 1000, "height": 900}, color_scheme=scheme) as fresh:
        tab = fresh.new_page()
        tab.on("console", lambda message: trouble.append(f"console: {message.text}"))
        tab.on("pageerror", lambda error: trouble.append(f"error: {error}"))
        tab.on("dialog", lambda dialog: (trouble.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        tab.on("request", lambda one: one.url.startswith(("data:", path.as_uri())) or trouble.append(one.url))
        tab.goto(path.as_uri())
        yield tab
    assert trouble == []


def luminance(colour: str) -> float:
    parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.browser
@needs_chromium
class TestInABrowser:
    @pytest.mark.slow
    @pytest.mark.parametrize("scheme", ["light", "dark"])
    def test_several_in_one_notebook_each_show_their_own(
        self, browser, tmp_path: Path, english, chinese, hostile, scheme: str
    ) -> None:
        outputs = [record_html(case.record, case.focus) for case in (english, chinese, hostile)]
        with notebook(browser, tmp_path, outputs, scheme) as tab:
            for host in (tab, tab.frame_locator("#hosted")):  # in the page, and in a sandboxed frame of a service
                frames = host.locator(".output iframe")
                assert frames.count() == 3
                for number, case in enumerate((english, chinese, hostile)):
                    frames.nth(number).scroll_into_view_if_needed()
                    inside = frames.nth(number).content_frame
                    inside.locator("html[data-ready]").wait_for(state="attached", timeout=20_000)
                    word = case.focus.queries[case.focus.word].text
                    assert inside.locator(".token.active").inner_text() == word
                    look = case.focus.looks[0]
                    weight = float(inside.locator("#weights-a li .number").first.inner_text())
                    row = case.record.weights(layer=look.layer, head=look.head)[0][
                        case.focus.queries[case.focus.word].pieces[0]
                    ]
                    assert weight == pytest.approx(row.max(), abs=1e-4)
                    assert inside.locator("#weights-a li .number").first.is_visible()
                first = frames.nth(0).content_frame
                first.locator("#layer-a").select_option("2")
                first.locator("#name-a", has_text="layer 2").wait_for()
                assert frames.nth(1).content_frame.locator("#layer-a").input_value() != "2"  # the other one stays

    @pytest.mark.slow
    @pytest.mark.parametrize("scheme", ["light", "dark"])
    def test_the_card_is_readable_on_any_paper_and_fits(self, browser, tmp_path: Path, very_long, scheme: str) -> None:
        with notebook(browser, tmp_path, [record_html(very_long.record, very_long.focus)], scheme) as tab:
            card = tab.locator(".output").first
            assert "30 layers, 270 heads, 4,096 tokens" in card.inner_text()
            assert "Of the 270 heads" in card.inner_text()
            for picture in card.locator("img").all():
                assert picture.evaluate("one => one.complete && one.naturalWidth > 100")
                box = picture.bounding_box()
                assert 0 < box["width"] <= 984
                assert 0 < box["height"] <= 600
            paper = luminance(tab.evaluate("getComputedStyle(document.body).backgroundColor"))
            for text in card.locator("p, td, figcaption").all():
                ink = luminance(text.evaluate("one => getComputedStyle(one).color"))
                contrast = (max(ink, paper) + 0.05) / (min(ink, paper) + 0.05)
                assert contrast > 7
            assert tab.evaluate("document.documentElement.scrollWidth") <= 1000
