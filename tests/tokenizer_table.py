"""Tokenizers of every kind, made from small vocabularies, and texts of many scripts; what each token covers is known
from the library that cuts the text, or from its bytes and characters, and never from regard.
"""

import functools
import tempfile
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

__all__ = ["BUNDLED", "TEXTS", "TOKENIZERS", "Made", "Tiktoken", "trimmed"]

transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")
decoders, models, normalizers = tokenizers.decoders, tokenizers.models, tokenizers.normalizers
pre_tokenizers, processors, trainers = tokenizers.pre_tokenizers, tokenizers.processors, tokenizers.trainers

Span = tuple[int, int]

TEXTS = {
    "English": "The animal didn't cross the street, because it was too tired.",
    "a word three times": "the cat saw the cat and the other cat",
    "spaces around": "  The cat sat ",
    "tabs and lines": "The cat\tsat\n  down  here\r\n",
    "emoji": "I 😀 like 🐱🐱 cats",
    "joined emoji": "a 👨‍👩‍👧 b ❤️ c 👍🏽!",
    "flags": "from 🇩🇪🇫🇷 to 🏴󠁧󠁢󠁳󠁣󠁴󠁿",
    "composed accents": "Café naïve São Übung",
    "decomposed accents": unicodedata.normalize("NFD", "Café naïve São Übung"),
    "Arabic": "القط جلس على السجادة لأنه متعب",
    "Hebrew with points": "הַחָתוּל יָשַׁב עַל הַשָּׁטִיחַ",
    "mixed scripts": "Иван 貓 cat γάτα 猫カタ한국 x²",
    "Hindi": "बिल्ली चटाई पर बैठी क्योंकि वह थकी थी",
    "Thai": "แมวนั่งบนเสื่อเพราะมันเหนื่อย",
    "Burmese": "ကြောင်သည် ဖျာပေါ်တွင် ထိုင်သည်",
    "Chinese": "貓追老鼠，因為它餓了。",
    "Japanese": "猫はネズミを追いかけた。が",
    "Korean": "고양이가 매트 위에 앉았다",
    "DNA": "ACGTTGCAACGTGGCATTAACGGT",
    "protein": "MKTAYIAKQRQISFVKSHFSRQ",
    "code": "def foo_bar(x):\n\treturn  x**2  # ##y",
    "marks of vocabularies": "a ▁ b▁c Ġd ##e </w> <0xE8> @@",
    "compounds": "Donaudampfschifffahrtsgesellschaft tokenization unbelievably",
    "compatibility forms": "ﬁsh ½ ｆｕｌｌ ㎏ Ⅳ",
}
_CORPUS = [*TEXTS.values(), "the cat sat on the mat and the animal was tired because it was too tired"] * 3


@dataclass(frozen=True)
class Made:
    """A tokenizer, the ids and spans of a text by an oracle, and what it does to a text before it cuts it.

    `cut` returns the ids of a text without special tokens, and the characters of each. `normalize` returns a text as
    it is read, apart from white space. `around` has the special tokens around a text. `pad` and `unknown` are ids, None
    where there are none. `texts` are the names of those that it is for.
    """

    tokenizer: Any
    cut: Callable[[str], tuple[list[int], list[Span]]]
    normalize: Callable[[str], str] = str
    around: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())
    pad: int | None = None
    unknown: int | None = None
    texts: tuple[str, ...] = tuple(TEXTS)


def trimmed(text: str, span: Span, spans: Sequence[Span] = ()) -> Span | None:
    """Return a span without white space around it, unless there is nothing else, and with the combining marks and
    joiners after it that none of the `spans` covers; None if it is empty.
    """
    start, end = span
    while start < end < len(text) and unicodedata.category(text[end]) in ("Mn", "Mc", "Me", "Cf"):
        if any(first <= end < last for first, last in spans):
            break
        end += 1
    if text[start:end].strip():
        while text[start].isspace():
            start += 1
        while text[end - 1].isspace():
            end -= 1
    return (start, end) if start < end else None


def _cut(backend: Any) -> Callable[[str], tuple[list[int], list[Span]]]:
    def cut(text: str) -> tuple[list[int], list[Span]]:
        encoded = backend.encode(text, add_special_tokens=False)
        return encoded.ids, encoded.offsets

    return cut


