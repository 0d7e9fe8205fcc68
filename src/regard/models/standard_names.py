"""Names that people bring from transformers and PyTorch, and what a model here has in their place."""

__all__ = [
    "CONFIG",
    "FORWARD",
    "FROM_PRETRAINED",
    "GENERATE",
    "LOAD_MODEL",
    "RECURRENT_CONFIG",
    "SAVE_PRETRAINED",
]


_SIZES = dict.fromkeys(("d_model", "n_embd", "dim", "width", "embed_dim"), "hidden_size")
_HEADS = ("num_heads", "n_head", "nhead", "heads", "encoder_attention_heads", "decoder_attention_heads")
_HIDDEN = ("d_ff", "ffn_dim", "n_inner", "encoder_ffn_dim", "decoder_ffn_dim", "dim_feedforward", "hidden")
_LAYERS = "encoder_layers or decoder_layers, by the stack that is meant"
_POSITIONS = "positions=Learned(max_position_embeddings) or Sinusoidal(max_position_embeddings)"
_ROPE = "positions=regard.positions.RoPE(head_dim, base=..., scaling=...)"
_HEAD = "output_head=output_heads.{}"
_TOKENS = "special_tokens=SpecialTokens({}=...)"
_SPECIAL = (
    *("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id", "mask_token_id"),
    *("forced_bos_token_id", "forced_eos_token_id", "suppress_tokens"),
)

CONFIG: dict[str, str] = {
    **_SIZES,
    **dict.fromkeys(_HEADS, "num_attention_heads"),
    **dict.fromkeys(_HIDDEN, "intermediate_size"),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "num_layers", "layers"), _LAYERS),
    "num_encoder_layers": "encoder_layers",
    "num_decoder_layers": "decoder_layers",
    "d_kv": "head_dim",
    "kv_heads": "num_key_value_heads",
    "num_kv_heads": "num_key_value_heads",
    "vocabulary": "vocab_size",
    **dict.fromkeys(("max_position_embeddings", "n_positions", "max_length"), _POSITIONS),
    **dict.fromkeys(("rope_theta", "rope_scaling", "rope_parameters", "rotary"), _ROPE),
    **dict.fromkeys(("rms_norm_eps", "layer_norm_epsilon", "eps"), "layer_norm_eps, which norm='rms' has too"),
    **dict.fromkeys(("activation", "activation_function", "feed_forward_proj"), "hidden_act and is_gated_act"),
    **dict.fromkeys(("hidden_dropout_prob", "dropout_rate", "resid_pdrop", "embd_pdrop"), "dropout"),
    **dict.fromkeys(("attention_probs_dropout_prob", "attn_pdrop"), "attention_dropout"),
    **dict.fromkeys(("attention_bias", "mlp_bias", "norm_bias"), "bias, and qkv_bias and out_bias of the attention"),
    **dict.fromkeys(("use_sliding_window",), "sliding_window=None for no window"),
    **dict.fromkeys(("position_embedding_type", "relative_attention"), 'positions or position_bias="t5"'),
    **dict.fromkeys(("is_decoder", "is_encoder_decoder", "add_cross_attention"), _LAYERS),
    "normalize_before": "norm_first",
    "do_layer_norm_before": "norm_first",
    "tie_word_embeddings": _HEAD.format("LanguageModel(tie_word_embeddings=...)"),
    "head": "output_head",
    "num_labels": _HEAD.format("SequenceClassification(num_labels=...)"),
    "tokens": "special_tokens",
    **{name: _TOKENS.format(name) for name in _SPECIAL},
}

