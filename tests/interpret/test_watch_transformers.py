"""Models of transformers with small random weights: layouts, masks, biases, caps, sinks and caches of all kinds."""

from typing import Any

import pytest
import torch
from torch import nn

import regard
from regard.errors import ObservationError

t = pytest.importorskip("transformers")

SMALL = {"vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
SMALL |= {"max_position_embeddings": 64}
GROUPED = SMALL | {"num_key_value_heads": 2, "head_dim": 8}
WINDOW = GROUPED | {"sliding_window": 5}
OLD = {"vocab_size": 99, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "bos_token_id": 1}
SEQ = {"vocab_size": 99, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4}
SEQ |= {"decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "max_position_embeddings": 64}
T5 = {"vocab_size": 99, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4}
YARN = {"rope_type": "default", "rope_theta": 10000.0}
SINKS = WINDOW | {"num_local_experts": 4, "num_experts_per_tok": 2, "rope_parameters": YARN}
DISENTANGLED = SMALL | {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 8}

MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "T5": ("T5", T5 | {"decoder_start_token_id": 0}),
    "BART": ("Bart", SEQ),
    "GPT-2": ("GPT2", OLD | {"eos_token_id": 2}),
    "ViT": ("ViT", {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64,
                    "image_size": 32, "patch_size": 8}),
    "Mistral": ("Mistral", WINDOW),
    "Mixtral": ("Mixtral", GROUPED | {"num_local_experts": 4}),
    "Gemma-2": ("Gemma2", WINDOW | {"attn_logit_softcapping": 5.0}),
    "GPT-OSS": ("GptOss", SINKS),
    "Bloom": ("Bloom", {"vocab_size": 99, "hidden_size": 32, "n_layer": 2, "n_head": 4}),
    "XGLM": ("XGLM", {"vocab_size": 99, "d_model": 32, "num_layers": 2, "attention_heads": 4, "ffn_dim": 64}),
    "DeBERTa-v2": ("DebertaV2", DISENTANGLED),
    "XLNet": ("XLNet", {"vocab_size": 99, "d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 64}),
    "ALBERT": ("Albert", SMALL | {"embedding_size": 16, "num_hidden_layers": 3}),
}  # fmt: skip
ONLY_EAGER = {"Gemma-2", "GPT-OSS", "Bloom", "XGLM", "DeBERTa-v2", "XLNet"}  # they refuse "sdpa" or ignore it
CASES = [(name, kind) for name in MODELS for kind in ("eager", "sdpa") if kind == "eager" or name not in ONLY_EAGER]


def randomized(model: nn.Module) -> nn.Module:
    """Weights of 1/√fan_in: those that models begin with are so small that every weight would be alike."""
    torch.manual_seed(1)
    with torch.no_grad():
        for name, one in model.named_parameters():
            if one.ndim >= 2 or "sinks" in name:
                one.normal_(0, 1 if one.ndim < 2 else one.shape[-1] ** -0.5)
    return model.eval()


def made(name: str, head: str = "Model") -> nn.Module:
    kind, given = MODELS[name]
    config = "Gemma3TextConfig" if kind == "Gemma3" else f"{kind}Config"
    return randomized(getattr(t, kind + head)(getattr(t, config)(**given)))


def inputs(name: str) -> dict[str, torch.Tensor]:
    draw = torch.Generator().manual_seed(0)
    if name == "ViT":
        return {"pixel_values": torch.randn(2, 3, 32, 32, generator=draw)}
    ids = torch.randint(3, 99, (2, 12), generator=draw)
    mask = torch.ones_like(ids)
    mask[1, 9:] = 0
    given = {"input_ids": ids, "attention_mask": mask}
    return given | ({"decoder_input_ids": ids[:, :7].flip(1)} if name in ("T5", "BART") else {})


def eager_weights(model: nn.Module, **given: Any) -> dict[str, tuple[torch.Tensor, ...]]:
    """By stream of queries and keys, what transformers' own eager code hands out."""
    before = model.config._attn_implementation
    model.set_attn_implementation("eager")
    with torch.no_grad():
        output = model(**given, output_attentions=True, return_dict=True)
    model.set_attn_implementation(before)
    if "encoder_attentions" not in output:
        stream = "image" if model.main_input_name == "pixel_values" else "text"
        return {f"{stream} {stream}": output.attentions}
    names = ("encoder_attentions", "decoder_attentions", "cross_attentions")
    return dict(zip(("source source", "target target", "target source"), (output[one] for one in names), strict=True))


def compare(seen: Any, expected: dict[str, tuple[torch.Tensor, ...]], far: Any) -> float:
    worst = 0.0
    for streams, theirs in expected.items():
        ours = [one for one in seen.record if f"{one.query_tokens} {one.key_tokens}" == streams]
        assert len(ours) == len(theirs)
        worst = max([worst] + [far(one.weights, other) for one, other in zip(ours, theirs, strict=True)])
    assert len(seen.record) == sum(map(len, expected.values()))
    return worst


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_weights_agree_with_eager_attention(watched, far, kernel_calls, name: str, kind: str) -> None:
    model, given = made(name), inputs(name)
    if name not in ONLY_EAGER:
        model.set_attn_implementation(kind)
    with torch.no_grad(), kernel_calls() as calls:
        seen = watched(model, lambda: model(**given))
    assert compare(seen, eager_weights(model, **given), far) < 2e-5
    if kind == "sdpa":
        calls = calls[len(calls) // 2 :]  # of the watched run
        assert max(far(ours.weights, theirs) for ours, theirs in zip(seen.record, calls, strict=True)) < 2e-6


@pytest.mark.parametrize(
    ("kind", "given", "message"),
    [
        ("Longformer", SMALL | {"attention_window": 4}, "LongformerSelfAttention .* bands or blocks"),
        ("BigBird", SMALL | {"block_size": 4, "num_random_blocks": 1, "max_position_embeddings": 256},
         "BigBirdBlockSparseAttention .*original_full"),
        ("LongT5", T5 | {"local_radius": 4, "decoder_start_token_id": 0}, "LongT5LocalAttention .* queries × keys"),
    ],
)  # fmt: skip
def test_layouts_that_are_no_matrix_of_pairs_are_refused_by_name(kind: str, given: Any, message: str) -> None:
    model = randomized(getattr(t, f"{kind}Model")(getattr(t, f"{kind}Config")(**given)))
    ids = torch.randint(3, 99, (1, 64 if kind == "BigBird" else 12))
    more = {"decoder_input_ids": ids} if kind == "LongT5" else {}
    with pytest.raises(ObservationError, match=message), torch.no_grad(), regard.watch(model):
        model(input_ids=ids, **more)


def test_shared_layers_are_seen_at_each_turn(watched) -> None:
    model = made("ALBERT")
    seen = watched(model, lambda: model(**inputs("ALBERT")))
    stem = "encoder.albert_layer_groups.0.albert_layers.0.attention"
    assert [layer.name for layer in seen.record] == [stem, f"{stem}#2", f"{stem}#3"]
