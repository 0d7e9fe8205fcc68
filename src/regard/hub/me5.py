"""Convert multilingual-e5-small to a folder that transformers loads: BERT weights and an XLM-R tokenizer.

The file `e5-small-q4.bin` holds a BERT encoder in 4-bit blocks, with the pieces of its Unigram tokenizer. Little-
endian: `E5S1`, the sizes, the pieces with their scores, a normalizer that is skipped, a directory of tensors and their
data. A block of 18 bytes holds 32 weights: a float16 scale d and 16 bytes q, whose low nibbles are the first 16 weights
and whose high nibbles are the last 16; weight = (nibble − 8) · d.
"""

import math
import struct
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from regard.hub.catalogue import BundledModelError

__all__ = ["VERSION", "Me5File", "Sizes", "convert", "read", "unigram"]


_BLOCK, _BLOCK_BYTES = 32, 18
_FLOAT32 = 0  # the kind of a tensor stored without quantization; the other kind is 4-bit blocks


@dataclass(frozen=True)
class Sizes:
    """The dimensions that determine the shapes of the encoder's tensors."""

    hidden: int
    layers: int
    heads: int
    feed_forward: int
    vocabulary: int
    positions: int
    token_types: int
    epsilon: float


@dataclass(frozen=True, eq=False)
class Me5File:
    """The content of the file: sizes, pieces with log probabilities, the ids of the special pieces, tensors by name."""

    sizes: Sizes
    pieces: tuple[tuple[str, float], ...]
    special: dict[str, int]
    tensors: dict[str, npt.NDArray[np.float32]]


@dataclass(frozen=True)
class _Entry:
    kind: int
    count: int
    offset: int
    length: int


