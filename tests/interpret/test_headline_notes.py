"""Each sentence of the headline's note, held against transformers' eager weights in plain loops."""

import re
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pytest
import torch

import regard
from headline_texts import cases, eager_weights, sinks
from regard.record.tokens import content_words  # its lists say which words are function words
from sweeps import sweep

TEXTS = {
    "minilm": [case.text for case in cases() if case.model == "minilm"][5::17],
    "smollm2": [
        "Dogs barked at strangers because they were hungry",
        *[case.text for case in cases() if case.model == "smollm2"][3::27],
    ],
    "me5": ["貓追老鼠，因為牠餓了，後來它們都累了。", *[case.text for case in cases() if case.model == "me5"][5::20]],
}
CLASSES = {"another content word, not beside it,": 1, "another content word": 0, "another word": None}
SCOPE = r"(?P<scope>| in this layer| in this head)"
NONE = re.compile(rf"(“(?P<name>[^”]+)” has|There is) no finding{SCOPE}[;.]")
FEEBLE = re.compile(
    rf"No finding( of “(?P<name>[^”]+)”)? on (?P<on>another .*) is sharp{SCOPE}: this is the clearest\."
)
LARGEST = re.compile(rf"The largest weight from “[^”]+”{SCOPE}(?P<such> on such a word)? is (?P<weight>[\d.]+); ")
NAMED = r"ayer (\d+) head (\d+) gives (?:its weight to )?(\S+?)(?:, the first token,)? "
MEANS = (
    re.compile(NAMED + r"from every word \((?P<mean>[\d.]+) on average"),
    re.compile(NAMED + r"(?P<mean>[\d.]+) from the other words too"),
)


@dataclass(frozen=True)
class Weighed:
    """One text: its eager weights, the tokens that are special, and the positions of its words."""

    eager: list
    special: np.ndarray
    words: tuple
    causal: bool

    @cached_property
    def slices(self):
        return [slice(word.pieces[0], word.pieces[-1] + 1) for word in self.words]

    @cached_property
    def given(self):
        """From word to word (layers, heads, words, words): the mean over the rows, the sum over the columns."""
        weights, n = np.stack(self.eager), len(self.words)
        found = np.zeros((*weights.shape[:2], n, n))
        for a, query in enumerate(self.slices):
            for b, key in enumerate(self.slices):
                found[:, :, a, b] = weights[:, :, query, key].sum(-1).mean(-1)
        return found

    @cached_property
    def mean(self):
        """The same from the other words that can see the key; NaN where there is none."""
        weights, found = np.stack(self.eager), np.full(self.given.shape, np.nan)
        for a, query in enumerate(self.slices):
            for b, key in enumerate(self.slices):
                others = set(np.flatnonzero(~self.special)) - {*range(len(self.special))[query]}
                others -= {*range(len(self.special))[key], *(range(key.start) if self.causal else ())}
                if others:
                    found[:, :, a, b] = weights[:, :, sorted(others), key].sum(-1).mean(-1)
        return found

    @cached_property
    def targets(self):
        """Which words (words, words) are text, and neither the word itself nor the one before it."""
        text = np.array([not one.special and any(map(str.isalnum, one.text)) for one in self.words])
        at = np.arange(len(self.words))
        return text & (at != at[:, None]) & (at != at[:, None] - 1)

    @cached_property
    def findings(self):
        rests = [
            [sinks(w, causal=self.causal)[k].any() or (self.causal and k.start == 0) for k in self.slices]
            for w in self.eager
        ]
        times = np.where(np.array(rests), 4, 1.5)[:, None, None]
        with np.errstate(invalid="ignore"):
            return self.targets & (self.given > times * self.mean + 1e-5)

    @cached_property
    def sharp(self):
        pieces = np.array([len(word.pieces) for word in self.words])
        return self.given > np.maximum(0.1, 2 * pieces / len(self.special)) + 1e-5

    def of_class(self, on):
        """Which pairs of words (words, words) a sentence speaks of."""
        folded = np.array([one.text.casefold() for one in self.words])
        at = np.arange(len(self.words))
        text = np.array([not one.special and any(map(str.isalnum, one.text)) for one in self.words])
        if CLASSES[on] is None:
            return text & (at != at[:, None])
        content = text & np.array(content_words([one.text for one in self.words]))
        return content & (np.abs(at - at[:, None]) > CLASSES[on]) & (folded[:, None] != folded)