def _cut_metaspace(backend: Any) -> Callable[[str], tuple[list[int], list[Span]]]:
    """The offsets of a tokenizer that adds a space before the text, without it where it is reported at what follows."""

    def cut(text: str) -> tuple[list[int], list[Span]]:
        encoded = backend.encode(text, add_special_tokens=False)
        spans = list(encoded.offsets)
        if encoded.tokens[0] in ("▁", "Ġ") and (spans[1][0] == 0 or not text[0].isspace()):
            spans[0] = (0, 0)
        return encoded.ids, spans

    return cut


def _fold(text: str) -> str:
    """As BERT's uncased models read a text."""
    marks = unicodedata.normalize("NFD", _clean(text))
    return "".join(mark for mark in marks if unicodedata.category(mark) != "Mn").lower()


def _clean(text: str) -> str:
    """As BERT's cased models read a text."""
    return "".join(mark for mark in text if unicodedata.category(mark) != "Cf")


def _nfkc(text: str) -> str:
    """As T5 and XLM-R read a text."""
    return unicodedata.normalize("NFKC", text)


def _nfc(text: str) -> str:
    return unicodedata.normalize("NFC", text)


_BERT = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
_LLAMA = ["<unk>", "<s>", "</s>"]


def _trained(backend: Any, trainer: Any) -> Any:
    backend.train_from_iterator(_CORPUS, trainer)
    return backend


def _wordpiece(lowercase: bool, *, size: int = 400) -> Any:
    backend = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]", max_input_chars_per_word=200))
    backend.normalizer = normalizers.BertNormalizer(lowercase=lowercase, strip_accents=lowercase)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    _trained(backend, trainers.WordPieceTrainer(vocab_size=size, special_tokens=_BERT, show_progress=False))
    backend.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return backend


def _bert(backend: Any) -> Any:
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]", pad_token="[PAD]"
    )


def _of_bert(lowercase: bool, *, raw: bool = False, size: int = 400) -> Made:
    backend = _wordpiece(lowercase, size=size)
    tokenizer = backend if raw else _bert(backend)
    return Made(tokenizer, _cut(backend), _fold if lowercase else _clean, ((2,), (3,)), 0, 1)


def _byte_level(size: int = 500, *, prefix: bool = False, nfc: bool = False, llama: bool = False) -> Any:
    backend = tokenizers.Tokenizer(models.BPE())
    if nfc:
        backend.normalizer = normalizers.NFC()
    bytes_ = pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=not llama)
    backend.pre_tokenizer = bytes_
    if llama:
        pattern = tokenizers.Regex(r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s+")
        backend.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(pattern, "isolated"), bytes_])
    backend.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    return _trained(
        backend,
        trainers.BpeTrainer(
            vocab_size=size, initial_alphabet=alphabet, special_tokens=["<|end|>", "<|pad|>"], show_progress=False
        ),
    )


def _gpt2(backend: Any) -> Any:
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, unk_token="<|end|>", eos_token="<|end|>", pad_token="<|pad|>"
    )


def _of_gpt2(*, raw: bool = False, normalize: Callable[[str], str] = str, **options: Any) -> Made:
    backend = _byte_level(**options)
    cut = _cut_metaspace(backend) if options.get("prefix") else _cut(backend)
    return Made(backend if raw else _gpt2(backend), cut, normalize, pad=1)


