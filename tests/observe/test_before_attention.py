"""What is noted of the making of queries and keys is what small models, built by hand or by transformers, do."""

import pytest
import torch
import transformers
from torch import nn

import regard
from regard.positions import RoPE

SMALL = {"hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 2, "vocab_size": 50, "intermediate_size": 48}
IDS = torch.arange(5, 14)[None]
SDPA = {"attn_implementation": "sdpa"}


def noted(model, **inputs):
    torch.manual_seed(0)
    for parameter in model.parameters():
        nn.init.normal_(parameter, mean=0.1, std=0.3)
    with torch.no_grad(), regard.watch(model.eval(), keep="qkv") as seen:
        model(**(inputs or {"input_ids": IDS}))
    before = seen.notes["before"]
    return before["positions"], [before["layers"].get(layer.name) for layer in seen.layers]


def test_bert_adds_learned_positions_and_projects_what_a_layernorm_gave():
    positions, layers = noted(transformers.BertModel(transformers.BertConfig(**SMALL, **SDPA)))
    plain = {"bias": True, "then": []}
    assert positions == {"embeddings.position_embeddings": "learned"}
    assert layers == 2 * [{"input": "LayerNorm", "query": plain, "key": plain, "value": {"bias": True}}]


def test_gpt2_projects_all_three_at_once():
    config = transformers.GPT2Config(n_embd=32, n_head=4, n_layer=1, vocab_size=50, **SDPA)
    positions, layers = noted(transformers.GPT2Model(config))
    plain = {"bias": True, "then": []}
    assert positions == {"wpe": "learned"}
    assert layers == [{"input": "LayerNorm", "query": plain, "key": plain, "value": {"bias": True}}]


def test_gpt_neox_projects_head_by_head_and_rotates_a_part():
    config = transformers.GPTNeoXConfig(**SMALL, rotary_pct=0.5, **SDPA)
    positions, layers = noted(transformers.GPTNeoXModel(config))
    assert positions == {}
    assert [layer["query"] for layer in layers] == [layer["key"] for layer in layers]
    assert layers[0]["query"] == {"bias": True, "then": ["rotated"]}


def test_llama_rotates_what_it_projected_without_a_bias():
    config = transformers.LlamaConfig(**SMALL, num_key_value_heads=2, **SDPA)
    positions, layers = noted(transformers.LlamaModel(config))
    rotated = {"bias": False, "then": ["rotated"]}
    assert positions == {}
    assert layers == 2 * [{"input": "LlamaRMSNorm", "query": rotated, "key": rotated, "value": {"bias": False}}]


def test_qwen3_normalizes_each_head_before_it_rotates():
    config = transformers.Qwen3Config(**SMALL, num_key_value_heads=2, head_dim=8, **SDPA)
    _, layers = noted(transformers.Qwen3Model(config))
    for side in ("query", "key"):
        assert layers[0][side] == {"bias": False, "then": [["norm", "Qwen3RMSNorm"], "rotated"]}


def test_layers_without_rotation_are_noted_as_they_are():
    """SmolLM3 rotates some layers and leaves others, which its configuration lists."""
    config = transformers.SmolLM3Config(**SMALL, num_key_value_heads=2, no_rope_layers=[1, 0], pad_token_id=0, **SDPA)
    _, layers = noted(transformers.SmolLM3Model(config))
    assert [layer["query"]["then"] for layer in layers] == [["rotated"], []]


def test_t5_looks_up_distances_and_projects_without_a_bias():
    config = transformers.T5Config(vocab_size=50, d_model=32, d_kv=8, d_ff=48, num_layers=1, num_heads=4, **SDPA)
    positions, layers = noted(transformers.T5EncoderModel(config))
    plain = {"bias": False, "then": []}
    assert list(positions) == ["encoder.block.0.layer.0.SelfAttention.relative_attention_bias"]
    assert layers == [{"input": "T5LayerNorm", "query": plain, "key": plain, "value": {"bias": False}}]


def test_a_generation_notes_the_rotation_though_its_first_position_is_not_turned():
    config = transformers.LlamaConfig(**SMALL, pad_token_id=0, **SDPA)
    model = transformers.LlamaForCausalLM(config).eval()
    with torch.no_grad(), regard.watch(model, keep="qkv") as seen:
        model.generate(input_ids=IDS[:, :1], max_new_tokens=3, min_new_tokens=3, do_sample=False)
    layers = seen.notes["before"]["layers"]
    assert [layer[side]["then"] for layer in layers.values() for side in ("query", "key")] == 4 * [["rotated"]]


class Own(nn.Module):
    """A module whose queries are what `change` makes of the projection's output."""

    def __init__(self, change, rotary=None):
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(16, 16, bias=name == "k") for name in "qkv")
        self.change, self.rotary = change, rotary

    def forward(self, x):
        q, k, v = (
            project(x).unflatten(-1, (2, 8)).transpose(1, 2) for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        return regard.attention(self.change(q), k, v, rotary=self.rotary)


@pytest.mark.parametrize(
    ("change", "rotary", "then"),
    [
        (lambda q: q, None, []),
        (lambda q: q * 0.35, None, ["scaled"]),
        (lambda q: q, RoPE(8), ["rotated"]),
        (lambda q: 3 * q, RoPE(8), ["rotated", "scaled"]),
        (lambda q: q.relu(), None, None),
        (lambda q: nn.functional.normalize(q, dim=-1), None, None),  # by nothing that is known
    ],
    ids=["plain", "scaled", "rotated", "both", "relu", "unknown"],
)
def test_what_follows_the_projection_is_measured_and_not_guessed(change, rotary, then):
    _, (layer,) = noted(nn.ModuleDict({"attn": Own(change, rotary)})["attn"], x=torch.randn(2, 7, 16))
    assert layer["query"] == {"bias": False, "then": then}
    assert layer["key"] == {"bias": True, "then": ["rotated"] if rotary else []}


def test_a_model_that_shows_no_projections_leaves_nothing_to_note():
    class Bare(nn.Module):
        def forward(self, q):
            return nn.functional.scaled_dot_product_attention(q, q, q)

    with regard.watch(model := Bare(), keep="qkv") as seen:
        model(torch.randn(1, 2, 5, 8))
    assert seen.notes["before"] == {"positions": {}, "layers": {}}


def test_pytorchs_own_attention_keeps_its_fast_path_and_says_what_its_class_does():
    torch.manual_seed(0)
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 1).eval()
    x = torch.randn(1, 6, 16)
    with torch.inference_mode():
        expected = model(x)
        with regard.watch(model, keep="qkv") as seen:
            assert torch.equal(model(x), expected)
    plain = {"bias": True, "then": []}
    assert list(seen.notes["before"]["layers"].values()) == [{"query": plain, "key": plain, "value": {"bias": True}}]


def test_the_output_is_the_same_to_the_bit_and_no_hook_stays():
    model = transformers.LlamaModel(transformers.LlamaConfig(**SMALL, **SDPA)).eval()
    with torch.no_grad():
        expected = model(input_ids=IDS).last_hidden_state
        with regard.watch(model, keep="qkv"):
            assert torch.equal(model(input_ids=IDS).last_hidden_state, expected)
    assert not any(module._forward_hooks for module in model.modules())


def test_other_records_have_no_such_note():
    model = transformers.LlamaModel(transformers.LlamaConfig(**SMALL, **SDPA)).eval()
    for keep in ("maps", "qk"):
        with torch.no_grad(), regard.watch(model, keep=keep) as seen:
            model(input_ids=IDS)
        assert "before" not in seen.notes
