"""What a model has written itself is told apart from its prompt: in the figure, in the page and in words."""

import dataclasses
from pathlib import Path

import matplotlib
import pytest

from chromium import chromium, needs_chromium
from regard.record.records import Record
from regard.render.figure import heatmap_figure
from regard.render.labels import prompt_rows, says_written, size
from regard.render.page import page, write_page
from sweeps import sweep


@pytest.fixture
def generated(english) -> Record:
    """Thirteen tokens, of which the first six were a prompt."""
    return dataclasses.replace(english.record, notes={"prompt": 6})


def lines(record: Record) -> list[tuple[float, float]]:
    axes = heatmap_figure(record, layer=5, head=11).axes[0]
    return [(line.get_xdata()[0], line.get_ydata()[0]) for line in axes.get_lines()]


def test_the_map_has_a_line_where_the_writing_begins(generated: Record, english) -> None:
    assert lines(generated) == [(0, 6), (6, 0)]  # across at row 6, down at column 6
    assert lines(english.record) == []
    said = {text.get_text() for text in heatmap_figure(generated, layer=5, head=11).findobj(matplotlib.text.Text)}
    assert "layer 5 head 11: a prompt of 6 tokens, then 7 written" in said


def test_it_is_said_in_words(generated: Record, english) -> None:
    assert says_written(generated) == "a prompt of 6 tokens, then 7 written"
    assert says_written(english.record) == ""
    assert size(generated).endswith("13 tokens (a prompt of 6 tokens, then 7 written)")


def test_a_prompt_that_cannot_be_is_not_shown(english) -> None:
    for case in sweep([0, 13, 40, -1, "6", None, 2.5]):
        with case as prompt:
            record = dataclasses.replace(english.record, notes={"prompt": prompt})
            assert prompt_rows(record, record.layers[0]) is None


def test_the_source_of_a_translation_is_never_written(cross) -> None:
    record = dataclasses.replace(cross.record, notes={"prompt": 1})
    encoder = dataclasses.replace(record.layers[0], query_tokens="source", key_tokens="source", kind="self")
    assert prompt_rows(record, encoder) is None
    assert prompt_rows(record, record.layers[0]) == 1
    page(record, cross.focus)


def test_the_map_of_a_translation_has_a_line_across_alone(cross) -> None:
    record = dataclasses.replace(cross.record, notes={"prompt": 1})
    lines = heatmap_figure(record, layer=0, head=0).axes[0].get_lines()
    assert [(line.get_ydata()[0], line.get_alpha() != 0) for line in lines] == [(1, True), (0, False)]


@pytest.mark.slow
@pytest.mark.browser
@needs_chromium
def test_the_page_underlines_what_was_written(generated: Record, english, tmp_path: Path) -> None:
    with chromium() as running:
        for record, written in ((generated, 7), (english.record, 0)):
            write_page(record, english.focus, tmp_path / "it.html")
            tab = running.new_page()
            tab.goto((tmp_path / "it.html").as_uri())
            tab.wait_for_selector("html[data-ready]")
            shown = [one.inner_text() for one in tab.locator("#queries .token.generated").all()]
            assert shown == [token.text for token in record.stream("text")[13 - written :]]
            assert tab.locator("#generated").is_visible() == bool(written)
            if written:
                assert "a prompt of 6 tokens, then 7 generated" in tab.locator("#generated").inner_text()
                style = "getComputedStyle(document.querySelector('.token.generated:not(.active)')).borderBottomStyle"
                assert tab.evaluate(style) == "dotted"
                tab.screenshot(path=str(tmp_path / "it.png"), full_page=True)
