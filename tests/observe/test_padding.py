"""A text alone, in a batch, padded right and padded left: the same counts, names and statistics of its tokens."""

from typing import Any

import numpy as np
import pytest
import torch
import transformers as t
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch import nn

import regard
from oracles import set_attention
from regard.heads import find_sinks, head_patterns
from regard.models import Transformer, TransformerConfig
from regard.record.records import Layer, Record
from regard.record.tokens import Token
from regard.record.visible import Visible
from regard.render.labels import describe, statistic_means
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
    kinds = {
        "bert": lambda: t.BertModel(t.BertConfig(**SMALL)),
        "llama": lambda: t.LlamaModel(t.LlamaConfig(**SMALL, num_key_value_heads=2)),
        "mistral": lambda: t.MistralModel(t.MistralConfig(**SMALL, num_key_value_heads=2, sliding_window=4)),
        "gpt2": lambda: t.GPT2Model(t.GPT2Config(vocab_size=50, n_embd=32, n_layer=2, n_head=4, n_positions=64)),
    }
    model = kinds[name]().eval().to(dtype)
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


WORDS = "[PAD] [UNK] [CLS] [SEP] the cat sat on a mat . , it was tired because dog and two birds".split()
SHORT, LONG = "the cat sat on a mat", "the dog and two birds sat on a mat because it was tired ."


def tokenizer(kind: str) -> Any:
    """Words with [CLS] and [SEP] around them as in BERT, or with [CLS] before them as BOS, or nothing."""
    backend = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    if kind != "none":
        around = {"bert": "[CLS] $A [SEP]", "bos": "[CLS] $A"}[kind]
        backend.post_processor = processors.TemplateProcessing(around, None, [("[CLS]", 2), ("[SEP]", 3)])
    named = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    return t.PreTrainedTokenizerFast(tokenizer_object=backend, **named)


def test_first_and_previous_are_tokens_of_the_text_with_a_tokenizer() -> None:
    for case in sweep([("bert", "bert"), ("llama", "bos"), ("llama", "none")]):
        with case as (name, kind):
            model, words = made(name, torch.float32), tokenizer(kind)
            first = 0 if kind == "none" else 1
            weights = weights_alone(model, torch.tensor(words(SHORT)["input_ids"]))
            alone = None
            for side in ("alone", "right", "left"):
                words.padding_side = side if side != "alone" else "right"
                given = words([SHORT] if side == "alone" else [SHORT, LONG], padding=True, return_tensors="pt")
                given.pop("token_type_ids", None)
                mask = given["attention_mask"]
                given["position_ids"] = (mask.cumsum(1) - 1).clamp_min(0)
                asked = ["first", "previous", "next"] + ([] if kind == "none" else ["special_tokens"])
                with torch.no_grad(), regard.watch(model, tokenizer=words, statistics=asked) as seen:
                    model(**given)
                start, count = int(mask[0].argmax()), int(mask[0].sum())
                rows = slice(start, start + count)
                for layer, w in zip(seen.record, weights, strict=True):
                    visible = Visible.of(seen.record.tokens, layer)
                    text = range(first, first + len(SHORT.split()))
                    assert np.flatnonzero(visible.keys).tolist() == [start + at for at in text]
                    np.testing.assert_array_equal(visible.queries, visible.keys)
                    assert visible.first == start + first
                    found = {key: array[0, :, rows] for key, array in layer.statistics.items()}
                    np.testing.assert_allclose(found["first"], w[:, :, first], atol=1e-5)
                    expected = np.zeros(w.shape[:2])
                    for at in range(1, count):
                        expected[:, at] = w[:, at, at - 1] if at - 1 in text else 0
                    np.testing.assert_allclose(found["previous"], expected, atol=1e-5)
                    if kind != "none":
                        others = [at for at in range(count) if at not in text]
                        np.testing.assert_allclose(found["special_tokens"], w[:, :, others].sum(-1), atol=1e-5)
                here = [
                    [head_patterns(seen.record, layer) for layer in seen.record],
                    [statistic_means(seen.record, layer, 1, 0) for layer in seen.record],
                    describe(seen.record),
                ]
                alone = alone or here
                assert (here[0], here[2]) == (alone[0], alone[2])
                for means, theirs in zip(here[1], alone[1], strict=True):
                    assert means == pytest.approx(theirs, abs=1e-4)


