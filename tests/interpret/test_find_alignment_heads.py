"""The heads for alignment of a small translator are those of dense weights of its kernel's q and k."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from regard.interpret.find_heads import find_heads
from regard.interpret.model_loading import load_model
from regard_lab.cat_and_mat import LEXICON, content_words, pairs

pytestmark = pytest.mark.slow
pytest.importorskip("pydantic", reason="pydantic is not installed (the extra `train`)")


@pytest.fixture(scope="module")
def examples() -> list[dict[str, str]]:
    """Sentences, each with one of its words and its translation, which stands once in the target."""
    found = []
    for english, chinese in pairs(60, seed=10_000):
        known = [(word, LEXICON[word][0]) for word in content_words(english) if chinese.count(LEXICON[word][0]) == 1]
        if known:
            word, translation = known[len(found) % len(known)]
            found.append({"source": english, "target": chinese, "pairs": f"{word}>{translation}"})
    return found[:40]


@pytest.fixture(scope="module")
def translator(small_translator: Path) -> Any:
    """The translator of the examples: two layers with four heads, trained for half a minute on other sentences."""
    return load_model(str(small_translator))


def measure(translator: Any, example: dict[str, str], calls: list[np.ndarray]) -> np.ndarray:
    """The weight (layers, heads) from the row that predicts the translation on its source word."""
    word, translation = example["pairs"].split(">")
    places = []
    for tokenizer, text, part in (
        (translator.tokenizer, example["source"], word),
        (translator.target_tokenizer, example["target"], translation),
    ):
        start = text.casefold().index(part)
        spans = tokenizer(text, return_offsets_mapping=True)["offset_mapping"]
        inside = [at for at, (low, high) in enumerate(spans) if low < start + len(part) and high > start and high > low]
        places.append(inside)
    keys, rows = places
    cross = [one for one in calls if one.shape[-2] == calls[2].shape[-2] and one.shape[-1] == calls[0].shape[-1]]
    cross = cross if len(cross) == 2 else [calls[3], calls[5]]
    return np.stack([one[0][:, rows[0], keys].sum(-1) for one in cross])


def test_alignment_heads_of_a_trained_translator_are_those_of_the_dense_weights(
    translator: Any, examples: list[dict[str, str]], tmp_path: Path, kernel_calls: Any
) -> None:
    path = tmp_path / "pairs.jsonl"
    path.write_text("\n".join(map(json.dumps, examples)), encoding="utf-8")
    found = find_heads(translator, job="alignment", examples=path)
    dense = []
    for one in examples[: len(examples) // 2]:
        source = torch.tensor([translator.tokenizer(one["source"])["input_ids"]])
        target = torch.tensor([translator.target_tokenizer(one["target"])["input_ids"]])
        start = torch.full((1, 1), translator.model.config.decoder_start_token_id)
        with kernel_calls() as calls, torch.no_grad():
            translator.model(
                input_ids=source,
                attention_mask=torch.ones_like(source),
                decoder_input_ids=torch.cat([start, target[:, :-1]], 1),
                use_cache=False,
            )
        dense.append(measure(translator, one, calls))
    mean = np.mean(dense, axis=0)
    expected = {(int(layer), int(head)) for layer, head in np.argwhere(mean > 0.5)}
    assert set(found.heads) == expected
    assert found.head_scores == pytest.approx([mean[one] for one in found.heads], abs=1e-4)
    assert found.head_scores[0] > 0.8
    assert found.held_out is not None
    assert found.held_out.confidence_interval[0] > 0.6
    assert not found.control_failed
