"""What the heads of two real models do on random tokens that are said twice, against transformers' own dense weights.

How the numbers here were measured: 32 tokens drawn with NumPy's default_rng(0) from 1,000 to 20,000, twice in a row
(MiniLM: between [CLS] and [SEP]), through the model with attn_implementation="eager" and output_attentions=True, whose
weights are dense float32; each score is a mean over the second saying of the share of a row's weight that goes to one
set of keys, computed in NumPy in float64 as in `scores` below. Every test computes these dense scores again; the
numbers written out say which heads these are, so that a change of both sides at once would be seen too.
"""

from typing import Any

import numpy as np
import pytest
import torch

import regard

DRAWN = 32
NAMES = ("previous", "duplicate_token", "induction", "first")

# The strongest head for each score, (layer, head), and its score.
STRONGEST: dict[str, dict[str, tuple[tuple[int, int], float]]] = {
    "smollm2": {
        "previous": ((16, 0), 0.9090),
        "duplicate_token": ((14, 3), 0.7988),
        "induction": ((18, 6), 0.9086),
        "first": ((18, 8), 0.9999),
        "sink": ((18, 8), 0.9999),
    },
    "minilm": {
        "previous": ((0, 2), 0.9964),
        "duplicate_token": ((2, 9), 0.6092),
        "induction": ((0, 10), 0.0198),  # an encoder has no induction heads: the next best is 0.0177
        "first": ((1, 11), 0.8800),
        "sink": ((1, 11), 0.8788),
    },
}


def text(loaded: Any) -> tuple[torch.Tensor, slice]:
    """Random tokens twice in a row, and where the second saying is."""
    drawn = np.random.default_rng(0).integers(1000, 20000, DRAWN).tolist()
    tokenizer = loaded.tokenizer
    if loaded.kind == "decoder":
        return torch.tensor([drawn + drawn]), slice(DRAWN, 2 * DRAWN)
    ids = [tokenizer.cls_token_id, *drawn, *drawn, tokenizer.sep_token_id]
    return torch.tensor([ids]), slice(1 + DRAWN, 1 + 2 * DRAWN)


def dense_scores(weights: np.ndarray, ids: list[int], again: slice) -> dict[str, np.ndarray]:
    """Of (heads, queries, keys): the mean share that each head gives to each set of keys."""
    found = {name: np.zeros(len(weights)) for name in NAMES}
    for i in range(again.start, again.stop):
        earlier = [j for j in range(i) if ids[j] == ids[i]]
        found["previous"] += weights[:, i, i - 1]
        found["first"] += weights[:, i, 0]
        found["duplicate_token"] += weights[:, i, earlier].sum(-1)
        found["induction"] += weights[:, i, [j + 1 for j in earlier]].sum(-1)
    return {name: total / (again.stop - again.start) for name, total in found.items()}


@pytest.mark.models
@pytest.mark.parametrize("name", ["minilm", pytest.param("smollm2", marks=pytest.mark.slow)])
def test_scores_of_heads_are_those_of_the_dense_weights(load, name: str) -> None:
    loaded = load(name)
    ids, again = text(loaded)
    with torch.no_grad(), regard.watch(loaded.model, statistics=[*NAMES, "sink", "distance"]) as seen:
        loaded.model(input_ids=ids)
    loaded.model.set_attn_implementation("eager")
    try:
        with torch.no_grad():
            eager = loaded.model(input_ids=ids, output_attentions=True).attentions
    finally:
        loaded.model.set_attn_implementation("sdpa")
    best: dict[str, tuple[tuple[int, int], float]] = dict.fromkeys((*NAMES, "sink"), ((-1, -1), -1.0))
    for layer, weights in enumerate(eager):
        dense = weights[0].double().numpy()
        expected = dense_scores(dense, ids[0].tolist(), again)
        ours = {one: seen.statistic(one, layer=layer)[0, :, again].mean(-1) for one in NAMES}
        # Gu et al. 2024: the mean weight of the first position over all queries.
        expected["sink"], ours["sink"] = dense[:, :, 0].mean(-1), seen.statistic("sink", layer=layer)[0, :, 0]
        for one in expected:
            np.testing.assert_allclose(ours[one], expected[one], atol=2e-5)
            head = int(expected[one].argmax())
            best[one] = max(best[one], ((layer, head), float(expected[one][head])), key=lambda found: found[1])
    print(name, best)  # noqa: T201
    for one, (head, score) in STRONGEST[name].items():
        assert best[one][0] == head
        assert best[one][1] == pytest.approx(score, abs=1e-3)
    assert set(STRONGEST[name]) == set(best)