class _Cursor:
    """A position in the bytes that advances with each read and never passes the end."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def take(self, length: int, what: str) -> bytes:
        if length < 0 or self.at + length > len(self.data):
            raise _broken(f"{what} needs {length} bytes at {self.at}, the file ends at {len(self.data)}")
        self.at += length
        return self.data[self.at - length : self.at]

    def unpack(self, pattern: str, what: str) -> tuple[Any, ...]:
        return struct.unpack("<" + pattern, self.take(struct.calcsize("<" + pattern), what))


def read(data: bytes) -> Me5File:
    """Parse the bytes of the file, and raise BundledModelError if they violate the format."""
    cursor = _Cursor(data)
    magic, version = cursor.unpack("4sI", "the signature")
    if (magic, version) != (b"E5S1", 1):
        raise _broken(f"it must begin with E5S1 version 1, got {magic!r} version {version}")
    sizes = _read_sizes(cursor)
    pieces, special = _read_pieces(cursor, sizes)
    _, length = cursor.unpack("iI", "the size of the normalizer")
    cursor.take(length, "the normalizer")
    directory = _read_directory(cursor)
    shapes = _shapes(sizes)
    if directory.keys() != shapes.keys():
        odd = min(directory.keys() ^ shapes.keys())
        raise _broken(f"its tensors must be the {len(shapes)} of {sizes.layers} layers, {odd!r} is missing or too many")
    tensors = {name: _tensor(data, name, directory[name], shape) for name, shape in shapes.items()}
    return Me5File(sizes, pieces, special, tensors)


def _broken(why: str) -> BundledModelError:
    return BundledModelError(f"the weights file of `me5` is not readable: {why}; install it again")


def _read_sizes(cursor: _Cursor) -> Sizes:
    *counts, epsilon, block = cursor.unpack("7ifi", "the sizes")
    hidden, layers, heads, feed_forward, vocabulary, positions, token_types = counts
    sizes = Sizes(hidden, layers, heads, feed_forward, vocabulary, positions, token_types, epsilon)
    if min(counts) < 1 or max(counts) > 2**24 or not 0 < epsilon < 1:
        raise _broken(f"its sizes must be positive and its epsilon between 0 and 1, got {counts} and {epsilon}")
    if block != _BLOCK or sizes.hidden % block or sizes.feed_forward % block or sizes.hidden % sizes.heads:
        raise _broken(f"blocks of {_BLOCK} and {sizes.heads} heads must divide its widths, got {counts}, block {block}")
    # A layer has sixteen tensors with 21 bytes of directory each, which limits the number of layers.
    if sizes.layers > len(cursor.data) // (16 * 21):
        raise _broken(f"{sizes.layers} layers do not fit into {len(cursor.data)} bytes")
    return sizes


def _read_pieces(cursor: _Cursor, sizes: Sizes) -> tuple[tuple[tuple[str, float], ...], dict[str, int]]:
    count, bos, eos, pad, unk, length = cursor.unpack("5iQ", "the size of the vocabulary")
    if not 0 < count <= sizes.vocabulary or len({bos, eos, pad, unk}) != 4:
        raise _broken(f"it must have 1 to {sizes.vocabulary} pieces and four special ones, got {count}")
    if not all(0 <= special < count for special in (bos, eos, pad, unk)):
        raise _broken(f"the special pieces must be below {count}, got {bos}, {eos}, {pad} and {unk}")
    offsets = np.frombuffer(cursor.take(4 * (count + 1), "the offsets of the pieces"), "<u4")
    scores = np.frombuffer(cursor.take(4 * count, "the scores of the pieces"), "<f4")
    text = cursor.take(length, "the text of the pieces")
    if offsets[0] != 0 or offsets[-1] != length or (offsets[1:] <= offsets[:-1]).any():
        raise _broken("the offsets of its pieces must rise from 0 to the length of their text")
    if not np.isfinite(scores).all():
        raise _broken("the scores of its pieces must be finite numbers")
    ends = offsets.tolist()
    try:
        spelled = [text[start:end].decode() for start, end in pairwise(ends)]
    except UnicodeDecodeError as error:
        raise _broken(f"its pieces must be UTF-8, got {error.object[:16]!r}") from error
    if len(set(spelled)) != count:
        raise _broken("its pieces must differ from each other")
    return tuple(zip(spelled, scores.tolist(), strict=True)), {"bos": bos, "eos": eos, "pad": pad, "unk": unk}


def _read_directory(cursor: _Cursor) -> dict[str, _Entry]:
    (count,) = cursor.unpack("i", "the number of tensors")
    directory: dict[str, _Entry] = {}
    for index in range(count):
        (length,) = cursor.unpack("H", f"the name of tensor {index}")
        name = cursor.take(length, f"the name of tensor {index}").decode("utf-8", "replace")
        directory[name] = _Entry(*cursor.unpack("BIQQ", f"the entry of tensor {index}"))
    if len(directory) != count:
        raise _broken(f"its {count} tensors must have different names, got {len(directory)} names")
    return directory


def _shapes(sizes: Sizes) -> dict[str, tuple[int, ...]]:
    """Return the name in the file and the shape of every tensor of an encoder with these sizes."""
    width, wide = sizes.hidden, sizes.feed_forward
    shapes: dict[str, tuple[int, ...]] = {
        "emb.word": (sizes.vocabulary, width),
        "emb.pos": (sizes.positions, width),
        "emb.type": (sizes.token_types, width),
        "emb.ln.w": (width,),
        "emb.ln.b": (width,),
    }
    for layer in range(sizes.layers):
        for part, rows, columns in (
            *((part, width, width) for part in ("q", "k", "v", "ao")),
            ("fi", wide, width),
            ("fo", width, wide),
        ):
            shapes |= {f"l{layer}.{part}.w": (rows, columns), f"l{layer}.{part}.b": (rows,)}
        for norm in ("aln", "oln"):
            shapes |= {f"l{layer}.{norm}.w": (width,), f"l{layer}.{norm}.b": (width,)}
    return shapes


def _tensor(data: bytes, name: str, entry: _Entry, shape: tuple[int, ...]) -> npt.NDArray[np.float32]:
    count = math.prod(shape)
    length = 4 * count if entry.kind == _FLOAT32 else count // _BLOCK * _BLOCK_BYTES
    if entry.kind not in (_FLOAT32, 1) or (entry.kind and shape[-1] % _BLOCK):
        raise _broken(f"tensor {name} must be of kind 0 or 1, got {entry.kind} for a width of {shape[-1]}")
    if (entry.count, entry.length) != (count, length):
        raise _broken(f"tensor {name} must have {count} numbers in {length} bytes, got {entry.count} in {entry.length}")
    if entry.offset + length > len(data):
        raise _broken(f"tensor {name} ends at byte {entry.offset + length}, the file at {len(data)}")
    stored = memoryview(data)[entry.offset : entry.offset + length]
    plain = np.frombuffer(stored, "<f4").astype(np.float32) if entry.kind == _FLOAT32 else _dequantize(stored)
    if not np.isfinite(plain).all():
        raise _broken(f"tensor {name} must hold finite numbers")
    return plain.reshape(shape)


def _dequantize(stored: memoryview) -> npt.NDArray[np.float32]:
    blocks = np.frombuffer(stored, np.uint8).reshape(-1, _BLOCK_BYTES)
    scales = blocks[:, :2].copy().view("<f2").astype(np.float32)
    nibbles = blocks[:, 2:]
    weights = np.empty((len(blocks), _BLOCK), dtype=np.float32)
    weights[:, : _BLOCK // 2] = nibbles & 0x0F
    weights[:, _BLOCK // 2 :] = nibbles >> 4
    weights -= 8
    weights *= scales
    return weights


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

    file = read(source.read_bytes())
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