def test_a_head_is_named_by_where_its_weight_is() -> None:
    """Rows made by hand: what the text's rows give to BOS, to the first word and to the token before."""
    tokens = (Token("[PAD]", special=True), Token("<s>", special=True), *(Token(one, word=at) for at, one in
              enumerate("a b c d".split())))  # fmt: skip
    padding = np.array([[True, *[False] * 5]])
    names = {"special_tokens": lambda _: 1, "first": lambda _: 2, "previous": lambda i: max(i - 1, 1)}
    for case in sweep(list(names)):
        with case as name:
            weights = np.zeros((1, 1, 6, 6), np.float32)
            for i in range(6):
                weights[..., i, min(names[name](i), max(i, 1))] = 1
            weights[..., 0, :] = 1 / 6  # padding looks everywhere
            order = np.argsort(-weights, axis=-1, kind="stable").astype(np.int32)
            best = np.take_along_axis(weights, order, -1)
            layer = Layer("a", "self", "text", "text", 1, 1, weights, weights, np.where(best > 0, order, -1), best,
                          np.zeros((1, 1, 6), np.float32), weights[..., 1:, :].sum(-2), query_padding=padding,
                          key_padding=padding)  # fmt: skip
            record = Record((layer,), {"text": (tokens,)})
            assert head_patterns(record, 0) == (name,)
            sinks = [one.key for one in find_sinks(layer)]
            assert sinks == {"special_tokens": [1], "first": [2], "previous": []}[name]


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
    source, target = torch.randint(5, 50, (2, 6)), torch.randint(5, 50, (2, 6))
    masks = torch.tensor([[1, 1, 1, 1, 0, 0], [1] * 6]), torch.tensor([[1, 1, 1, 0, 0, 0], [1] * 6])
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


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype stage")
def test_nested_layers_and_translators_of_pytorch() -> None:
    torch.manual_seed(2)
    source, target = torch.randn(2, 6, 16), torch.randn(2, 5, 16)
    hidden = (
        torch.tensor([[False] * 4 + [True] * 2, [False] * 6]),
        torch.tensor([[False] * 3 + [True] * 2, [False] * 5]),
    )
    layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
    nested = nn.TransformerEncoder(layer, 2, enable_nested_tensor=True).eval()
    translator = nn.Transformer(16, 4, 1, 2, 32, batch_first=True).eval()
    with torch.no_grad(), regard.watch(nested) as seen:
        nested(source, src_key_padding_mask=hidden[0])
    for one in seen.record:
        np.testing.assert_array_equal(one.query_padding, hidden[0])
        np.testing.assert_allclose(one.received[0].sum(-1), 4, atol=1e-5)
    masks = dict(zip(("src_key_padding_mask", "tgt_key_padding_mask"), hidden, strict=True))
    with torch.no_grad(), regard.watch(translator) as seen:
        translator(source, target, **masks, memory_key_padding_mask=hidden[0])
    of_stream = {"source": hidden[0], "target": hidden[1]}
    assert len(seen.record) == 5
    for one in seen.record:
        np.testing.assert_array_equal(one.query_padding, of_stream[one.query_tokens])
        np.testing.assert_array_equal(one.key_padding, of_stream[one.key_tokens])