def _byte_pieces(*, prefix: bool, raw: bool) -> Made:
    """Llama 2's kind (`prefix`), and Gemma's: SentencePiece BPE, with the bytes of what it does not know."""
    backend = tokenizers.Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    replaced = normalizers.Replace(" ", "▁")
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), replaced]) if prefix else replaced
    specials = [*_LLAMA, *(f"<0x{byte:02X}>" for byte in range(256))]
    corpus = [TEXTS["English"], TEXTS["compounds"], TEXTS["Chinese"]]
    trainer = trainers.BpeTrainer(vocab_size=140, special_tokens=_LLAMA, show_progress=False)
    # No piece is of two words.
    backend.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Metaspace(), pre_tokenizers.Punctuation()])
    backend.train_from_iterator(corpus, trainer)
    backend.pre_tokenizer = None
    vocabulary = {piece: index for index, piece in enumerate(specials)}
    merges = []
    known = backend.get_vocab()
    for piece in sorted(known, key=known.__getitem__):
        vocabulary.setdefault(piece, len(vocabulary))
        for cut in range(1, len(piece)):
            if piece[:cut] in known and piece[cut:] in known and piece not in _LLAMA:
                merges.append((piece[:cut], piece[cut:]))
                break
    backend.model = models.BPE(vocabulary, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    backend.add_special_tokens(_LLAMA)
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    wrapped = transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, unk_token="<unk>", bos_token="<s>", eos_token="</s>", pad_token="</s>"
    )
    return Made(backend if raw else wrapped, _cut_metaspace(backend), pad=2, unknown=0)


def _unigram_backend(*, size: int = 500) -> Any:
    backend = tokenizers.Tokenizer(models.Unigram())
    backend.normalizer = normalizers.NFKC()
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    specials = ["<unk>", "<s>", "</s>", "<pad>"]
    trainer = trainers.UnigramTrainer(vocab_size=size, special_tokens=specials, unk_token="<unk>", show_progress=False)
    return _trained(backend, trainer)


def _unigram(*, raw: bool = False) -> Made:
    backend = _unigram_backend()
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)]
    )
    wrapped = transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, unk_token="<unk>", bos_token="<s>", eos_token="</s>", pad_token="<pad>"
    )
    return Made(backend if raw else wrapped, _cut_metaspace(backend), _nfkc, ((1,), (2,)), 3, 0)


def _word_level() -> Made:
    backend = tokenizers.Tokenizer(models.WordLevel(unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    _trained(backend, trainers.WordLevelTrainer(special_tokens=_BERT, vocab_size=300, show_progress=False))
    return Made(_bert(backend), _cut(backend), pad=0, unknown=1)


def _characters(*, raw: bool) -> Made:
    marks = sorted({mark for text in TEXTS.values() for mark in text})
    vocabulary = {mark: index for index, mark in enumerate(["[PAD]", "[UNK]", *marks])}
    backend = tokenizers.Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Split(tokenizers.Regex(r"[\s\S]"), "isolated")
    wrapped = transformers.PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="[UNK]", pad_token="[PAD]")
    return Made(backend if raw else wrapped, _cut(backend), pad=None if raw else 0, unknown=1)


def _plain_bpe() -> Made:
    """BPE of characters, with neither marks nor a decoder: white space is cut off before."""
    backend = tokenizers.Tokenizer(models.BPE(unk_token="[UNK]"))
    splits = [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Punctuation()]
    backend.pre_tokenizer = pre_tokenizers.Sequence(splits)
    _trained(backend, trainers.BpeTrainer(vocab_size=500, special_tokens=["[UNK]"], show_progress=False))
    return Made(
        transformers.PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="[UNK]"), _cut(backend), unknown=0
    )


def _endings(*, clip: bool) -> Made:
    """GPT-1's kind, with </w> at the end of a word, and CLIP's, which has bytes too."""
    backend = tokenizers.Tokenizer(models.BPE(unk_token=None if clip else "<unk>", end_of_word_suffix="</w>"))
    backend.normalizer = normalizers.Lowercase()
    trainer: dict[str, Any] = {"vocab_size": 700, "end_of_word_suffix": "</w>", "show_progress": False}
    if clip:
        pattern = tokenizers.Regex(r"'s|'t|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+")
        split = pre_tokenizers.Split(pattern, "removed", invert=True)
        backend.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False)])
        backend.decoder = decoders.ByteLevel()
        trainer["initial_alphabet"] = sorted(pre_tokenizers.ByteLevel.alphabet())
    else:
        backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        backend.decoder = decoders.BPEDecoder(suffix="</w>")
    _trained(backend, trainers.BpeTrainer(special_tokens=["<unk>"], **trainer))
    wrapped = transformers.PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>")
    return Made(wrapped, _cut(backend), str.lower, unknown=0)


