"""Attentions filled from the state dicts of transformers' modules, PyTorch's and timm's compute what those compute."""

import pytest
import torch
from torch import nn as torch_nn

from regard import masks, positions, scores
from regard.errors import InputError
from regard.nn import LongformerAttention, MultiHeadAttention, load_attention_state_dict
from sweeps import sweep

transformers = pytest.importorskip("transformers")


def randn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


X = randn(2, 6, 16)
LATER = torch.full((6, 6), -torch.inf, dtype=torch.float64).triu(1)[None, None]
POSITION_IDS = torch.tensor([[0, 1, 2, 3, 4, 5], [0, 0, 0, 1, 2, 3]])


def shaken(module):
    """In float64 and eval mode, with biases and norms that are not what they begin with."""
    module = module.double().eval()
    for number, one in enumerate(module.parameters()):
        one.data.copy_(0.3 * randn(*one.shape, seed=number))
    return module


def config(kind, **options):
    return getattr(transformers, f"{kind}Config")(attn_implementation="eager", **options)


def bert():
    from transformers.models.bert.modeling_bert import BertAttention

    theirs = shaken(BertAttention(config("Bert", hidden_size=16, num_attention_heads=4, intermediate_size=8)))
    inner = theirs.output.dense(theirs.self(X)[0])
    return theirs, inner, MultiHeadAttention(16, 4), {}, ["output.LayerNorm.weight", "output.LayerNorm.bias"]


def t5():
    from transformers.models.t5.modeling_t5 import T5Attention

    made = config("T5", d_model=16, d_kv=6, num_heads=4, relative_attention_num_buckets=8, is_decoder=False)
    theirs = shaken(T5Attention(made, has_relative_attention_bias=True))
    bias = positions.T5Bias(torch_nn.Parameter(torch.zeros(8, 4)), bidirectional=True)
    ours = MultiHeadAttention(16, 4, head_dim=6, bias=False, score=scores.Dot(), attn_bias=bias)
    return theirs, theirs(X)[0], ours, {}, []


def llama():
    from transformers.models.llama.modeling_llama import LlamaAttention, LlamaRotaryEmbedding

    made = config("Llama", hidden_size=16, num_attention_heads=4, num_key_value_heads=2)
    theirs, rotary = shaken(LlamaAttention(made, 0)), LlamaRotaryEmbedding(made)
    expected = theirs(X, position_embeddings=rotary(X, POSITION_IDS), attention_mask=LATER)[0]
    rope = positions.RoPE.from_transformers(made, interleaved=False)
    ours = MultiHeadAttention(16, 4, num_kv_heads=2, bias=False, rotary=rope, mask=masks.Causal())
    return theirs, expected, ours, {"position_ids": POSITION_IDS}, []


def qwen3():
    from transformers.models.qwen3.modeling_qwen3 import Qwen3Attention, Qwen3RotaryEmbedding

    made = config("Qwen3", hidden_size=16, num_attention_heads=4, num_key_value_heads=2, head_dim=6)
    theirs, rotary = shaken(Qwen3Attention(made, 0)), Qwen3RotaryEmbedding(made)
    expected = theirs(X, position_embeddings=rotary(X, POSITION_IDS), attention_mask=LATER)[0]
    norms = {f"{part}_norm": torch_nn.RMSNorm(6, made.rms_norm_eps) for part in "qk"}
    rope = positions.RoPE.from_transformers(made, interleaved=False)
    ours = MultiHeadAttention(16, 4, num_kv_heads=2, head_dim=6, bias=False, rotary=rope, mask=masks.Causal(), **norms)
    return theirs, expected, ours, {"position_ids": POSITION_IDS}, []


def gpt2():
    from transformers.models.gpt2.modeling_gpt2 import GPT2Attention

    theirs = shaken(GPT2Attention(config("GPT2", n_embd=16, n_head=4, n_positions=8), layer_idx=0))
    expected = theirs(X, attention_mask=LATER)[0]
    return theirs, expected, MultiHeadAttention(16, 4, mask=masks.Causal()), {}, []


