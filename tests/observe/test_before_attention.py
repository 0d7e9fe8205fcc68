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


def test_bert_reads_a_table_of_positions_and_projects_what_a_layernorm_gave():
    positions, layers = noted(transformers.BertModel(transformers.BertConfig(**SMALL, **SDPA)))
    plain = {"bias": True, "then": []}
    assert positions == {"embeddings.position_embeddings": "other"}
    assert layers == 2 * [{"input": "LayerNorm", "query": plain, "key": plain, "value": plain}]


def test_gpt2_projects_all_three_at_once():
    config = transformers.GPT2Config(n_embd=32, n_head=4, n_layer=1, vocab_size=50, **SDPA)
    positions, layers = noted(transformers.GPT2Model(config))
    plain = {"bias": True, "then": []}
    assert positions == {"wpe": "other"}
    assert layers == [{"input": "LayerNorm", "query": plain, "key": plain, "value": plain}]


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
    assert layers == 2 * [
        {"input": "LlamaRMSNorm", "query": rotated, "key": rotated, "value": {"bias": False, "then": []}}
    ]


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


T5 = {"vocab_size": 50, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4, **SDPA}


def test_t5_reads_the_bias_of_its_own_layers_from_a_table_and_none_for_cross_attention():
    config = transformers.T5Config(**T5, decoder_start_token_id=0)
    positions, layers = noted(transformers.T5Model(config), input_ids=IDS, decoder_input_ids=IDS[:, :4])
    plain = {"bias": False, "then": []}
    assert positions == {}
    tables = {layer.pop("bias_table", None) for layer in layers}
    path = "block.0.layer.0.SelfAttention.relative_attention_bias"
    assert tables == {f"encoder.{path}", f"decoder.{path}", None}
    norms = [layer.pop("input", None) for layer in layers]
    assert norms == 6 * ["T5LayerNorm"]
    assert layers == 6 * [{"query": plain, "key": plain, "value": plain}]


def test_a_bias_that_is_in_no_table_names_none():
    config = transformers.T5Config(**T5)
    model = transformers.T5EncoderModel(config)
    table = model.encoder.block[0].layer[0].SelfAttention.relative_attention_bias
    table.register_forward_hook(lambda _module, _args, output: output * 1.25)
    _, layers = noted(model)
    assert [layer.get("bias_table") for layer in layers] == [None, None]


def sines(rows, width, *, apart):
    """The paper's table, interleaved or with all sines before all cosines."""
    angles = torch.arange(rows)[:, None] / 10_000 ** (torch.arange(0, width, 2) / width)
    table = torch.stack([angles.sin(), angles.cos()], 2)
    return table.transpose(1, 2).flatten(1) if apart else table.flatten(1)


class WithTable(nn.Module):
    """A layer that reads rows of a table, at the indices that `rows` makes of their number."""

    def __init__(self, weight, rows, name="position_embeddings"):
        super().__init__()
        self.rows, self.name = rows, name
        self.add_module(name, nn.Embedding.from_pretrained(weight))
        self.attn = Own(lambda q: q)

    def forward(self, x):
        return self.attn(x + self.get_submodule(self.name)(self.rows(x.shape[1])))


@pytest.mark.parametrize(
    ("weight", "rows", "kind"),
    [
        (sines(40, 16, apart=False), torch.arange, "sinusoidal"),
        (sines(40, 16, apart=True).half().float(), torch.arange, "sinusoidal"),
        (sines(40, 16, apart=False), lambda n: 2 + torch.arange(n), "sinusoidal"),  # after two rows for padding
        (sines(40, 16, apart=False) + 0.05 * torch.randn(40, 16), torch.arange, "other"),
        (torch.randn(40, 16), torch.arange, "other"),
        (torch.randn(40, 16), lambda n: torch.tensor([1, 1, *range(n - 2)]), "other"),  # padding at the left
        (torch.randn(40, 16), lambda n: torch.tensor([*range(2, n), 1, 1]), "other"),  # and at the right
        (torch.randn(40, 16), lambda n: 3 * torch.arange(n), None),  # coordinates, whatever the name
        (torch.randn(40, 16), lambda n: torch.arange(n).flip(0), None),
    ],
    ids=["sines", "apart", "shifted", "disturbed", "random", "left", "right", "coordinates", "backwards"],
)
def test_a_table_of_positions_is_one_whose_rows_are_read_one_after_the_other(weight, rows, kind):
    model = WithTable(weight, rows).eval()
    with torch.no_grad(), regard.watch(model, keep="qkv") as seen:
        model(torch.randn(2, 7, 16))
    expected = {} if kind is None else {"position_embeddings": kind}
    assert seen.notes["before"]["positions"] == expected


def test_whispers_and_distilberts_sines_are_measured_and_not_called_learned():
    config = transformers.DistilBertConfig(
        vocab_size=64, dim=32, n_layers=1, n_heads=4, hidden_dim=48, sinusoidal_pos_embds=True, **SDPA
    )
    model = transformers.DistilBertModel(config).eval()
    with torch.no_grad(), regard.watch(model, keep="qkv") as seen:
        model(input_ids=IDS)
    assert seen.notes["before"]["positions"] == {"embeddings.position_embeddings": "sinusoidal"}


