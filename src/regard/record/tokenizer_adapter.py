"""One interface to any tokenizer: what its tokens spell, which of them are special, and how it cuts a text.

Tokenizers of transformers (fast ones, and those in Python, which have no offsets) and of regard, a
`tokenizers.Tokenizer`, an `Encoding` of tiktoken, a `SentencePieceProcessor`, and any object with `decode(ids)`.
"""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from regard.errors import InputError
from regard.record.subwords import Span, Spelling, spell_bytes, spell_decoded, spell_words

__all__ = ["TokenizedText", "TokenizerAdapter", "adapt", "adapt_names"]

_MARK = "▁"  # a space in SentencePiece
_BYTES = {f"<0x{byte:02X}>": byte for byte in range(256)}
_Result = TypeVar("_Result")
_ROLES = ("bos", "eos", "pad", "cls", "sep", "mask")


@dataclass(frozen=True)
class TokenizedText:
    """The ids of a text, and the characters (start, end) of each if the tokenizer reports them."""

    ids: list[int]
    spans: list[Span] | None = None


@dataclass(frozen=True)
class TokenizerAdapter:
    """What can be asked of a tokenizer.

    `names` returns how the vocabulary names ids, None where it has no such id. `spell` returns the text of ids that
    are not special. `encode` returns the ids of a text, with special tokens around it or without; it is None if the
    tokenizer can only decode. `unknown` is the id of what the vocabulary does not have, `ends` the ids of tokens after
    a text or a sentence, `size` the number of ids, None if it is not known. `adds_space` is whether a space before a
    text may be the tokenizer's own.
    """

    kind: str
    names: Callable[[list[int]], list[str | None]]
    spell: Callable[[list[int]], Spelling]
    encode: Callable[[str, bool], TokenizedText] | None
    special: frozenset[int]
    unknown: int | None = None
    ends: frozenset[int] = frozenset()
    size: int | None = None
    adds_space: bool = False

    def tokenize(self, text: str, *, special: bool = False) -> TokenizedText:
        """Return the ids of a text.

        Raises:
            InputError: The tokenizer can only decode, or it raises an error.
        """
        if self.encode is None:
            raise InputError(f"a text cannot be cut by {self.kind}, which only decodes: call the model with its ids")
        try:
            return self.encode(text, special)
        except InputError:
            raise
        except Exception as problem:
            raise InputError(f"{self.kind} cannot cut this text: {_said(problem)}") from problem

    def name(self, ids: list[int]) -> list[str]:
        """Return how the vocabulary names ids.

        Raises:
            InputError: It has no such id, or the tokenizer raises an error.
        """
        names = self._guarded(self.names, ids)
        for index, name in zip(ids, names, strict=True):
            if name is None:
                raise InputError(
                    f"the vocabulary of {self.kind} has no token {index}: pass the tokenizer of this model"
                )
        return [str(name) for name in names]

    def text_of(self, ids: list[int]) -> Spelling:
        """Return the text that ids spell.

        Raises:
            InputError: The tokenizer raises an error.
        """
        return self._guarded(self.spell, ids)

    def _guarded(self, call: Callable[[list[int]], _Result], ids: list[int]) -> _Result:
        try:
            return call(ids)
        except Exception as problem:
            some = ", ".join(map(str, ids[:8])) + (", …" if len(ids) > 8 else "")
            raise InputError(
                f"{self.kind} cannot spell the tokens {some}: {_said(problem)}: pass the tokenizer of this model"
            ) from problem


def _said(problem: Exception) -> str:
    return f"{type(problem).__name__}: {problem}" if str(problem) else type(problem).__name__


def adapt(tokenizer: Any) -> TokenizerAdapter:
    """Return the interface to a tokenizer.

    Raises:
        InputError: It is no tokenizer.
    """
    if isinstance(tokenizer, TokenizerAdapter):
        return tokenizer
    if isinstance(tokenizer, str):
        raise InputError(
            f"`tokenizer` must be a tokenizer, got the text {tokenizer!r}: load it, "
            f"transformers.AutoTokenizer.from_pretrained({tokenizer!r})"
        )
    if not isinstance(tokenizer, type):
        if _has(tokenizer, "convert_ids_to_tokens"):
            return _of_transformers(tokenizer)
        if _has(tokenizer, "decode_single_token_bytes"):
            return _of_tiktoken(tokenizer)
        if _has(tokenizer, "id_to_piece"):
            return _of_sentencepiece(tokenizer)
        if _has(tokenizer, "id_to_token", "get_added_tokens_decoder"):
            return _of_tokenizers(tokenizer)
        inner = getattr(tokenizer, "tokenizer", None)  # of a processor of texts and images
        if inner is not None and inner is not tokenizer and not isinstance(inner, str):
            return adapt(inner)
        if _has(tokenizer, "decode"):
            return _of_decoder(tokenizer)
    what = f"the class {tokenizer.__name__}" if isinstance(tokenizer, type) else type(tokenizer).__name__
    raise InputError(
        "`tokenizer` must be a tokenizer, of transformers, tokenizers, tiktoken or SentencePiece or any object with "
        f"`decode(ids)`, got {what}: or leave it out and name the positions by `tokens=`"
    )