def gpt_neox():
    from transformers.models.gpt_neox.modeling_gpt_neox import GPTNeoXAttention, GPTNeoXRotaryEmbedding

    made = config("GPTNeoX", hidden_size=16, num_attention_heads=2, intermediate_size=8)
    theirs, rotary = shaken(GPTNeoXAttention(made, 0)), GPTNeoXRotaryEmbedding(made)
    expected = theirs(X, attention_mask=LATER, position_embeddings=rotary(X, POSITION_IDS))[0]
    rope = positions.RoPE.from_transformers(made, interleaved=False)
    ours = MultiHeadAttention(16, 2, rotary=rope, mask=masks.Causal())
    return theirs, expected, ours, {"position_ids": POSITION_IDS}, []


def bart():
    from transformers.models.bart.modeling_bart import BartAttention

    made = config("Bart", d_model=16, encoder_attention_heads=4)
    theirs = shaken(BartAttention(16, 4, config=made, layer_idx=0))
    memory = randn(2, 7, 16, seed=3)
    return theirs, theirs(X, key_value_states=memory)[0], MultiHeadAttention(16, 4), {"key": memory}, []


def pytorch():
    theirs = shaken(torch_nn.MultiheadAttention(16, 4, batch_first=True))
    return theirs, theirs(X, X, X)[0], MultiHeadAttention(16, 4), {}, []


def pytorch_apart():
    theirs = shaken(torch_nn.MultiheadAttention(16, 4, kdim=5, vdim=7, batch_first=True))
    key, value = randn(2, 3, 5), randn(2, 3, 7)
    ours = MultiHeadAttention(16, 4, kdim=5, vdim=7)
    return theirs, theirs(X, key, value)[0], ours, {"key": key, "value": value}, []


FAMILIES = [bert, t5, llama, qwen3, gpt2, gpt_neox, bart, pytorch, pytorch_apart]


def test_the_output_is_theirs():
    for case in sweep(FAMILIES, lambda one: one.__name__):
        with case as family:
            theirs, expected, ours, options, unexpected = family()
            state = {f"layer.0.{name}": one for name, one in theirs.state_dict().items()} | {
                "layer.1.other": torch.zeros(1)
            }
            ours = ours.double().eval()
            found = load_attention_state_dict(ours, state, "layer.0.", strict=not unexpected)
            assert found == ([], [f"layer.0.{name}" for name in unexpected])
            torch.testing.assert_close(ours(X, **options), expected, atol=1e-6, rtol=1e-6)  # their angles are float32


def test_buffers_are_passed_over():
    ours = MultiHeadAttention(8, 2, bias=False)
    mask = torch.ones(1, 1, 4, 4)
    buffers = {"attn.bias": mask, "attn.masked_bias": torch.zeros(()), "rotary_emb.inv_freq": torch.ones(2)}
    assert load_attention_state_dict(ours, names(**buffers)) == ([], [])


@pytest.mark.parametrize("padded", [False, True])
def test_longformer_s_output_is_theirs(padded):
    from transformers.models.longformer.modeling_longformer import LongformerAttention as Theirs

    made = config("Longformer", hidden_size=16, num_attention_heads=4, intermediate_size=8, attention_window=[4])
    made.attention_probs_dropout_prob = 0.0
    theirs, ours = shaken(Theirs(made, 0)), LongformerAttention(16, 4, window=4).double()
    found = load_attention_state_dict(ours, theirs.state_dict(), strict=False)
    assert found == ([], ["output.LayerNorm.weight", "output.LayerNorm.bias"])
    x, flags, padding = randn(2, 12, 16), torch.zeros(2, 12, dtype=torch.long), torch.zeros(2, 12, dtype=torch.bool)
    flags[:, 0], padding[1, 9:] = 1, padded
    state = torch.zeros(2, 12).masked_fill(padding, -10000.0).masked_fill(flags == 1, 10000.0)
    inner = theirs.self(x, state, is_index_masked=state < 0, is_index_global_attn=state > 0, is_global_attn=True)[0]
    expected = theirs.output.dense(inner).masked_fill(padding[..., None], 0.0)
    torch.testing.assert_close(
        ours(x, global_attention_mask=flags, key_padding_mask=padding), expected, atol=1e-6, rtol=1e-5
    )  # softmax in float32


