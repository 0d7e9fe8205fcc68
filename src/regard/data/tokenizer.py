"""Vocabulary: text to token ids and back, by a tokenizer of the `tokenizers` package, ours or a checkpoint's."""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args, overload

from regard.data.special_tokens import SPECIAL
from regard.data.train_tokenizer import train_characters, train_pieces
from regard.errors import InputError, MissingExtraError
from regard.files import write_atomically

if TYPE_CHECKING:
    from tokenizers import Tokenizer

__all__ = ["LARGEST_VOCABULARY", "Vocabulary", "VocabularyKind"]

LARGEST_VOCABULARY = 2**20  # tokens; the trainers reserve memory for as many, and abort the process where there is none

VocabularyKind = Literal["bpe", "unigram", "characters"]

# What checkpoints call the tokens that are not text, the likeliest name first.
_USUAL: Mapping[str, tuple[str, ...]] = {
    "pad": ("<pad>", "[PAD]", "<|pad|>", "<|padding|>", "<|finetune_right_pad_id|>"),
    "start": (
        "<s>",
        "[CLS]",
        "<bos>",
        "[BOS]",
        "<|begin_of_text|>",
        "<|startoftext|>",
        "<|im_start|>",
        "<|endoftext|>",
    ),
    "end": ("</s>", "[SEP]", "<eos>", "[EOS]", "<|end_of_text|>", "<|im_end|>", "<|endoftext|>"),
    "unknown": ("<unk>", "[UNK]", "<|unk|>"),
    "mask": ("<mask>", "[MASK]", "<|mask|>"),
}
_IN_CONFIG = {
    "pad": ("pad_token",),
    "start": ("cls_token", "bos_token"),
    "end": ("sep_token", "eos_token"),
    "unknown": ("unk_token",),
    "mask": ("mask_token",),
}


