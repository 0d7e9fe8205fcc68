"""A text alone, in a batch, padded right and padded left: the same counts, names and statistics of its tokens."""

from typing import Any

import numpy as np
import pytest
import torch
import transformers as t
from torch import nn

import regard
from oracles import set_attention
from regard.heads import find_sinks, head_patterns
from regard.record.visible import Visible
from sweeps import sweep

SMALL: dict[str, Any] = {
    "vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64,
    "max_position_embeddings": 64,
}  # fmt: skip
STATISTICS = ["distance", "confidence", "sink", "self", "previous", "next", "first", "duplicate_token", "induction",
              "value_norm"]  # fmt: skip
PER_KEY = ("sink", "value_norm", "value_norm.keys", "received")
LENGTH, LONGER = 7, 12


def made(name: str, dtype: torch.dtype) -> nn.Module:
    torch.manual_seed(3)
    models = {
        "bert": lambda: t.BertModel(t.BertConfig(**SMALL)),
        "llama": lambda: t.LlamaModel(t.LlamaConfig(**SMALL, num_key_value_heads=2)),
        "mistral": lambda: t.MistralModel(t.MistralConfig(**SMALL, num_key_value_heads=2, sliding_window=4)),
        "gpt2": lambda: t.GPT2Model(t.GPT2Config(vocab_size=50, n_embd=32, n_layer=2, n_head=4, n_positions=64)),
    }
    model = models[name]().eval().to(dtype)
    with torch.no_grad():
        for one in model.parameters():
            if one.ndim >= 2:
                one.normal_(0, 2 * one.shape[-1] ** -0.5)
    return model


def padded(side: str, given: torch.Tensor, other: torch.Tensor) -> tuple[dict[str, torch.Tensor], slice]:
    """The text first in a batch, with ids that repeat those of the text as padding, and where its tokens stand."""
    if side == "alone":
        return {"input_ids": given[None], "attention_mask": torch.ones(1, LENGTH, dtype=torch.long)}, slice(0, LENGTH)
    if side == "batch":
        ids = torch.stack([given, other[:LENGTH]])
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}, slice(0, LENGTH)
    room = LONGER - LENGTH
    fill, rest = given[:1].expand(room), (torch.zeros(room, dtype=torch.long), torch.ones(LENGTH, dtype=torch.long))
    left = side == "left"
    ids = torch.stack([torch.cat([fill, given] if left else [given, fill]), other])
    mask = torch.stack([torch.cat(rest if left else rest[::-1]), torch.ones(LONGER, dtype=torch.long)])
    found = {"input_ids": ids, "attention_mask": mask}
    if left:
        found["position_ids"] = (mask.cumsum(1) - 1).clamp_min(0)
    return found, slice(room, LONGER) if left else slice(0, LENGTH)


def counts(seen: Any) -> list[Any]:
    return [
        [head_patterns(seen.record, layer) for layer in seen.record],
        [[(at.key, round(at.share, 3)) for at in find_sinks(layer)] for layer in seen.record],
    ]


def moved(found: list[Any], by: int) -> list[Any]:
    return [found[0], [[(key - by, share) for key, share in layer] for layer in found[1]]]


def of_text(seen: Any, part: slice) -> dict[str, np.ndarray]:
    found = {}
    for number, layer in enumerate(seen.record):
        arrays = {"entropy": layer.entropy, "received": layer.received, **layer.statistics}
        for name, array in arrays.items():
            if array.ndim == 3:  # of keys or of queries, whose positions are the same here
                found[f"{number} {name}"] = np.asarray(array[0, :, part])
    return found


def weights_alone(model: nn.Module, given: torch.Tensor) -> list[torch.Tensor]:
    """The oracle: the weights that transformers returns of the text alone."""
    set_attention(model, "eager")
    with torch.no_grad():
        return [one[0] for one in model(given[None], output_attentions=True).attentions]