def test_timm_s_fused_layer_is_query_key_value_one_below_the_other():
    ours, other = MultiHeadAttention(8, 2).double(), MultiHeadAttention(8, 2).double()
    state = {
        f"attn.qkv.{kind}": torch.cat([getattr(getattr(other, f"{part}_proj"), kind) for part in "qkv"])
        for kind in ("weight", "bias")
    } | {f"attn.proj.{kind}": getattr(other.out_proj, kind) for kind in ("weight", "bias")}
    assert load_attention_state_dict(ours, state) == ([], [])
    torch.testing.assert_close(ours.state_dict(), other.state_dict())


def deberta():
    from transformers.models.deberta.modeling_deberta import DisentangledSelfAttention

    made = config("Deberta", hidden_size=16, num_attention_heads=4, relative_attention=False)
    theirs = shaken(DisentangledSelfAttention(made))
    state = {f"{part}_proj.bias": getattr(theirs, f"{part}_bias") for part in "qv"}
    state |= {"k_proj.bias": torch.zeros(16, dtype=torch.float64), "in_proj.weight": theirs.in_proj.weight}
    return state, theirs(X, torch.ones(2, 1, 6, 6).bool())[0], MultiHeadAttention(16, 4)


def gpt_bigcode():
    from transformers.models.gpt_bigcode.modeling_gpt_bigcode import GPTBigCodeAttention

    made = config("GPTBigCode", n_embd=16, n_head=4, multi_query=False, attn_pdrop=0.0)
    theirs = shaken(GPTBigCodeAttention(made, layer_idx=0))
    theirs.c_proj = torch_nn.Identity()
    return theirs.state_dict(), theirs(X, attention_mask=LATER)[0], MultiHeadAttention(16, 4, mask=masks.Causal())


def falcon():
    from transformers.models.falcon.modeling_falcon import FalconAttention

    made = config("Falcon", hidden_size=16, num_attention_heads=4, num_kv_heads=2, new_decoder_architecture=True)
    made.alibi, made.multi_query = True, False
    theirs = shaken(FalconAttention(made, layer_idx=0))
    theirs.dense = torch_nn.Identity()
    query, key, value = theirs._split_heads(theirs.query_key_value(X))
    query, key, value = (one.transpose(1, 2) for one in (query, key, value))
    heads = torch_nn.functional.scaled_dot_product_attention(query, key, value)
    return theirs.state_dict(), heads.transpose(1, 2).flatten(-2), MultiHeadAttention(16, 4, num_kv_heads=2, bias=False)


def test_a_layer_whose_rows_models_order_differently_needs_its_layout():
    for case in sweep([deberta, gpt_bigcode, falcon], lambda one: one.__name__):
        with case as family:
            state, expected, ours = family()
            ours = ours.double().eval()
            with pytest.raises(InputError, match=r'`fused_layout` must be specified for .* "interleaved" in'):
                load_attention_state_dict(ours, state, strict=False)
            found = load_attention_state_dict(ours, state, strict=False, fused_layout="interleaved")
            assert (set(found.missing_keys) <= {"out_proj.weight", "out_proj.bias"}, found.unexpected_keys) == (
                True,
                [],
            )
            ours.out_proj = torch_nn.Identity()
            torch.testing.assert_close(ours(X), expected, atol=1e-6, rtol=1e-6)


def phi3():
    from transformers.models.phi3.modeling_phi3 import Phi3Attention, Phi3RotaryEmbedding

    made = config("Phi3", hidden_size=16, num_attention_heads=4, num_key_value_heads=2, pad_token_id=0)
    theirs, rotary = shaken(Phi3Attention(made, 0)), Phi3RotaryEmbedding(made)
    expected = theirs(X, position_embeddings=rotary(X, POSITION_IDS), attention_mask=LATER)[0]
    rope = positions.RoPE.from_transformers(made, interleaved=False)
    ours = MultiHeadAttention(16, 4, num_kv_heads=2, bias=False, rotary=rope, mask=masks.Causal())
    return theirs.state_dict(), expected, ours


