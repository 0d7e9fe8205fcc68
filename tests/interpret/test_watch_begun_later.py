"""A watch that is opened when a cache has keys already: its rows and columns stand at the positions of the text."""

import copy
import itertools
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import regard
from interpret.small_models import MODELS, WINDOW, with_large_weights
from regard.errors import ObservationError
from regard.models import Transformer, TransformerConfig
from regard.positions import RoPE
from sweeps import sweep

transformers = pytest.importorskip("transformers")

IDS = torch.tensor([[5, 20, 7, 9, 3, 9, 4, 41, 6, 30, 8, 12]])
READ = 9  # positions that the cache has before the watch
KINDS = {name: MODELS[name] for name in ("Llama", "Mistral", "Gemma-2")}
KINDS["Gemma-3"] = (
    "Gemma3ForCausalLM",
    "Gemma3TextConfig",
    WINDOW | {"layer_types": ["sliding_attention", "full_attention"]},
)
SPANS = {"early": (0, 6), "late": (6, None), "some": [0, 7, 11]}


def made(name: str) -> Any:
    return with_large_weights(KINDS[name])


def eager(model: Any, ids: Tensor) -> list[np.ndarray]:
    other = copy.deepcopy(model)
    other.set_attn_implementation("eager")
    with torch.no_grad():
        return [one.numpy() for one in other(ids, output_attentions=True, use_cache=False).attentions]


def cache_of(model: Any, kind: str) -> Any:
    if kind == "dynamic":
        return transformers.DynamicCache(config=model.config)
    return transformers.StaticCache(config=model.config, max_cache_len=24)


BEGUN_LATER = [
    (name, keep, kind, steps)
    for name in KINDS
    for keep in ("maps", "weights", "qk")
    for kind in ("dynamic", "static")
    for steps in ((1, 2), (3,))
    if (name, keep) != ("Gemma-2", "qk")  # Gemma-2 is eager by itself, which shows weights alone
]


def check_positions(name: str, keep: Any, kind: str, steps: tuple[int, ...]) -> None:
    model, at = made(name), READ
    cache = cache_of(model, kind)
    with torch.no_grad():
        model(IDS[:, :READ], past_key_values=cache)
        names = ["distance", "previous", "self", "first"]
        with regard.watch(model, keep=keep, keys=SPANS, statistics=names) as seen:
            for count in steps:
                model(IDS[:, at : at + count], past_key_values=cache)
                at += count
    assert seen.streams == {"text": 12}
    assert "prompt" not in seen.notes
    i, j = np.arange(READ, 12)[:, None], np.arange(12)
    for layer, whole in zip(seen.layers, eager(model, IDS), strict=True):
        theirs = whole[0, :, READ:]
        found = np.stack([seen.weights(layer=layer.number, head=head)[0] for head in range(4)])
        assert np.abs(found - theirs).max() < 2e-5
        spans = np.stack([theirs[..., :6].sum(-1), theirs[..., 6:].sum(-1), theirs[..., [0, 7, 11]].sum(-1)], -1)
        assert np.abs(layer.statistics["key_spans"][0] - spans).max() < 2e-5
        assert np.abs(layer.statistics["distance"][0] - (theirs * (i - j)).sum(-1)).max() < 2e-4
        assert np.abs(layer.statistics["previous"][0] - (theirs * (j == i - 1)).sum(-1)).max() < 2e-5
        assert np.abs(layer.statistics["self"][0] - (theirs * (j == i)).sum(-1)).max() < 2e-5
        assert np.abs(layer.statistics["first"][0] - theirs[..., 0]).max() < 2e-5


def test_rows_and_columns_have_their_positions() -> None:
    for case in sweep([row for row in BEGUN_LATER if row[0] == "Mistral"]):
        with case as values:
            check_positions(*values)


@pytest.mark.slow
def test_rows_and_columns_of_other_models_have_their_positions() -> None:
    for case in sweep([row for row in BEGUN_LATER if row[0] != "Mistral"]):
        with case as values:
            check_positions(*values)


def test_values_of_dropped_keys_are_not_needed() -> None:
    for case in sweep(KINDS):
        with case as name:
            model = made(name)
            cache = cache_of(model, "dynamic")
            with torch.no_grad():
                with regard.watch(model, statistics=["value_norm"]) as whole:
                    model(IDS)
                model(IDS[:, :READ], past_key_values=cache)
                with regard.watch(model, statistics=["value_norm"]) as seen:
                    for at in range(READ, 12):
                        model(IDS[:, at : at + 1], past_key_values=cache)
            for layer, theirs in zip(seen.layers, whole.layers, strict=True):
                ours, expected = (one.statistics["value_norm.mean"][0] for one in (layer, theirs))
                assert np.abs(ours - expected[:, READ:]).max() < 2e-5 * expected.max()