def expected_of(weights: torch.Tensor) -> dict[str, torch.Tensor]:
    """Statistics of a text that nothing pads, by their formulas."""
    count = weights.shape[-1]
    i, j = torch.arange(count)[:, None], torch.arange(count)
    after = (count - torch.arange(count)).to(weights)
    return {
        "received": weights.sum(1),
        "sink": (weights * (i >= j)).sum(1) / after,
        "distance": (weights * (i - j).abs()).sum(-1),
        "confidence": weights.amax(-1),
        "first": weights[..., 0],
        "previous": torch.cat([torch.zeros_like(weights[:, :1, 0]), weights.diagonal(-1, 1, 2)], 1),
        "entropy": -torch.special.xlogy(weights, weights).sum(-1),
    }


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-6), (torch.float32, 1e-4)])
def test_every_statistic_and_count_is_that_of_the_text_alone(dtype, tolerance) -> None:
    torch.manual_seed(5)
    given, other = torch.randint(5, 50, (LENGTH,)), torch.randint(5, 50, (LONGER,))
    for case in sweep([(name, kind) for name in ("bert", "llama", "mistral", "gpt2") for kind in ("eager", "sdpa")]):
        with case as (name, kind):
            model = made(name, dtype)
            oracle = [expected_of(one) for one in weights_alone(model, given)]
            set_attention(model, kind)
            alone = None
            for side in ("alone", "batch", "right", "left"):
                arguments, part = padded(side, given, other)
                if side == "left" and name == "bert":
                    arguments.pop("position_ids")
                    arguments["position_ids"] = torch.arange(LONGER)[None] - torch.tensor([[LONGER - LENGTH], [0]])
                    arguments["position_ids"] = arguments["position_ids"].clamp_min(0)
                with torch.no_grad(), regard.watch(model, statistics=STATISTICS) as seen:
                    output = model(**arguments).last_hidden_state
                if (kind, dtype) == ("eager", torch.float64) and output[0, part].isnan().any():
                    continue  # transformers' own rows of padding see nothing and are NaN, as is all that reads them
                found = of_text(seen, part)
                for number, layer in enumerate(oracle):
                    for statistic, numbers in layer.items():
                        np.testing.assert_allclose(
                            found[f"{number} {statistic}"], numbers, atol=tolerance, err_msg=f"{side} {statistic}"
                        )
                here = moved(counts(seen), part.start)
                alone = alone or (found, here)
                assert here == alone[1], side
                for statistic, numbers in alone[0].items():
                    np.testing.assert_allclose(found[statistic], numbers, atol=tolerance, err_msg=f"{side} {statistic}")


def test_padding_is_in_the_record_and_in_its_file(tmp_path) -> None:
    given, other = torch.arange(5, 5 + LENGTH), torch.arange(20, 20 + LONGER)
    model = made("llama", torch.float32)
    for case in sweep(["left", "right"]):
        with case as side:
            arguments, part = padded(side, given, other)
            with torch.no_grad(), regard.watch(model) as seen:
                model(**arguments)
            seen.save(tmp_path / f"{side}.atlas")
            hidden = arguments["attention_mask"].numpy() == 0
            for record in (seen.record, regard.load_atlas(tmp_path / f"{side}.atlas").record):
                for layer in record:
                    np.testing.assert_array_equal(layer.query_padding, hidden)
                    np.testing.assert_array_equal(layer.key_padding, hidden)
                    visible = Visible.of(record.tokens, layer)
                    assert visible.first == part.start
                    beside = np.full(LONGER, -1)
                    beside[part.start + 1 : part.stop] = np.arange(part.start, part.stop - 1)
                    np.testing.assert_array_equal(visible.beside(-1)[part], beside[part])


def test_a_text_without_padding_has_none() -> None:
    model = made("bert", torch.float32)
    with torch.no_grad(), regard.watch(model) as seen:
        model(torch.arange(5, 12)[None], attention_mask=torch.ones(1, 7))
    assert all(layer.query_padding is None and layer.key_padding is None for layer in seen.record)


def test_a_mask_given_by_place_or_to_a_part_is_heard() -> None:
    class Wrapped(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, text: torch.Tensor, lengths: list[int]) -> Any:
            mask = torch.tensor([[1] * one + [0] * (text.shape[1] - one) for one in lengths])
            return self.inner(input_ids=text, attention_mask=mask)

    model, ids = made("llama", torch.float32), torch.arange(5, 15).reshape(2, 5)
    mask = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])
    wrapped = Wrapped(model)
    calls = {
        "by place": (model, lambda: model(ids, mask)),
        "bool": (model, lambda: model(ids, attention_mask=mask.bool())),
        "in a part": (wrapped, lambda: wrapped(ids, [3, 5])),
        "embeddings": (model, lambda: model(inputs_embeds=model.embed_tokens(ids), attention_mask=mask)),
    }
    for case in sweep(list(calls)):
        with case as name:
            watched, call = calls[name]
            with torch.no_grad(), regard.watch(watched) as seen:
                call()
            for layer in seen.record:
                np.testing.assert_array_equal(layer.query_padding, mask.numpy() == 0)


