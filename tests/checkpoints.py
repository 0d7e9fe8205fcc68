"""Tiny random checkpoints of every family that a Transformer reads, as transformers writes them."""

import torch
import transformers as hf

SIZES = {"vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 48}
POSITIONS = {"max_position_embeddings": 40}
GPT2 = {"vocab_size": 50, "n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 40}
GPT2 |= {"bos_token_id": 1, "eos_token_id": 2}
WINDOWS = {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1, "tie_word_embeddings": True}
GROUPED = SIZES | POSITIONS | {"num_key_value_heads": 2}
T5 = {"vocab_size": 50, "d_model": 32, "d_kv": 16, "num_heads": 4, "d_ff": 48, "decoder_start_token_id": 0}
BART = {
    "vocab_size": 50, "d_model": 32, "encoder_layers": 3, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "max_position_embeddings": 40,
}  # fmt: skip
MARIAN = BART | {"pad_token_id": 49, "decoder_start_token_id": 49, "eos_token_id": 0, "forced_eos_token_id": 0}
MARIAN |= {"activation_function": "swish", "scale_embedding": True}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 10, "rope_theta": 10000.0}

# Name: the class whose instance is saved, and its configuration.
FAMILIES = {
    "bert": (hf.BertForMaskedLM, hf.BertConfig, SIZES | POSITIONS),
    "roberta": (hf.RobertaForMaskedLM, hf.RobertaConfig, SIZES | POSITIONS | {"type_vocab_size": 1}),
    "xlm-roberta": (hf.XLMRobertaModel, hf.XLMRobertaConfig, SIZES | POSITIONS | {"type_vocab_size": 1}),
    "gpt2": (hf.GPT2LMHeadModel, hf.GPT2Config, GPT2),
    "llama": (hf.LlamaForCausalLM, hf.LlamaConfig, GROUPED),
    "llama with biases": (hf.LlamaForCausalLM, hf.LlamaConfig, GROUPED | {"attention_bias": True}),
    "llama, stretched": (hf.LlamaForCausalLM, hf.LlamaConfig, GROUPED | {"rope_parameters": YARN}),
    "mistral": (hf.MistralForCausalLM, hf.MistralConfig, GROUPED | {"sliding_window": 3, "head_dim": 16}),
    "qwen2": (hf.Qwen2ForCausalLM, hf.Qwen2Config, GROUPED),
    "qwen2 with windows": (hf.Qwen2ForCausalLM, hf.Qwen2Config, GROUPED | WINDOWS),
    "t5": (hf.T5ForConditionalGeneration, hf.T5Config, T5 | {"num_layers": 3, "num_decoder_layers": 2}),
    "t5 1.1": (
        hf.T5ForConditionalGeneration,
        hf.T5Config,
        T5 | {"num_layers": 2, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
    ),
    "bart": (hf.BartForConditionalGeneration, hf.BartConfig, BART | {"scale_embedding": True}),
    "marian": (hf.MarianMTModel, hf.MarianConfig, MARIAN),
    "marian with two vocabularies": (
        hf.MarianMTModel,
        hf.MarianConfig,
        MARIAN | {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": 46}
        | {"pad_token_id": 45, "decoder_start_token_id": 45},
    ),
}  # fmt: skip


def checkpoint(name, folder, seed=0, kind=None, **more):
    """Save a model of a family with weights that do not saturate its softmaxes; give it back in eval mode."""
    cls, config, options = FAMILIES[name]
    torch.manual_seed(seed)
    model = (kind or cls)(config(**options | more)).eval()
    with torch.no_grad():
        for one in model.parameters():
            if one.requires_grad:
                one.normal_(std=one.shape[-1] ** -0.5) if one.ndim > 1 else one.add_(torch.randn_like(one) * 0.1)
        if hasattr(model, "final_logits_bias"):
            model.final_logits_bias.normal_()
    model.save_pretrained(folder)
    return model


def texts(config, batch=2, n=11, *, real=7, seed=1):
    """Tokens, and which are real: the second text has `real` of them and padding behind."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(3, 44, (batch, n), generator=generator)
    kept = torch.ones(batch, n, dtype=torch.bool)
    kept[1:, real:] = False
    return ids.masked_fill(~kept, config.pad_token_id or 0), kept
