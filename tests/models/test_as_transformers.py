"""Bundled encoders opened without transformers: the same ids, places and attention weights as with it."""

import pytest
import torch

import regard
from regard.interpret.model_loading import load_model
from regard.models.as_transformers import load_bundled, load_bundled_tokenizer
from regard.record.tokens_from_tokenizer import tokens_of
from tiers import slow_but

TEXTS = (
    "The animal didn't cross the street because it was too tired",
    "貓追老鼠，因為它餓了",
    "猫追老鼠，因为它饿了",
    "  Déjà vu — [MASK] and <mask>, [UNK]\tWÖRTER…  ",
    "def f(x):\n    return x ** 2  # 🙂👩‍🚀",
    "word " * 200,
)
NAMES = slow_but(["minilm"], ["minilm", "me5"])  # the larger one takes seconds to open, twice


@pytest.mark.parametrize("name", NAMES)
def test_the_tokenizer_gives_what_that_of_transformers_does(name):
    ours, theirs = load_bundled_tokenizer(name), load_model(name).tokenizer
    for text in TEXTS:
        for special in (True, False):
            asked = {"add_special_tokens": special, "return_offsets_mapping": True, "verbose": False}
            found, wanted = ours(text, **asked), theirs(text, **asked)
            assert found["input_ids"] == wanted["input_ids"], text
            assert found["offset_mapping"] == wanted["offset_mapping"], text
        ids = wanted["input_ids"]
        assert ours.convert_ids_to_tokens(ids) == theirs.convert_ids_to_tokens(ids)
        assert tokens_of(ours, ids, text) == tokens_of(theirs, ids, text)
    assert set(ours.all_special_ids) == set(theirs.all_special_ids)
    assert ours.unk_token_id == theirs.unk_token_id


@pytest.mark.parametrize("name", NAMES)
def test_its_weights_are_those_of_transformers_eager(name):
    opened, theirs = load_bundled(name), load_model(name, attn_implementation="eager")
    for text in TEXTS[:3]:
        ids = torch.tensor([theirs.tokenizer(text)["input_ids"]])
        with torch.inference_mode():
            wanted = theirs.model(ids, output_attentions=True).attentions
            with regard.watch(opened.model) as seen:
                opened.model(input_ids=ids, attention_mask=torch.ones_like(ids))
        assert len(seen.record.layers) == len(wanted) == opened.model.config.num_hidden_layers
        for layer, one in zip(seen.record.layers, wanted, strict=True):
            torch.testing.assert_close(torch.from_numpy(layer.exact.copy()), one, atol=5e-6, rtol=0)
