"""Model types of transformers with tiny random configurations: layouts, masks, biases, caps, sinks, caches.

Each entry names a model type, its configuration, and how it is called. Weights are random with a standard deviation of
1/√fan_in: those that models begin with are so small that every weight of attention would be alike.
"""

from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch import nn

from oracles import set_attention

VERSION = tuple(map(int, transformers.__version__.split(".")[:2]))
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
IMAGE = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
IMAGE |= {"image_size": 32, "patch_size": 8}
SOUND = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
SOUND |= {"conv_dim": [16, 16], "conv_kernel": [10, 8], "conv_stride": [5, 4], "num_conv_pos_embeddings": 4}
SOUND |= {"num_conv_pos_embedding_groups": 2, "vocab_size": 32}


@dataclass(frozen=True)
class Entry:
    """One model type: `kind` is the class of transformers without its ending, `options` its configuration."""

    kind: str
    options: dict[str, Any]
    takes: str = "text"  # "text", "pair" of texts, "image" or "sound"
    only_eager: bool = False  # the model refuses "sdpa" or ignores it, or computes something else by it


MODELS = {
    "T5": Entry("T5", T5 | {"decoder_start_token_id": 0}, "pair"),
    "BART": Entry("Bart", SEQ, "pair"),
    "GPT-2": Entry("GPT2", OLD | {"eos_token_id": 2}),
    "ViT": Entry("ViT", IMAGE, "image"),
    "Mistral": Entry("Mistral", WINDOW),
    "Mixtral": Entry("Mixtral", GROUPED | {"num_local_experts": 4}),
    "Gemma-2": Entry("Gemma2", WINDOW | {"attn_logit_softcapping": 5.0}, only_eager=True),
    "GPT-OSS": Entry("GptOss", SINKS, only_eager=True),
    "Bloom": Entry("Bloom", {"vocab_size": 99, "hidden_size": 32, "n_layer": 2, "n_head": 4}, only_eager=True),
    "XGLM": Entry(
        "XGLM",
        {"vocab_size": 99, "d_model": 32, "num_layers": 2, "attention_heads": 4, "ffn_dim": 64},
        only_eager=True,
    ),
    "DeBERTa-v2": Entry("DebertaV2", DISENTANGLED, only_eager=True),
    "XLNet": Entry(
        "XLNet", {"vocab_size": 99, "d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 64}, only_eager=True
    ),
    "ALBERT": Entry("Albert", SMALL | {"embedding_size": 16, "num_hidden_layers": 3}),
    "BERT": Entry("Bert", SMALL),
    "RoBERTa": Entry("Roberta", SMALL),
    "XLM-RoBERTa": Entry("XLMRoberta", SMALL),
    "CamemBERT": Entry("Camembert", SMALL),
    "ELECTRA": Entry("Electra", SMALL | {"embedding_size": 16}),
    "DistilBERT": Entry("DistilBert", {"vocab_size": 99, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64}),
    "MPNet": Entry("MPNet", SMALL, only_eager=True),
    "DeBERTa": Entry("Deberta", SMALL | {"relative_attention": True, "pos_att_type": ["p2c", "c2p"]}, only_eager=True),
    "ERNIE": Entry("Ernie", SMALL),
    "RoFormer": Entry("RoFormer", SMALL, only_eager=True),
    "ModernBERT": Entry("ModernBert", SMALL | {"local_attention": 6, "pad_token_id": 0}),
    "MegatronBERT": Entry("MegatronBert", SMALL, only_eager=True),
    "LayoutLM": Entry("LayoutLM", SMALL, only_eager=VERSION < (5, 20)),
    "GPT-Neo": Entry(
        "GPTNeo",
        {"vocab_size": 99, "hidden_size": 32, "num_layers": 2, "num_heads": 4, "max_position_embeddings": 64}
        | {"attention_types": [[["global", "local"], 1]], "window_size": 4, "bos_token_id": 1, "eos_token_id": 2},
        only_eager=True,
    ),
    "GPT-J": Entry("GPTJ", OLD | {"rotary_dim": 4, "eos_token_id": 2}, only_eager=True),
    "GPT-NeoX": Entry("GPTNeoX", SMALL),
    "GPT-BigCode": Entry("GPTBigCode", OLD | {"eos_token_id": 2}),
    "CodeGen": Entry("CodeGen", OLD | {"n_ctx": 64, "rotary_dim": 4, "eos_token_id": 2}, only_eager=True),
    "CTRL": Entry("CTRL", OLD | {"dff": 64}, only_eager=True),
    "OPT": Entry("OPT", SMALL | {"ffn_dim": 64, "word_embed_proj_dim": 32}),
    "MPT": Entry(
        "Mpt", {"vocab_size": 99, "d_model": 32, "n_layers": 2, "n_heads": 4, "max_seq_len": 64}, only_eager=True
    ),
    "Falcon": Entry("Falcon", SMALL | {"attn_implementation": "eager"}, only_eager=True),
    "Llama": Entry("Llama", GROUPED),
    "Qwen2": Entry("Qwen2", GROUPED),
    "Qwen3": Entry("Qwen3", GROUPED),
    "Gemma": Entry("Gemma", GROUPED),
    "Gemma-3": Entry("Gemma3Text", WINDOW),
    "Phi": Entry("Phi", SMALL),
    "Phi-3": Entry("Phi3", GROUPED | {"pad_token_id": 0}),
    "Cohere": Entry("Cohere", GROUPED | {"pad_token_id": 0}),
    "OLMo": Entry("Olmo", SMALL | {"pad_token_id": 0}),
    "OLMo-2": Entry("Olmo2", SMALL | {"pad_token_id": 0}),
    "StableLM": Entry("StableLm", GROUPED),
    "StarCoder2": Entry("Starcoder2", GROUPED),
    "Granite": Entry("Granite", GROUPED),
    "SmolLM3": Entry("SmolLM3", GROUPED | {"pad_token_id": 0}),
    "BioGPT": Entry("BioGpt", SMALL),
    "FlauBERT": Entry("Flaubert", {"vocab_size": 99, "emb_dim": 32, "n_layers": 2, "n_heads": 4}, only_eager=True),
    "mT5": Entry("MT5", T5 | {"decoder_start_token_id": 0}, "pair"),
    # Before 5.18 a decoder of UMT5 sees later tokens by "sdpa".
    "UMT5": Entry("UMT5", T5 | {"decoder_start_token_id": 0}, "pair", only_eager=VERSION < (5, 18)),
    "mBART": Entry("MBart", SEQ, "pair"),
    "Marian": Entry("Marian", SEQ | {"pad_token_id": 0, "decoder_start_token_id": 0}, "pair"),
    "Pegasus": Entry("Pegasus", SEQ, "pair"),
    "M2M-100": Entry("M2M100", SEQ, "pair"),
    "Blenderbot": Entry("Blenderbot", SEQ, "pair"),
    "DeiT": Entry("DeiT", IMAGE, "image"),
    "BEiT": Entry("Beit", IMAGE, "image"),
    "DINOv2": Entry("Dinov2", IMAGE, "image"),
    "SigLIP": Entry("SiglipVision", IMAGE | {"vision_use_head": False}, "image"),
    "CLIP text": Entry("CLIPText", SMALL | {"eos_token_id": 98}),
    "CLIP vision": Entry("CLIPVision", IMAGE, "image"),
    "wav2vec 2.0": Entry("Wav2Vec2", SOUND, "sound"),
    "HuBERT": Entry("Hubert", SOUND, "sound"),
}


def randomized(model: nn.Module) -> nn.Module:
    torch.manual_seed(1)
    with torch.no_grad():
        for name, one in model.named_parameters():
            if one.ndim >= 2 or "sinks" in name:
                one.normal_(0, 1 if one.ndim < 2 else one.shape[-1] ** -0.5)
    return model.eval()


def made(name: str, head: str = "Model") -> nn.Module:
    entry = MODELS[name]
    config = getattr(transformers, f"{entry.kind}Config")
    return randomized(getattr(transformers, entry.kind + head)(config(**entry.options)))


def inputs(name: str) -> dict[str, torch.Tensor]:
    draw = torch.Generator().manual_seed(0)
    entry = MODELS[name]
    if entry.takes == "image":
        return {"pixel_values": torch.randn(2, 3, 32, 32, generator=draw)}
    if entry.takes == "sound":
        return {"input_values": torch.randn(2, 400, generator=draw)}
    ids = torch.randint(3, 98, (2, 12), generator=draw)
    mask = torch.ones_like(ids)
    mask[1, 9:] = 0
    given = {"input_ids": ids, "attention_mask": mask}
    return given | ({"decoder_input_ids": ids[:, :7].flip(1)} if entry.takes == "pair" else {})


def eager_weights(model: nn.Module, **given: Any) -> dict[str, tuple[torch.Tensor, ...]]:
    """By stream of queries and keys, the weights that transformers' own eager code returns."""
    before = model.config._attn_implementation
    set_attention(model, "eager")
    with torch.no_grad():
        output = model(**given, output_attentions=True, return_dict=True)
    set_attention(model, before)
    if "encoder_attentions" not in output:
        stream = {"pixel_values": "image", "input_values": "audio"}.get(model.main_input_name, "text")
        return {f"{stream} {stream}": output.attentions}
    names = ("encoder_attentions", "decoder_attentions", "cross_attentions")
    return dict(zip(("source source", "target target", "target source"), (output[one] for one in names), strict=True))