def test_models_of_regard() -> None:
    torch.manual_seed(2)
    sizes = {"vocab_size": 50, "hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 64}
    mask = torch.tensor([[1, 1, 1, 1, 0, 0], [1] * 6])
    ids = torch.randint(5, 50, (2, 6))
    decoder = TransformerConfig(**sizes, decoder_layers=2)
    encoder = TransformerConfig(**sizes, encoder_layers=2)
    for case in sweep([encoder, decoder]):
        with case as config:
            model = Transformer(config).eval()
            with torch.no_grad(), regard.watch(model, statistics=["sink"]) as seen:
                model(ids, attention_mask=mask)
            with torch.no_grad(), regard.watch(model, statistics=["sink"]) as alone:
                model(ids[:1, :4])
            for layer, one in zip(seen.record, alone.record, strict=True):
                np.testing.assert_array_equal(layer.query_padding, mask.numpy() == 0)
                np.testing.assert_allclose(layer.received[0, :, :4], one.received[0], atol=1e-4)
                np.testing.assert_allclose(layer.statistics["sink"][0, :, :4], one.statistics["sink"][0], atol=1e-4)
                assert head_patterns(seen.record, layer) == head_patterns(alone.record, one)


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


def test_a_word_that_is_hidden_between_others_is_no_padding() -> None:
    """A zero between ones hides a word of the text; zeros that were at an end stay padding when tokens follow them."""
    model = made("llama", torch.float32)
    masks = [[1, 1, 0, 1, 1, 1], [0, 1, 0, 1, 1, 0]]
    expected = [[False] * 6, [True, *[False] * 4, True]]
    with torch.no_grad(), regard.watch(model) as seen:
        model(torch.arange(5, 17).reshape(2, 6), attention_mask=torch.tensor(masks))
    for layer in seen.record:
        np.testing.assert_array_equal(layer.query_padding, expected)
        np.testing.assert_array_equal(layer.key_padding, expected)
    with torch.no_grad(), regard.watch(model) as seen:
        cache = model(torch.arange(5, 17).reshape(2, 6), attention_mask=torch.tensor(masks)).past_key_values
        more = torch.cat([torch.tensor(masks), torch.ones(2, 1, dtype=torch.long)], 1)
        model(torch.tensor([[7], [8]]), attention_mask=more, past_key_values=cache)
    for layer in seen.record:
        np.testing.assert_array_equal(layer.key_padding, [[*one, False] for one in expected])


def test_special_tokens_of_a_sentencepiece_text_are_those_of_its_record() -> None:
    """A token of a space alone is text between words, and none where the tokenizer itself adds the first space."""
    loaded = regard.load_model("me5")
    words = loaded.tokenizer
    text = words(["猫 追 老鼠", "The cat slept"], padding=True, return_tensors="pt")
    names = [words.convert_ids_to_tokens(one) for one in text["input_ids"]]
    assert names[0].count("▁") > 1
    special = [[name in ("<s>", "</s>", "<pad>") for name in one] for one in names]
    special[0][1] = names[0][1] == "▁"
    set_attention(loaded.model, "eager")
    with torch.no_grad():
        weights = loaded.model(**text, output_attentions=True).attentions
        with regard.watch(loaded.model, tokenizer=words, statistics=["special_tokens", "first", "previous"]) as seen:
            loaded.model(**text)
    mask = text["attention_mask"].bool()
    for layer, w in zip(seen.record, weights, strict=True):
        for at in range(2):
            count = int(mask[at].sum())
            resting = np.array(special[at][:count])
            own = w[at, :, :count, :count].numpy()
            found = {name: array[at, :, :count] for name, array in layer.statistics.items()}
            assert [token.special for token in seen.record.tokens["text"][at]] == special[at]
            np.testing.assert_allclose(found["special_tokens"], own[..., resting].sum(-1), atol=1e-5)
            np.testing.assert_allclose(found["first"], own[..., np.flatnonzero(~resting)[0]], atol=1e-5)
            before = np.zeros(own.shape[:2])
            for i in range(1, count):
                before[:, i] = 0 if resting[i - 1] else own[:, i, i - 1]
            np.testing.assert_allclose(found["previous"], before, atol=1e-5)
