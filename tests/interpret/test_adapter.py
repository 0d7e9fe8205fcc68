"""attn_implementation="regard" against transformers' own eager attention, on tiny random models."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters

import regard
from sweeps import sweep

transformers = pytest.importorskip("transformers", reason="transformers is not installed (the extra `models`)")

SMALL = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
SIZES = SMALL | {"vocab_size": 100}
GROUPED = SIZES | {"num_key_value_heads": 2, "head_dim": 12}
IDS = torch.randint(3, 90, (2, 12), generator=torch.Generator().manual_seed(1))
RIGHT = torch.ones(2, 12, dtype=torch.long).index_put((torch.tensor([1, 1]), torch.tensor([10, 11])), torch.tensor(0))
LEFT = RIGHT.flip(1)


@pytest.fixture(autouse=True)
def registered() -> None:
    regard.register_with_transformers()
    transformers.logging.set_verbosity_error()


def text(mask: torch.Tensor | None = None, **more: torch.Tensor) -> dict[str, torch.Tensor]:
    return {"input_ids": IDS} | ({} if mask is None else {"attention_mask": mask}) | more


def cases() -> dict[str, tuple[str, Callable[[], Any], dict[str, torch.Tensor]]]:
    t = transformers
    gptoss = {"sliding_window": 4, "num_local_experts": 2, "num_experts_per_tok": 1}
    gpt2 = {"n_embd": 48, "n_layer": 2, "n_head": 4, "vocab_size": 100, "bos_token_id": 1, "eos_token_id": 2}
    t5 = {"d_model": 48, "d_kv": 12, "num_layers": 2, "num_heads": 4, "d_ff": 64, "vocab_size": 100}
    sides = ("encoder", "decoder")
    bart = {
        f"{side}_{what}": n for side in sides for what, n in (("layers", 2), ("attention_heads", 4), ("ffn_dim", 64))
    }
    bart |= {
        "bos_token_id": 0,
        "eos_token_id": 2,
        "pad_token_id": 1,
        "decoder_start_token_id": 2,
        "forced_eos_token_id": 2,
    }
    target = {"decoder_input_ids": IDS[:, :5]}
    return {
        "bert": ("BertModel", lambda: t.BertConfig(**SIZES), text(RIGHT)),
        "llama": ("LlamaForCausalLM", lambda: t.LlamaConfig(**GROUPED), text()),
        "llama, padded": ("LlamaForCausalLM", lambda: t.LlamaConfig(**GROUPED), text(RIGHT)),
        "mistral": ("MistralForCausalLM", lambda: t.MistralConfig(**GROUPED, sliding_window=4), text()),
        "gemma2": (
            "Gemma2ForCausalLM",
            lambda: t.Gemma2Config(**GROUPED, sliding_window=4, attn_logit_softcapping=2.0),
            text(),
        ),
        "gpt-oss": ("GptOssForCausalLM", lambda: t.GptOssConfig(**GROUPED, **gptoss), text()),
        "gpt2": ("GPT2LMHeadModel", lambda: t.GPT2Config(**gpt2), text(RIGHT)),
        "t5": (
            "T5ForConditionalGeneration",
            lambda: t.T5Config(**t5, decoder_start_token_id=0),
            text(RIGHT, **target),
        ),
        "bart": (
            "BartForConditionalGeneration",
            lambda: t.BartConfig(d_model=48, vocab_size=100, **bart),
            text(RIGHT, **target),
        ),
        "vit": (
            "ViTModel",
            lambda: t.ViTConfig(**SMALL, image_size=32, patch_size=8),
            {"pixel_values": torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(2))},
        ),
    }


def build(kind: str, config: Callable[[], Any], implementation: str) -> Any:
    torch.manual_seed(0)
    model = getattr(transformers, kind)(config()).eval()
    model.set_attn_implementation(implementation)
    return model


def attentions(output: Any) -> list[torch.Tensor]:
    if "attentions" in output:
        return list(output.attentions)
    decoder = [one for pair in zip(output.decoder_attentions, output.cross_attentions, strict=True) for one in pair]
    return [*output.encoder_attentions, *decoder]


def result(output: Any) -> torch.Tensor:
    return output.logits if "logits" in output else output.last_hidden_state


def test_output_and_weights_are_those_of_eager() -> None:
    for case in sweep(cases()):
        with case as name:
            kind, config, inputs = cases()[name]
            eager, ours = build(kind, config, "eager"), build(kind, config, "regard")
            with torch.no_grad():
                expected = eager(**inputs, output_attentions=True)
                plain, asked = ours(**inputs), ours(**inputs, output_attentions=True)
                with regard.watch(ours) as seen:
                    watched = ours(**inputs)
            torch.testing.assert_close(result(plain), result(expected), atol=1e-5, rtol=1e-5)
            assert torch.equal(result(watched), result(plain))
            wanted, returned = attentions(expected), attentions(asked)
            assert len(returned) == len(wanted) == len(seen.layers)
            for want, given, layer in zip(wanted, returned, seen.layers, strict=True):
                torch.testing.assert_close(given, want, atol=2e-6, rtol=0)
                torch.testing.assert_close(torch.tensor(layer.exact), want, atol=2e-6, rtol=0)


@pytest.mark.parametrize("kind", ["T5ForConditionalGeneration", "MT5Model", "UMT5EncoderModel"])
def test_a_change_reaches_stacks_with_a_copy_of_their_models_configuration(kind: str) -> None:
    """transformers before 5.20 leaves them out: they ran on sdpa, and returned no weights, without a word."""
    config = getattr(transformers, f"{kind[: kind.index('5') + 1]}Config")
    model = getattr(transformers, kind)(config(d_model=16, d_kv=8, num_layers=1, num_heads=2, d_ff=8, vocab_size=9))
    for implementation in ("regard", "eager", {"": "regard"}, "sdpa"):
        model.set_attn_implementation(implementation)
        stacks = [one for one in model.modules() if isinstance(one, transformers.PreTrainedModel)]
        wanted = implementation if isinstance(implementation, str) else implementation[""]
        assert {one.config._attn_implementation for one in stacks} == {wanted}


def test_a_change_of_one_part_leaves_the_others() -> None:
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    config = transformers.CLIPConfig(text_config=sizes | {"vocab_size": 9}, vision_config=sizes | {"image_size": 32})
    model = transformers.CLIPModel(config)
    model.set_attn_implementation({"text_config": "regard"})
    assert [one.config._attn_implementation for one in (model, model.text_model, model.vision_model)] == [
        *("sdpa", "regard", "sdpa")
    ]


@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_generation_with_left_padding_is_that_of_eager(cache: str) -> None:
    options = {"max_new_tokens": 5, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    made = []
    for implementation in ("eager", "regard"):
        model = build("LlamaForCausalLM", lambda: transformers.LlamaConfig(**GROUPED), implementation)
        made.append(model.generate(IDS, attention_mask=LEFT, cache_implementation=cache, **options))
    assert torch.equal(*made)


def test_a_long_static_cache_is_read_up_to_the_text() -> None:
    """Long enough for the backend of few queries against many keys; the room after the text holds numbers that show."""
    logits = []
    for implementation in ("eager", "regard"):
        model = build("LlamaForCausalLM", lambda: transformers.LlamaConfig(**GROUPED), implementation)
        cache = transformers.StaticCache(config=model.config, max_cache_len=17_000)
        with torch.no_grad():
            model(IDS[:, :-1], past_key_values=cache)
            for layer in cache.layers:
                layer.keys[:, :, 12:], layer.values[:, :, 12:] = 1e3, 1e3
            logits.append(model(IDS[:, -1:], past_key_values=cache).logits)
    torch.testing.assert_close(*logits, atol=1e-5, rtol=1e-5)


def test_a_prepared_four_dimensional_mask_is_taken() -> None:
    hidden = torch.zeros(2, 1, 12, 12).masked_fill(torch.ones(12, 12).tril(-3).bool(), torch.finfo(torch.float32).min)
    hidden = hidden.masked_fill(torch.ones(12, 12).triu(1).bool(), torch.finfo(torch.float32).min)
    models = [
        build("LlamaForCausalLM", lambda: transformers.LlamaConfig(**GROUPED), one) for one in ("eager", "regard")
    ]
    with torch.no_grad():
        outputs = [model(input_ids=IDS, attention_mask=hidden).logits for model in models]
    torch.testing.assert_close(*outputs, atol=1e-5, rtol=1e-5)


def largest_tile(monkeypatch: pytest.MonkeyPatch, inputs: dict[str, torch.Tensor]) -> int:
    """Pairs in the largest piece of a mask that a run evaluates pair by pair."""
    evaluated = [0]

    def spied(kind: Any) -> Any:
        rectangle = kind.rectangle

        def spy(mask: Any, batch: slice, heads: slice, i: slice, j: slice, device: torch.device) -> torch.Tensor:
            evaluated.append((i.stop - i.start) * (j.stop - j.start))
            return rectangle(mask, batch, heads, i, j, device)

        return spy

    for kind in (regard.masks.Mask, regard.masks.Dense, regard.masks.Padding):
        monkeypatch.setattr(kind, "rectangle", spied(kind))
    with torch.no_grad():
        build("LlamaForCausalLM", lambda: transformers.LlamaConfig(**GROUPED), "regard")(**inputs)
    return max(evaluated)


def test_a_plain_causal_model_needs_no_mask_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    assert largest_tile(monkeypatch, text()) <= 1  # the door looks at one pair


def test_a_padded_batch_does_need_one(monkeypatch: pytest.MonkeyPatch) -> None:
    assert largest_tile(monkeypatch, text(RIGHT)) == 12 * 12


def mask_of(*request: Any) -> Any:
    """The mask that transformers gets from regard: batch, queries, keys, where both begin, and the rule."""
    regard.register_with_transformers()
    return transformers.AttentionMaskInterface()["regard"](*request)


def test_sliding_windows_are_recognized_as_windows() -> None:
    from transformers.masking_utils import sliding_window_causal_mask_function

    lazy = mask_of(1, 6, 6, 0, 0, sliding_window_causal_mask_function(3))
    assert lazy.bound is not None
    kinds = lazy.bound.blocks(torch.tensor([0, 3, 6]), torch.tensor([0, 3, 6]))[0, 0]
    assert kinds[0, 1] == regard.masks.EMPTY
    expected = torch.ones(6, 6).tril().bool() & torch.ones(6, 6).triu(-2).bool()
    assert torch.equal(lazy.bound.dense()[0, 0], expected)


def test_a_window_of_no_layer_is_no_obstacle() -> None:
    """Qwen2-MoE asks for windows of 0, which none of its layers has, and regard refused them."""
    config = transformers.Qwen2MoeConfig(
        **GROUPED, moe_intermediate_size=8, shared_expert_intermediate_size=8, num_experts=2, num_experts_per_tok=1
    )
    assert config.sliding_window == 0
    model = transformers.Qwen2MoeModel(config).eval()
    with torch.no_grad():
        expected = model(IDS, attention_mask=RIGHT).last_hidden_state
        model.set_attn_implementation("regard")
        assert (model(IDS, attention_mask=RIGHT).last_hidden_state - expected)[RIGHT.bool()].abs().max() < 1e-5


def test_an_unknown_rule_is_asked_pair_by_pair_at_its_own_positions() -> None:
    lazy = mask_of(1, 2, 4, 7, 5, lambda b, h, i, j: (i + j) % 3 == 0)
    assert lazy.bound is not None
    expected = torch.tensor([[(i + j) % 3 == 0 for j in range(5, 9)] for i in range(7, 9)])
    assert torch.equal(lazy.bound.dense()[0, 0], expected)


def test_dropout_happens_in_training_alone_and_is_repeated_from_the_seed() -> None:
    config = lambda: transformers.LlamaConfig(**GROUPED, attention_dropout=0.5)  # noqa: E731
    model = build("LlamaForCausalLM", config, "regard").train()
    logits = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        logits.append(model(input_ids=IDS).logits)
    assert torch.equal(logits[0], logits[1])
    assert not torch.equal(logits[0], logits[2])
    plain = build("LlamaForCausalLM", lambda: transformers.LlamaConfig(**GROUPED), "eager")
    plain.load_state_dict(model.state_dict())
    torch.testing.assert_close(model.eval()(input_ids=IDS).logits, plain.eval()(input_ids=IDS).logits)
    assert not torch.allclose(logits[0], model(input_ids=IDS).logits)


@pytest.mark.parametrize(
    ("kind", "config"),
    [
        ("BloomForCausalLM", lambda: transformers.BloomConfig(hidden_size=48, n_layer=2, n_head=4, vocab_size=100)),
        ("DebertaV2Model", lambda: transformers.DebertaV2Config(**SIZES)),
        ("LongformerModel", lambda: transformers.LongformerConfig(**SIZES, attention_window=4)),
    ],
)
def test_models_with_code_of_their_own_run_as_ever_or_are_refused(kind: str, config: Callable[[], Any]) -> None:
    expected = result(build(kind, config, "eager")(input_ids=IDS, attention_mask=RIGHT))
    try:
        model = build(kind, config, "regard")
        output = result(model(input_ids=IDS, attention_mask=RIGHT))
    except regard.ObservationError as refusal:
        refused = str(refusal)
    else:
        refused = None
        torch.testing.assert_close(output, expected, atol=1e-5, rtol=1e-5)
    assert refused is None or "regard.watch(model)" in refused


SIX = {"hidden_size": 48, "num_hidden_layers": 2, "vocab_size": 100}
TABLES = {
    "GPTNeoForCausalLM": lambda t: t.GPTNeoConfig(
        **SIX, num_layers=2, num_heads=4, attention_types=[[["global", "local"], 1]]),
    "GPTJForCausalLM": lambda t: t.GPTJConfig(vocab_size=100, n_embd=48, n_layer=2, n_head=4, rotary_dim=4),
    "FalconForCausalLM": lambda t: t.FalconConfig(**SIX, num_attention_heads=4),
    "BarkSemanticModel": lambda t: t.BarkSemanticConfig(
        hidden_size=48, num_layers=2, num_heads=4, input_vocab_size=100, output_vocab_size=100),
}  # fmt: skip


def test_models_that_look_up_a_class_for_each_implementation_are_refused() -> None:
    """Their tables know no implementation of others: what they raised was KeyError('regard')."""
    for case in sweep(TABLES):
        with case as kind:
            model, config = getattr(transformers, kind), TABLES[kind](transformers)
            with pytest.raises(regard.ObservationError, match=r"code of its own.*regard\.watch\(model\)"):
                model._from_config(config, attn_implementation="regard")
            seen = model._from_config(config, attn_implementation="eager")
            assert seen.config._attn_implementation == "eager"


def test_foreign_code_that_touches_the_lazy_mask_is_pointed_to_watch() -> None:
    from transformers.masking_utils import causal_mask_function

    lazy = mask_of(1, 4, 4, 0, 0, causal_mask_function)
    for touch in (
        lambda: lazy[:, 0],
        lambda: torch.zeros(4, 4) + lazy,
        lambda: lazy + torch.zeros(4, 4),
        lambda: torch.where(lazy, 0.0, 1.0),
        lambda: lazy.shape,
        lambda: lazy.to(torch.float32),
        lambda: bool(lazy),
    ):
        with pytest.raises(regard.ObservationError, match=r"regard\.watch\(model\)"):
            touch()


@pytest.mark.slow
def test_padded_texts_are_compiled_as_one_graph_for_all_lengths() -> None:
    torch.compiler.reset()
    model = build("LlamaModel", lambda: transformers.LlamaConfig(**GROUPED | {"num_hidden_layers": 1}), "regard")
    run = torch.compile(model, backend="eager", fullgraph=True)
    counters.clear()
    for length in range(4, 12):
        mask = torch.ones(2, length, dtype=torch.long)
        mask[1, 3:] = 0
        given = {"input_ids": IDS[:, :length], "attention_mask": mask, "use_cache": False}
        with torch.no_grad():
            assert (run(**given)[0] - model(**given)[0]).abs().max() < 1e-5
    assert counters["stats"]["unique_graphs"] <= 2
    torch.compiler.reset()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Llama", "Mistral"])
@pytest.mark.parametrize("given", ["nothing", "packed", "padded"])
def test_compiled_calls_without_a_cache_see_windows_and_packed_texts(name: str, given: str) -> None:
    """Without a mask, transformers asks for one of packed texts in every compiled call; oracle: its eager attention."""
    torch.compiler.reset()
    sizes = GROUPED | {"num_hidden_layers": 1} | ({"sliding_window": 3} if name == "Mistral" else {})
    model, eager = (
        build(f"{name}Model", lambda: getattr(transformers, f"{name}Config")(**sizes), one)
        for one in ("regard", "eager")
    )
    eager.load_state_dict(model.state_dict())
    inputs = {"input_ids": IDS[:, :9], "use_cache": False}
    if given == "packed":
        inputs["position_ids"] = torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3, 4], [0, 1, 2, 3, 4, 5, 6, 7, 8]])
    if given == "padded":
        inputs["attention_mask"] = torch.tensor([[0, 0, 1, 1, 1, 1, 1, 1, 1], [1] * 9])
    run = torch.compile(model, backend="eager", fullgraph=True)
    real = inputs.get("attention_mask", torch.ones(2, 9)).bool()
    with torch.no_grad():
        assert (run(**inputs)[0] - eager(**inputs)[0])[real].abs().max() < 1e-5
    torch.compiler.reset()
