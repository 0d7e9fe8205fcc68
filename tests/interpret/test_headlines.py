"""The headline of real models: no resting place if another head looks, and the same in every place that shows it."""

import html
import io
import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch

import regard
from headline_texts import cases, eager_weights, judge
from regard.record.headline import head_lines
from regard.record.names import visible
from regard.render.figure import focus_figure
from regard.render.page import page
from regard.render.terminal import picture
from sweeps import sweep

FAST = [case for case in cases() if case.model == "minilm"][:40:10] + [
    case for case in cases() if case.model == "smollm2"
][:80:10]
OTHERS = [case for case in cases() if case.model == "me5"][::15]


def check_headline(case, load) -> None:
    found = judge(case, load(case.model))
    if found["rests"] or found["neighbour"]:
        assert found["heads with more on another word"] == 0
        assert found["the most on another word"] < 0.1
        assert "finding" in found["said"][-1]
    assert found["said"][0].endswith(f" {found['weight']:.2f}")


def test_no_headline_is_a_resting_place_if_another_head_looks(load):
    assert len(FAST) == 12
    for case in sweep(FAST, name=lambda case: f"{case.model} {case.text}"):
        with case as one:
            check_headline(one, load)


@pytest.mark.slow
def test_no_headline_in_chinese_is_a_resting_place_if_another_head_looks(load):
    for case in sweep(OTHERS, name=lambda case: case.text):
        with case as one:
            check_headline(one, load)


def test_the_sink_of_a_causal_text_is_not_the_headline(load):
    loaded = load("smollm2")
    for text in ("Dogs barked at strangers because they were hungry", "Maria gave the book to John because he asked"):
        looked = regard.look(text, model=loaded)
        first = looked.highlight.looks[0]
        assert (first.layer, first.head) != (18, 8)
        assert first.target != 0
        assert looked.highlight.note == ""
        asked = regard.look(text, model=loaded, layer=18, head=8)
        assert str(asked).splitlines()[0].startswith("layer 18 head 8: ")
        assert str(asked).splitlines()[-1] == (
            f"Layer 18 head 8 gives its weight to {text.split()[0]}, the first token, from every word "
            "(1.00 on average): a resting place, not a finding."
        )


def printed(looked) -> str:
    from rich.console import Console

    console = Console(width=100, file=io.StringIO(), highlight=False, color_system=None)
    console.print(picture(looked.record, looked.highlight, width=100))
    return " ".join(console.file.getvalue().split())


def words_of_page(text: str) -> str:
    lede = re.search(r'<p class="lede"[^>]*>(.*?)</p>', text, re.DOTALL)[1]
    return html.unescape(re.sub(r"<[^>]*>", "", lede))


def focus_of_page(text: str) -> dict:
    return json.loads(re.search(r'<script[^>]*id="meta"[^>]*>(.*?)</script>', text, re.DOTALL)[1])["focus"]


def check_everywhere(text: str, loaded) -> None:
    """The line in Python, terminal, page and figure; its weight and words by eager attention; the map by its head."""
    with torch.no_grad(), regard.watch(loaded.model, tokenizer=loaded.tokenizer) as seen:
        ids = loaded.tokenizer(text, return_tensors="pt")
        loaded.model(input_ids=ids["input_ids"], attention_mask=ids["attention_mask"])
    looked = seen.look()
    focus = looked.highlight
    lines = str(looked).splitlines()[: len(focus.looks)]
    made, figure = page(looked.record, focus), focus_figure(looked.record, focus)
    drawn = [found.get_text() for axes in figure.axes for found in axes.texts]
    terminal = printed(looked)
    eager = eager_weights(text, loaded)
    for look, line in zip(focus.looks, lines, strict=True):
        query, key = focus.queries[focus.word], focus.keys[look.target]
        weight = eager[look.layer][look.head][list(query.pieces)][:, list(key.pieces)].sum(-1).mean()
        source = f"{focus.part} (in {query.text})" if focus.part else query.text
        assert line == f"layer {look.layer} head {look.head}: {visible(source)} → {visible(key.text)} {weight:.2f}"
        assert line in terminal
        assert line in words_of_page(made)
        assert line in drawn
    first = focus.looks[0]
    opened = focus_of_page(made)
    assert (opened["layer"], opened["head"]) == (first.layer, first.head)
    assert (opened["query"], opened["key"]) == (focus.queries[focus.word].pieces[0], focus.keys[first.target].pieces[0])
    maps = [axes.images[0].get_array() for axes in figure.axes if axes.images]
    weights = eager[first.layer][first.head]
    assert any(one.shape == weights.shape and np.allclose(one, weights, atol=1e-4) for one in maps)


@pytest.mark.parametrize("name", ["minilm", pytest.param("me5", marks=pytest.mark.slow), "smollm2"])
def test_the_same_line_in_python_terminal_page_and_figure(load, name, chinese_font):
    texts = [case.text for case in cases() if case.model == name][3::25]
    for case in sweep(texts):
        with case as text:
            check_everywhere(text, load(name))


@pytest.mark.parametrize("side", ["left", "right"])
def test_a_text_has_the_same_headline_alone_and_padded(load, side):
    loaded = load("smollm2")
    texts = [
        "Dogs barked at strangers because they were hungry",
        "The cat slept all day in the sun because it was tired",
    ]
    tokenizer = loaded.tokenizer
    tokenizer.pad_token, tokenizer.padding_side = tokenizer.pad_token or tokenizer.eos_token, side
    ids = tokenizer(texts, return_tensors="pt", padding=True)
    positions = (ids["attention_mask"].cumsum(-1) - 1).clamp(min=0)
    with torch.no_grad(), regard.watch(loaded.model, tokenizer=tokenizer) as seen:
        loaded.model(**ids, position_ids=positions)
    for index, text in enumerate(texts):
        assert str(seen.look(batch_index=index)) == str(regard.look(text, model=loaded))


def test_seen_looks_from_what_is_asked(load, tmp_path: Path):
    loaded = load("minilm")
    with torch.no_grad(), regard.watch(loaded.model, tokenizer=loaded.tokenizer) as seen:
        loaded.model(
            **loaded.tokenizer("The animal didn't cross the street because it was too tired", return_tensors="pt")
        )
    asked = seen.look(token="what does the animal attend to", layer=3)
    assert str(asked).startswith("layer 3 head ")
    assert ": animal → " in str(asked)
    seen.save(tmp_path / "it.atlas")
    again = regard.load_atlas(tmp_path / "it.atlas").look(token="animal", layer=3)
    assert str(again) == str(asked)


@pytest.mark.models
def test_a_line_names_a_word_that_stands_twice_by_the_name_that_finds_it(load) -> None:
    text = "The cat saw the dog, and the dog saw the cat because it was there."
    loaded = load("minilm")
    ids = loaded.tokenizer(text, return_tensors="pt")
    with torch.no_grad(), regard.watch(loaded.model, tokenizer=loaded.tokenizer) as seen:
        loaded.model(**ids)
    names = set()
    for token in ("it", "dog", "dog#2", "there", "saw"):
        focus = seen.look(token).highlight
        for line, look in zip(head_lines(seen.record, focus), focus.looks, strict=True):
            query, key = (seen.place(name).positions for name in (line.query, line.key))
            weights = seen.weights(layer=look.layer, head=look.head)[0]
            assert line.weight == f"{weights[list(query)][:, list(key)].sum(-1).mean():.2f}"
            names |= {line.query, line.key}
    assert {"dog#1", "dog#2", "saw#1"} <= names
