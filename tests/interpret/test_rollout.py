"""Rollout: rows, columns, words and means are those of NumPy's product of transformers' own weights; what cannot be
followed is refused in one sentence, and costs nothing else.
"""

import ast
import re
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import regard
from oracles import set_attention
from regard.statistics import Mass, PerQuery, Rollout, of_weights
from sweeps import sweep

t = pytest.importorskip("transformers", reason="transformers is not installed (the extra `models`)")
tokenizers = pytest.importorskip("tokenizers")

SIZES: dict[str, Any] = {
    "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 48,
}  # fmt: skip
PIECES = "[PAD] [UNK] [CLS] [SEP] the animal cross ##ed a street and ##es it mean was tired".split()
TEXTS = ["the animal crossed a street and the animal was tired", "it crosses the street"]
IMAGE = {"image_size": 32, "patch_size": 8}


def sharp(model: nn.Module) -> Any:
    """A model whose heads prefer some tokens, so that a wrong matrix is a wrong number."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for one in model.parameters():
            if one.ndim >= 2:
                one.normal_(0, 2.5 * one.shape[-1] ** -0.5, generator=generator)
    return model.eval().double()


def bert(**more: Any) -> Any:
    return sharp(t.BertModel(t.BertConfig(vocab_size=len(PIECES), **SIZES, **more)))


def llama(**more: Any) -> Any:
    sizes = {"vocab_size": len(PIECES), "num_key_value_heads": 2, "max_position_embeddings": 2048, **SIZES}
    return sharp(t.LlamaForCausalLM(t.LlamaConfig(**sizes, **more)))


def gpt2() -> Any:
    sizes = {"n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 1024}
    return sharp(t.GPT2LMHeadModel(t.GPT2Config(vocab_size=len(PIECES), **sizes)))


def vit() -> Any:
    return sharp(t.ViTModel(t.ViTConfig(**IMAGE, **SIZES)))


def tokenizer(side: str = "right") -> Any:
    ids = {piece: number for number, piece in enumerate(PIECES)}
    backend = tokenizers.Tokenizer(tokenizers.models.WordPiece(ids, unk_token="[UNK]"))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    backend.decoder = tokenizers.decoders.WordPiece()
    named = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    return t.PreTrainedTokenizerFast(tokenizer_object=backend, padding_side=side, **named)


def own_weights(model: nn.Module, **inputs: Any) -> list[np.ndarray]:
    """The weights (batch, heads, n, n) that transformers itself returns; its rows of padding may be NaN."""
    set_attention(model, "eager")
    with torch.no_grad():
        found = model(**inputs, output_attentions=True).attentions
    set_attention(model, "sdpa")
    return [np.nan_to_num(one.numpy()) for one in found]


def rolled(weights: list[np.ndarray]) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """R_l ⋯ R_1 after each layer, and R_L ⋯ R_l before each: Abnar & Zuidema 2020, section 3, as it is written."""
    layers = [0.5 * one.mean(1) + 0.5 * np.eye(one.shape[-1]) for one in weights]
    after = [layers[0]]
    for one in layers[1:]:
        after.append(one @ after[-1])
    before = [layers[-1]]
    for one in layers[-2::-1]:
        before.insert(0, before[0] @ one)
    return after, before


def watch(model: nn.Module, *statistics: Any, call: Any = None, inputs: Any = None, **options: Any) -> Any:
    with torch.no_grad(), regard.watch(model, statistics=statistics, **options) as seen:
        call() if call else model(**inputs)
    return seen


SINGLE = 1e-5  # transformers computes the softmax of Llama's, Mistral's and ViT's own weights in float32


def near(seen: Any, name: str, expected: list[np.ndarray], tolerance: float = 1e-9) -> None:
    for layer, one in zip(seen.layers, expected, strict=True):
        found = layer.statistics[name][:, 0]
        np.testing.assert_allclose(found, one, rtol=tolerance, atol=tolerance / 100, err_msg=f"{name} of {layer.name}")


def refusal_of(*statistics: Any, model: nn.Module, call: Any = None, **options: Any) -> tuple[str, Any]:
    """The sentence that a watch ends with, and what it has seen nevertheless."""
    with (
        pytest.raises((regard.ObservationError, regard.InputError)) as raised,
        torch.no_grad(),
        regard.watch(model, statistics=statistics, **options) as seen,
    ):
        call()
    return str(raised.value), seen


# --- is it right


def test_indices_several_and_the_mean_are_rows_and_columns_of_the_product() -> None:
    ids = torch.arange(4, 13)[None].repeat(2, 1) + torch.tensor([[0], [3]])
    pixels = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    cases = {
        "bert": (bert, {"input_ids": ids}),
        "gpt2": (gpt2, {"input_ids": ids}),
        "vit": (vit, {"pixel_values": pixels}),
    }
    for case in sweep([(name, keep) for name in cases for keep in ("maps", "qk", "weights")]):
        with case as (name, keep):
            make, inputs = cases[name]
            model = make()
            tolerance = SINGLE if name == "vit" else 1e-9
            after, before = rolled(own_weights(model, **inputs))
            asked = [
                Rollout(query=-2, name="a"), Rollout(query=[5, 0, -1], name="b"), Rollout(query=range(9), name="c"),
                Rollout(query="mean", name="d"), Rollout(query=["mean", 3, slice(2, 5), range(2, 5)], name="e"),
                Rollout(key=4, name="f"), Rollout(key=np.array([4, 0]), name="g"), Rollout(key=[slice(2, 5)], name="h"),
            ]  # fmt: skip
            seen = watch(model, *asked, inputs=inputs, keep=keep)
            near(seen, "a", [one[:, -2] for one in before], tolerance)
            near(seen, "b", [one[:, [5, 0, -1]] for one in before], tolerance)
            near(seen, "c", [one[:, :9] for one in before], tolerance)
            near(seen, "d", [one.mean(1) for one in before], tolerance)
            near(
                seen,
                "e",
                [np.stack([one.mean(1), one[:, 3], *[one[:, 2:5].mean(1)] * 2], 1) for one in before],
                tolerance,
            )
            near(seen, "f", [one[:, :, 4] for one in after], tolerance)
            near(seen, "g", [one[:, :, [4, 0]].swapaxes(1, 2) for one in after], tolerance)
            near(seen, "h", [one[:, None, :, 2:5].sum(-1) for one in after], tolerance)


def test_a_word_is_the_mean_of_its_rows_and_the_sum_of_its_columns_in_each_sequence() -> None:
    """Which tokens they are was read off the texts by hand."""
    for case in sweep(["right", "left"]):
        with case as side:
            model, words = bert(), tokenizer(side)
            inputs = dict(words(TEXTS, return_tensors="pt", padding=True))
            shift = 0 if side == "right" else inputs["input_ids"].shape[1] - 5
            after, before = rolled(own_weights(model, **inputs))
            asked = [
                Rollout(query="crossed", name="a"), Rollout(query=("the", 1), name="b"),
                Rollout(query=["street", ("animal", 2), 1], name="c"), Rollout(key="street", name="d"),
                Rollout(key=["crossed", "the"], name="e"),
            ]  # fmt: skip
            seen = watch(model, *asked, inputs=inputs, tokenizer=words)
            near(seen, "b", [np.stack([one[0, 0], one[1, shift + 3]]) for one in before])
            near(seen, "d", [np.stack([one[0, :, 5], one[1, :, shift + 4]]) for one in after])
            for layer in seen.layers:
                a, c, e = (layer.statistics[name][:, 0] for name in "ace")
                row = before[int(layer.name.split(".")[2])]
                column = after[int(layer.name.split(".")[2])]
                np.testing.assert_allclose(a[0], row[0, 2:4].mean(0), rtol=1e-9)  # cross ##ed
                np.testing.assert_allclose(c[0], row[0, [5, 8, 1]], rtol=1e-9)
                np.testing.assert_allclose(c[1, [0, 2]], row[1, [shift + 4, 1]], rtol=1e-9)
                np.testing.assert_allclose(e[0], [column[0, :, 2:4].sum(-1), column[0, :, 0]], rtol=1e-9)
                np.testing.assert_allclose(e[1, 1], column[1, :, shift + 3], rtol=1e-9)
                for nothing in (a[1], c[1, 1], e[1, 0]):  # the second text has no such word
                    assert np.isnan(nothing).all()
                assert layer.axes["c"] == (("names", ("street", "animal#2", "1")), ("keys", None))
                assert layer.axes["e"] == (("names", ("crossed", "the")), ("queries", None))
                np.testing.assert_array_equal(np.flatnonzero(layer.statistics["c.query"][0, 0, 1]), [8])
                np.testing.assert_array_equal(np.flatnonzero(layer.statistics["e.key"][0, 0, 0]), [2, 3])


def test_the_word_mean_is_not_the_mean() -> None:
    model, words = bert(), "it was mean and the animal mean".split()
    inputs = {"input_ids": torch.arange(4, 11)[None]}
    _, before = rolled(own_weights(model, **inputs))
    asked = [
        Rollout(query="mean", name="a"),
        Rollout(query=("mean", 1), name="b"),
        Rollout(query=("mean", -1), name="c"),
    ]
    seen = watch(model, *asked, inputs=inputs, tokens=words)
    for name, expected in (("a", [one.mean(1) for one in before]), ("b", [one[:, 2] for one in before])):
        near(seen, name, expected)
    near(seen, "c", [one[:, 6] for one in before])


def test_padding_has_no_part_in_the_mean_and_changes_no_number() -> None:
    for case in sweep([(make, side) for make in (bert, llama) for side in ("right", "left")], name=str):
        with case as (make, side):
            model, words = make(), tokenizer(side)
            inputs = dict(words(TEXTS, return_tensors="pt", padding=True))
            mask = inputs["attention_mask"]
            if side == "left":
                inputs["position_ids"] = (mask.cumsum(1) - 1).clamp_min(0)
            asked = Rollout(query="mean"), Rollout(query="street", name="word"), Rollout(key="street", name="to")
            batch = watch(model, *asked, inputs=inputs, tokenizer=words)
            for number, text in enumerate(TEXTS):
                own = dict(words([text], return_tensors="pt"))
                after, before = rolled(own_weights(model, **own))
                here = mask[number].bool().numpy()
                at = PIECES.index("street")
                at = int(np.flatnonzero(own["input_ids"][0].numpy() == at)[0])
                for layer, row, column in zip(batch.layers, before, after, strict=True):
                    mean, word, to = (layer.statistics[name][number, 0] for name in ("rollout", "word", "to"))
                    np.testing.assert_allclose(mean[here], row[0].mean(0), rtol=1e-6)
                    np.testing.assert_allclose(word[here], row[0, at], rtol=1e-6)
                    np.testing.assert_allclose(to[here], column[0, :, at], rtol=1e-6)
                    assert (mean[~here] == 0).all()
                    assert (word[~here] == 0).all()


@pytest.mark.parametrize(("make", "cache"), [(gpt2, None), (llama, None), (llama, "static")])
def test_steps_of_a_generation_are_rows_of_one_text(make: Any, cache: str | None) -> None:
    model, words = make(), tokenizer()
    tolerance = 1e-9 if make is gpt2 else SINGLE
    inputs = dict(words([TEXTS[0]], return_tensors="pt"))
    asked = [
        Rollout(query=["street", -1], name="a"), Rollout(query="mean", name="b"), Rollout(key="animal", name="c"),
        Rollout(key=[1, 12], name="d"),
    ]  # fmt: skip
    out: list[torch.Tensor] = []
    more = {
        "max_new_tokens": 7,
        "do_sample": False,
        "eos_token_id": None,
        "pad_token_id": 0,
        "cache_implementation": cache,
    }
    seen = watch(model, *asked, call=lambda: out.append(model.generate(**inputs, **more)), tokenizer=words)
    after, before = rolled(own_weights(model, input_ids=out[0][:, :-1]))
    near(seen, "a", [one[:, [5, -1]] for one in before], tolerance)
    near(seen, "b", [one.mean(1) for one in before], tolerance)
    near(seen, "c", [one[:, :, 1] for one in after], tolerance)
    near(seen, "d", [one[:, :, [1, 12]].swapaxes(1, 2) for one in after], tolerance)


def test_a_cache_that_writes_on_in_its_memory_does_not_change_what_was_kept() -> None:
    """The keys of a sliding static cache are moved within one tensor, from under whoever keeps it."""
    config = {"vocab_size": len(PIECES), "num_key_value_heads": 2, "sliding_window": 6, **SIZES}
    model = sharp(t.MistralForCausalLM(t.MistralConfig(**config)))
    ids, out = torch.arange(4, 14)[None], []
    more = {
        "max_new_tokens": 9,
        "do_sample": False,
        "eos_token_id": None,
        "pad_token_id": 0,
        "cache_implementation": "static",
    }
    asked = Rollout(query=-1), Rollout(key=[slice(2, 3)], name="to")
    seen = watch(model, *asked, call=lambda: out.append(model.generate(ids, **more)))
    after, before = rolled(own_weights(model, input_ids=out[0][:, :-1]))
    near(seen, "rollout", [one[:, -1] for one in before], SINGLE)
    near(seen, "to", [one[:, None, :, 2] for one in after], SINGLE)


def test_a_text_of_pooled_maps_is_exact() -> None:
    model = gpt2()
    ids = torch.randint(4, len(PIECES), (1, 700), generator=torch.Generator().manual_seed(3))
    after, before = rolled(own_weights(model, input_ids=ids))
    asked = Rollout(query=[699, 20]), Rollout(query="mean", name="average"), Rollout(key=0, name="to")
    for case in sweep(["maps", "qk"]):
        with case as keep:
            seen = watch(model, *asked, inputs={"input_ids": ids}, keep=keep)
            assert keep == "qk" or seen.layer(0).key_bin > 1
            near(seen, "rollout", [one[:, [699, 20]] for one in before])
            near(seen, "average", [one.mean(1) for one in before])
            near(seen, "to", [one[:, :, 0] for one in after])


def test_what_is_kept_is_the_smaller_of_weights_and_of_queries_and_keys() -> None:
    """Heads of 8 numbers: q and k of 24 heads and kv heads are fewer numbers than 700² weights, and more than 9²."""
    for case in sweep([(9, 9 * 9), (700, 700 * (4 + 2) * 8)]):
        with case as (length, numbers):
            needed = 3 * 8 * numbers
            inputs = {"input_ids": torch.full((1, length), 4)}
            watch(llama(), Rollout(query=0, max_bytes=needed), inputs=inputs)
            said, seen = refusal_of(
                Rollout(query=0, max_bytes=needed - 1),
                model=(model := llama()),
                call=lambda: model(**inputs),  # noqa: B023
            )
            assert "raise `max_bytes`" in said
            assert len(seen.layers) == 3


def test_layers_that_are_not_recorded_are_followed_nevertheless() -> None:
    model, inputs = bert(), {"input_ids": torch.arange(4, 11)[None]}
    after, before = rolled(own_weights(model, **inputs))
    words = "the animal crossed it was tired and".split()
    asked = Rollout(query=["it", 0]), Rollout(key="it", name="to")
    seen = watch(model, *asked, inputs=inputs, layers=[1], tokens=words)
    near(seen, "rollout", [before[1][:, [3, 0]]])
    near(seen, "to", [after[1][:, :, 3]])


def test_it_is_saved_and_exported_with_its_axes(tmp_path: Any) -> None:
    words = "the animal crossed it was tired and".split()
    inputs = {"input_ids": torch.arange(4, 11)[None]}
    seen = watch(bert(), Rollout(query=[3, 0, -1]), Rollout(query="it", name="one"), inputs=inputs, tokens=words)
    seen.save(tmp_path / "r.atlas")
    again = regard.load_atlas(tmp_path / "r.atlas")
    np.testing.assert_array_equal(again.statistic("rollout", layer=0), seen.statistic("rollout", layer=0))
    assert again.layer(0).axes["rollout"] == (("queries", (3, 0, 6)), ("keys", None))
    seen.export(tmp_path / "r.npz", "rollout", layer=0, head=0)
    arrays = np.load(tmp_path / "r.npz")
    assert arrays["row_positions"].tolist() == ["it", "the", "and"]
    assert arrays["positions"].tolist() == words


# --- what is refused


def test_what_names_nothing_is_refused_before_anything_runs() -> None:
    cases = [
        (lambda: Rollout(query=[]), "`query` must be what is followed, at least one"),
        (lambda: Rollout(query=True), "`query` must be an index, a word of the text"),
        (lambda: Rollout(query=0.5), "`query` must be an index"),
        (lambda: Rollout(query=(3, 5)), "a list of these"),
        (lambda: Rollout(key=[0, -1]), "`key` must be a position from 0 on"),
        (lambda: Rollout(key="mean"), re.escape('pass query="mean", or key=("mean", 1)')),
        (lambda: Rollout(key=["it", "mean"]), "the mean over the keys is the same everywhere"),
    ]
    for case in sweep(cases, name=lambda one: one[1]):
        with case as (make, words), pytest.raises(regard.InputError, match=words):
            make()


def test_a_word_that_is_not_there_costs_nothing_but_its_statistic() -> None:
    model, words = bert(), "the animal crossed it was tired and".split()
    inputs = {"input_ids": torch.arange(4, 11)[None]}
    asked = Rollout(query="zebra"), Rollout(query="it", name="it"), "distance"
    said, seen = refusal_of(*asked, model=model, call=lambda: model(**inputs), tokens=words)
    assert re.search("`query` must be a word of the text .*'zebra'", said), said
    assert {"it", "distance"} <= seen.layer(0).statistics.keys()
    assert "rollout" not in seen.layer(0).statistics
    assert [token.text for token in seen.stream("text")] == words
    said, seen = refusal_of(*asked, model=model, call=lambda: model(**inputs))
    assert "pass `tokenizer=` or `tokens=`" in said
    assert len(seen.layers) == 3


def test_one_matrix_is_no_model() -> None:
    for case in sweep([Rollout(query=0), Rollout(key=0), Rollout(query="it")], name=repr):
        with case as rollout, pytest.raises(regard.ObservationError, match=r"ask for it in regard\.watch"):
            of_weights(rollout, np.eye(3))


def _swin(**more: Any) -> Any:
    config = {"image_size": 112, "embed_dim": 24, "depths": [2, 2], "num_heads": [2, 4], **more}
    return t.SwinModel(t.SwinConfig(**config)), lambda model: model(torch.randn(1, 3, 112, 112))


def _sam() -> Any:
    from transformers.models.sam.modeling_sam import SamVisionModel

    config = t.SamVisionConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, image_size=64, patch_size=8, window_size=4,
        global_attn_indexes=[], output_channels=16, mlp_dim=32,
    )  # fmt: skip
    return SamVisionModel(config), lambda model: model(torch.randn(1, 3, 64, 64))


def _qwen(grids: int) -> Any:
    from transformers.models.qwen2_5_vl.configuration_qwen2_5_vl import Qwen2_5_VLVisionConfig
    from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VisionTransformerPretrainedModel

    config = Qwen2_5_VLVisionConfig(
        depth=2, hidden_size=32, num_heads=4, intermediate_size=48, patch_size=4, window_size=16, out_hidden_size=32,
        fullatt_block_indexes=[1], spatial_merge_size=2,
    )  # fmt: skip
    pixels, grid = torch.randn(64 * grids, 96), torch.tensor([[1, 8, 8]] * grids)
    return Qwen2_5_VisionTransformerPretrainedModel(config), lambda model: model(pixels, grid_thw=grid)


def _t5() -> Any:
    config = t.T5Config(d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, vocab_size=50)
    ids = torch.arange(3, 12)[None]
    return t.T5ForConditionalGeneration(config), lambda model: model(input_ids=ids, decoder_input_ids=ids)


def _clip(length: int) -> Any:
    config = t.CLIPConfig(
        text_config={"vocab_size": 50, "max_position_embeddings": 20, **SIZES}, vision_config={**IMAGE, **SIZES},
        projection_dim=16,
    )  # fmt: skip
    given = {"input_ids": torch.arange(3, 3 + length)[None], "pixel_values": torch.randn(1, 3, 32, 32)}
    return t.CLIPModel(config), lambda model: model(**given)


def _siglip() -> Any:
    model = t.SiglipVisionModel(t.SiglipVisionConfig(**IMAGE, **SIZES))
    return model, lambda model: model(torch.randn(1, 3, 32, 32))


def _segformer() -> Any:
    config = t.SegformerConfig(
        num_encoder_blocks=2, depths=[1, 1], sr_ratios=[4, 1], hidden_sizes=[16, 32], num_attention_heads=[1, 2],
        patch_sizes=[7, 3], strides=[4, 2], mlp_ratios=[2, 2],
    )  # fmt: skip
    return t.SegformerModel(config), lambda model: model(torch.randn(1, 3, 64, 64))


def _late() -> Any:
    model, ids = llama(), torch.arange(4, 13)[None]
    cache = t.DynamicCache(config=model.config)
    with torch.no_grad():
        model(ids, past_key_values=cache)
    return model, lambda model: model(ids[:, :1], past_key_values=cache)


def _beams() -> Any:
    more = {"max_new_tokens": 6, "num_beams": 3, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    return llama(), lambda model: model.generate(torch.arange(4, 13)[None], **more)


class _Row(nn.Module):
    """Three layers, of which the last computes the row of the class token alone."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.MultiheadAttention(8, 2, batch_first=True) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            q = x[:, :1] if block is self.blocks[-1] else x
            q, k = (block.in_proj_bias[:8] + one for one in (q, x))
            q, k = (one.unflatten(-1, (2, 4)).transpose(1, 2) for one in (q, k))
            x = functional.scaled_dot_product_attention(q, k, k).transpose(1, 2).flatten(2)
        return x


