"""Convert SmolLM2 from its GGUF file to a folder that transformers loads.

transformers loads GGUF too, but only with `accelerate` installed, and dequantizes again at every start.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from regard.errors import MissingExtraError
from regard.hub.catalogue import BundledModelError

__all__ = ["VERSION", "convert", "halves_apart"]

VERSION = 1  # version of the conversion: increase it if the folder changes, so that old folders are converted again

_CONTROL = 3  # GGUF's type of a token without text

_OUTER = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}
_PARTS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def convert(source: Path, folder: Path) -> None:
    """Save the model in `folder`: config.json, model.safetensors, tokenizer.json, tokenizer_config.json."""
    try:
        from gguf import GGUFReader
    except ImportError as error:
        raise MissingExtraError("gguf", "models") from error
    from safetensors.numpy import save_file

    try:
        reader = GGUFReader(source)
        facts = {name: field.contents() for name, field in reader.fields.items()}
        config = _config(facts)
        weights = dict(_weights(reader, config.num_attention_heads, config.num_key_value_heads))
        tokenizer = _tokenizer(facts)
    except (ValueError, KeyError, IndexError) as error:
        raise BundledModelError(f"the weights file of `smollm2` is not readable: {error}; install it again") from error
    config.save_pretrained(folder)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    tokenizer.save_pretrained(folder)


def _config(facts: dict[str, Any]) -> Any:
    from transformers import LlamaConfig

    return LlamaConfig(
        architectures=["LlamaForCausalLM"],
        vocab_size=facts["llama.vocab_size"],
        hidden_size=facts["llama.embedding_length"],
        intermediate_size=facts["llama.feed_forward_length"],
        num_hidden_layers=facts["llama.block_count"],
        num_attention_heads=facts["llama.attention.head_count"],
        num_key_value_heads=facts["llama.attention.head_count_kv"],
        max_position_embeddings=facts["llama.context_length"],
        rms_norm_eps=facts["llama.attention.layer_norm_rms_epsilon"],
        rope_parameters={"rope_type": "default", "rope_theta": facts["llama.rope.freq_base"]},
        bos_token_id=facts["tokenizer.ggml.bos_token_id"],
        eos_token_id=facts["tokenizer.ggml.eos_token_id"],
        pad_token_id=facts["tokenizer.ggml.padding_token_id"],
        tie_word_embeddings=True,
    )


def _weights(reader: Any, heads: int, kv_heads: int) -> Iterator[tuple[str, npt.NDArray[np.float32]]]:
    from gguf import dequantize

    for tensor in reader.tensors:
        weight = np.ascontiguousarray(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
        if tensor.name in _OUTER:
            yield _OUTER[tensor.name], weight
            continue
        _, layer, part, suffix = tensor.name.split(".")
        if part in ("attn_q", "attn_k"):
            weight = halves_apart(weight, heads if part == "attn_q" else kv_heads)
        yield f"model.layers.{layer}.{_PARTS[part]}.{suffix}", weight


def halves_apart(weight: npt.NDArray[np.float32], heads: int) -> npt.NDArray[np.float32]:
    """Reorder the rows of each head from GGUF's order to that of transformers.

    RoPE rotates pairs of dimensions: GGUF stores a pair in adjacent rows (0 1, 2 3), transformers half a head apart (0
    2, 1 3).

    >>> halves_apart(np.float32([[0], [1], [2], [3]]), heads=1).ravel().tolist()
    [0.0, 2.0, 1.0, 3.0]
    """
    pairs = weight.reshape(heads, -1, 2, weight.shape[1])
    return np.ascontiguousarray(pairs.swapaxes(1, 2).reshape(weight.shape))


def _tokenizer(facts: dict[str, Any]) -> Any:
    from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
    from tokenizers.models import BPE
    from transformers import PreTrainedTokenizerFast

    pieces: list[str] = facts["tokenizer.ggml.tokens"]
    split = facts["tokenizer.ggml.pre"]
    if split != "smollm":
        raise ValueError(f"its text must be split as for smollm, got {split!r}")
    merges = [tuple(merge.split(" ", 1)) for merge in facts["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(BPE({piece: index for index, piece in enumerate(pieces)}, merges))
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    types = zip(pieces, facts["tokenizer.ggml.token_type"], strict=True)
    control = [AddedToken(piece, special=True, normalized=False) for piece, type_ in types if type_ == _CONTROL]
    tokenizer.add_special_tokens(control)
    named = {role: pieces[facts[f"tokenizer.ggml.{role}_token_id"]] for role in ("bos", "eos", "unknown", "padding")}
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=named["bos"],
        eos_token=named["eos"],
        unk_token=named["unknown"],
        pad_token=named["padding"],
        model_max_length=facts["llama.context_length"],
    )
    wrapped.chat_template = facts.get("tokenizer.chat_template")
    return wrapped