# Of a RecurrentConfig, which has the words of nn.LSTM, and of transformers where there are tokens.
RECURRENT_CONFIG: dict[str, str] = {
    **dict.fromkeys(("source_vocabulary", "encoder_vocab_size", "src_vocabulary"), "src_vocab_size"),
    **dict.fromkeys(("target_vocabulary", "decoder_vocab_size", "tgt_vocabulary"), "tgt_vocab_size"),
    "vocab_size": "src_vocab_size and tgt_vocab_size, which may be equal,",
    **dict.fromkeys(("input_size", "embed_dim", "embedding_size", "emb_dim", "width"), "embedding_dim"),
    **dict.fromkeys(("hidden", "hidden_dim", "d_model", "dim"), "hidden_size"),
    **dict.fromkeys(("layers", "n_layers", "num_hidden_layers", "encoder_layers", "decoder_layers"), "num_layers"),
    **dict.fromkeys(("rnn_type", "cell_type", "rnn", "mode"), 'cell="gru" or "lstm"'),
    **dict.fromkeys(("tied", "tied_embeddings", "tied_softmax", "weight_tying", "tie_weights"), "tie_word_embeddings"),
    **dict.fromkeys(("dropout_p", "hidden_dropout_prob"), "dropout"),
    **dict.fromkeys(("attention_type", "attn_type", "global_attention"), "attention"),
    **dict.fromkeys(("window", "window_size", "D"), "radius"),
    "input_feed": "input_feeding",
    **dict.fromkeys(("start_token", "sos_token_id", "decoder_start_token_id"), "bos_token_id"),
    **dict.fromkeys(("stop_token", "end_token"), "eos_token_id"),
    "padding_idx": "pad_token_id",
}

FORWARD: dict[str, str] = {
    **dict.fromkeys(("ids", "src", "x"), "input_ids"),
    **dict.fromkeys(("target", "tgt"), "decoder_input_ids"),
    **dict.fromkeys(("real", "mask", "key_padding_mask", "src_key_padding_mask"), "attention_mask (1 for tokens)"),
    **dict.fromkeys(("types", "segment_ids"), "token_type_ids"),
    **dict.fromkeys(("cache", "memory"), "past_key_values"),
    "layers": "output_hidden_states",
    **dict.fromkeys(("last", "num_logits_to_keep"), "logits_to_keep"),
    "position_ids": "attention_mask, whose tokens are counted, or documents for several texts in a row",
    "cache_position": "past_key_values, which knows its length",
    **dict.fromkeys(("inputs_embeds", "decoder_inputs_embeds"), "input_ids, on which alone a model runs"),
    "encoder_outputs": "model.decode(decoder_input_ids, encoder_last_hidden_state)",
    **dict.fromkeys(("output_attentions", "need_weights"), "regard.watch(model, keep='weights') around the call"),
    "return_dict": "outputs are always both, by field and by position: leave it out.",
    "head_mask": "regard.ablate_heads(model, heads) around the call",
}

_NO_CODE = "code that comes with a model is never run: leave it out."
_CONVERTED = "transformers converts it with save_pretrained, and what that saves is read."
_LOADED_BEFORE = "a model that transformers has loaded with it, in place of a name,"
_ONE_RULE = "a decoding of one's own that has such a rule, as search_strategy=,"

GENERATE: dict[str, str] = {
    **dict.fromkeys(("prompts", "inputs"), "input_ids"),
    "inputs_embeds": "input_ids, on which alone a model runs",
    "max_tokens": "max_new_tokens",
    "stop_token": "eos_token_id",
    "stop_strings": "eos_token_id, or a break out of `for token in model.stream(input_ids)`,",
    **dict.fromkeys(("stopping_criteria", "max_time"), "a break out of `for token in model.stream(input_ids)`"),
    "seed": "generator=torch.Generator().manual_seed(seed)",
    "streamer": "model.stream(input_ids)",
    "generation_config": "each of its values as an argument",
    "pad_token": "pad_token_id",
    "eos_token": "eos_token_id",
    "bos_token_id": "input_ids that begin with it, or decoder_start_token_id of an encoder–decoder,",
    "return_tensors": "a tensor, which generate always returns,",
    **dict.fromkeys(("past_key_values", "cache_implementation"), "use_cache"),
    **dict.fromkeys(("tokenizer", "skip_special_tokens"), "tokenizer.decode of what generate returns"),
    "decoder_input_ids": "decoder_start_token_id, or forced_bos_token_id for the token after it,",
    "encoder_outputs": "input_ids, the source,",
    "token_type_ids": "input_ids, as models that generate have no token types,",
    "output_scores": "return_dict_in_generate=True, which has the scores of beams,",
    **dict.fromkeys(("output_logits", "logits"), "model(sequences).logits of what generate returns"),
    **dict.fromkeys(("output_attentions",), "regard.watch(model, keep='weights') around the call"),
    "output_hidden_states": "model(sequences, output_hidden_states=True) with what generate returns",
    **dict.fromkeys(
        ("num_beam_groups", "diversity_penalty"), "num_beams, or do_sample=True for texts that differ more,"
    ),
    **dict.fromkeys(
        ("penalty_alpha", "dola_layers", "custom_generate"), "search_strategy= with a decoding of one's own"
    ),
    **dict.fromkeys(("typical_p", "epsilon_cutoff", "eta_cutoff", "top_h"), "top_k, top_p or min_p"),
    **dict.fromkeys(("logits_processor", "prefix_allowed_tokens_fn", "sequence_bias", "guidance_scale"), _ONE_RULE),
    **dict.fromkeys(("encoder_repetition_penalty", "encoder_no_repeat_ngram_size"), _ONE_RULE),
    **dict.fromkeys(("exponential_decay_length_penalty", "watermarking_config", "token_healing"), _ONE_RULE),
    **dict.fromkeys(("constraints", "force_words_ids", "renormalize_logits", "remove_invalid_values"), _ONE_RULE),
    **dict.fromkeys(
        ("assistant_model", "prompt_lookup_num_tokens"), "generate without it: the same tokens, each alone,"
    ),
    "trust_remote_code": _NO_CODE,
    "synced_gpus": "each process generates by itself: leave it out.",
}

