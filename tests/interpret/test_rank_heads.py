"""Heads ranked by the weight between two words, of texts too long for a map to hold every weight."""

import copy
import re

import numpy as np
import pytest
import torch
from torch.nn import functional

import regard
from regard.interpret.observation import Observation
from regard.record.tokens import Word

N = 600  # above 512, maps are pooled


class Attend(torch.nn.Module):
    def forward(self, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        return functional.scaled_dot_product_attention(q, k, k)


def seen_and_true(keep: str, **chosen: object) -> tuple[Observation, np.ndarray]:
    """In head 0 ten keys share each row, of which 300 and 301 are the last; in head 1 they are the next to key 0."""
    q, k = torch.ones(1, 2, N, 1), torch.full((1, 2, N, 1), -200.0)
    k[0, 0, :8], k[0, 0, 300], k[0, 0, 301] = 0.0, -0.05, -0.06
    k[0, 1, 0], k[0, 1, 300], k[0, 1, 301] = 0.0, -3.9, -4.0
    model = Attend()
    with torch.no_grad(), regard.watch(model, keep=keep, tokens=[f"w{i}" for i in range(N)], **chosen) as seen:
        model(q, k)
    return seen, torch.softmax((q.double() @ k.double().mT)[0], -1).numpy()


@pytest.mark.parametrize("keep", ["qk", "weights"])
def test_any_weight_is_known_of_kept_queries_or_weights(keep: str) -> None:
    seen, true = seen_and_true(keep)
    found = seen.rank_heads("w5", "w300")
    assert [one.head for one in found] == [0, 1]
    np.testing.assert_allclose([one.weight for one in found], true[:, 5, 300], rtol=1e-5)
    words = [seen.words()[at] for at in (5, 300)]
    pieces = [Word("", places) for places in ((5, 6), (300, 301))]
    np.testing.assert_allclose(seen.record.word_weight(0, *words), true[:, 5, 300], rtol=1e-5)
    expected = true[:, [5, 6]][:, :, [300, 301]].sum(-1).mean(-1)
    np.testing.assert_allclose(seen.record.word_weight(0, *pieces), expected, rtol=1e-5)


def test_a_pooled_map_knows_the_strongest_keys_alone() -> None:
    seen, true = seen_and_true("maps")
    found = seen.rank_heads("w5", "w0")
    assert [one.head for one in found] == [1, 0]
    np.testing.assert_allclose([one.weight for one in found], true[[1, 0], 5, 0], rtol=1e-5)
    said = r"from 'w5' to 'w300' is unknown: layer 0 of 600 × 600 .* the 8 strongest keys .* keep=\"qk\""
    with pytest.raises(regard.ObservationError, match=said):
        seen.rank_heads("w5", "w300")
    weights = seen.record.word_weight(0, seen.words()[5], seen.words()[300])
    np.testing.assert_allclose(weights, [np.nan, true[1, 5, 300]], rtol=1e-5)


def test_chosen_heads_alone_are_ranked() -> None:
    for keep in ("maps", "qk"):
        seen, true = seen_and_true(keep, heads=["0.1"])
        (found,) = seen.rank_heads("w5", "w300")
        assert (found.head, found.weight) == (1, pytest.approx(true[1, 5, 300], rel=1e-5))


TWICE = "the cat sat on the mat and the other cat slept"


def test_a_word_that_stands_twice_is_named_by_its_number_and_said_to_stand_twice() -> None:
    loaded = regard.load_model("minilm")
    ids = loaded.tokenizer(TWICE, return_tensors="pt")
    with torch.no_grad(), regard.watch(loaded.model, tokenizer=loaded.tokenizer) as seen:
        loaded.model(**ids)
    loaded.model.set_attn_implementation("eager")
    with torch.no_grad():
        eager = torch.stack(loaded.model(**ids, output_attentions=True).attentions)[:, 0]
    words = ["[CLS]", *TWICE.split(), "[SEP]"]
    first, second = (at for at, word in enumerate(words) if word == "cat")
    names = {"cat": first, ("cat", 1): first, "cat#2": second, ("cat", -1): second, second: second, "11": second}
    for name, key in names.items():
        found = seen.rank_heads("slept", name)
        assert found[0].weight == pytest.approx(float(eager[..., words.index("slept"), key].max()), abs=1e-6)
        assert found.key.positions == (key,)
        assert seen.place(name).positions == (key,)
    assert "“cat” occurs 2 times" in seen.rank_heads("slept", "cat").note
    assert seen.rank_heads("slept", "mat").note == ""


@pytest.mark.parametrize("side", ["left", "right"])
def test_a_name_is_looked_for_in_its_own_sequence_of_a_batch(load, side: str) -> None:
    loaded = load("smollm2")
    texts = ["The dog slept because it was tired", "It rained, so the cat and the other cat stayed with it all day"]
    tokenizer = copy.deepcopy(loaded.tokenizer)
    tokenizer.padding_side = side
    ids = tokenizer(texts, padding=True, return_tensors="pt")
    with torch.no_grad(), regard.watch(loaded.model, tokenizer=tokenizer) as seen:
        loaded.model(**ids)
    for index, (text, names) in enumerate(
        zip(texts, (["dog", "it", "was tired"], ["cat#2", "it", "it#2"]), strict=True)
    ):
        before = int(ids["attention_mask"][index].argmax())
        spans = tokenizer(text, return_offsets_mapping=True)["offset_mapping"]
        for name in names:
            word, _, number = name.partition("#")
            places = [match.span() for match in re.finditer(rf"\b{word}\b", text, re.IGNORECASE)]
            start, end = places[int(number or 1) - 1]
            right = tuple(at + before for at, (first, last) in enumerate(spans) if first < end and start < last)
            assert seen.place(name, batch_index=index).positions == right
    with pytest.raises(regard.InputError, match="word of the text"):
        seen.place("cat", batch_index=0)