def scope(layer, head):
    return " in this head" if head is not None else " in this layer" if layer is not None else ""


def check_note(weighed, focus, token, layer, head, counts):
    """Every claim of one note, and that none is missing."""
    row, first, note = focus.word, focus.looks[0], focus.note
    layers = slice(None) if layer is None else slice(layer, layer + 1)
    heads = slice(None) if head is None else slice(head, head + 1)
    rows = [i for i, one in enumerate(weighed.words) if not one.special and any(map(str.isalnum, one.text))]
    rows = rows if token is None else [row]
    given, findings, sharp = (
        each[layers, heads] for each in (weighed.given, weighed.findings, weighed.findings & weighed.sharp)
    )
    shown = weighed.given[first.layer, first.head, row, first.target]
    assert first.weight == pytest.approx(shown, abs=1e-4)
    none, feeble, largest = NONE.search(note), FEEBLE.search(note), LARGEST.search(note)
    for said in (none, feeble, largest):
        assert said is None or said["scope"] == scope(layer, head)
    for said in (none, feeble):
        assert said is None or (said["name"] is None) == (token is None)
    if none:
        counts["none"] += 1
        assert not findings[:, :, rows].any()
    if feeble:
        counts["feeble"] += 1
        of = weighed.of_class(feeble["on"])
        assert not (sharp & of)[:, :, rows].any()
        assert shown == pytest.approx((given * (findings & of))[:, :, rows].max(), abs=1e-4)
    if head is None and not none and not feeble and "No other word was recorded" not in note:
        assert any((sharp & weighed.of_class(on))[:, :, row].any() for on in CLASSES)
        assert largest is None
    most = given[:, :, row].max()
    if largest:
        counts["largest"] += 1
        most = given[:, :, row][..., weighed.of_class(feeble["on"])[row]].max() if largest["such"] else most
        assert float(largest["weight"]) == pytest.approx(most, abs=0.0051)
        assert most > shown
    elif none or feeble or head is not None:
        assert most < shown + 0.0101
    for pattern in MEANS:
        for said in pattern.finditer(note):
            counts["mean"] += 1
            at = [i for i, one in enumerate(weighed.words) if one.text == said[3]]
            means = weighed.mean[int(said[1]), int(said[2]), row, at]
            assert np.isclose(float(said["mean"]), means, atol=0.0051).any()
            assert not weighed.findings[int(said[1]), int(said[2]), row, at].all()
    assert "look sharply" not in note
    assert len(note) < 330


@pytest.mark.parametrize("model", ["minilm", "smollm2", pytest.param("me5", marks=pytest.mark.slow)])
def test_every_sentence_of_the_note_is_true_of_the_weights(load, model):
    loaded = load(model)
    counts = dict.fromkeys(("none", "feeble", "largest", "mean"), 0)
    assert len(TEXTS[model]) >= 4
    for case in sweep(TEXTS[model]):
        with case as text:
            ids = loaded.tokenizer(text, return_tensors="pt")
            with torch.no_grad(), regard.watch(loaded.model, tokenizer=loaded.tokenizer) as seen:
                loaded.model(input_ids=ids["input_ids"], attention_mask=ids["attention_mask"])
            special = np.array(loaded.tokenizer(text, return_special_tokens_mask=True)["special_tokens_mask"], bool)
            special |= np.array(
                [not one.strip("▁") for one in loaded.tokenizer.convert_ids_to_tokens(ids["input_ids"][0])]
            )
            eager = eager_weights(text, loaded)
            words = seen.look().highlight.keys
            weighed = Weighed(eager, special, words, model == "smollm2")
            named = [one.text for one in words if not one.special and any(map(str.isalnum, one.text))]
            for token in [None, *[name for name in named[1:] if named.count(name) == 1]]:
                for layer, head in [(None, None), (0, None), (len(eager) - 1, None), (1, 2)]:
                    focus = seen.look(token=token, layer=layer, head=head).highlight
                    assert [one.pieces for one in focus.keys] == [one.pieces for one in words]
                    check_note(weighed, focus, token, layer, head, counts)
    assert all(counts[kind] > 3 for kind in ("feeble", "largest", "mean")), counts


def test_a_result_is_one_short_line(load):
    looked = regard.look("The cat slept because it was tired", model=load("minilm"))
    assert repr(looked) == f"LookResult('minilm': {'; '.join(str(looked).splitlines())})"
    assert len(repr(looked)) < 150