def _has(tokenizer: Any, *methods: str) -> bool:
    return all(callable(getattr(tokenizer, method, None)) for method in methods)


# transformers, and what is called as its tokenizers


def _of_transformers(tokenizer: Any) -> TokenizerAdapter:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    added: Mapping[int, Any] = getattr(tokenizer, "added_tokens_decoder", None) or {}
    special = {index for index, token in added.items() if getattr(token, "special", False)}
    special |= set(getattr(tokenizer, "all_special_ids", None) or ())
    unknown = getattr(tokenizer, "unk_token_id", None)
    texts = {index: str(getattr(token, "content", token)) for index, token in added.items()}

    def names(ids: list[int]) -> list[str | None]:
        if backend is not None:
            return [backend.id_to_token(index) if 0 <= index < 2**32 else None for index in ids]
        size = len(tokenizer) if hasattr(tokenizer, "__len__") else 2**63
        if any(index >= size for index in ids) and _has(tokenizer, "get_vocab"):  # unless some numbers have no token
            size = max((*tokenizer.get_vocab().values(), *texts), default=-1) + 1
        return [tokenizer.convert_ids_to_tokens([index])[0] if 0 <= index < size else None for index in ids]

    scheme = _scheme(tokenizer, backend)
    if scheme.is_whole:  # its unknown token is often also that of the end of a text
        unknown = None
    if scheme.kind == "decoded" and _has(tokenizer, "decode"):

        def spell(ids: list[int]) -> Spelling:
            spelling = spell_decoded(_decoder(tokenizer), ids)
            return Spelling(spelling.text, spelling.spans, tuple(index == unknown for index in ids))
    else:

        def spell(ids: list[int]) -> Spelling:
            return scheme.spell(ids, [name or "" for name in names(ids)], texts, unknown)

    def encode(text: str, special: bool) -> TokenizedText:
        options = {"truncation": False, "padding": False, "verbose": False, "add_special_tokens": special}
        try:
            encoded = tokenizer(text, return_offsets_mapping=True, **options)
        except NotImplementedError:  # those in Python before transformers 5; from then on the key is not there
            encoded = tokenizer(text, **options)
        spans = encoded.get("offset_mapping")
        ids = [int(index) for index in encoded["input_ids"]]
        return TokenizedText(ids, None if spans is None else [(int(start), int(end)) for start, end in spans])

    return TokenizerAdapter(
        kind=type(tokenizer).__name__,
        names=names,
        spell=spell,
        encode=encode if callable(tokenizer) else None,
        special=frozenset(special - {unknown}),
        unknown=unknown,
        ends=_roles(tokenizer, ("sep_token_id", "eos_token_id")),
        adds_space=scheme.kind == "sentencepiece",
        size=len(tokenizer) if hasattr(tokenizer, "__len__") else None if backend is None else backend.get_vocab_size(),
    )


def _decoder(tokenizer: Any) -> Callable[[list[int]], str]:
    def decode(ids: list[int]) -> str:
        return str(tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))

    return decode


def _roles(tokenizer: Any, names: Collection[str]) -> frozenset[int]:
    values = (getattr(tokenizer, name, None) for name in names)
    numbers = (value() if callable(value) else value for value in values)
    return frozenset(number for number in numbers if isinstance(number, int) and number >= 0)


# How a vocabulary spells a text


