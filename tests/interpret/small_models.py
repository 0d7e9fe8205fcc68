"""Small transformers models: class, class of the configuration, and its arguments."""

from typing import Any

import torch

SMALL: dict[str, Any] = {
    "vocab_size": 99,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
}
SMALL |= {"num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 64}
WINDOW = SMALL | {"sliding_window": 5}
MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "Llama": ("LlamaForCausalLM", "LlamaConfig", SMALL),
    "Mistral": ("MistralForCausalLM", "MistralConfig", WINDOW),
    "Gemma-2": ("Gemma2ForCausalLM", "Gemma2Config", WINDOW | {"attn_logit_softcapping": 5.0}),
    "GPT-OSS": ("GptOssForCausalLM", "GptOssConfig", WINDOW | {"num_local_experts": 2, "num_experts_per_tok": 1}),
    "DeepSeek-V3": ("DeepseekV3ForCausalLM", "DeepseekV3Config",
                    {"vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
                     "num_key_value_heads": 4, "intermediate_size": 48, "n_routed_experts": 4,
                     "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1,
                     "first_k_dense_replace": 2, "q_lora_rank": 16, "kv_lora_rank": 16,
                     "qk_rope_head_dim": 4, "qk_nope_head_dim": 8, "v_head_dim": 8}),
    "T5": ("T5ForConditionalGeneration", "T5Config",
           {"vocab_size": 99, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4}),
    "BART": ("BartForConditionalGeneration", "BartConfig",
             {"vocab_size": 99, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 64,
              "encoder_attention_heads": 4, "decoder_attention_heads": 4, "decoder_ffn_dim": 64}),
}  # fmt: skip


def with_large_weights(kind: tuple[str, str, dict[str, Any]]) -> Any:
    """The model with weights so large that attention differs from head to head and from key to key."""
    import transformers

    model, config, given = kind
    torch.manual_seed(1)
    found = getattr(transformers, model)(getattr(transformers, config)(**given)).eval()
    with torch.no_grad():
        for one in found.parameters():
            if one.ndim >= 2:
                one.normal_(0, 2 * one.shape[-1] ** -0.5)
    return found