def _bytes_of(text: str) -> list[Span]:
    return [(index, index + 1) for index, mark in enumerate(text) for _ in mark.encode()]


def _byt5() -> Made:
    tokenizer = transformers.ByT5Tokenizer()
    return Made(
        tokenizer, lambda text: ([byte + 3 for byte in text.encode()], _bytes_of(text)), around=((), (1,)), pad=0
    )


def _canine() -> Made:
    tokenizer = transformers.CanineTokenizer()
    around = ((0xE000,), (0xE001,))
    return Made(
        tokenizer, lambda text: (list(map(ord, text)), [(at, at + 1) for at in range(len(text))]), around=around, pad=0
    )


def _esm() -> Made:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "vocab.txt")
        letters = "LAGVSERTIDPKQNFYMHWC"
        vocabulary = ["<cls>", "<pad>", "<eos>", "<unk>", *letters, "<mask>"]
        path.write_text("\n".join(vocabulary), "utf-8")
        tokenizer = transformers.EsmTokenizer(str(path))

    def cut(text: str) -> tuple[list[int], list[Span]]:
        places = [at for at, mark in enumerate(text) if not mark.isspace()]
        return [vocabulary.index(text[at]) for at in places], [(at, at + 1) for at in places]

    return Made(tokenizer, cut, around=((0,), (2,)), pad=1, unknown=3, texts=("DNA", "protein"))


def _legacy_bert() -> Made:
    from transformers.models.bert.tokenization_bert_legacy import BertTokenizerLegacy

    backend = _wordpiece(lowercase=True, size=1200)
    vocabulary = backend.get_vocab()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "vocab.txt")
        path.write_text("\n".join(sorted(vocabulary, key=vocabulary.__getitem__)), "utf-8")
        tokenizer = BertTokenizerLegacy(str(path))

    def cut(text: str) -> tuple[list[int], list[Span]]:
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        found = backend.encode(text, add_special_tokens=False)
        if ids != found.ids:
            pytest.skip("it cuts this text otherwise than the fast one, so its offsets are not known")
        return ids, found.offsets

    return Made(tokenizer, cut, _fold, ((2,), (3,)), 0, 1)


class Tiktoken:
    """The methods of tiktoken's `Encoding` that its users call: https://github.com/openai/tiktoken."""

    name = "table"
    special_tokens_set = frozenset({"<|endoftext|>"})

    def __init__(self) -> None:
        backend = _byte_level()
        self._backend = backend
        alphabet = _gpt2_bytes()
        self._bytes = {
            index: bytes(alphabet[mark] for mark in piece) for piece, index in backend.get_vocab().items() if index > 1
        }
        self.n_vocab = len(self._bytes) + 3
        self.eot_token = self.n_vocab - 1

    def encode_ordinary(self, text: str) -> list[int]:
        return list(self._backend.encode(text, add_special_tokens=False).ids)

    encode = encode_ordinary

    def encode_single_token(self, text: str) -> int:
        return {"<|endoftext|>": self.eot_token}[text]

    def decode_single_token_bytes(self, token: int) -> bytes:
        return b"<|endoftext|>" if token == self.eot_token else self._bytes[token]

    def decode(self, tokens: Sequence[int]) -> str:
        return b"".join(map(self.decode_single_token_bytes, tokens)).decode("utf-8", "replace")


def _gpt2_bytes() -> dict[str, int]:
    plain = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + at): byte for at, byte in enumerate(others)}


def _tiktoken() -> Made:
    encoding = Tiktoken()
    backend = encoding._backend
    return Made(encoding, _cut(backend), around=((), (encoding.eot_token,)), pad=encoding.eot_token)


class SentencePiece:
    """The methods of SentencePiece's processor that its users call, over a Unigram vocabulary of tokenizers."""

    def __init__(self, backend: Any) -> None:
        self.backend = backend

    def encode(self, text: str, out_type: type = int) -> list[Any]:
        encoded = self.backend.encode(text, add_special_tokens=False)
        return list(encoded.ids if out_type is int else encoded.tokens)

    def decode(self, ids: Sequence[int]) -> str:
        return str(self.backend.decode(list(ids)))

    def id_to_piece(self, index: int) -> str:
        piece = self.backend.id_to_token(index)
        if piece is None:
            raise IndexError("piece id is out of range.")
        return str(piece)

    def get_piece_size(self) -> int:
        return int(self.backend.get_vocab_size())

    def is_control(self, index: int) -> bool:
        return index in (1, 2, 3)

    def unk_id(self) -> int:
        return 0

    def bos_id(self) -> int:
        return 1

    def eos_id(self) -> int:
        return 2

    def pad_id(self) -> int:
        return -1