def test_chosen_queries_are_the_positions_of_a_tap() -> None:
    for case in sweep([[11], [9, 11], range(10, 12), [1]]):
        with case as queries:
            for name, heads in (("Llama", [(1, 2)]), ("Mistral", [(0, 1)])):
                model = made(name)
                rows: dict[str, dict[int, np.ndarray]] = {"watch": {}, "tap": {}}
                for way in rows:
                    cache = cache_of(model, "dynamic")
                    with torch.no_grad():
                        model(IDS[:, :READ], past_key_values=cache)
                        opened: Any = (regard.watch if way == "watch" else regard.tap)(
                            model, heads=heads, queries=queries
                        )
                        with opened as seen:
                            for at in range(READ, 12):
                                model(IDS[:, at : at + 1], past_key_values=cache)
                    if way == "tap":
                        rows[way] = {one.position: one.weights[0, 0].numpy() for one in seen.rows}
                    else:
                        found = seen.weights(layer=heads[0][0])[0, 0]
                        rows[way] = {READ + at: row for at, row in enumerate(found) if row.any()}
                assert rows["watch"].keys() == rows["tap"].keys() == set(queries) & set(range(READ, 12))
                for at, row in rows["tap"].items():
                    assert np.abs(rows["watch"][at][: len(row)] - row).max() < 1e-6


def test_chosen_queries_of_a_decoder_are_positions_in_its_cross_attention_too() -> None:
    cls, config, given = MODELS["BART"]
    torch.manual_seed(1)
    model = getattr(transformers, cls)(getattr(transformers, config)(**given)).eval()
    source, target = IDS[:, :6], IDS[:, 6:]
    with torch.no_grad():
        before = model(input_ids=source, decoder_input_ids=target[:, :3], use_cache=True)
        with regard.watch(model, keep="weights", queries=[4]) as seen:
            for at in (3, 4, 5):
                model(
                    encoder_outputs=(before.encoder_last_hidden_state,),
                    decoder_input_ids=target[:, at : at + 1],
                    past_key_values=before.past_key_values,
                )
    assert [np.flatnonzero(layer.weights[0].any((0, 2))).tolist() for layer in seen.layers] == [[1]] * 4


def test_a_cache_of_regard_has_its_positions() -> None:
    """It is written to slices of its memory, which makes the keys the text's own."""
    for case in sweep(itertools.product([None, 4], [torch.no_grad, torch.inference_mode])):
        with case as (window, mode):
            torch.manual_seed(0)
            config = TransformerConfig(
                vocab_size=99, hidden_size=32, num_attention_heads=4, intermediate_size=48, decoder_layers=2,
                positions=RoPE(8), sliding_window=window, dropout=0.0,
            )  # fmt: skip
            model = Transformer(config).eval()
            with mode():
                with regard.watch(model, keep="weights") as whole:
                    model(IDS)
                cache = model.cache()
                model(IDS[:, :READ], past_key_values=cache)
                with regard.watch(model, keep="weights") as seen:
                    for at in range(READ, 12):
                        model(IDS[:, at : at + 1], past_key_values=cache)
            for layer, theirs in zip(seen.layers, whole.layers, strict=True):
                assert (layer.kind, layer.keys) == ("self", 12)
                assert np.abs(layer.weights - theirs.weights[:, :, READ:]).max() < 2e-5


def test_tokens_of_the_whole_text_name_no_rows() -> None:
    """Rows are those of the last positions, and each would have the name of another."""
    model = made("Llama")
    cache = cache_of(model, "dynamic")
    with torch.no_grad():
        model(IDS[:, :READ], past_key_values=cache)
        with regard.watch(model, tokens=[f"n{at}" for at in range(12)]) as seen:
            model(IDS[:, READ:], past_key_values=cache)
    assert seen.tokens == {}
    with pytest.raises(ObservationError, match="the tokens of this record are not known"):
        seen.rank_heads("n11", "n1")


def test_a_copied_cache_that_has_dropped_keys_begins_a_record_at_its_position() -> None:
    model = made("Mistral")
    cache = cache_of(model, "dynamic")
    with torch.no_grad(), regard.watch(model, keep="weights") as seen:
        model(IDS[:, :READ], past_key_values=cache)
        other = copy.deepcopy(cache)
        model(IDS[:, READ : READ + 2], past_key_values=cache)
        text = torch.cat([IDS[:, :READ], torch.tensor([[77, 78]])], 1)
        model(text[:, READ:], past_key_values=other)
    assert [(one.layers[0].queries, one.layers[0].keys) for one in seen] == [(11, 11), (2, 11)]
    for layer, whole in zip(seen.records[1].layers, eager(model, text), strict=True):
        assert np.abs(layer.weights[0] - whole[0, :, READ:]).max() < 2e-5


class WithFirst(nn.Module):
    """A layer of all positions, and one of the first alone, as a classifier has."""

    def forward(self, x: Tensor) -> Tensor:
        whole = functional.scaled_dot_product_attention(x, x, x)
        return functional.scaled_dot_product_attention(whole[:, :, :1], whole, whole)


def test_tokens_given_name_the_layers_that_have_them_all() -> None:
    """A second layer with fewer rows took the names of the first, and the error requested `tokens=`."""
    with torch.no_grad(), regard.watch(model := WithFirst(), tokens="the cat sat down".split()) as seen:
        model(torch.randn(1, 2, 4, 8))
    assert [one.text for one in seen.tokens["text"][0]] == "the cat sat down".split()
    assert {one.layer for one in seen.rank_heads("sat", "the")} == {0}
