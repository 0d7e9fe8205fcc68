"""Tapped rows of 35 families of transformers against their eager weights, with dynamic and static caches."""

from typing import Any

import pytest
import torch

import regard
from sweeps import sweep

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.slow

SIZES = {
    "vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64,
    "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 64,
}  # fmt: skip
GPT2 = {"vocab_size": 99, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
MOE = {"num_experts": 2, "num_local_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 16}
FAMILIES: dict[str, dict[str, Any]] = {
    "Llama": {}, "Mistral": {"sliding_window": 5}, "Mixtral": MOE, "Qwen2": {}, "Qwen3": {}, "Qwen2Moe": MOE,
    "Qwen3Moe": MOE, "Gemma": {}, "Gemma2": {"sliding_window": 5}, "Phi": {}, "Phi3": {"pad_token_id": 0}, "Olmo": {},
    "Olmo2": {}, "StableLm": {}, "Starcoder2": {}, "Granite": {}, "Cohere": {}, "Helium": {},
    "SmolLM3": {"pad_token_id": 0}, "GPTNeoX": {}, "GPT2": GPT2, "GPTJ": GPT2 | {"rotary_dim": 4}, "GPTBigCode": GPT2,
    "CodeGen": GPT2 | {"rotary_dim": 4}, "OPT": {"ffn_dim": 64, "word_embed_proj_dim": 32},
    "Bloom": {"n_layer": 2, "n_head": 4}, "Ernie4_5": {}, "Glm": {"pad_token_id": 0}, "Glm4": {"pad_token_id": 0},
    "Nemotron": {}, "GptOss": MOE | {"sliding_window": 5},
    "Mpt": {"d_model": 32, "n_layers": 2, "n_heads": 4, "max_seq_len": 64}, "Persimmon": {}, "Arcee": {},
    "Exaone4": {"sliding_window": 5},
}  # fmt: skip
IDS = torch.randint(3, 99, (2, 7), generator=torch.Generator().manual_seed(0))


def made(name: str) -> Any:
    given = FAMILIES[name]
    sizes = given if "n_embd" in given or "d_model" in given else SIZES | given
    torch.manual_seed(1)
    model = getattr(transformers, f"{name}ForCausalLM", None) or getattr(transformers, f"{name}LMHeadModel")
    config = getattr(transformers, f"{name}Config")(**({"vocab_size": 99} | sizes))
    one = model(config).eval()
    with torch.no_grad():
        for parameter in one.parameters():
            if parameter.ndim >= 2:
                parameter.normal_(0, parameter.shape[-1] ** -0.5)
    one.generation_config.pad_token_id, one.generation_config.eos_token_id = 0, None
    return one


def check(name: str, cache: str) -> None:
    model = made(name)
    asked = {"max_new_tokens": 5, "do_sample": False, "cache_implementation": cache}
    plain = model.generate(IDS, **asked)
    with regard.tap(model, heads=["1.3", "0.0"]) as tap:
        text = model.generate(IDS, **asked)
    assert torch.equal(plain, text)
    model.set_attn_implementation("eager")
    with torch.no_grad():
        weights = model(text[:, :-1], output_attentions=True, use_cache=False).attentions
    assert len(tap.rows) == 5
    for row in tap.rows:
        theirs = torch.stack([weights[1][:, 3, row.position], weights[0][:, 0, row.position]], 1)[
            ..., : row.position + 1
        ]
        assert (theirs - row.weights).abs().max() < 1e-5


@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_rows_are_those_of_eager_attention(cache: str) -> None:
    for case in sweep(FAMILIES):
        with case as name:
            check(name, cache)