def test_keys_that_no_query_sees_are_padding_where_no_mask_is_heard() -> None:
    torch.manual_seed(2)
    x, hidden = torch.randn(2, 6, 16), torch.tensor([[False] * 4 + [True] * 2, [False] * 6])
    causal = nn.Transformer.generate_square_subsequent_mask(6)
    for case in sweep([(fast, mask) for fast in (False, True) for mask in (None, causal)]):
        with case as (fast, mask):
            layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True, norm_first=not fast)
            model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
            padding = hidden if mask is None else torch.zeros_like(mask[:2]).masked_fill(hidden, -torch.inf)
            with torch.no_grad(), regard.watch(model, keep="weights") as seen:
                model(x, mask=mask, src_key_padding_mask=padding)
            for one in seen.record:
                np.testing.assert_array_equal(one.query_padding, hidden)
                np.testing.assert_array_equal(one.key_padding, hidden)
                np.testing.assert_allclose(one.received[0], one.weights[0, :, :4].sum(1), atol=1e-5)


def test_masks_without_padding_are_none() -> None:
    """A key that nobody sees is a token where tokens do not see themselves, and so is one between others."""
    x = torch.randn(1, 6, 16)
    strict = torch.ones(6, 6, dtype=torch.bool).tril(-1)
    strict[0, 0] = True
    middle = torch.ones(6, 6, dtype=torch.bool)
    middle[:, 3] = False
    local = (torch.arange(6)[:, None] - torch.arange(6)).abs() < 2
    model = nn.MultiheadAttention(16, 4, batch_first=True).eval()
    for case in sweep([strict, middle, local]):
        with case as shown, torch.no_grad(), regard.watch(model) as seen:
            model(x, x, x, attn_mask=~shown)
        assert seen.record.layers[0].key_padding is None