_NOT_QUANTIZED = "weights are read as they are: leave it out, and give dtype=torch.bfloat16 for half of the memory."
_ALWAYS = "it is always so: leave it out."
FROM_PRETRAINED: dict[str, str] = {
    "torch_dtype": "dtype, such as torch.bfloat16,",
    **dict.fromkeys(("device_map", "device", "max_memory", "tp_plan"), ".to(device) of what it returns"),
    **dict.fromkeys(("offload_folder", "offload_state_dict"), "the model is loaded into memory whole: leave it out."),
    "trust_remote_code": _NO_CODE,
    **dict.fromkeys(("load_in_8bit", "load_in_4bit", "quantization_config"), _NOT_QUANTIZED),
    "attn_implementation": "regard.attention chooses its backend for each call: leave it out.",
    **dict.fromkeys(("low_cpu_mem_usage", "use_safetensors", "weights_only", "local_dir_use_symlinks"), _ALWAYS),
    "subfolder": "the folder itself as the name, such as 'checkpoint/subfolder',",
    "use_auth_token": "token",
    "resume_download": "a download is resumed always: leave it out.",
    "output_loading_info": "missing and spare weights are refused with their names: leave it out.",
    "ignore_mismatched_sizes": "output_head=output_heads.SequenceClassification(num_labels), or another head,",
    **dict.fromkeys(("num_labels", "id2label"), "output_head=output_heads.SequenceClassification(num_labels)"),
    "config": "each changed value as an argument, such as dropout=0.0,",
    "state_dict": "model.load_state_dict",
    **dict.fromkeys(("from_tf", "from_flax", "gguf_file", "variant"), _CONVERTED),
    **dict.fromkeys(("proxies", "mirror"), "the environment (HTTPS_PROXY, HF_ENDPOINT)"),
}
# Of regard.load_model, which opens models of transformers.
LOAD_MODEL: dict[str, str] = {
    **dict.fromkeys(("torch_dtype", "dtype"), ".to(dtype) of the model that it returns"),
    **{name: hint for name, hint in FROM_PRETRAINED.items() if name not in ("torch_dtype", "attn_implementation")},
    **dict.fromkeys(("device_map", "device", "max_memory", "tp_plan"), ".to(device) of the model that it returns"),
    **dict.fromkeys(("load_in_8bit", "load_in_4bit", "quantization_config"), _LOADED_BEFORE),
    **dict.fromkeys(("revision", "token", "cache_dir", "subfolder", "use_auth_token", "config"), _LOADED_BEFORE),
    **dict.fromkeys(("num_labels", "id2label", "ignore_mismatched_sizes", "gguf_file", "variant"), _LOADED_BEFORE),
    **dict.fromkeys(("local_files_only", "force_download", "state_dict", "from_tf", "from_flax"), _LOADED_BEFORE),
}
SAVE_PRETRAINED: dict[str, str] = {
    "safe_serialization": "models are saved as safetensors always: leave it out.",
    "max_shard_size": "the weights are one file: leave it out.",
    "state_dict": "model.load_state_dict before",
    "is_main_process": "a call on the main process alone",
    **dict.fromkeys(("save_peft_format", "variant"), "nothing of that kind is saved: leave it out."),
}
