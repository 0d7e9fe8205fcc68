"""Texts that take turns in one watch: rows are in the record of their own text, in all layers."""

import copy
import itertools
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import regard
from interpret.small_models import MODELS, SMALL, with_large_weights
from oracles import set_attention
from regard.errors import ObservationError
from sweeps import sweep

transformers = pytest.importorskip("transformers")

DEEP = SMALL | {"num_hidden_layers": 3}  # so that a layer follows one that sees other tokens
KINDS = {
    "Llama": ("LlamaForCausalLM", "LlamaConfig", DEEP),
    "Mistral": ("MistralForCausalLM", "MistralConfig", DEEP | {"sliding_window": 4}),
    "Gemma-3": ("Gemma3ForCausalLM", "Gemma3TextConfig", DEEP | {
        "num_key_value_heads": 1, "sliding_window": 16,
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention"]}),
    "BLOOM": ("BloomForCausalLM", "BloomConfig", {"vocab_size": 99, "hidden_size": 32, "n_layer": 3, "n_head": 4}),
    "GPT-2": ("GPT2LMHeadModel", "GPT2Config", {"vocab_size": 99, "n_embd": 32, "n_layer": 3, "n_head": 4}),
    "DeepSeek-V3": (*MODELS["DeepSeek-V3"][:2],
                    MODELS["DeepSeek-V3"][2] | {"num_hidden_layers": 3, "first_k_dense_replace": 3}),
}  # fmt: skip


def made(name: str, dtype: torch.dtype = torch.float32) -> Any:
    found = with_large_weights(KINDS[name])
    found.generation_config.eos_token_id, found.generation_config.pad_token_id = None, 0
    return found.to(dtype)


def of_whole_text(model: Any, ids: Tensor) -> list[Tensor]:
    model.set_attn_implementation("eager")
    with torch.no_grad():
        return [one.float() for one in model(ids, output_attentions=True, use_cache=False).attentions]


def sizes(seen: Any) -> list[list[tuple[int, int]]]:
    return [[(layer.queries, layer.keys) for layer in one.layers] for one in seen]


# Prompts of one length that end with the same tokens, as those of a question to several documents.
A, B = torch.tensor([[5, 20, 7, 7, 3, 9, 4]]), torch.tensor([[8, 20, 7, 7, 4, 9, 6]])
DYNAMIC, STATIC = "dynamic", "static"


IN_TURNS = [
    (*of, order)
    for of in (
        *((name, DYNAMIC, torch.float32) for name in KINDS),
        *((name, STATIC, torch.float32) for name in ("Llama", "Mistral", "Gemma-3")),
        ("DeepSeek-V3", DYNAMIC, torch.bfloat16),
        ("Llama", DYNAMIC, torch.bfloat16),
    )
    for order in ("ABABAB", "ABBABA", "ABAABB")
]


# The fast tier has one order for each model and cache, and each order for one of them.
KEPT = [row for row in IN_TURNS if row[-1] == "ABBABA" or row[:3] == ("Llama", DYNAMIC, torch.float32)]


def check_turns(far, name: str, kind: str, dtype: torch.dtype, order: str) -> None:
    model = made(name, dtype)
    texts, steps = {"A": A, "B": B}, ((0, 4), (4, 5), (5, 7))
    caches: dict[str, Any] = {}
    at = dict.fromkeys("AB", 0)
    with torch.no_grad(), regard.watch(model, keep="weights") as seen:
        for text in order:
            start, end = steps[at[text]]
            if text not in caches:
                new = transformers.StaticCache if kind == STATIC else transformers.DynamicCache
                caches[text] = new(config=model.config, **({"max_cache_len": 20} if kind == STATIC else {}))
            model(texts[text][:, start:end], past_key_values=caches[text], use_cache=True)
            at[text] += 1
    assert sizes(seen) == [[(7, 7)] * 3] * 2
    for record, text in zip(seen, "AB", strict=True):
        for ours, theirs in zip(record.layers, of_whole_text(model, texts[text]), strict=True):
            assert far(ours.weights, theirs) < (2e-5 if dtype == torch.float32 else 0.05)


def test_two_texts_in_turns_are_two_records(far) -> None:
    for case in sweep(KEPT):
        with case as values:
            check_turns(far, *values)


@pytest.mark.slow
def test_two_texts_in_turns_are_two_records_in_any_order(far) -> None:
    for case in sweep([row for row in IN_TURNS if row not in KEPT]):
        with case as values:
            check_turns(far, *values)


def test_each_text_has_its_own_tokens(far) -> None:
    """Ids are those of the text whose rows they are, also for statistics of equal tokens."""
    model, caches = made("Llama"), {}
    with torch.no_grad(), regard.watch(model, statistics=["duplicate_token"]) as seen:
        for start, end in ((0, 4), (4, 5), (5, 7)):
            for name, text in (("A", A), ("B", B)):
                out = model(text[:, start:end], past_key_values=caches.get(name), use_cache=True)
                caches[name] = out.past_key_values
    for record, text in zip(seen, (A, B), strict=True):
        same = (text[0][:, None] == text[0]).tril(-1)
        for layer, theirs in zip(record.layers, of_whole_text(model, text), strict=True):
            found = record.statistic("duplicate_token", layer=layer.number)
            assert far(found, (theirs * same).sum(-1)) < 2e-5


def test_guidance_by_a_second_text_of_the_same_length_is_two_records(far) -> None:
    """The two texts take turns, and the new tokens are the same: in the first layer only older keys differ."""
    model = made("Llama")
    prompt, negative = torch.tensor([[5, 20, 7]]), torch.tensor([[8, 30, 9]])
    with regard.watch(model, keep="weights") as seen:
        out = model.generate(
            prompt, negative_prompt_ids=negative, guidance_scale=1.5, max_new_tokens=5, do_sample=False
        )
    assert sizes(seen) == [[(7, 7)] * 3] * 2
    for record, text in zip(seen, (out[:, :-1], torch.cat([negative, out[:, 3:-1]], 1)), strict=True):
        for ours, theirs in zip(record.layers, of_whole_text(model, text), strict=True):
            assert far(ours.weights, theirs) < 2e-5


@pytest.mark.parametrize("name", ["BLOOM", "Llama"])
def test_answers_behind_copies_of_one_cache_begin_records_of_their_own(far, name: str) -> None:
    """Without positions in its keys, BLOOM has the key of the last token also one column further."""
    model = made(name)
    with torch.no_grad(), regard.watch(model, keep="weights") as seen:
        cache = model(torch.tensor([[5, 6, 7]]), use_cache=True).past_key_values
        for answer in (7, 7, 9):
            model(torch.tensor([[answer]]), past_key_values=copy.deepcopy(cache))
    assert sizes(seen) == [[(4, 4)] * 3, [(1, 4)] * 3, [(1, 4)] * 3]
    for record, answer in zip(seen, (7, 7, 9), strict=True):
        for ours, theirs in zip(record.layers, of_whole_text(model, torch.tensor([[5, 6, 7, answer]])), strict=True):
            assert far(ours.weights[:, :, -1], theirs[:, :, -1]) < 2e-5


def test_a_text_whose_newest_keys_were_cut_off_goes_on_in_a_record_of_its_own(far) -> None:
    for case in sweep(itertools.product([[5, 6, 7, 7], [6, 6, 6, 6], [7, 5, 7, 5]], [1, 2])):
        with case as (text, dropped):
            model = made("BLOOM")
            ids = torch.tensor([text])
            with torch.no_grad(), regard.watch(model, keep="weights") as seen:
                cache = model(ids, use_cache=True).past_key_values
                cache.crop(-dropped)
                model(torch.tensor([[8] * dropped]), past_key_values=cache)
            assert sizes(seen) == [[(4, 4)] * 3, [(dropped, 4)] * 3]
            ids[:, 4 - dropped :] = 8
            for ours, theirs in zip(seen[1].layers, of_whole_text(model, ids), strict=True):
                assert far(ours.weights, theirs[:, :, -dropped:]) < 2e-5


@pytest.mark.parametrize("seeds", [(0, 1), pytest.param((2, 3), marks=pytest.mark.slow)])
def test_rejected_tokens_of_a_prompt_lookup_mix_no_layers(seeds: tuple[int, ...]) -> None:
    for case in sweep(itertools.product(["BLOOM", "Llama"], seeds)):
        with case as (name, seed):
            model = made(name)
            ids = torch.randint(3, 6, (1, 8), generator=torch.Generator().manual_seed(seed))
            with regard.watch(model) as seen:
                model.generate(ids, prompt_lookup_num_tokens=3, max_new_tokens=8, do_sample=False)
            assert all(len(set(layers)) == 1 and len(layers) == 3 for layers in sizes(seen))


class Cached(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.keys: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        self.keys = x if self.keys is None else torch.cat([self.keys, x], 2)
        sees = torch.ones(x.shape[2], self.keys.shape[2]).tril(self.keys.shape[2] - x.shape[2]).bool()
        return functional.scaled_dot_product_attention(x, self.keys, self.keys, attn_mask=sees)


class Fresh(nn.Module):
    """Its keys are those of each step alone, as in a predict stream."""

    def forward(self, x: Tensor) -> Tensor:
        keys = torch.cat([x * 2, x * 3], 2)
        return functional.scaled_dot_product_attention(x, keys, keys)


STEPS = torch.randn(1, 2, 6, 8, generator=torch.Generator().manual_seed(0)).split([3, 1, 1, 1], 2)


def test_a_layer_that_does_not_go_on_is_missing_and_leaves_the_others_whole(far) -> None:
    model = nn.Sequential(Cached(), Fresh())
    text = r"1 \(4 calls\): Fresh has new keys in each step.*strict=False"
    with pytest.raises(ObservationError, match=text), regard.watch(model):  # noqa: PT012
        for x in STEPS:
            model(x)
    model = nn.Sequential(Cached(), Fresh())
    with regard.watch(model, keep="weights", strict=False) as seen:
        for x in STEPS:
            model(x)
    assert [(layer.name, layer.queries) for layer in seen.layers] == [("0", 6)]
    whole = torch.cat(STEPS, 2)
    hidden = torch.ones(6, 6).triu(1).bool()
    scores = (whole.double() @ whole.double().mT / 8**0.5).masked_fill(hidden, -torch.inf)
    assert far(seen.layers[0].weights, scores.softmax(-1)) < 1e-6
    assert [(one.module, one.calls) for one in seen.missing] == [("1", 4)]


def test_a_pass_that_begins_with_a_layer_of_its_own_is_a_record_of_its_own() -> None:
    model = nn.Sequential(Fresh(), Cached())
    with regard.watch(model) as seen:
        for x in STEPS:
            model(x)
    assert sizes(seen) == [[(3, 6), (3, 3)], [(1, 2), (1, 4)], [(1, 2), (1, 5)], [(1, 2), (1, 6)]]


def test_the_texts_of_an_encoder_decoder_in_turns_are_told_apart_by_their_caches(far) -> None:
    """Their decoders begin with the same tokens, and only cross-attention, seen later, shows whose step it is."""

    def check(kind: str, copied: bool) -> None:
        cls, config, given = MODELS[kind]
        torch.manual_seed(1)
        model = getattr(transformers, cls)(getattr(transformers, config)(**given)).eval()
        target = torch.tensor([[1, 5, 6]])

        def in_turns() -> None:
            both = [model(input_ids=text, decoder_input_ids=target[:, :1], use_cache=True) for text in (A, B)]
            caches = [copy.deepcopy(one.past_key_values) if copied else one.past_key_values for one in both]
            for at in (1, 2):
                for one, cache in zip(both, caches, strict=True):
                    encoded = (one.encoder_last_hidden_state,)
                    model(encoder_outputs=encoded, decoder_input_ids=target[:, at : at + 1], past_key_values=cache)

        with torch.no_grad():
            if copied:
                with (
                    pytest.raises(ObservationError, match=r"alternate in this watch.*watch each text"),
                    regard.watch(model),
                ):
                    in_turns()
                return
            with regard.watch(model, keep="weights") as seen:
                in_turns()
            set_attention(model, "eager")
            for record, text in zip(seen, (A, B), strict=True):
                whole = model(input_ids=text, decoder_input_ids=target, output_attentions=True)
                for names, theirs in {
                    ("source", "source"): whole.encoder_attentions,
                    ("target", "target"): whole.decoder_attentions,
                    ("target", "source"): whole.cross_attentions,
                }.items():
                    ours = [one for one in record.layers if (one.query_tokens, one.key_tokens) == names]
                    assert max(far(one.weights, other) for one, other in zip(ours, theirs, strict=True)) < 2e-5

    for case in sweep(itertools.product(["T5", "BART"], [False, True])):
        with case as values:
            check(*values)


class Tower(nn.Module):
    """A language model of two layers with a cache, and a tower for images that runs first where there is one."""

    def __init__(self) -> None:
        super().__init__()
        self.vision_tower = nn.ModuleList([Fresh()])
        self.language = nn.ModuleList([Cached(), Cached()])
        self.head = Fresh()

    def forget(self) -> None:
        for one in self.language:
            one.keys = None

    def forward(self, x: Tensor, image: Tensor | None = None) -> Tensor:
        if image is not None:
            x = torch.cat([self.vision_tower[0](image), x], 2)
        for one in self.language:
            x = one(x)
        return x


def test_an_image_of_the_second_pass_is_not_in_the_record_of_the_first() -> None:
    model, image = Tower(), torch.randn(1, 2, 5, 8)
    with regard.watch(model) as seen:
        model(STEPS[0])
        model.forget()
        model(STEPS[0], image)
        model(STEPS[1])
    assert [[(layer.name, layer.queries) for layer in one.layers] for one in seen] == [
        [("language.0", 3), ("language.1", 3)],
        [("vision_tower.0", 5), ("language.0", 9), ("language.1", 9)],
    ]


def test_an_image_in_the_second_part_of_a_text_belongs_to_that_text() -> None:
    model, image = Tower(), torch.randn(1, 2, 5, 8)
    with regard.watch(model) as seen:
        model(STEPS[0])
        model(STEPS[0] * 2, image)
        model.head(model(STEPS[1]))
    assert [[(layer.name, layer.queries) for layer in one.layers] for one in seen] == [
        [("language.0", 12), ("language.1", 12), ("vision_tower.0", 5)],
        [("head", 1)],  # called by itself
    ]


@pytest.mark.parametrize("kind", ["T5", "BART"])
def test_a_decoder_does_not_join_one_of_several_encoders(far, kind: str) -> None:
    """Whose text is decoded first is not known, where all are encoded before."""
    cls, config, given = MODELS[kind]
    torch.manual_seed(1)
    model = getattr(transformers, cls)(getattr(transformers, config)(**given)).eval()
    target = torch.tensor([[1, 5, 6]])
    with torch.no_grad(), regard.watch(model, keep="weights") as seen:
        encoded = [model.get_encoder()(input_ids=text) for text in (A, B)]
        for one in encoded:
            model(encoder_outputs=one, decoder_input_ids=target, use_cache=False)
    assert [len(one.layers) for one in seen] == [2, 2, 4, 4]
    set_attention(model, "eager")
    for record, text in zip((seen[2], seen[3]), (A, B), strict=True):
        with torch.no_grad():
            whole = model(input_ids=text, decoder_input_ids=target, output_attentions=True)
        ours = [one.weights for one in record.layers if one.kind == "cross"]
        assert max(far(one, other) for one, other in zip(ours, whole.cross_attentions, strict=True)) < 2e-5


def test_layers_called_one_by_one_for_two_texts_at_once_are_records_of_their_own() -> None:
    layers = nn.ModuleList([Fresh(), Fresh()])
    one, other = STEPS[0], STEPS[0].flip(1)
    with regard.watch(nn.Sequential(*layers), keep="weights") as seen:
        for layer in layers:
            one, other = layer(one), layer(other)
    assert sizes(seen) == [[(3, 6)]] * 4


def test_keys_of_padding_that_are_nan_are_old_keys_too() -> None:
    model, hidden = Cached(), torch.zeros(1, 1, 6, dtype=torch.bool)
    hidden[..., 0] = True

    def forward(x: Tensor) -> Tensor:
        model.keys = x if model.keys is None else torch.cat([model.keys, x], 2)
        sees = torch.ones(x.shape[2], model.keys.shape[2]).tril(model.keys.shape[2] - x.shape[2]).bool()
        return functional.scaled_dot_product_attention(
            x, model.keys, model.keys, attn_mask=sees & ~hidden[..., : model.keys.shape[2]]
        )

    model.forward = forward  # type: ignore[method-assign]
    with regard.watch(model) as seen:
        for at, x in enumerate(STEPS):
            padded = x.clone()
            padded[:, :, 0] = torch.nan if at == 0 else x[:, :, 0]
            model(padded)
    assert sizes(seen) == [[(6, 6)]]


def test_texts_that_differ_before_a_window_are_refused_without_their_caches() -> None:
    """Copied caches do not show whose they are, and the first layer sees the last four tokens only."""
    model = made("Mistral")
    with torch.no_grad(), pytest.raises(ObservationError, match="alternate in this watch"), regard.watch(model):  # noqa: PT012
        caches = [
            model(text[:, :5], use_cache=True).past_key_values for text in (A, torch.cat([B[:, :1], A[:, 1:]], 1))
        ]
        for cache in caches:
            model(A[:, 5:6], past_key_values=copy.deepcopy(cache))


def test_texts_that_agree_in_every_layer_s_window_are_refused_without_their_caches() -> None:
    """Behind three windows, no newest key of any layer differs; weights of older rows would."""
    model = made("Mistral")
    tail = torch.tensor([[7, 3, 9, 4, 7, 3, 9, 4, 7, 3, 9, 4]])
    texts = [torch.cat([torch.tensor([[first]]), tail], 1) for first in (5, 8)]
    with torch.no_grad(), pytest.raises(ObservationError, match="alternate in this watch"), regard.watch(model):  # noqa: PT012
        caches = [model(text, use_cache=True).past_key_values for text in texts]
        for cache in caches:
            model(tail[:, :1], past_key_values=copy.deepcopy(cache))


def test_a_step_of_a_text_that_was_run_twice_continues_the_second_record() -> None:
    """All keys are the same and none is dropped: both records would be right."""
    model = made("Llama")
    with torch.no_grad(), regard.watch(model) as seen:
        caches = [model(A[:, :5], use_cache=True).past_key_values for _ in range(2)]
        model(A[:, 5:6], past_key_values=copy.deepcopy(caches[0]))
    assert [one[0][0] for one in sizes(seen)] == [5, 6]


def test_a_window_of_equal_tokens_continues_one_record() -> None:
    """Eager attention is recognized by its values, which have no positions: a dropped key looks like a cut-off one."""
    for case in sweep(itertools.product(["sdpa", "eager"], [[5, 6, 7, 8, 9], [7, 7, 7, 7, 7]])):
        with case as (kind, begin):
            model = made("Mistral")
            model.set_attn_implementation(kind)
            text = torch.tensor([begin + [7] * 8])
            with torch.no_grad(), regard.watch(model) as seen:
                cache = model(text[:, :5], use_cache=True).past_key_values
                for at in range(5, 13):
                    model(text[:, at : at + 1], past_key_values=cache)
            assert [layer.queries for layer in seen.layers] == [13] * 3


@pytest.mark.parametrize("kind", ["sdpa", "eager"])
def test_a_copied_cache_of_equal_tokens_does_not_continue_a_longer_text_of_them(kind: str) -> None:
    """By values alone, its four tokens might be the last ones of the eight that another text has."""
    model, tokens = made("Mistral"), torch.full((1, 7), 7)
    model.set_attn_implementation(kind)
    with torch.no_grad(), regard.watch(model, keep="weights") as seen:
        other = transformers.StaticCache(model.config, max_cache_len=20)
        for count in (7, 1):
            model(tokens[:, :count], past_key_values=other)
        cache = model(tokens[:, :4], use_cache=True).past_key_values
        for one in (copy.deepcopy(cache), cache, cache):
            model(tokens[:, :1], past_key_values=one)
    assert sizes(seen)[0] == [(8, 8)] * 3
    assert sum(record.layers[0].queries for record in seen) == 8 + 4 + 3
    for record in seen:
        for layer in record.layers:
            rows = torch.arange(layer.keys - layer.queries, layer.keys)[:, None] - torch.arange(layer.keys)
            assert torch.equal(torch.as_tensor(layer.weights[0, 0] > 0), (rows >= 0) & (rows < 4))


def test_padding_longer_than_a_window_is_part_of_the_record_of_a_prompt_in_parts() -> None:
    for case in sweep(itertools.product(["sdpa", "eager"], [4, 6])):
        with case as (kind, chunk):
            model = made("Mistral")
            model.set_attn_implementation(kind)
            ids = torch.cat([torch.zeros(2, 12, dtype=torch.long), torch.cat([A[:, :6], B[:, :6]])], 1)
            with regard.watch(model) as seen:
                model.generate(
                    ids, attention_mask=(ids > 0).long(), max_new_tokens=3, do_sample=False, prefill_chunk_size=chunk
                )
            assert sizes(seen) == [[(20, 20)] * 3]


def test_a_text_without_padding_does_not_continue_the_padded_one() -> None:
    """Padding is dropped by no window, though the keys of all that follow it are the same."""
    for case in sweep(itertools.product(["Llama", "GPT-2", "BLOOM"], ["copied", "before"])):
        with case as (name, way):
            model, pads = made(name), torch.zeros(1, 3, dtype=torch.long)
            prompt, mask = A[:, :5], torch.tensor([[0] * 3 + [1] * 5])
            inputs = {"input_ids": torch.cat([pads, prompt], 1), "attention_mask": mask}
            if name != "BLOOM":
                inputs["position_ids"] = (mask.cumsum(1) - 1).clamp_min(0)
            with torch.no_grad():
                before = model(prompt, use_cache=True).past_key_values
                with regard.watch(model) as seen:
                    model(**inputs, use_cache=True)
                    if way == "copied":
                        cache = model(prompt, use_cache=True).past_key_values
                        before = copy.deepcopy(cache)
                        model(A[:, 5:], past_key_values=cache)
                    model(B[:, 5:], past_key_values=before)
            assert [one[0] for one in sizes(seen)] == [(8, 8), *[(7, 7)] * (way == "copied"), (2, 7)]


class Steered(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.by = Cached(), Cached(), 0.0

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x) + self.by)


def test_one_text_with_and_without_steering_in_turns_is_refused() -> None:
    """The first layer's keys are the same, so only the second shows whose step it is."""
    model, keys = Steered(), []
    with pytest.raises(ObservationError, match="alternate in this watch"), regard.watch(model):  # noqa: PT012
        for model.by in (0.0, 1.0):
            model.first.keys = model.second.keys = None
            model(STEPS[0])
            keys.append((model.first.keys, model.second.keys))
        model.by, (model.first.keys, model.second.keys) = 0.0, keys[0]
        model(STEPS[1])


def test_a_step_of_a_text_that_was_encoded_outside_is_refused_if_it_begins_as_another() -> None:
    cls, config, given = MODELS["T5"]
    model = getattr(transformers, cls)(getattr(transformers, config)(**given)).eval()
    start, step = torch.tensor([[1]]), torch.tensor([[5]])
    with torch.no_grad():
        outside = model(input_ids=A, decoder_input_ids=start, use_cache=True)
        given = {"encoder_outputs": (outside.encoder_last_hidden_state,), "past_key_values": outside.past_key_values}
        with pytest.raises(ObservationError, match="alternate in this watch"), regard.watch(model):  # noqa: PT012
            model(input_ids=B, decoder_input_ids=start, use_cache=True)
            model(**given, decoder_input_ids=step)


class Memory(nn.Module):
    """Cross-attention that computes its keys anew in each call."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor, source: Tensor) -> Tensor:
        keys = self.k(source)
        return functional.scaled_dot_product_attention(self.q(x), keys, keys)


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.own, self.cross = Cached(), Memory()

    def forward(self, x: Tensor, source: Tensor) -> Tensor:
        return self.cross(self.own(x), source)


def test_cross_attention_continues_with_its_text_in_steps_of_several_queries() -> None:
    model, source = Decoder(), torch.randn(1, 2, 9, 8)
    with regard.watch(model) as seen:
        for x in torch.cat(STEPS, 2).split(2, 2):
            model(x, source)
    assert sizes(seen) == [[(6, 6), (6, 9)]]


def test_an_earlier_source_s_keys_are_those_of_another_pass() -> None:
    model, query = Memory(), torch.randn(1, 2, 1, 8)
    one, other = torch.randn(2, 1, 2, 9, 8)
    with regard.watch(model) as seen:
        for source in (one, other, one):
            model(query, source)
    assert sizes(seen) == [[(1, 9)]] * 3


class Modes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleDict({"one": Fresh(), "other": Fresh()})

    def forward(self, x: Tensor, part: str) -> Tensor:
        return self.parts[part](x)


def test_passes_of_one_model_through_different_layers_are_two_records() -> None:
    model = Modes()
    with regard.watch(model) as seen:
        model(STEPS[0], "one")
        model(STEPS[0], "other")
    assert [[layer.name for layer in one.layers] for one in seen] == [["parts.one"], ["parts.other"]]


def test_a_second_image_of_a_text_begins_a_record() -> None:
    """No site has rows of two images; its own rows and those of the text are one pass."""
    model, image = Tower(), torch.randn(1, 2, 5, 8)
    with regard.watch(model) as seen:
        for _ in range(2):
            model(STEPS[0], image)
    assert [[(layer.queries, layer.keys) for layer in one.layers] for one in seen] == [
        [(5, 10), (8, 8), (8, 8)],
        [(5, 10), (8, 16), (8, 16)],
    ]


def test_keys_that_differ_little_are_other_keys_in_half_precision() -> None:
    """A large bias of keys, as Qwen2 has, leaves a token few of the bits; rounding changes few numbers."""
    one, other = ((STEPS[0] * factor + 100).bfloat16() for factor in (1, 0.5))
    end, model = (STEPS[1] + 100).bfloat16(), Cached()
    with regard.watch(model) as seen:
        model(torch.cat([one, end], 2))
        first = model.keys
        model.keys = None
        model(torch.cat([other, end], 2))
        model.keys = first
        model(end)
    assert sizes(seen) == [[(5, 5)], [(4, 4)]]


def test_rows_with_each_other_s_tokens_in_another_cache_are_not_reordered(far) -> None:
    """By values alone, each row's newest key is one that the first row had before."""
    for case in sweep(itertools.product(["BLOOM", "Llama"], ["cut off", "copied"])):
        with case as (name, way):
            model, steps = made(name), torch.arange(40, 55).view(5, 3, 1)
            steps[2, 0] = 22
            model.set_attn_implementation("eager")
            prompt = torch.tensor([[11, 20, 21, 22], [13, 20, 21, 22], [15, 20, 21, 22]])
            with torch.no_grad(), regard.watch(model, keep="weights") as seen:
                cache = model(prompt, use_cache=True).past_key_values
                before = copy.deepcopy(cache)
                for step in steps[:3]:
                    model(step, past_key_values=cache)
                if way == "cut off":
                    cache.crop(-3)
                    before = cache
                for step in steps[3:]:
                    model(step, past_key_values=before)
            assert sizes(seen) == [[(7, 7)] * 3, [(2, 6)] * 3]
            for ours, theirs in zip(
                seen[1].layers, of_whole_text(model, torch.cat([prompt, *steps[3:]], 1)), strict=True
            ):
                assert far(ours.weights, theirs[:, :, -2:]) < 2e-5


def test_beams_that_end_with_the_same_token_are_followed(far) -> None:
    model = made("Llama")
    with torch.no_grad(), regard.watch(model, keep="weights") as seen:
        cache = model(torch.tensor([[5, 6, 7], [8, 9, 7]]), use_cache=True).past_key_values
        cache.reorder_cache(torch.tensor([1, 0]))
        model(torch.tensor([[4], [4]]), past_key_values=cache)
    for ours, theirs in zip(
        seen.record.layers, of_whole_text(model, torch.tensor([[8, 9, 7, 4], [5, 6, 7, 4]])), strict=True
    ):
        assert far(ours.weights, theirs) < 2e-5


def test_layers_called_one_by_one_are_told_apart_too() -> None:
    layers = nn.ModuleList([Cached(), Cached()])
    tail, heads = STEPS[1], (STEPS[0], STEPS[0].flip(0, 1))
    with regard.watch(nn.Sequential(*layers)) as seen:
        keys: list[list[Tensor | None]] = [[None, None], [None, None]]
        for x in (heads, (tail, tail)):
            for text in (0, 1):
                now = x[text]
                for layer, cached in enumerate(layers):
                    cached.keys = keys[text][layer]
                    now = cached(now)
                    keys[text][layer] = cached.keys
    assert sizes(seen) == [[(4, 4), (4, 4)]] * 2