def _sentencepiece() -> Made:
    backend = _unigram_backend()
    return Made(SentencePiece(backend), _cut_metaspace(backend), _nfkc, ((1,), (2,)), 3, 0)


class Decoder:
    """An object that can only decode."""

    def __init__(self, decode: Callable[[list[int]], str]) -> None:
        self._decode = decode

    def decode(self, ids: list[int]) -> str:
        return self._decode(ids)


def _decoder(kind: str) -> Made:
    if kind == "bytes":
        backend = _byte_level()
        return Made(Decoder(backend.decode), _cut(backend))
    if kind == "characters":

        def cut(text: str) -> tuple[list[int], list[Span]]:
            return list(map(ord, text)), [(at, at + 1) for at in range(len(text))]

        return Made(Decoder(lambda ids: "".join(map(chr, ids))), cut)
    backend = _unigram_backend()
    return Made(Decoder(backend.decode), _cut_metaspace(backend), _nfkc, unknown=0)


def _of_regard(kind: Any) -> Made:
    from regard.data import Tokenizer

    tokenizer = Tokenizer.train(_CORPUS, model_type=kind, vocab_size=400 if kind != "char" else 1000)
    return Made(tokenizer, _cut_metaspace(tokenizer.backend_tokenizer), _nfc, pad=0, unknown=3)


_MAKERS: dict[str, Callable[[], Made]] = {
    "WordPiece, cased": lambda: _of_bert(lowercase=False),
    "WordPiece, uncased": lambda: _of_bert(lowercase=True),
    "WordPiece of tokenizers": lambda: _of_bert(lowercase=True, raw=True),
    "WordPiece of few words": lambda: _of_bert(lowercase=True, size=60),
    "bytes": lambda: _of_gpt2(),
    "bytes of tokenizers": lambda: _of_gpt2(raw=True),
    "bytes without merges": lambda: _of_gpt2(size=258),
    "bytes with a space before": lambda: _of_gpt2(prefix=True),
    "bytes, NFC": lambda: _of_gpt2(nfc=True, normalize=_nfc),
    "bytes, cut as Llama 3": lambda: _of_gpt2(llama=True, size=800),
    "SentencePiece and bytes": lambda: _byte_pieces(prefix=True, raw=False),
    "SentencePiece and bytes of tokenizers": lambda: _byte_pieces(prefix=True, raw=True),
    "SentencePiece and bytes without a space before": lambda: _byte_pieces(prefix=False, raw=False),
    "Unigram, NFKC": _unigram,
    "Unigram of tokenizers": lambda: _unigram(raw=True),
    "words": _word_level,
    "characters": lambda: _characters(raw=False),
    "characters of tokenizers": lambda: _characters(raw=True),
    "BPE without marks": _plain_bpe,
    "BPE with endings": lambda: _endings(clip=False),
    "CLIP": lambda: _endings(clip=True),
    "ByT5, in Python": _byt5,
    "CANINE, in Python": _canine,
    "ESM, in Python": _esm,
    "BERT, in Python": _legacy_bert,
    "tiktoken": _tiktoken,
    "SentencePiece's processor": _sentencepiece,
    "decodes bytes": lambda: _decoder("bytes"),
    "decodes characters": lambda: _decoder("characters"),
    "decodes Unigram": lambda: _decoder("Unigram"),
    "regard, BPE": lambda: _of_regard("bpe"),
    "regard, Unigram": lambda: _of_regard("unigram"),
    "regard, characters": lambda: _of_regard("char"),
}
TOKENIZERS: dict[str, Callable[[], Made]] = {name: functools.cache(make) for name, make in _MAKERS.items()}
BUNDLED = ("me5", "minilm", "smollm2")