@dataclass(frozen=True)
class Vocabulary:
    """A tokenizer.json, and which of its ids are not text; None where it has no such token.

    The vocabularies that `train` makes begin with `<pad>` 0, `<s>` 1, `</s>` 2, `<unk>` 3, `<mask>` 4. Special tokens
    that a text spells out ("<s>") are text like any other, in every vocabulary.

    >>> vocabulary = Vocabulary.train(["我爱你。", "你爱我。"], kind="characters", size=100)
    >>> len(vocabulary), vocabulary.encode(["我爱它。"], start=True, end=True)
    (9, [[1, 7, 8, 3, 5, 2]])
    >>> vocabulary.decode([1, 7, 8, 6, 5, 2])
    '我爱你。'
    """

    json: str  # a tokenizer.json
    pad: int | None = None
    start: int | None = None
    end: int | None = None
    unknown: int | None = None
    mask: int | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        # Without what is cached: another process makes its own tokenizer.
        return Vocabulary, (self.json, self.pad, self.start, self.end, self.unknown, self.mask)

    @classmethod
    def train(cls, texts: Iterable[str], *, kind: VocabularyKind, size: int, lowercase: bool = False) -> "Vocabulary":
        """Train a tokenizer on these texts; the same texts give the same one, to the byte.

        Args:
            texts: What to learn from: the training part alone.
            kind: "characters" makes each a token (for Chinese, Japanese and Korean); "bpe" merges frequent neighbours
                and "unigram" chooses likely pieces, within words and within one script.
            size: How many tokens at most, the five special ones counted; not above 2²⁰.
            lowercase: Texts are put into small letters, and decoded so.

        Raises:
            InputError: `kind` is none of the three, there are no texts, or `size` is too small or too large.
            MissingExtraError: The package tokenizers is not installed.
        """
        if kind not in get_args(VocabularyKind):
            raise InputError(f"`kind` must be one of {', '.join(get_args(VocabularyKind))}, got {kind!r}")
        if not isinstance(size, int) or not len(SPECIAL) < size <= LARGEST_VOCABULARY:
            raise InputError(
                f"`size` must be a whole number above {len(SPECIAL)}, the special tokens, and at most "
                f"{LARGEST_VOCABULARY:,}, got {size!r}"
            )
        lines = [texts] if isinstance(texts, str) else list(texts)
        if not any(lines):
            raise InputError("`texts` must have at least one that is not empty, got none")
        if kind == "characters":
            return cls(train_characters(lines, size, lowercase=lowercase), *range(len(SPECIAL)))
        return cls(train_pieces(lines, kind, size, lowercase=lowercase), *range(len(SPECIAL)))

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        pad: str | None = None,
        start: str | None = None,
        end: str | None = None,
        unknown: str | None = None,
        mask: str | None = None,
    ) -> "Vocabulary":
        """Read a tokenizer.json, ours or that of any Hugging Face checkpoint.

        The special tokens are those named here; else those of a tokenizer_config.json beside it; else those with usual
        names ("<pad>", "[CLS]", "</s>", "<|endoftext|>" …).

        Args:
            path: The file, or the folder that has it.
            pad: The text of the padding token.
            start: That of the token before a text.
            end: That of the token behind a text.
            unknown: That of the token for what has none.
            mask: That of the token that hides another.

        Raises:
            InputError: The file cannot be read, or has no token of a given name.
            MissingExtraError: The package tokenizers is not installed.
        """
        path = Path(path)
        path = path / "tokenizer.json" if path.is_dir() else path
        read = _read(path)
        given = {"pad": pad, "start": start, "end": end, "unknown": unknown, "mask": mask}
        config = _config(path.with_name("tokenizer_config.json"))
        return cls(read.json, **{role: _find(read.tokenizer, role, given[role], config, path) for role in given})

    def save(self, path: str | Path) -> Path:
        """Write the tokenizer as tokenizer.json, whole or not at all; a folder gets a file of that name.

        Raises:
            InputError: The file cannot be written.
        """
        target = Path(path)
        target = target / "tokenizer.json" if target.is_dir() else target
        write_atomically(target, self.json.encode("utf-8"))
        return target

    def encode(self, texts: Sequence[str], *, start: bool = False, end: bool = False) -> list[list[int]]:
        """Turn texts into ids, with the start token before and the end token behind each, if asked.

        Raises:
            InputError: `texts` is one text, not several, or there is no such token.
        """
        if isinstance(texts, str):
            raise InputError(f"`texts` must be a list of texts, got one text: encode([{texts[:20]!r}])")
        before = [self._needed("start")] if start else []
        behind = [self._needed("end")] if end else []
        return [
            [*before, *one.ids, *behind] for one in self.tokenizer.encode_batch(list(texts), add_special_tokens=False)
        ]

    @overload
    def decode(self, ids: Sequence[int]) -> str: ...
    @overload
    def decode(self, ids: Sequence[Sequence[int]]) -> list[str]: ...
    def decode(self, ids: Sequence[int] | Sequence[Sequence[int]]) -> str | list[str]:
        """Turn ids into text, or lists of ids into texts; special tokens are left out, but what is unknown shows."""
        many = [list(one) for one in ids if not isinstance(one, int)]
        if many:
            return [self._decoded(one) for one in many]
        return self._decoded([one for one in ids if isinstance(one, int)])

    def tokens(self, ids: Sequence[int]) -> list[str]:
        """Name each id as the vocabulary writes it, for figures: a space is "▁" in BPE and Unigram."""
        return [self.tokenizer.id_to_token(one) or f"[{one}]" for one in ids]

    @cached_property
    def tokenizer(self) -> "Tokenizer":
        """The tokenizer of the package tokenizers; it neither cuts rows nor fills them up, whatever the file says."""
        try:
            from tokenizers import Tokenizer
        except ImportError as missing:
            raise MissingExtraError("tokenizers", "train") from missing
        tokenizer = Tokenizer.from_str(self.json)
        tokenizer.no_truncation()
        tokenizer.no_padding()
        tokenizer.encode_special_tokens = True  # that is: "<s>" in a text is text
        return tokenizer

    @cached_property
    def special(self) -> tuple[int, ...]:
        """All ids that are not text, in order."""
        added = {index for index, token in self.tokenizer.get_added_tokens_decoder().items() if token.special}
        roles = (self.pad, self.start, self.end, self.unknown, self.mask)
        return tuple(sorted(added | {role for role in roles if role is not None}))

    @cached_property
    def sha256(self) -> str:
        """That of the tokenizer.json: of what was read, and of what `save` writes."""
        return hashlib.sha256(self.json.encode("utf-8")).hexdigest()

    def __len__(self) -> int:
        return self.tokenizer.get_vocab_size(with_added_tokens=True)

    @cached_property
    def _left_out(self) -> frozenset[int]:
        """The special ids without text; "unknown" is shown, unless it is another special token too."""
        others = (self.pad, self.start, self.end, self.mask)
        return frozenset(one for one in self.special if one != self.unknown or one in others)

    def _decoded(self, ids: Sequence[int]) -> str:
        return self.tokenizer.decode([one for one in ids if one not in self._left_out], skip_special_tokens=False)

    def _needed(self, role: str) -> int:
        found = getattr(self, role)
        if found is None:
            raise InputError(f'this vocabulary has no {role} token: name it, Vocabulary.load(path, {role}="…")')
        return int(found)


def _read(path: Path) -> Vocabulary:
    """The vocabulary in a file, its special tokens not known yet."""
    try:
        vocabulary = Vocabulary(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read the tokenizer {path}: {getattr(error, 'strerror', None) or error}") from error
    try:
        len(vocabulary)
    except MissingExtraError:
        raise
    except Exception as error:  # that is what tokenizers raises
        raise InputError(f"{path} must be a tokenizer.json of the package tokenizers, but {error}") from error
    return vocabulary


def _config(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _find(tokenizer: "Tokenizer", role: str, given: str | None, config: dict[str, Any], path: Path) -> int | None:
    if given is not None:
        if (index := tokenizer.token_to_id(given)) is None:
            raise InputError(f"`{role}` must be a token of {path}, got {given!r}")
        return index
    named = [config.get(key) for key in _IN_CONFIG[role]]
    texts = [name.get("content") if isinstance(name, dict) else name for name in named]
    for text in (*texts, *_USUAL[role]):
        if isinstance(text, str) and (index := tokenizer.token_to_id(text)) is not None:
            return index
    return None