def test_a_module_that_gives_angles_is_no_table_of_positions():
    class Angles(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("inv_freq", torch.rand(8))

        def forward(self, count):
            return torch.outer(torch.arange(count), self.inv_freq)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.rotary_pos_emb, self.attn = Angles(), Own(lambda q: q)

        def forward(self, x):
            self.rotary_pos_emb(x.shape[1])
            return self.attn(x)

    model = Model().eval()
    with torch.no_grad(), regard.watch(model, keep="qkv") as seen:
        model(torch.randn(1, 7, 16))
    assert seen.notes["before"]["positions"] == {}


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
        return regard.attention(self.change(self.heads(self.q_proj, x)), *self.keys_values(x), rotary=self.rotary)

    def heads(self, project, x):
        return project(x).unflatten(-1, (2, 8)).transpose(1, 2)

    def keys_values(self, x):
        return self.heads(self.k_proj, x), self.heads(self.v_proj, x)


DIRECTION = nn.functional.normalize(torch.ones(8), dim=0)


@pytest.mark.parametrize(
    ("change", "rotary", "then"),
    [
        (lambda q: q, None, []),
        (lambda q: q * 0.35, None, ["scaled"]),
        (lambda q: q, RoPE(8), ["rotated"]),
        (lambda q: 3 * q, RoPE(8), ["rotated", "scaled"]),
        (lambda q: q.relu(), None, None),
        (lambda q: nn.functional.normalize(q, dim=-1), None, None),  # by nothing that is known
        (lambda q: q.mul_(0.5), None, ["scaled"]),  # in place
        (lambda q: q.flip(-1), None, ["turned"]),  # alike at all positions
        (lambda q: -3 * q.roll(1, -1), None, ["turned", "scaled"]),
        (lambda q: torch.cat([q[:, :1], -q[:, 1:].flip(-1)], 1), None, None),  # another for each head
        (lambda q: torch.linalg.vector_norm(q, dim=-1, keepdim=True) * DIRECTION, None, None),
    ],
    ids="plain scaled rotated both relu unknown in_place flipped rolled by_head one_direction".split(),
)
def test_what_follows_the_projection_is_measured_and_not_guessed(change, rotary, then):
    _, (layer,) = noted(nn.ModuleDict({"attn": Own(change, rotary)})["attn"], x=torch.randn(2, 7, 16))
    assert layer["query"] == {"bias": False, "then": then}
    assert layer["key"] == {"bias": True, "then": ["rotated"] if rotary else []}
    assert layer["value"] == {"bias": False, "then": []}


def test_a_step_between_the_projection_and_a_normalization_of_heads_is_not_left_out():
    class Rotated(Own):
        def __init__(self, change):
            super().__init__(change)
            self.q_norm = nn.RMSNorm(8)

        def forward(self, x):
            return regard.attention(self.q_norm(self.change(self.heads(self.q_proj, x))), *self.keys_values(x))

    rotate = RoPE(8)
    for change, then in (
        (lambda q: q, [["norm", "RMSNorm"]]),
        (lambda q: 2 * q, ["scaled", ["norm", "RMSNorm"]]),
        (lambda q: rotate.rotate(q, torch.arange(q.shape[2])), ["rotated", ["norm", "RMSNorm"]]),
        (lambda q: q.relu(), None),
    ):
        _, (layer,) = noted(Rotated(change), x=torch.randn(2, 7, 16))
        assert layer["query"] == {"bias": False, "then": then}


def test_shapes_that_cannot_be_compared_are_not_called_another_step():
    class Halves(Own):
        def forward(self, x):
            q, k, v = (self.heads(project, x) for project in (self.q_proj, self.k_proj, self.v_proj))
            return regard.attention(q[..., :5], k[..., :5], v)

    _, (layer,) = noted(Halves(None), x=torch.randn(2, 7, 16))
    assert layer["query"] == {"bias": False}
    assert layer["key"] == {"bias": True}
    assert layer["value"] == {"bias": False, "then": []}


def test_falcon_projects_groups_of_heads_that_share_a_key():
    sizes = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "num_kv_heads": 2}
    for alibi, then in ((True, []), (False, ["rotated"])):
        config = transformers.FalconConfig(**sizes, new_decoder_architecture=True, alibi=alibi, **SDPA)
        _, (layer,) = noted(transformers.FalconModel(config))
        assert [layer[side]["then"] for side in ("query", "key", "value")] == [then, then, []]


def test_nothing_is_stored_of_calls_that_were_compared_and_no_hook_runs_after_the_fourth():
    config = transformers.LlamaConfig(**SMALL, **SDPA)
    model = transformers.LlamaModel(config).eval()
    hooks = []

    def count(*_):
        hooks.append(sum(len(module._forward_hooks) for module in model.modules()) - 1)

    model.norm.register_forward_hook(count)
    with torch.no_grad(), regard.watch(model, keep="qkv") as seen:
        for _ in range(6):
            model(input_ids=IDS)
    assert hooks[0] > 0
    assert hooks[4:] == [0, 0]
    assert len(seen.records) == 6


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
    (layer,) = seen.notes["before"]["layers"].values()
    biased = {"bias": True}
    assert layer == {"class": "nn.MultiheadAttention", "query": biased, "key": biased, "value": biased}


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
