"""Published configurations have the parameters that transformers gives them; docs/models.md shows them as they are."""

import importlib

import pytest
import torch
import transformers

from documents import ROOT
from regard.models import Transformer
from regard.models.families import FAMILIES, family_of


@pytest.fixture(scope="module")
def docs():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "docs"))
        return importlib.import_module("published").PUBLISHED, importlib.import_module("models_table")


def test_parameters_are_as_many_as_transformers_has(docs):
    for name, raw in docs[0].items():
        config = transformers.CONFIG_MAPPING[raw["model_type"]](
            **{key: one for key, one in raw.items() if key != "model_type"}
        )
        with torch.device("meta"):
            theirs = getattr(transformers, raw["architectures"][0])(config)
            ours = Transformer(family_of(raw).config(raw))
        # Marian's sinusoids are parameters of transformers that are never trained.
        fixed = sum(
            one.numel()
            for key, one in theirs.named_parameters()
            if "embed_positions" in key and "marian" in raw["model_type"]
        )
        expected = sum(one.numel() for one in theirs.parameters()) - fixed
        unused = _unused(theirs, raw["model_type"])
        buffers = theirs.final_logits_bias.numel() if hasattr(theirs, "final_logits_bias") else 0
        assert sum(one.numel() for one in ours.parameters()) == expected - unused + buffers, name


def _unused(theirs, kind):
    """Rows of positions that no token has: two in RoBERTa, in each stack two in BART."""
    if kind == "roberta":
        return 2 * theirs.config.hidden_size
    return 4 * theirs.config.d_model if kind == "bart" else 0


def test_every_family_is_published_and_the_page_shows_it(docs):
    published, table = docs
    shown = {raw["model_type"] for raw in published.values()}
    assert {family.types[0] for family in FAMILIES.values()} == shown
    assert table.PAGE.read_text("utf-8") == table.page(), (
        "the table is not what the configurations say: run `make docs`"
    )