@dataclass(frozen=True)
class _Scheme:
    """How the names of a vocabulary spell a text.

    "bytes": in GPT-2's alphabet, in which Ġ is a space. "latin": a character for each byte, as in ByT5.
    "sentencepiece": ▁ is a space. "literal": as they are. "words": without spaces, and a piece that continues a word
    has a `prefix`, or one that ends it a `suffix`. "decoded": nobody knows but its `decode`.
    """

    kind: Literal["bytes", "latin", "sentencepiece", "literal", "words", "decoded"]
    prefix: str = ""
    suffix: str = ""
    of_bytes: bool = False  # whether words are spelled in GPT-2's alphabet

    @property
    def is_whole(self) -> bool:
        """Whether every text can be spelled, so that there is nothing unknown."""
        return self.of_bytes or self.kind in ("bytes", "latin")

    def spell(
        self, ids: Sequence[int], names: Sequence[str], added: Mapping[int, str], unknown: int | None
    ) -> Spelling:
        """Return the text of ids; added tokens spell themselves."""
        lost = [index == unknown for index in ids]
        if self.kind != "words":
            data = [
                added[index].encode("utf-8", "replace") if index in added else name.encode() if is_lost else
                self._data(name)
                for index, name, is_lost in zip(ids, names, lost, strict=True)
            ]  # fmt: skip
            return spell_bytes(data, lost)
        data = [self._word(name) for name in names]
        if self.prefix:
            continues = [name.startswith(self.prefix) and len(name) > len(self.prefix) for name in names]
        elif self.suffix:
            ended = [name.endswith(self.suffix) or index in added for index, name in zip(ids, names, strict=True)]
            continues = [False, *(not end for end in ended[:-1])]
        else:
            continues = [False] * len(names)
        return spell_words(data, continues, lost)

    def _word(self, name: str) -> bytes:
        if self.prefix and name.startswith(self.prefix) and len(name) > len(self.prefix):
            name = name[len(self.prefix) :]
        if self.suffix:
            name = name.removesuffix(self.suffix)
        return _of_alphabet(name) if self.of_bytes else name.encode("utf-8", "replace")

    def _data(self, name: str) -> bytes:
        if self.kind == "bytes":
            return _of_alphabet(name)
        if self.kind == "latin" and len(name) == 1 and ord(name) < 256:
            return bytes([ord(name)])
        if self.kind == "sentencepiece":
            if name.upper().replace("X", "x") in _BYTES:
                return bytes([_BYTES[name.upper().replace("X", "x")]])
            name = name.replace(_MARK, " ")
        return name.encode("utf-8", "replace")


def _scheme(tokenizer: Any, backend: Any) -> _Scheme:
    if backend is None:
        return _scheme_in_python(tokenizer)
    model, decoder = getattr(backend, "model", None), str(getattr(backend, "decoder", ""))
    cuts = str(getattr(backend, "pre_tokenizer", ""))  # a normalizer may print 300 kB
    kind = type(model).__name__
    of_bytes = "ByteLevel" in decoder or "ByteLevel" in cuts
    if suffix := getattr(model, "end_of_word_suffix", None):
        return _Scheme("words", suffix=suffix, of_bytes=of_bytes)
    if of_bytes:
        return _Scheme("bytes")
    if kind == "WordPiece":
        return _Scheme("words", prefix=getattr(model, "continuing_subword_prefix", "##"))
    if kind == "WordLevel":  # where a space is a token too, no token leaves it out
        return _Scheme("literal" if backend.token_to_id(" ") is not None else "words")
    if prefix := getattr(model, "continuing_subword_prefix", None):
        return _Scheme("words", prefix=prefix)
    if _MARK in f"{decoder} {cuts}" or kind == "Unigram" or getattr(model, "byte_fallback", False):
        return _Scheme("sentencepiece")
    return _Scheme("literal")


def _scheme_in_python(tokenizer: Any) -> _Scheme:
    if hasattr(tokenizer, "byte_decoder"):
        return _Scheme("bytes")
    if hasattr(tokenizer, "wordpiece_tokenizer"):
        return _Scheme("words", prefix="##")
    if hasattr(tokenizer, "_utf_vocab_size"):
        return _Scheme("latin")
    if getattr(tokenizer, "sp_model", None) is not None or not _has(tokenizer, "decode"):
        return _Scheme("sentencepiece")
    return _Scheme("decoded")


def _alphabet() -> dict[str, int]:
    """Return GPT-2's alphabet: printable bytes are their own characters, the others follow from U+0100 on."""
    plain = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + rank): byte for rank, byte in enumerate(others)}


_ALPHABET = _alphabet()


def _of_alphabet(name: str) -> bytes:
    # A token that is spelled literally has characters that are no byte of the alphabet.
    if all(mark in _ALPHABET for mark in name):
        return bytes(_ALPHABET[mark] for mark in name)
    return name.encode("utf-8", "replace")


