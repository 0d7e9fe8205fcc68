"""Names that people bring from PyTorch, transformers and x-transformers, and what a module here has in their place."""

__all__ = ["FORWARD", "INIT"]

_CAUSAL = "mask=masks.Causal() is meant, in the constructor or the call"
_NO_POSITIONS = "rotary=positions.RoPE(head_dim) is meant"


def _alike(names: str, *ours: str) -> dict[str, tuple[str, ...]]:
    return dict.fromkeys(names.split(), ours)


# A constructor's names: which of ours is meant, the first that the module has; or a sentence, where it has a space.
INIT: dict[str, tuple[str, ...]] = {
    **_alike("hidden_size d_model n_embd dim width embedding_dim model_dim num_hiddens query_width", "embed_dim"),
    **_alike("num_attention_heads heads n_head n_heads nhead num_q_heads encoder_attention_heads", "num_heads"),
    **_alike("num_key_value_heads kv_heads n_kv_heads num_query_groups", "num_kv_heads"),
    **_alike("dim_head d_head head_size d_kv key_dim attention_head_size qk_head_dim", "head_dim"),
    **_alike("value_dim v_dim", "v_head_dim"),
    **_alike("key_width kv_dim context_dim cross_attention_dim encoder_hidden_size memory_width", "memory_dim", "kdim"),
    **_alike("kdim source_width", "memory_dim", "kdim"),
    **_alike("value_width vdim", "vdim", "memory_dim"),
    **_alike("output_dim out_width dim_out out_features output_width proj_size", "out_dim", "output_size"),
    **_alike(
        "hidden intermediate_size d_ff ffn_dim mlp_dim inner_dim n_inner dim_hidden hidden_features dim_feedforward",
        "dim_feedforward",
        "hidden_features",
    ),
    **_alike("attention_bias qkv_bias use_bias add_bias", "bias"),
    **_alike("out_proj_bias proj_bias dense_bias", "out_bias"),
    **_alike(
        "add_bias_kv add_zero_attn",
        "a learned sink is meant, normalizer=normalizers.Softmax(sink), which takes weight without being a key",
    ),
    **_alike(
        "attn_dropout attention_dropout attn_drop dropout_p dropout_rate attn_pdrop hidden_dropout_prob", "dropout"
    ),
    **_alike("attention_probs_dropout_prob proj_drop dropout_prob", "dropout"),
    **_alike("eps layer_norm_epsilon rms_norm_eps norm_eps", "layer_norm_eps"),
    **_alike("normalize_before pre_norm norm_before do_layer_norm_before", "norm_first"),
    **_alike("hidden_act activation_function act_layer activation nonlinearity act_fn", "activation", "nonlinearity"),
    **_alike("rope rotary_emb rotary_pos_emb rope_theta rope_parameters", _NO_POSITIONS),
    **_alike("rel_pos_bias relative_position_bias position_bias alibi alibi_pos_bias", "attn_bias"),
    **_alike("softcap logit_softcapping attn_logit_softcapping", "score=scores.ScaledDot(softcap=...) is meant"),
    **_alike("qk_norm", "q_norm=nn.RMSNorm(head_dim) and k_norm=nn.RMSNorm(head_dim) are meant"),
    **_alike("softmax_scale qk_scale attn_scale scaling", "scale"),
    **_alike("is_causal causal", "causal", _CAUSAL),
    **_alike("attn_mask attention_mask", "mask"),
    **_alike("window_size size attention_window", "sliding_window", "window", "kernel_size"),
    **_alike("sliding_window", "window", "mask=masks.Causal() & masks.Window(size) is meant"),
    **_alike("window", "sliding_window", "radius", "mask=masks.Window(size) is meant"),
    **_alike("block_size", "block"),
    **_alike("axes num_dimensions num_dims", "num_axes"),
    **_alike(
        "max_length length max_seq_len max_position_embeddings num_embeddings n_positions max_positions", "max_len"
    ),
    **_alike("input_width input_dim", "input_size"),
    **_alike("hidden_width hidden_dim", "hidden_size"),
    **_alike("nb_features features num_random_features", "num_features"),
    **_alike("num_layers n_layer num_hidden_layers", "one layer is made: put several after one another"),
    **_alike(
        "need_weights output_attentions return_attention_scores",
        "need_weights=True is meant, in the call: module(x, need_weights=True)",
    ),
    **_alike("average_attn_weights", "need_weights=True is meant, in the call; it gives the weights of every head"),
}

_HIDES = "True may be seen here, and hides there"
_MASKS = f"a boolean one is mask=~{{0}} ({_HIDES}), numbers that are added to the scores are attn_bias={{0}}"
_PADDING = "key_padding_mask=attention_mask == 0 is meant (True hides), or mask=masks.Padding(attention_mask)"
_BY_HEAD = "the weights of every head are given: write weights.mean(1), heads being dimension 1"

# The same for the names of a call.
FORWARD: dict[str, tuple[str, ...]] = {
    **{name: (_MASKS.format(name),) for name in ("attn_mask", "src_mask", "tgt_mask")},
    "memory_mask": (f"a boolean one is cross_attn_mask=~memory_mask ({_HIDES}), numbers are cross_attn_bias=",),
    "attention_mask": (_PADDING,),
    **_alike("src_key_padding_mask tgt_key_padding_mask padding_mask real", "key_padding_mask"),
    "memory_key_padding_mask": ("memory_key_padding_mask", "key_padding_mask"),
    **_alike("output_attentions return_attention_scores return_weights weights return_attn_weights", "need_weights"),
    **_alike("attention_bias position_bias rel_pos_bias alibi", "attn_bias"),
    **_alike("past_key_values past_key_value layer_past use_cache kv_cache", "cache"),
    **_alike("hidden_states src tgt input inputs queries x query", "query", "x"),
    **_alike("encoder_hidden_states context keys key source memory", "memory", "key", "source"),
    **_alike("values value", "value"),
    **_alike("position_ids positions input_pos", "position_ids", _NO_POSITIONS),
    **_alike("hx h0 h_0 hidden initial_state", "hx", "hidden_state", "state"),
    **_alike("budget", "max_bytes"),
    "average_attn_weights": (_BY_HEAD,),
    **_alike("is_causal causal tgt_is_causal", "is_causal", _CAUSAL),
    "memory_is_causal": ("cross_attn_mask=masks.Causal() is meant",),
}
