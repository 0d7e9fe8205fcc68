"""A loader of models: `random:bert` is a small model of transformers with random weights, made without a network."""

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoConfig, AutoModel, PreTrainedTokenizerFast

from regard.hub import Loaded

__all__ = ["load"]


def load(name: str, *, attn_implementation: str | None = None) -> Loaded:
    """Return an encoder of two layers of the architecture `name`, and a tokenizer of bytes; the seed is always 0."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    config = AutoConfig.for_model(name, vocab_size=len(alphabet), **sizes)
    chosen = {"attn_implementation": attn_implementation} if attn_implementation else {}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = AutoModel.from_config(config, **chosen)
    backend = Tokenizer(models.BPE(vocab={letter: at for at, letter in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend)
    return Loaded(f"random:{name}", model.eval(), tokenizer, "encoder")
