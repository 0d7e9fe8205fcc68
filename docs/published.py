"""Configurations of well-known checkpoints, as config.json has them: what docs/models.md shows of each family."""

__all__ = ["PUBLISHED"]

_BERT = {
    "vocab_size": 30522, "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12,
    "intermediate_size": 3072, "hidden_act": "gelu", "max_position_embeddings": 512, "type_vocab_size": 2,
    "layer_norm_eps": 1e-12, "architectures": ["BertForMaskedLM"],
}  # fmt: skip
_LLAMA = {
    "hidden_act": "silu", "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": False,
    "vocab_size": 32000, "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
}  # fmt: skip

# The checkpoint's name, and what of its config.json makes the model.
PUBLISHED = {
    "bert-base-uncased": _BERT | {"model_type": "bert"},
    "roberta-base": _BERT
    | {
        "model_type": "roberta", "vocab_size": 50265, "max_position_embeddings": 514, "type_vocab_size": 1,
        "layer_norm_eps": 1e-5, "pad_token_id": 1, "architectures": ["RobertaForMaskedLM"],
    },
    "gpt2": {
        "model_type": "gpt2", "vocab_size": 50257, "n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024,
        "activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"],
    },
    "Llama-2-7b": _LLAMA
    | {"model_type": "llama", "intermediate_size": 11008, "architectures": ["LlamaForCausalLM"]},
    "Mistral-7B-v0.1": _LLAMA
    | {
        "model_type": "mistral", "intermediate_size": 14336, "num_key_value_heads": 8, "sliding_window": 4096,
        "architectures": ["MistralForCausalLM"],
    },
    "Qwen2-0.5B": _LLAMA
    | {
        "model_type": "qwen2", "vocab_size": 151936, "hidden_size": 896, "num_hidden_layers": 24,
        "num_attention_heads": 14, "num_key_value_heads": 2, "intermediate_size": 4864, "rms_norm_eps": 1e-6,
        "rope_theta": 1000000.0, "tie_word_embeddings": True, "use_sliding_window": False,
        "architectures": ["Qwen2ForCausalLM"],
    },
    "t5-small": {
        "model_type": "t5", "vocab_size": 32128, "d_model": 512, "d_kv": 64, "d_ff": 2048, "num_layers": 6,
        "num_heads": 8, "architectures": ["T5ForConditionalGeneration"],
    },
    "bart-base": {
        "model_type": "bart", "vocab_size": 50265, "d_model": 768, "encoder_layers": 6, "decoder_layers": 6,
        "encoder_attention_heads": 12, "decoder_attention_heads": 12, "encoder_ffn_dim": 3072,
        "decoder_ffn_dim": 3072, "max_position_embeddings": 1024, "activation_function": "gelu",
        "architectures": ["BartForConditionalGeneration"],
    },
    "opus-mt-en-zh": {
        "model_type": "marian", "vocab_size": 65001, "d_model": 512, "encoder_layers": 6, "decoder_layers": 6,
        "encoder_attention_heads": 8, "decoder_attention_heads": 8, "encoder_ffn_dim": 2048, "decoder_ffn_dim": 2048,
        "max_position_embeddings": 512, "activation_function": "swish", "scale_embedding": True,
        "architectures": ["MarianMTModel"],
    },
}  # fmt: skip