# Names that were copied from a vocabulary, without its tokenizer

_SPACE = "Ġ"  # a space in GPT-2's alphabet
_CONTINUES = "##"
_UNKNOWN = ("[UNK]", "<unk>")
_SPECIAL = re.compile(r"\[(CLS|SEP|PAD|MASK|BOS|EOS)\]|</?s>|<(pad|mask|bos|eos|cls|sep)>|<\|[^|\s]+\|>")


def adapt_names(names: Sequence[Sequence[str | None]]) -> TokenizerAdapter | None:
    """Return the interface to the vocabulary from which the names of these sequences (None for padding) were copied, as
    by `convert_ids_to_tokens`; the id of a name is its rank among the distinct ones. None if they are text.

    A name alone does not tell: ["the", "##ing", "form"] may be a text about marks. No name of a vocabulary has white
    space in it, and the names of one text show its spelling more than once: two of them or all but the first have the
    mark (Ġcat, ▁cat, ##s), or one has it and a special token is at an end; in GPT-2's alphabet also two characters
    beyond Latin-1, whose bytes no other text spells by chance. Special tokens at both ends need no mark.

    >>> adapt_names([["the", "##ing", "form"]]) is None, adapt_names([["[CLS]", "a", "##b", "[SEP]"]]) is None
    (True, False)
    """
    listed = [[name for name in sequence if name] for sequence in names]
    found = {scheme.kind: scheme for scheme in map(_spelling_of, listed) if scheme is not None}
    if len(found) > 1:
        found.pop("words")  # of a sequence of which nothing but its ends is known
    if len(found) != 1 or any(mark.isspace() for sequence in listed for name in sequence for mark in name):
        return None
    (scheme,) = found.values()
    known = list(dict.fromkeys(name or "[PAD]" for sequence in names for name in sequence))
    unknown = next((number for number, name in enumerate(known) if name in _UNKNOWN), None)
    return TokenizerAdapter(
        kind="the given tokens",
        names=lambda ids: [known[index] for index in ids],
        spell=lambda ids: scheme.spell(ids, [known[index] for index in ids], {}, unknown),
        encode=None,
        special=frozenset(number for number, name in enumerate(known) if _SPECIAL.fullmatch(name)),
        unknown=unknown,
        size=len(known),
        adds_space=scheme.kind == "sentencepiece",
    )


def _spelling_of(names: Sequence[str]) -> _Scheme | None:
    """Return how the names of one sequence show that they spell its text, None if they do not."""
    own = [name for name in names if not _SPECIAL.fullmatch(name)]
    if not own:
        return None
    texts = [name for name in names if name not in ("[PAD]", "<pad>")]
    ends = [_SPECIAL.fullmatch(texts[end]) is not None for end in (0, -1)]

    def is_marked(mark: str) -> bool:
        marked = [name for name in own if name.startswith(mark) and name.lstrip(mark)]
        if any(ends):
            return bool(marked) or (mark != _CONTINUES and own[0] == mark)
        return len(marked) > 1 or (len(own) == 2 and marked == own[1:])

    if all(mark in _ALPHABET for name in own if name not in _UNKNOWN for mark in name):
        text = b"".join(map(_of_alphabet, own)).decode(errors="replace").rstrip("\ufffd")  # its end may be cut off
        if "\ufffd" not in text and (is_marked(_SPACE) or sum(ord(mark) > 0xFF for mark in text) > 1):
            return _Scheme("bytes")
    if is_marked(_MARK) and not any(_MARK in name.lstrip(_MARK) for name in own):
        return _Scheme("sentencepiece")
    return _Scheme("words", prefix=_CONTINUES) if is_marked(_CONTINUES) or all(ends) else None


# Other libraries