def test_a_mask_that_attention_does_not_heed_hides_nothing() -> None:
    class Heedless(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.project = nn.Embedding(20, 16), nn.Linear(16, 48)

        def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
            q, k, v = self.project(self.embed(input_ids))[:, None].chunk(3, -1)
            return nn.functional.scaled_dot_product_attention(q, k, v)

    model = Heedless()
    with torch.no_grad(), regard.watch(model) as seen:
        model(torch.arange(5)[None], attention_mask=torch.tensor([[1, 1, 1, 0, 0]]))
    (layer,) = seen.record
    assert layer.key_padding is None
    np.testing.assert_allclose(layer.received.sum(-1), 5, atol=1e-5)


def test_encoder_and_decoder_have_each_their_padding() -> None:
    torch.manual_seed(1)
    config = {"vocab_size": 50, "d_model": 32}
    bart = t.BartForConditionalGeneration(
        t.BartConfig(
            **config,
            encoder_layers=1,
            decoder_layers=1,
            encoder_attention_heads=4,
            decoder_attention_heads=4,
            encoder_ffn_dim=32,
            decoder_ffn_dim=32,
        )
    ).eval()
    t5 = t.T5ForConditionalGeneration(t.T5Config(**config, d_kv=8, d_ff=32, num_layers=1, num_heads=4)).eval()
    source, target = torch.randint(5, 50, (2, 6)), torch.randint(5, 50, (2, 4))
    masks = torch.tensor([[1, 1, 1, 1, 0, 0], [1] * 6]), torch.tensor([[1, 1, 1, 0], [1] * 4])
    hidden = {"source": masks[0].numpy() == 0, "target": masks[1].numpy() == 0}
    for case in sweep([(model, kind) for model in (bart, t5) for kind in ("eager", "sdpa")]):
        with case as (model, kind):
            set_attention(model, kind)
            with torch.no_grad(), regard.watch(model) as seen:
                model(input_ids=source, attention_mask=masks[0], decoder_input_ids=target,
                      decoder_attention_mask=masks[1])  # fmt: skip
            with torch.no_grad(), regard.watch(model) as alone:
                model(input_ids=source[:1, :4], decoder_input_ids=target[:1, :3])
            assert len(seen.record) == 3
            for layer, one in zip(seen.record, alone.record, strict=True):
                np.testing.assert_array_equal(layer.query_padding, hidden[layer.query_tokens])
                np.testing.assert_array_equal(layer.key_padding, hidden[layer.key_tokens])
                received = layer.received[0][:, : one.keys]
                np.testing.assert_allclose(received, one.received[0], atol=1e-4)
            assert [head_patterns(seen.record, one) for one in seen.record] == [
                head_patterns(alone.record, one) for one in alone.record
            ]


def test_generation_from_a_batch_padded_left_counts_as_each_text_alone() -> None:
    torch.manual_seed(4)
    model = t.LlamaForCausalLM(t.LlamaConfig(**SMALL, num_key_value_heads=2, pad_token_id=0, eos_token_id=None)).eval()
    short, long = torch.randint(5, 50, (1, 4)), torch.randint(5, 50, (1, 7))
    ids = torch.cat([torch.cat([torch.zeros(1, 3, dtype=torch.long), short], 1), long])
    options: dict[str, Any] = {"max_new_tokens": 5, "do_sample": False}
    for case in sweep([{}, {"cache_implementation": "static"}, {"num_beams": 2}]):
        with case as more:
            with torch.no_grad(), regard.watch(model, statistics=["sink", "first"]) as seen:
                model.generate(ids, attention_mask=(ids != 0).long(), **options, **more)
            with torch.no_grad(), regard.watch(model, statistics=["sink", "first"]) as alone:
                model.generate(short, attention_mask=torch.ones_like(short), **options, **more)
            for layer, one in zip(seen.record, alone.record, strict=True):
                assert layer.key_padding[0].tolist() == [True] * 3 + [False] * (layer.keys - 3)
                np.testing.assert_allclose(layer.received[0][:, 3:], one.received[0], atol=1e-4)
                for name, numbers in one.statistics.items():
                    np.testing.assert_allclose(layer.statistics[name][0][:, 3:], numbers[0], atol=1e-4)
                assert head_patterns(seen.record, layer) == head_patterns(alone.record, one)


def test_sums_over_chosen_queries_and_heads_leave_padding_out() -> None:
    model, given, other = made("llama", torch.float64), torch.arange(5, 5 + LENGTH), torch.arange(20, 20 + LONGER)
    arguments, part = padded("left", given, other)
    with torch.no_grad(), regard.watch(model, heads=["1.2"], queries=range(3, 8), statistics=["sink"]) as seen:
        model(**arguments)
    (weights,) = [one[2] for number, one in enumerate(weights_alone(model, given)) if number == 1]
    rows = weights[: 8 - part.start]  # positions 5 to 7 of the batch are 0 to 2 of the text
    np.testing.assert_allclose(seen.record.layers[0].received[0, 2, part], rows.sum(0), atol=1e-6)


def test_long_texts_kept_as_maps_or_as_queries_and_keys() -> None:
    torch.manual_seed(6)
    model = made("llama", torch.float32)
    model.config.max_position_embeddings = 1024
    given, room = torch.randint(5, 50, (1, 600)), 40
    ids = torch.cat([torch.zeros(1, room, dtype=torch.long), given], 1)
    mask = (torch.arange(ids.shape[1]) >= room).long()[None]
    for case in sweep(["maps", "qk"]):
        with case as keep:
            with torch.no_grad(), regard.watch(model, keep=keep, statistics=["sink", "distance"]) as seen:
                model(ids, attention_mask=mask)
            with torch.no_grad(), regard.watch(model, keep=keep, statistics=["sink", "distance"]) as alone:
                model(given)
            for layer, one in zip(seen.record, alone.record, strict=True):
                np.testing.assert_allclose(layer.received[0][:, room:], one.received[0], atol=2e-3)
                for name, numbers in one.statistics.items():
                    np.testing.assert_allclose(layer.statistics[name][0][:, room:], numbers[0], rtol=1e-3, atol=1e-4)
                assert head_patterns(seen.record, layer) == head_patterns(alone.record, one)
                assert [at.key - room for at in find_sinks(layer)] == [at.key for at in find_sinks(one)]
