"""Convert multilingual-e5-small to a folder that transformers loads: BERT weights and an XLM-R tokenizer."""

from pathlib import Path
from typing import Any

from regard.interpret.bundled import me5_file
from regard.interpret.bundled.me5_file import Me5File, Sizes

__all__ = ["VERSION", "convert", "unigram"]

VERSION = 1  # version of the conversion: increase it if the folder changes, so that old folders are converted again

_EMBEDDINGS = {
    "emb.word": "embeddings.word_embeddings.weight",
    "emb.pos": "embeddings.position_embeddings.weight",
    "emb.type": "embeddings.token_type_embeddings.weight",
    "emb.ln.w": "embeddings.LayerNorm.weight",
    "emb.ln.b": "embeddings.LayerNorm.bias",
}
_PARTS = {
    "q": "attention.self.query",
    "k": "attention.self.key",
    "v": "attention.self.value",
    "ao": "attention.output.dense",
    "aln": "attention.output.LayerNorm",
    "fi": "intermediate.dense",
    "fo": "output.dense",
    "oln": "output.LayerNorm",
}
_SUFFIXES = {"w": "weight", "b": "bias"}

# SentencePiece's nmt_nfkc is NFKC with these changes, and with one character that NFKC would change left as it is.
_DROPPED = r"[\x01-\x08\x0B\x0E-\x1F\x7F\x{8F}\x{9F}]"
_SPACES = r"[\t\n\x0C\r\x{1680}\x{200B}-\x{200F}\x{2028}\x{2029}\x{2581}\x{FEFF}\x{FFFD}]"
_KEPT, _STAND_IN = "～", "\ue000"


def convert(source: Path, folder: Path) -> None:
    """Save the model in `folder`: config.json, model.safetensors, tokenizer.json, tokenizer_config.json."""
    from safetensors.numpy import save_file
    from transformers import PreTrainedTokenizerFast

    file = me5_file.read(source.read_bytes())
    _config(file.sizes, file.special["pad"]).save_pretrained(folder)
    weights = {_name_in_bert(name): tensor for name, tensor in file.tensors.items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    names = {role: file.pieces[index][0] for role, index in file.special.items()}
    PreTrainedTokenizerFast(
        tokenizer_object=unigram(file),
        bos_token=names["bos"],
        cls_token=names["bos"],
        eos_token=names["eos"],
        sep_token=names["eos"],
        pad_token=names["pad"],
        unk_token=names["unk"],
        model_max_length=file.sizes.positions,
    ).save_pretrained(folder)


def unigram(file: Me5File) -> Any:
    """Build the tokenizer: NFKC, white space collapsed, Metaspace, Unigram over the pieces, <s> text </s>."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers, processors
    from tokenizers.models import Unigram

    tokenizer = Tokenizer(Unigram(list(file.pieces), unk_id=file.special["unk"], byte_fallback=False))
    tokenizer.normalizer = normalizers.Sequence(
        [
            normalizers.Replace(Regex(_DROPPED), ""),
            normalizers.Replace(Regex(_SPACES), " "),
            normalizers.Replace(_KEPT, _STAND_IN),
            normalizers.NFKC(),
            normalizers.Replace(_STAND_IN, _KEPT),
            normalizers.Replace(Regex(" {2,}"), " "),
            normalizers.Strip(),
        ]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="always")
    special = [piece for piece, _ in file.pieces if piece in ("<s>", "<pad>", "</s>", "<unk>", "<mask>")]
    tokenizer.add_special_tokens([AddedToken(piece, special=True, normalized=False) for piece in special])
    bos, eos = (file.pieces[file.special[role]][0] for role in ("bos", "eos"))
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{bos} $A {eos}",
        pair=f"{bos} $A {eos} {eos} $B {eos}",
        special_tokens=[(bos, file.special["bos"]), (eos, file.special["eos"])],
    )
    return tokenizer


def _config(sizes: Sizes, pad: int) -> Any:
    from transformers import BertConfig

    return BertConfig(
        architectures=["BertModel"],
        vocab_size=sizes.vocabulary,
        hidden_size=sizes.hidden,
        num_hidden_layers=sizes.layers,
        num_attention_heads=sizes.heads,
        intermediate_size=sizes.feed_forward,
        max_position_embeddings=sizes.positions,
        type_vocab_size=sizes.token_types,
        layer_norm_eps=sizes.epsilon,
        hidden_act="gelu",
        pad_token_id=pad,
    )


def _name_in_bert(name: str) -> str:
    if name in _EMBEDDINGS:
        return _EMBEDDINGS[name]
    layer, part, suffix = name.split(".")
    return f"encoder.layer.{layer.removeprefix('l')}.{_PARTS[part]}.{_SUFFIXES[suffix]}"
