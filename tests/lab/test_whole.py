"""`regard lab --quick`, whole, as a person runs it: every claim gets its verdict, and its numbers are what they were.

Claims that train models or time calls do so with fewer runs, steps and sizes here than a quick run does (LESS). Those
in TRAINED have a few steps, which say nothing about the claim: benchmarks/lab_verdicts.py trains them and checks their
verdicts, outside of CI.

The bounds are wide enough for another machine's rounding and another version's random numbers, and too narrow for a
claim that has turned. What each number must be by theory or by hand is tested claim by claim.
"""

import json
from dataclasses import replace
from importlib import resources
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from chromium import chromium, needs_chromium
from regard.cli.app import app
from regard_lab.claims import alignment, bottleneck, costs, explanation, heads, induction, kv_heads, length, sinks
from regard_lab.claims.bottleneck import COPY
from shared_folders import make_once

pytestmark = [pytest.mark.slow, pytest.mark.models]

SOME = {"holds", "holds within limits"}  # where a verdict hangs on the clock, or on the last percent of a training run
VERDICTS = {
    "worked-example": {"does not hold"},
    "scaling": {"holds"},
    "order": {"holds"},
    "causal-mask": {"holds within limits"},
    "costs": SOME,
    "approximations": {"holds within limits"},
    "heads": {"holds within limits"},
    "sinks": {"holds within limits"},
    "recurrence": {"holds"},
    "small-claims": {"holds within limits"},
    "sources": {"holds within limits"},
}
TRAINED = {"bottleneck", "length", "induction", "explanation", "kv-heads", "alignment"}
FEW = replace(COPY, lesson=replace(COPY.lesson, steps=10), lengths=(4, 20, 30))
# What a quick run has more of, and what it has here.
LESS = (
    (alignment, "EPOCHS", 1),
    (alignment, "SENTENCES", 4),
    (bottleneck, "TEXTS", {True: 4}),
    (bottleneck, "TRIALS", {True: {"copy": FEW}}),
    (costs, "SIZES", {True: (512, 1024, 2048, 4096)}),
    (explanation, "EPOCHS", 1),
    (explanation, "RUNS", {True: 1}),
    (heads, "OTHERS", {True: 10}),
    (heads, "RUNS", {True: 1}),
    (induction, "RUNS", {True: 1}),
    (induction, "STEPS", {True: 20}),
    (kv_heads, "REPEATS", {True: 1}),
    (kv_heads, "STEPS", {True: 5}),
    (length, "OF_CLIPS", {True: 5}),
    (length, "STEPS", {True: 5}),
    (sinks, "TOKENS", {True: 640}),
    (sinks, "WINDOWS", {True: (32, 256)}),
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that the command has written: once, also where these tests run in several processes."""

    def make(folder: Path) -> None:
        with pytest.MonkeyPatch.context() as patch:
            for claim, what, less in LESS:
                patch.setattr(claim, what, less)
            done = CliRunner().invoke(app, ["lab", "--quick", "--threads", "1", "--output-dir", str(folder)])
        assert done.exit_code == 0, done.output

    return make_once(tmp_path_factory, "lab", make)


@pytest.fixture(scope="module")
def claims(whole: Path) -> dict[str, dict]:
    """The claims of lab.json by name."""
    return {one["name"]: one for one in json.loads((whole / "lab.json").read_text("utf-8"))["claims"]}


def test_all_seventeen_are_there_in_order_with_the_verdicts_that_are_known(claims):
    assert [one["number"] for one in claims.values()] == list(range(1, 18))
    assert {
        name: claims[name]["verdict"] for name, known in VERDICTS.items() if claims[name]["verdict"] not in known
    } == {}
    assert claims.keys() - VERDICTS.keys() == TRAINED


def test_what_costs_grow_with(claims):
    memory = claims["costs"]["numbers"]["power of n, memory"]
    assert memory["full, by the formula"] == pytest.approx(2, abs=0.2)
    assert max(memory[name] for name in ("full, in blocks", "window", "Longformer", "Performer")) < 1.3


def test_without_sinks_a_window_breaks_down_and_with_them_it_does_not(claims):
    parts = [part["verdict"] for part in claims["sinks"]["parts"]]
    assert "holds" in parts
    assert "does not hold" in parts


def test_permuted_weights_give_shares_of_sentences(claims):
    shares = claims["explanation"]["numbers"]["share of sentences that move by less than 0.1"]
    assert all(0 <= one <= 1 for each in shares.values() for one in each)


def test_every_claim_has_its_figures_on_the_page(whole):
    sections = (whole / "index.html").read_text("utf-8").split('<section id="claim-')[1:]
    figures = {int(one.partition('"')[0]): one.count("<figure>") for one in sections}
    assert list(figures) == list(range(1, 18))
    assert min(figures.values()) >= 1
    assert figures[12] == 2  # what moves, and by how much


def test_a_cache_is_as_much_smaller_as_there_are_fewer_heads(claims):
    found = claims["kv-heads"]["numbers"]["bytes of the cache"]
    assert found["MHA"] == 2 * found["GQA"] == 4 * found["MQA"]


def test_a_fact_that_the_model_knows_has_the_weights_of_one_that_it_read_and_loses_nothing_without_it(claims):
    known, made_up = (claims["sources"]["numbers"]["capitals"][name] for name in ("known", "made up"))
    (shipped,) = resources.files("regard.heads").glob("sources-*.json")
    assert min(known["score"] + made_up["score"]) > json.loads(shipped.read_text())["threshold"]
    assert abs(np.mean(known["score"]) - np.mean(made_up["score"])) < 0.1
    assert max(known["drop"]) < 1 < 4 < min(made_up["drop"])
    assert [part["verdict"] for part in claims["sources"]["parts"]][1::3] == ["does not hold"] * 2


@pytest.mark.browser
@needs_chromium
def test_its_page_shows_every_claim_and_figure_within_the_window(whole):
    with chromium() as running:
        tab = running.new_page(viewport={"width": 1000, "height": 900})
        tab.goto((whole / "index.html").as_uri())
        assert tab.locator("section").count() == 17
        assert tab.locator("figure svg").count() >= 17
        assert tab.evaluate("document.documentElement.scrollWidth") <= 1000
