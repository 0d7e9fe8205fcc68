"""The page as a file: what it holds, what it may not do, how large it is."""

import base64
import dataclasses
import hashlib
import json
import re
import struct
import zlib
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from regard.errors import InputError
from regard.record.records import Layer, Record
from regard.render.page import page, write_page
from sweeps import sweep

MEGABYTE = 2**20


class Elements(HTMLParser):
    """Every element that opens, with its attributes and the text right after it."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.found: list[tuple[str, dict[str, str | None], str]] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs), ""))

    def handle_data(self, data: str) -> None:
        if self.found:
            tag, attributes, text = self.found[-1]
            self.found[-1] = (tag, attributes, text + data)


def element(text: str, name: str) -> str:
    return next(content for _, attributes, content in Elements(text).found if attributes.get("id") == name)


def planes(data: bytes, count: int) -> np.ndarray:
    """Two byte planes as numbers, read without the code under test."""
    return np.array(
        [struct.unpack(">H", bytes(pair))[0] for pair in zip(data[:count], data[count : 2 * count], strict=False)]
    )


def test_exact_weights_travel_within_1_over_65535(english) -> None:
    data = zlib.decompress(base64.b64decode(element(page(*english), "layer-5")))
    weights = english.record.weights(layer=5, head=0)
    whole = np.stack([english.record.weights(layer=5, head=head)[0] for head in range(12)])
    assert weights.shape == (1, 13, 13)
    np.testing.assert_allclose(planes(data, whole.size).reshape(whole.shape) / 65535, whole, atol=0.51 / 65535)


def test_top_keys_of_long_texts_travel_to_four_decimals(long_text) -> None:
    data = zlib.decompress(base64.b64decode(element(page(*long_text), "layer-5")))
    layer = long_text.record.layers[5]
    count = layer.top_keys[0].size
    assert (planes(data[: 2 * count], count) == layer.top_keys[0].ravel()).all()
    weights = planes(data[2 * count : 4 * count], count) / 10_000
    np.testing.assert_allclose(weights, layer.top_weights[0].ravel(), atol=0.51e-4)


def test_maps_of_long_texts_travel_as_roots_in_bytes(long_text) -> None:
    layer, text = long_text.record.layers[5], page(*long_text)
    spec = json.loads(element(text, "meta"))["layers"][5]
    side = spec["map"][0]
    data = zlib.decompress(base64.b64decode(element(text, "layer-5")))
    roots = np.frombuffer(data[4 * layer.top_keys[0].size :], np.uint8).reshape(12, side, side) / 255
    bins = layer.max.shape[-1] // side
    largest = layer.max[0].reshape(12, side, bins, side, bins).max((2, 4))
    np.testing.assert_allclose(roots, np.sqrt(largest), atol=0.51 / 255)


@pytest.mark.slow
def test_sizes_stay_within_what_opens_at_once(english, long_text, very_long) -> None:
    sizes = [len(page(*case).encode()) / MEGABYTE for case in (english, long_text, very_long)]
    assert sizes[0] < 0.2
    assert sizes[1] < 2
    assert sizes[2] < 12


@pytest.mark.slow
def test_maps_of_270_heads_are_as_wide_as_fits(very_long) -> None:
    """Random weights deflate badly, so that it may be half of 256; of 52 levels, a weight of 0.25 is off by 0.01."""
    layer, text = very_long.record.layers[7], page(*very_long)
    spec = json.loads(element(text, "meta"))["layers"][7]
    side, other = spec["map"]
    assert side == other
    assert side in (128, 256)
    count = 9 * 4096 * spec["top"]
    data = zlib.decompress(base64.b64decode(element(text, "layer-7")))
    roots = np.frombuffer(data[4 * count :], np.uint8).reshape(9, side, side) / 255
    largest = layer.max[0].reshape(9, side, 256 // side, side, 256 // side).max((2, 4))
    np.testing.assert_allclose(roots, np.sqrt(largest), atol=1 / 102 + 1e-6)
    weights = planes(data[2 * count : 4 * count], count) / spec["unit"]
    np.testing.assert_allclose(weights, layer.top_weights[0, ..., : spec["top"]].ravel(), atol=6e-4)


def test_a_text_that_looks_like_markup_adds_no_element(hostile, english) -> None:
    shown, plain = Elements(page(*hostile)), Elements(page(*english))
    count = {tag: sum(found == tag for found, *_ in plain.found) for tag in ("script", "link", "img", "meta", "b")}
    blobs = len(english.record) - len(hostile.record)
    for tag, number in count.items():
        assert sum(found == tag for found, *_ in shown.found) == number - (blobs if tag == "script" else 0), tag


def test_tokens_come_back_from_the_json_as_they_were_shown(hostile) -> None:
    texts = json.loads(element(page(*hostile), "meta"))["streams"]["text"]["texts"]
    assert texts[1:4] == ["<script>alert(1)</script>", "-->", "[red]x"]
    assert texts[4:6] == [r"\x1b[31mred\x07", r"a\u202eb"]
    assert texts[7:10] == [r"\u2028", "&amp;", "]]>"]


def test_the_json_element_holds_no_sign_that_could_end_it(hostile) -> None:
    for case in sweep(["<", ">", "&", "\u2028", "\u2029"]):
        with case as sign:
            raw = re.search(r'id="meta">(.*?)</script>', page(*hostile), re.S)
            assert raw is not None
            assert sign not in raw[1]


def test_title_command_and_model_are_text(english) -> None:
    record = dataclasses.replace(english.record, model="<img src=x>")
    text = page(record, english.focus, title="<i>$style</i>", command="regard '<b>' $meta & \x1b")
    assert '<h1 id="title">&lt;i&gt;$style&lt;/i&gt;</h1>' in text
    assert "regard &#39;&lt;b&gt;&#39; $meta &amp; \\x1b</code>" in text
    assert "<img" not in text


def test_the_policy_allows_this_script_and_this_style_and_nothing_else(english) -> None:
    text = page(*english)
    policy = next(
        a["content"] for tag, a, _ in Elements(text).found if a.get("http-equiv") == "Content-Security-Policy"
    )
    assert policy is not None
    script = re.findall(r"<script>(.*?)</script>", text, re.S)
    style = re.findall(r"<style>(.*?)</style>", text, re.S)
    assert (len(script), len(style)) == (1, 1)
    rules = dict(rule.split(" ", 1) for rule in policy.split("; "))
    assert rules.pop("default-src") == "'none'"
    for name, content in (("script-src", script[0]), ("style-src", style[0])):
        assert rules.pop(name) == f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"
    assert rules == {"img-src": "data:", "base-uri": "'none'", "form-action": "'none'"}


def test_no_address_is_in_the_page(english) -> None:
    addresses = set(re.findall(r"[a-z]+://[^\s\"'`]+", page(*english)))
    assert addresses == {"http://www.w3.org/2000/svg"}  # the name of SVG, not a place to load from


def test_the_finding_is_readable_without_javascript(english) -> None:
    text = page(*english)
    assert "layer 5 head 11: <bdi>it</bdi> → <bdi>animal</bdi> 0.60" in text
    assert "<noscript>" in text


def test_the_file_is_the_page_in_utf8(chinese, tmp_path: Path) -> None:
    path = tmp_path / "它.html"
    write_page(*chinese, path, title="貓", command="regard steps")
    assert path.read_text(encoding="utf-8") == page(*chinese, title="貓", command="regard steps")


def layer_of(weights: np.ndarray, queries: int) -> Layer:
    none = np.zeros((1, 1, queries), np.float32)
    return Layer(
        "a",
        "self",
        "text",
        "text",
        1,
        1,
        weights,
        weights,
        none[..., None].astype(np.int32),
        none[..., None],
        none,
        none,
    )


def test_weights_that_are_none_are_refused(nameless) -> None:
    for case in sweep([-0.1, np.nan, np.inf]):
        with case as bad:
            layer = layer_of(np.full((1, 1, 13, 13), bad, np.float32), 13)
            with pytest.raises(InputError, match=r"finite and not negative, got others in a\.max"):
                page(
                    Record((layer, layer)),
                    dataclasses.replace(nameless.focus, looks=(dataclasses.replace(nameless.focus.looks[0], head=0),)),
                )


def test_texts_beyond_two_bytes_are_sent_to_the_atlas(nameless) -> None:
    layer = layer_of(np.zeros((1, 1, 1, 1), np.float32), 65_536)
    with pytest.raises(InputError, match=r"up to 65535 tokens.*`regard open`"):
        page(
            Record((layer, layer)),
            dataclasses.replace(nameless.focus, looks=(dataclasses.replace(nameless.focus.looks[0], head=0),)),
        )