def _of_tokenizers(tokenizer: Any) -> TokenizerAdapter:
    added = tokenizer.get_added_tokens_decoder()
    texts = {index: str(token.content) for index, token in added.items()}
    scheme = _scheme(tokenizer, tokenizer)
    name = getattr(tokenizer.model, "unk_token", None) or (
        "<unk>" if type(tokenizer.model).__name__ == "Unigram" else None
    )
    unknown = None if scheme.is_whole or name is None else tokenizer.token_to_id(name)

    def names(ids: list[int]) -> list[str | None]:
        return [tokenizer.id_to_token(index) if 0 <= index < 2**32 else None for index in ids]

    def encode(text: str, special: bool) -> TokenizedText:
        whole = tokenizer
        if tokenizer.truncation is not None or tokenizer.padding is not None:
            whole = type(tokenizer).from_str(tokenizer.to_str())
            whole.no_truncation()
            whole.no_padding()
        encoded = whole.encode(text, add_special_tokens=special)
        return TokenizedText(list(encoded.ids), list(encoded.offsets))

    return TokenizerAdapter(
        kind=f"tokenizers.{type(tokenizer).__name__}",
        names=names,
        spell=lambda ids: scheme.spell(ids, [name or "" for name in names(ids)], texts, unknown),
        encode=encode,
        special=frozenset({index for index, token in added.items() if token.special} - {unknown}),
        unknown=unknown,
        ends=frozenset(index for index, text in texts.items() if text in ("[SEP]", "</s>", "<|endoftext|>")),
        size=tokenizer.get_vocab_size(),
        adds_space=scheme.kind == "sentencepiece",
    )


def _of_tiktoken(encoding: Any) -> TokenizerAdapter:
    special = {encoding.encode_single_token(name): name for name in getattr(encoding, "special_tokens_set", ())}

    def data(index: int) -> bytes:
        return bytes(encoding.decode_single_token_bytes(index))

    def names(ids: list[int]) -> list[str | None]:
        named: list[str | None] = []
        for index in ids:
            try:
                named.append(special.get(index) or data(index).decode("utf-8", "replace"))
            except (KeyError, OverflowError):
                named.append(None)
        return named

    def encode(text: str, special: bool) -> TokenizedText:  # noqa: ARG001
        return TokenizedText(list(encoding.encode_ordinary(text)))

    return TokenizerAdapter(
        kind=f"the encoding {getattr(encoding, 'name', '')}".strip(),
        names=names,
        spell=lambda ids: spell_bytes([data(index) for index in ids], [False] * len(ids)),
        encode=encode if _has(encoding, "encode_ordinary") else None,
        special=frozenset(special),
        ends=_roles(encoding, ("eot_token",)),
        size=getattr(encoding, "n_vocab", None),
    )


def _of_sentencepiece(processor: Any) -> TokenizerAdapter:
    size = int(processor.get_piece_size()) if _has(processor, "get_piece_size") else 2**31
    unknown = next(iter(_roles(processor, ("unk_id",))), None)
    special = set(_roles(processor, [f"{role}_id" for role in _ROLES]))
    if _has(processor, "is_control", "get_piece_size"):
        special |= {index for index in range(size) if processor.is_control(index)}
    scheme = _Scheme("sentencepiece")

    def names(ids: list[int]) -> list[str | None]:
        return [str(processor.id_to_piece(index)) if 0 <= index < size else None for index in ids]

    def encode(text: str, special: bool) -> TokenizedText:  # noqa: ARG001
        return TokenizedText([int(index) for index in processor.encode(text)])

    return TokenizerAdapter(
        kind=type(processor).__name__,
        names=names,
        spell=lambda ids: scheme.spell(ids, [name or "" for name in names(ids)], {}, unknown),
        encode=encode if _has(processor, "encode") else None,
        special=frozenset(special - {unknown}),
        unknown=unknown,
        ends=_roles(processor, ("eos_id",)),
        size=size,
        adds_space=True,
    )


def _of_decoder(tokenizer: Any) -> TokenizerAdapter:
    def decode(ids: list[int]) -> str:
        text = tokenizer.decode(ids)
        if not isinstance(text, str | bytes):
            raise TypeError(f"`decode` must return a text, got {text!r}")
        return text.decode("utf-8", "replace") if isinstance(text, bytes) else text

    def encode(text: str, special: bool) -> TokenizedText:  # noqa: ARG001
        ids = tokenizer.encode(text)
        return TokenizedText([int(index) for index in getattr(ids, "ids", ids)])

    roles = [f"{role}{form}" for role in _ROLES for form in ("_id", "_token_id")]
    return TokenizerAdapter(
        kind=type(tokenizer).__name__,
        names=lambda ids: [decode([index]) or f"[{index}]" for index in ids],
        spell=lambda ids: spell_decoded(decode, ids),
        encode=encode if _has(tokenizer, "encode") else None,
        special=frozenset(getattr(tokenizer, "all_special_ids", ())) | _roles(tokenizer, roles),
        ends=_roles(tokenizer, ("eos_id", "eos_token_id", "sep_id", "sep_token_id")),
        size=next(iter(_roles(tokenizer, ("vocab_size", "n_vocab", "n_words"))), None),
    )