class _Loop(nn.Module):
    """A module of two layers that runs twice, over its own output."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.stack = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.stack(self.stack(x))


REFUSED: dict[str, tuple[Any, str]] = {
    "Swin": (_swin, r"attends within windows or groups, 16 of them with 49 positions"),
    "Swin of one stage": (lambda: _swin(depths=[2], num_heads=[2]), r"attends within windows or groups"),
    "SAM": (_sam, r"vision_encoder\.layers\.1\.attn attends within windows or groups, 4 of them with 16 positions"),
    "Qwen2.5-VL": (lambda: _qwen(1), r"blocks\.0\.attn attends several times in one call"),
    "Qwen2.5-VL, two images": (lambda: _qwen(2), r"blocks\.0\.attn attends several times in one call"),
    "T5": (_t5, r"decoder\.block\.0\.layer\.1\.EncDecAttention attends to another text .*'target' on 'source'"),
    "CLIP": (lambda: _clip(9), r"these layers have several, 'image' and 'text'"),
    "CLIP of one length": (lambda: _clip(17), r"these layers have several, 'image' and 'text'"),
    "SigLIP": (_siglip, r"head\.attention attends .* with queries of its own"),
    "Segformer": (_segformer, r"to pooled positions, 256 queries on 16 keys"),
    "a beginning": (_late, r"the first 9 positions were not watched: let the `with` block begin before them"),
    "beams": (_beams, r"beam search has reordered the sequences .* watch greedy decoding"),
    "a loop": (
        lambda: (_Loop(), lambda model: model(torch.randn(1, 9, 16))),
        r"run several times, over one text or several \('text' and 'text 2'\)",
    ),
    "a row": (lambda: (_Row(), lambda model: model(torch.randn(1, 9, 8))), r"has rows of 1 of its 9 positions only"),
}


def test_what_cannot_be_followed_is_said_in_a_sentence_and_costs_nothing_else() -> None:
    asked = [Rollout(query=0), Rollout(query="mean", name="average"), Rollout(key=1, name="to")]
    for case in sweep(
        [(name, rollout) for name in REFUSED for rollout in asked], name=lambda one: f"{one[0]} {one[1].name}"
    ):
        with case as (name, rollout):
            make, words = REFUSED[name]
            model, call = make()
            model.eval()
            said, seen = refusal_of("distance", rollout, model=model, call=lambda: call(model))  # noqa: B023
            assert re.search(words, said), said
            assert said.startswith((f"'{rollout.name}' follows one text", "beam search")), said
            assert all("distance" in layer.statistics for layer in seen.layers)


def test_what_a_refusal_advises_works() -> None:
    """The part of the model that the sentence names, watched while the whole model runs."""
    for case in sweep(["T5", "CLIP", "SigLIP", "a loop"]):
        with case as name:
            model, call = REFUSED[name][0]()
            model.eval()
            said, _ = refusal_of(Rollout(query=0), model=model, call=lambda: call(model))  # noqa: B023
            part = ast.literal_eval(re.search(r"regard\.watch\(model\.get_submodule\((.*?)\)\)", said)[1])
            seen = watch(model.get_submodule(part), Rollout(query=0), keep="weights", call=lambda: call(model))  # noqa: B023
            assert len(seen) == (2 if name == "a loop" else 1)
            for record in seen.records:
                assert len(record.layers) > 1
                weights = [layer.weights.astype(np.float64) for layer in record.layers]
                for layer, expected in zip(record.layers, rolled(weights)[1], strict=True):
                    np.testing.assert_allclose(layer.statistics["rollout"][:, 0], expected[:, 0], rtol=1e-4, atol=1e-6)


def test_a_layer_that_was_not_recorded_is_not_skipped() -> None:
    class Attend(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return functional.scaled_dot_product_attention(x, x, x)

    class Hidden(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            scores = (x @ x.mT).softmax(-1)
            return torch.stack([torch.roll(scores, 1, -1).cumsum(-1) @ x[:, :, :, :]]).squeeze(0)

    model = nn.Sequential(Attend(), Hidden(), Attend())
    x = torch.randn(1, 2, 9, 4)
    with torch.no_grad(), regard.watch(model, strict=False) as seen:
        model(x)
    assert [one.module for one in seen.missing] == ["1"]
    for case in sweep([Rollout(query=0), Rollout(key=0)], name=repr):
        with case as rollout:
            said, seen = refusal_of(rollout, model=model, call=lambda: model(x), strict=False)
            assert re.match(r"'rollout' follows one text through all layers, and 1 was not recorded", said), said
            assert [layer.name for layer in seen.layers] == ["0", "2"]


@pytest.mark.slow
def test_layers_of_compiled_code_are_followed_and_its_windows_refused() -> None:
    model, inputs = bert(), {"input_ids": torch.arange(4, 11)[None]}
    after, before = rolled(own_weights(model, **inputs))
    seen = watch(torch.compile(model), Rollout(query="mean"), Rollout(key=2, name="to"), inputs=inputs)
    near(seen, "rollout", [one.mean(1) for one in before])
    near(seen, "to", [one[:, :, 2] for one in after])
    swin, call = _swin(depths=[2], num_heads=[2])
    compiled = torch.compile(swin.eval())
    said, seen = refusal_of(Rollout(query=0), model=compiled, call=lambda: call(compiled))
    assert "attends within windows or groups" in said
    assert len(seen.layers) == 2


class Layers(PerQuery):
    """A statistic of one's own over all layers: how many have been seen."""

    name, needs = "layers", frozenset({"layers"})

    def __init__(self) -> None:
        super().__init__()
        self.sites: list[str] = []
        self.concluded = 0

    def start(self, extent: Any) -> None:
        self.sites.append(extent.site)

    def fold(self, rows: Any) -> None:
        pass

    def conclude(self, record: Any) -> None:
        assert [layer.name for layer in record.layers] == self.sites
        self.concluded += 1

    def finish(self, extent: Any) -> Any:
        return {"layers": np.full((extent.batch, 1), len(self.sites) * self.concluded)}


def test_a_statistic_over_all_layers_is_shown_the_whole_record_once() -> None:
    model, inputs = bert(), {"input_ids": torch.arange(4, 11)[None]}
    seen = watch(model, Layers(), inputs=inputs, layers=[2])
    assert len(seen.layers) == 1
    assert seen.statistic("layers", layer=2).tolist() == [[3]]


def test_the_output_is_the_same_to_the_bit() -> None:
    model, inputs = bert(), dict(tokenizer()(TEXTS, return_tensors="pt", padding=True))
    with torch.no_grad():
        plain = model(**inputs).last_hidden_state
        asked = [Rollout(query=["street", "mean"]), Rollout(key="street", name="to"), Mass("first")]
        with regard.watch(model, tokenizer=tokenizer(), statistics=asked):
            output = model(**inputs).last_hidden_state
    assert torch.equal(plain, output)