def test_a_concatenated_layer_of_phi_is_theirs():
    state, expected, ours = phi3()
    ours = ours.double().eval()
    with pytest.raises(InputError, match='"concatenated" in Phi-3, and in an order of its own in CodeGen'):
        load_attention_state_dict(ours, state)
    assert load_attention_state_dict(ours, state, fused_layout="concatenated") == ([], [])
    torch.testing.assert_close(ours(X, position_ids=POSITION_IDS), expected, atol=1e-6, rtol=1e-6)
    with pytest.raises(InputError, match=r"`fused_layout` must be .* or None, got 'by head'"):
        load_attention_state_dict(ours, state, fused_layout="by head")


def test_types_and_what_is_trained_stay_those_of_the_module():
    module = MultiHeadAttention(8, 2, bias=False, dtype=torch.bfloat16)
    module.k_proj.weight.requires_grad_(False)
    parameters = dict(module.named_parameters())
    load_attention_state_dict(module, names(**{"k_proj.weight": torch.nn.Parameter(torch.ones(8, 8))}))
    assert dict(module.named_parameters()) == parameters
    assert {name: (one.dtype, one.requires_grad) for name, one in module.named_parameters()} == {
        f"{layer}.weight": (torch.bfloat16, layer != "k_proj") for layer in ("q_proj", "k_proj", "v_proj", "out_proj")
    }


def test_the_rows_of_a_pruned_module_are_those_that_are_left():
    module = MultiHeadAttention(8, 4, bias=False)
    for part in "qkv":
        setattr(module, f"{part}_proj", torch_nn.Linear(8, 4, bias=False))
    load_attention_state_dict(module, {"qkv.weight": torch.arange(12.0)[:, None].expand(12, 8)}, strict=False)
    assert [getattr(module, f"{part}_proj").weight[0, 0].item() for part in "qkv"] == [0, 4, 8]


def names(**more):
    layers = ("q_proj", "k_proj", "v_proj", "o_proj")
    return {f"{layer}.weight": torch.ones(8, 8) for layer in layers} | more


def test_what_has_no_place_is_refused_and_the_module_is_left_alone():
    cases = [
        (names(), "", r"lacks q_proj\.bias, .*build the module with what the checkpoint has"),
        (names(**{"LayerNorm.bias": torch.ones(8)}), "", r"no place for LayerNorm\.bias: .* strict=False"),
        (names(**{"self.query.weight": torch.ones(8, 8)}), "", r"no place for self\.query\.weight"),
        (
            names(**{"q_proj.weight": torch.ones(8, 6)}),
            "",
            r"`q_proj\.weight` must have shape \(8, 8\) .* got \(8, 6\)",
        ),
        ({"Wqkv.weight": torch.ones(20, 8)}, "", "must hold 8 rows of queries, 8 of keys and 8 of values"),
        (names(), "layer.0.", r"begins with `prefix` 'layer\.0\.': they are such as q_proj\.weight"),
    ]
    for case in sweep(cases):
        with case as (state, prefix, words):
            module = MultiHeadAttention(8, 2)
            before = {name: one.clone() for name, one in module.state_dict().items()}
            with pytest.raises(InputError, match=words):
                load_attention_state_dict(module, state, prefix)
            torch.testing.assert_close(module.state_dict(), before, rtol=0, atol=0)


def test_without_strict_what_is_missing_is_listed():
    module = MultiHeadAttention(8, 2)
    found = load_attention_state_dict(module, names(**{"LayerNorm.bias": torch.ones(8)}), strict=False)
    assert found.missing_keys == ["q_proj.bias", "k_proj.bias", "v_proj.bias", "out_proj.bias"]
    assert found.unexpected_keys == ["LayerNorm.bias"]
    assert (module.out_proj.weight == 1).all()


def test_a_block_is_refused_with_its_part():
    with pytest.raises(InputError, match=r"got Linear: of a block give block\.attention"):
        load_attention_state_dict(torch_nn.Linear(2, 2), {})
