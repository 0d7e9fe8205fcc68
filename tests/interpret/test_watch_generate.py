"""Generation with caches: the rows of all steps together are those of one pass over the finished text."""

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

import regard
from interpret.small_models import MODELS
from oracles import set_attention
from regard.errors import ObservationError
from sweeps import sweep
from tiers import slow_but

transformers = pytest.importorskip("transformers")


def made(name: str):
    model, config, given = MODELS[name]
    model = getattr(transformers, model)(getattr(transformers, config)(**given)).eval()
    torch.manual_seed(1)
    with torch.no_grad():
        for one in model.parameters():
            if one.ndim >= 2:
                one.normal_(0, one.shape[-1] ** -0.5)
    settings = model.generation_config
    settings.pad_token_id, settings.eos_token_id, settings.forced_eos_token_id = 0, None, None
    settings.decoder_start_token_id = 1
    return model


def prompt(length: int, *, left: int = 0, right: int = 0) -> dict[str, torch.Tensor]:
    ids = torch.randint(3, 99, (2, length), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    mask[1, :left] = 0
    mask[1, length - right :] = 0
    return {"input_ids": ids, "attention_mask": mask}


def generated(model, given, **asked):
    """Generate plainly and watched: the same text; gives what was seen and the text."""
    asked = {"max_new_tokens": 6, "num_beams": 1} | asked
    torch.manual_seed(0)
    plain = model.generate(**given, **asked)
    torch.manual_seed(0)
    with regard.watch(model, keep="weights") as seen:
        text = model.generate(**given, **asked)
    assert torch.equal(plain, text)
    return seen, text[:, :-1]  # the last token was never read


def of_one_pass(model, text, given):
    """What eager attention gives for the finished text of a prompt of 6 tokens."""
    mask = torch.cat([given["attention_mask"], torch.ones(2, text.shape[1] - 6, dtype=torch.long)], 1)
    positions = (mask.cumsum(-1) - 1).clamp_min(0)
    model.set_attn_implementation("eager")
    with torch.no_grad():
        return model(text, attention_mask=mask, position_ids=positions, output_attentions=True, use_cache=False)


CASES = [
    (name, kind, cache, left)
    for name in ("Llama", "Mistral", "Gemma-2")
    for kind in ("sdpa", "eager")
    for cache in ("dynamic", "static")
    for left in (0, 2)
    if (name, kind) != ("Gemma-2", "sdpa")
] + [("DeepSeek-V3", kind, "dynamic", left) for kind in ("sdpa", "eager") for left in (0, 2)]


# The fast tier has each kind of attention with one kind of cache.
PAIRED = (("sdpa", "dynamic"), ("eager", "static"))
PAIRS_OF_TIERS = [
    pytest.param(PAIRED, id="fast"),
    pytest.param((("sdpa", "static"), ("eager", "dynamic")), id="slow", marks=pytest.mark.slow),
]
KEPT = [row for row in CASES if row[0] not in ("Llama", "Mistral") or row[1:3] in PAIRED]
KEPT = [row for row in KEPT if row[0] == "Llama" or row[3] > 0]  # and one model without padding too


def check_steps(far, name: str, kind: str, cache: str, left: int) -> None:
    model, given = made(name), prompt(6, left=left)
    model.set_attn_implementation(kind)
    seen, text = generated(model, given, do_sample=left > 0, cache_implementation=cache)
    assert len(seen.records) == 1
    whole = of_one_pass(model, text, given)
    for layer, theirs in zip(seen.record, whole.attentions, strict=True):
        assert far(layer.weights, theirs) < 2e-5
        assert (layer.weights[:, :, -1].sum(-1) > 0.9).all()
        rows = layer.weights.sum(-2)
        assert abs(rows - layer.received).max() < 1e-5


def test_the_steps_of_a_generation_are_the_rows_of_one_pass(far) -> None:
    for case in sweep(KEPT):
        with case as values:
            check_steps(far, *values)


@pytest.mark.slow
def test_the_steps_of_a_generation_are_the_rows_of_one_pass_with_the_other_caches(far) -> None:
    for case in sweep([row for row in CASES if row not in KEPT]):
        with case as values:
            check_steps(far, *values)


@pytest.mark.parametrize(
    ("kind", "dtype"),
    slow_but(
        [("sdpa", torch.bfloat16)],
        [("sdpa", torch.float64), ("eager", torch.float32), ("sdpa", torch.bfloat16), ("eager", torch.float16)],
    ),
)
def test_keys_that_a_compressed_cache_makes_anew_in_each_step_are_known_again(kind: str, dtype: torch.dtype) -> None:
    """Multi-head latent attention: the last bits of a key change with the number of keys that are made together."""
    model = made("DeepSeek-V3").to(dtype)
    model.set_attn_implementation(kind)
    seen, text = generated(model, prompt(6, left=2), max_new_tokens=20, do_sample=False)
    assert [one.layer(1).queries for one in seen.records] == [text.shape[1]]
    seen, text = generated(model, prompt(6), max_new_tokens=20, do_sample=False, prefill_chunk_size=3)
    assert [one.layer(1).queries for one in seen.records] == [text.shape[1]]


@pytest.mark.parametrize(
    ("name", "kind", "cache"),
    slow_but(
        [("T5", "eager", "static"), ("BART", "sdpa", "dynamic")],
        itertools.product(("T5", "BART"), ("sdpa", "eager"), ("dynamic", "static")),
    ),
)
def test_encoder_and_decoder_generate_together(far, name: str, kind: str, cache: str) -> None:
    model, given = made(name), prompt(6, right=2)
    set_attention(model, kind)
    seen, text = generated(model, given, do_sample=False, cache_implementation=cache)
    set_attention(model, "eager")
    with torch.no_grad():
        whole = model(**given, decoder_input_ids=text, output_attentions=True, use_cache=False)
    streams = {
        ("source", "source"): whole.encoder_attentions,
        ("target", "target"): whole.decoder_attentions,
        ("target", "source"): whole.cross_attentions,
    }
    for names, theirs in streams.items():
        ours = [one for one in seen.record if (one.query_tokens, one.key_tokens) == names]
        assert max(far(one.weights, other) for one, other in zip(ours, theirs, strict=True)) < 2e-5


class _Beams:
    """The texts of beams, from what a model is given and how its cache is reordered."""

    def __init__(self, monkeypatch: Any) -> None:
        self.ids: Tensor | None = None
        self._next: Tensor | None = None  # nothing reads them behind the last step
        reorder = transformers.DynamicCache.reorder_cache
        monkeypatch.setattr(
            transformers.DynamicCache, "reorder_cache", lambda cache, rows: (self.pick(rows), reorder(cache, rows))[1]
        )

    def pick(self, rows: Tensor) -> None:
        self._next = rows

    def read(self, _: Any, __: Any, kwargs: Any) -> None:
        given = kwargs["input_ids"]
        if self.ids is not None and self._next is not None:
            self.ids = self.ids[self._next]
        self.ids = given if self.ids is None else torch.cat([self.ids, given], 1)


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("keep", ["weights", "qk"])
def test_beams_are_followed(far, monkeypatch: Any, batch: int, keep: Any) -> None:
    for case in sweep(itertools.product(["sdpa", "eager"], ["Llama", "DeepSeek-V3"])):
        with case as (kind, name):
            if keep == "qk" and kind == "eager":
                continue
            model, asked = made(name), {"num_beams": 3, "max_new_tokens": 12, "min_new_tokens": 12, "do_sample": False}
            model.set_attn_implementation(kind)
            given = {name: one[:1].expand(batch, -1) for name, one in prompt(6).items()}
            given["input_ids"] = given["input_ids"] + torch.arange(batch)[:, None]
            plain = model.generate(**given, **asked)
            beams = _Beams(monkeypatch)
            hook = model.register_forward_pre_hook(beams.read, with_kwargs=True)
            with regard.watch(model, keep=keep, statistics=["distance"]) as seen:
                assert torch.equal(model.generate(**given, **asked), plain)
            hook.remove()
            assert beams.ids is not None
            model.set_attn_implementation("eager")
            with torch.no_grad():
                whole = model(beams.ids, output_attentions=True, use_cache=False).attentions
            assert beams.ids.shape == (3 * batch, 17)
            for at, theirs in enumerate(whole):
                assert far(seen.weights(layer=at), theirs) < 2e-5
                i = torch.arange(17)
                assert far(seen.statistic("distance", layer=at), (theirs * (i[:, None] - i).abs()).sum(-1)) < 2e-4


def test_a_statistic_that_cannot_follow_beams_says_so() -> None:
    class Mine:
        name = "mine"

        def start(self, extent: Any) -> None: ...
        def fold(self, rows: Any) -> None: ...
        def finish(self, extent: Any) -> Any: ...

    model = made("Llama")
    with (
        pytest.raises(ObservationError, match=r"beam search has reordered.*'mine' has no method `reorder\(rows\)`"),
        regard.watch(model, statistics=[Mine()]),
    ):
        model.generate(**prompt(6), num_beams=3, max_new_tokens=12, do_sample=False)


@pytest.mark.parametrize("pairs", PAIRS_OF_TIERS)
def test_a_part_of_the_prompt_that_is_padding_of_all_texts_begins_the_record(far, pairs) -> None:
    for case in sweep(pairs):
        with case as (kind, cache):
            model, given = made("Llama"), prompt(7)
            given["attention_mask"][0, :3], given["attention_mask"][1, :4] = 0, 0
            model.set_attn_implementation(kind)
            seen, text = generated(model, given, do_sample=False, cache_implementation=cache, prefill_chunk_size=2)
            assert [(one.layer(1).queries, one.layer(1).keys) for one in seen.records] == [(text.shape[1],) * 2]
            mask = torch.cat([given["attention_mask"], torch.ones(2, text.shape[1] - 7, dtype=torch.long)], 1)
            model.set_attn_implementation("eager")
            with torch.no_grad():
                positions = (mask.cumsum(-1) - 1).clamp_min(0)
                whole = model(text, attention_mask=mask, position_ids=positions, output_attentions=True)
            real = mask.bool().numpy()
            for layer, theirs in zip(seen.record, whole.attentions, strict=True):
                ours, other = layer.weights.transpose(0, 2, 1, 3)[real], theirs.transpose(1, 2).numpy()[real]
                assert abs(ours - other).max() < 2e-5


@pytest.mark.parametrize("kind", ["sdpa", "eager"])
def test_room_behind_a_text_in_a_static_cache_is_no_keys(far, kind: str) -> None:
    model, given = made("Llama"), prompt(6)
    model.set_attn_implementation(kind)
    cache = transformers.StaticCache(config=model.config, max_cache_len=20)
    text = torch.cat([given["input_ids"], prompt(3)["input_ids"]], 1)
    with torch.no_grad():
        with regard.watch(model, keep="weights") as seen:
            for at, to in ((0, 6), (6, 8), (8, 9)):  # a text, a piece of two tokens, one token
                model(text[:, at:to], past_key_values=cache, cache_position=torch.arange(at, to))
        model.set_attn_implementation("eager")
        whole = model(text, output_attentions=True, use_cache=False).attentions
    assert len(seen.records) == 1
    assert max(far(one.weights, theirs) for one, theirs in zip(seen.record, whole, strict=True)) < 2e-5


def test_a_second_generation_is_a_second_record() -> None:
    model = made("Llama")
    with regard.watch(model) as seen:
        model.generate(**prompt(6), max_new_tokens=3, do_sample=False)
        model.generate(**prompt(4), max_new_tokens=3, do_sample=False)
    assert [one.layer(0).queries for one in seen.records] == [8, 6]
    with pytest.raises(ObservationError, match=r"2 forward passes were seen: choose one with seen.records\[i\]"):
        seen.layer(0)


@pytest.mark.parametrize("name", ["Llama", "DeepSeek-V3"])
def test_another_text_s_cache_is_another_record(name: str) -> None:
    """The new key follows no key of the text before, of which it has as many and none alike."""
    model = made(name)
    with torch.no_grad():
        texts = prompt(6)["input_ids"].chunk(2)
        caches = [model(one, use_cache=True).past_key_values for one in texts]
        with regard.watch(model) as seen:
            for cache in caches:
                model(texts[0][:, :1], past_key_values=cache, cache_position=torch.tensor([6]))
    assert [one.layer(0).queries for one in seen.records] == [1, 1]


def test_the_length_of_a_prompt_that_is_read_in_parts_is_not_told() -> None:
    for case in sweep(
        [({}, {"prompt": 13}), ({"prefill_chunk_size": 4}, {}), ({"prefill_chunk_size": 20}, {"prompt": 13})]
    ):
        with case as (asked, notes):
            seen, _ = generated(made("Llama"), prompt(13), **asked)
            assert len(seen.records) == 1
            assert dict(seen.notes) == {"keep": "weights"} | notes


@pytest.mark.parametrize("layer", [0, 1])
def test_a_layer_of_its_own_number_of_key_heads_is_unpacked_as_its_module_has_it(far, layer: int) -> None:
    """Behind padding, transformers passes the heads that share keys as queries of one head."""
    model = made("Llama")
    attention = model.model.layers[layer].self_attn
    width = attention.k_proj.in_features
    attention.k_proj, attention.v_proj = (torch.nn.Linear(width, attention.head_dim, bias=False) for _ in range(2))
    attention.num_key_value_groups = model.config.num_attention_heads
    seen, text = generated(model, given := prompt(6, left=2), do_sample=False)
    whole = of_one_pass(model, text, given)
    for ours, theirs in zip(seen.record, whole.attentions, strict=True):
        assert far(ours.weights, theirs) < 2e-5
