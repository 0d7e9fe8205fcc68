"""Heads of real models: their scores from transformers' dense weights, and what SmolLM2 loses without some.

The numbers written out are those of 2026-11-21 (torch 2.13.0, transformers 5.23.0, `regard heads --model M`); each test
computes the dense scores again from attn_implementation="eager" and output_attentions=True, in float64, in plain NumPy.
"""

from typing import Any

import numpy as np
import pytest
import torch

import regard
from regard import hub as bundled
from regard.heads.scores import ranked
from regard.interpret.head_loss import head_loss
from regard.interpret.head_scores import ENGLISH, Probe, head_scores, probe_scores, repeated_tokens
from regard.interpret.word_pairs import score_heads_for_pairs

pytestmark = [pytest.mark.models, pytest.mark.slow]

# The strongest head of each test, and its score.
STRONGEST = {
    "smollm2": {
        "previous": ((16, 0), 0.7203),
        "duplicate_token": ((14, 3), 0.6364),
        "induction": ((18, 6), 0.6836),
        "first": ((18, 8), 0.9998),
        "sink": ((18, 8), 0.9998),
    },
    "minilm": {
        "previous": ((0, 2), 0.9996),
        "duplicate_token": ((2, 9), 0.5273),
        "induction": ((0, 9), 0.0160),  # an encoder has no induction heads
        "sink": ((1, 11), 0.7248),
        "special_tokens": ((1, 11), 0.7208),
    },
}
SENTENCES = """\
The animal didn't cross the street because it was too tired.
The animal ran away because it was afraid of the dogs.
The animal slept all day because it was very old.
When the animal was hungry, it came to the house.
We fed the animal, but it wanted more.
貓追老鼠，因為它餓了。
貓喝了牛奶，因為它渴了。
那隻貓很小，但是它跑得很快。
貓打破了杯子，所以它躲起來了。
老人養了一隻貓，它每天晚上都出去。
"""


def load(name: str) -> Any:
    if not bundled.is_installed(name):
        pytest.skip(f"{name} is not installed: regard models get {name}")
    return regard.load_model(name)


def eager(loaded: Any, ids: torch.Tensor) -> list[np.ndarray]:
    """Each layer's weights (batch, heads, n, n)."""
    loaded.model.set_attn_implementation("eager")
    try:
        with torch.no_grad():
            output = loaded.model(input_ids=ids, attention_mask=torch.ones_like(ids), output_attentions=True)
    finally:
        loaded.model.set_attn_implementation("sdpa")
    return [one.double().numpy() for one in output.attentions]


def dense_scores(loaded: Any) -> dict[str, np.ndarray]:
    """Previous token and sink on the default text, same token and induction on the random tokens."""
    ids = loaded.tokenizer(ENGLISH, return_tensors="pt")["input_ids"]
    n, encoder = ids.shape[1], loaded.kind == "encoder"
    rows = np.arange(1, n - 1) if encoder else np.arange(1, n)  # [CLS] and [SEP] are no text
    of_text = eager(loaded, ids)
    beside = rows[1:] if encoder else rows  # before the first word is [CLS]
    found = {
        "previous": [p[0][:, beside, beside - 1].mean(-1) for p in of_text],
        "sink": [p[0][:, :, 0].mean(-1) for p in of_text],
    }
    if encoder:
        found["special_tokens"] = [p[0][:, rows][:, :, [0, n - 1]].sum(-1).mean(-1) for p in of_text]
    else:
        found["first"] = found["sink"]
    drawn = repeated_tokens(loaded, Probe())
    start = 1 if encoder else 0
    second = np.arange(start + 32, start + 64)
    assert torch.equal(drawn.ids[:, second], drawn.ids[:, second - 32])
    of_probe = eager(loaded, drawn.ids)
    found["duplicate_token"] = [p[:, :, second, second - 32].mean((0, 2)) for p in of_probe]
    found["induction"] = [p[:, :, second, second - 31].mean((0, 2)) for p in of_probe]
    return {name: np.stack(layers) for name, layers in found.items()}


@pytest.mark.parametrize("name", STRONGEST)
def test_scores_are_those_of_the_dense_weights(name: str) -> None:
    loaded = load(name)
    scores = head_scores(loaded)
    for test, expected in dense_scores(loaded).items():
        np.testing.assert_allclose(scores.scores[test], expected, atol=3e-5, err_msg=test)
        head, score = STRONGEST[name][test]
        assert scores.top(test, 1)[0][:2] == head, test
        assert scores.top(test, 1)[0][2] == pytest.approx(score, abs=2e-3), test


def test_without_its_strongest_induction_heads_smollm2_loses_more_than_without_any_of_20_random_sets() -> None:
    loaded = load("smollm2")
    induction = probe_scores(loaded, Probe())["induction"]
    strongest = [(layer, head) for layer, head, score in ranked(induction) if score > 0.3]
    assert len(strongest) == 8
    lost = head_loss(strongest, model=loaded, text="The cat sat on the mat.", random=20, probe=Probe(32, 2))
    second = {one.name: one for one in lost.losses}["loss on their second copy"]
    assert len(second.random) == 20
    assert second.rise > max(second.rises) > 0
    assert second.rise > 8
    first = {one.name: one for one in lost.losses}["loss on random tokens"]
    assert abs(first.rise) < 1  # what comes first can be copied from nowhere: these heads are for the second copy


def test_one_head_of_me5_looks_from_it_to_what_it_means_in_english_and_in_chinese() -> None:
    found = score_heads_for_pairs(["it>animal", "它>貓"], SENTENCES.splitlines(), model=load("me5"))
    assert [len(pair.weights) for pair in found.pairs] == [5, 5]
    for pair in found.pairs:
        layer, head, weight = ranked(pair.mean, 1)[0]
        assert weight > 4 * pair.even
        assert (layer, head) in ((8, 8), (11, 3))
    assert ranked(found.all, 1)[0][:2] == (8, 8)
