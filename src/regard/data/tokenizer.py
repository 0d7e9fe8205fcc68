"""Tokenizer: text to token ids and back, by a tokenizer.json of the `tokenizers` package, ours or a checkpoint's."""

import hashlib
import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args, overload

import torch

from regard.checks import check_unicode
from regard.data.open_tokenizer import (
    LARGEST_VOCABULARY,
    ROLES,
    Template,
    find_special_tokens,
    is_made_by_regard,
    open_tokenizer,
    read_settings,
    template_of,
    with_template,
)
from regard.data.train_tokenizer import SPECIAL, train_characters, train_pieces
from regard.errors import InputError, MissingExtraError
from regard.files import write_atomically
from regard.strict_json import parse_json

if TYPE_CHECKING:
    import tokenizers

__all__ = ["LARGEST_VOCABULARY", "Tokenizer", "TokenizerModelType"]

TokenizerModelType = Literal["bpe", "unigram", "char"]


@dataclass(frozen=True)
class Tokenizer:
    """A tokenizer.json and the ids of its special tokens; None where it has no such token.

    Tokenizers from `train` begin with `<pad>` 0, `<s>` 1, `</s>` 2, `<unk>` 3, `<mask>` 4. A special token that occurs
    in a text ("<s>") is encoded as text, unless `split_special_tokens` is False, as in the tokenizers of checkpoints
    when transformers or a training runs them. The names are those of transformers' tokenizers, and
    `regard.watch(model, tokenizer=…)` accepts a `Tokenizer`.

    >>> tokenizer = Tokenizer.train(["我爱你。", "你爱我。"], model_type="char", vocab_size=100)
    >>> len(tokenizer), tokenizer.encode(["我爱它。"], bos=True, eos=True)
    (9, [[1, 7, 8, 3, 5, 2]])
    >>> tokenizer.decode([1, 7, 8, 6, 5, 2])
    '我爱你。'
    """

    json: str  # a tokenizer.json
    pad_token_id: int | None = None
    bos_token_id: int | None = None
    eos_token_id: int | None = None
    unk_token_id: int | None = None
    mask_token_id: int | None = None
    split_special_tokens: bool = True

    def __reduce__(self) -> tuple[Any, ...]:
        # Without what is cached: another process makes its own tokenizer.
        ids = (getattr(self, f"{role}_token_id") for role in ROLES)
        return Tokenizer, (self.json, *ids, self.split_special_tokens)

    @classmethod
    def train(
        cls, texts: Iterable[str], *, model_type: TokenizerModelType, vocab_size: int, lowercase: bool = False
    ) -> "Tokenizer":
        """Return a tokenizer trained on texts; the same texts give the same one, to the byte.

        Args:
            texts: The training texts.
            model_type: "char" makes each a token (for Chinese, Japanese and Korean); "bpe" merges frequent neighbours
                and "unigram" chooses likely pieces, within words and within one script.
            vocab_size: Largest number of tokens, the five special ones included; not above 2²⁰.
            lowercase: Whether texts are lowercased.

        Raises:
            InputError: `model_type` does not exist, there are no texts, or `vocab_size` is too small or too large.
            MissingExtraError: The package tokenizers is not installed.
        """
        if model_type not in get_args(TokenizerModelType):
            raise InputError(
                f"`model_type` must be one of {', '.join(get_args(TokenizerModelType))}, got {model_type!r}"
            )
        if not isinstance(vocab_size, int) or not len(SPECIAL) < vocab_size <= LARGEST_VOCABULARY:
            raise InputError(
                f"`vocab_size` must be a whole number above {len(SPECIAL)}, the special tokens, and at most "
                f"{LARGEST_VOCABULARY:,}, got {vocab_size!r}"
            )
        lines = [texts] if isinstance(texts, str) else list(texts)
        if not any(lines):
            raise InputError("`texts` must have at least one that is not empty, got none")
        check_unicode("texts", *lines)
        if model_type == "char":
            return cls(train_characters(lines, vocab_size, lowercase=lowercase), *range(len(SPECIAL)))
        return cls(train_pieces(lines, model_type, vocab_size, lowercase=lowercase), *range(len(SPECIAL)))

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        pad_token: str | None = None,
        bos_token: str | None = None,
        eos_token: str | None = None,
        unk_token: str | None = None,
        mask_token: str | None = None,
    ) -> "Tokenizer":
        """Return the tokenizer of a tokenizer.json, ours or that of any Hugging Face checkpoint.

        The special tokens are those named here; else those of the checkpoint's settings beside it: the names in
        tokenizer_config.json or special_tokens_map.json, the ids in generation_config.json or config.json, and the
        tokens of its own template. None is guessed from its name, but in a file that regard trained the five of
        `train` are known.

        Args:
            path: The file, or the folder that has it.
            pad_token: The text of the padding token.
            bos_token: That of the token before a text.
            eos_token: That of the token after a text.
            unk_token: That of the token for unknown text.
            mask_token: That of the mask token.

        Raises:
            InputError: The file or a file of settings cannot be read, its vocabulary contradicts itself, or it has no
                token of a given name.
            MissingExtraError: The package tokenizers is not installed.
        """
        path = Path(path)
        path = path / "tokenizer.json" if os.path.isdir(path) else path
        read, parsed = open_tokenizer(path, cls)
        given = {"pad": pad_token, "bos": bos_token, "eos": eos_token, "unk": unk_token, "mask": mask_token}
        ids = find_special_tokens(read.backend_tokenizer, parsed, given, path)
        return cls(read.json, ids["pad"], ids["bos"], ids["eos"], ids["unk"], ids["mask"])

    def with_template(self, *, bos: bool = False, eos: bool = False) -> "Tokenizer":
        """Return the tokenizer with another template: with the begin token before and the end token after each text.

        Raises:
            InputError: There is no such token.

        >>> tokenizer = Tokenizer.train(["我爱你。"], model_type="char", vocab_size=100).with_template(eos=True)
        >>> tokenizer(["我爱"])["input_ids"], tokenizer.template
        ([[7, 8, 2]], ((), (2,)))
        """
        names = [
            {self.convert_ids_to_tokens([index])[0]: index for index in ([self._needed(role)] if is_added else [])}
            for role, is_added in (("bos", bos), ("eos", eos))
        ]
        return replace(self, json=with_template(self.json, *names))

    @classmethod
    def load_saved(cls, path: Path, *, bos: bool = False, eos: bool = False) -> "Tokenizer":
        """Return a tokenizer that training saved beside a model, with the template that it trained the model with.

        regard 0.2 saved neither a template nor the settings of a checkpoint: `bos` and `eos` are whether it put the
        begin and the end token around each text. It put no begin token that is the end token of a model that generates.

        Raises:
            InputError: As for `load`.
        """
        tokenizer = cls.load(path)
        if tokenizer.is_made_by_regard:
            is_of_0_2 = template_of(parse_json(tokenizer.json)) is None  # of running text one is there, and empty
        else:
            is_of_0_2 = not os.path.isfile(path.with_name("tokenizer_config.json"))
        if not is_of_0_2:
            return tokenizer if tokenizer.is_made_by_regard else tokenizer.as_configured(path)
        starts = (
            bos and tokenizer.bos_token_id is not None and (eos or tokenizer.bos_token_id != tokenizer.eos_token_id)
        )
        return tokenizer.with_template(bos=starts, eos=eos and tokenizer.eos_token_id is not None)

    def as_configured(self, path: Path) -> "Tokenizer":
        """Return the tokenizer of a checkpoint, whose file is `path`, as transformers runs it: a special token that
        occurs in a text is that token, unless tokenizer_config.json has `split_special_tokens`.
        """
        config = read_settings(path.with_name("tokenizer_config.json")) or {}
        return replace(self, split_special_tokens=bool(config.get("split_special_tokens", False)))

    def save(self, path: str | Path) -> Path:
        """Save the tokenizer as tokenizer.json, whole or not at all; a folder gets a file of that name.

        Raises:
            InputError: The file cannot be written.
        """
        target = Path(path)
        target = target / "tokenizer.json" if os.path.isdir(target) else target
        write_atomically(target, self.json.encode("utf-8"))
        return target

    def encode(self, texts: Sequence[str], *, bos: bool = False, eos: bool = False) -> list[list[int]]:
        """Return the token ids of texts, with the begin token before and the end token after each if requested.

        Raises:
            InputError: `texts` is one text, not several, one has half of a surrogate pair, or there is no such token.
        """
        if isinstance(texts, str):
            raise InputError(f"`texts` must be a list of texts, got one text: encode([{texts[:20]!r}])")
        check_unicode("texts", *texts)
        before = [self._needed("bos")] if bos else []
        after = [self._needed("eos")] if eos else []
        return [
            [*before, *one.ids, *after]
            for one in self.backend_tokenizer.encode_batch(list(texts), add_special_tokens=False)
        ]

    def __call__(
        self,
        text: str | Sequence[str],
        *,
        add_special_tokens: bool = True,
        padding: bool = False,
        truncation: bool = False,
        max_length: int | None = None,
        return_tensors: Literal["pt"] | None = None,
        return_offsets_mapping: bool = False,
        verbose: bool = True,
    ) -> dict[str, Any]:
        """Return `input_ids` and `attention_mask` of a text or of several, as transformers' tokenizers do.

        Args:
            text: A text, or a list of texts.
            add_special_tokens: Whether the special tokens of `template` are added; tokenizers of `train` have none
                (`encode` and `with_template` add them).
            padding: Whether texts are padded on the right to the longest.
            truncation: Whether texts are cut to `max_length` tokens.
            max_length: Tokens of a text at most, special ones included; with `truncation`.
            return_tensors: "pt" for tensors; lists by default.
            return_offsets_mapping: Whether `offset_mapping` has the characters of each token.
            verbose: Accepted for compatibility, without effect.

        Raises:
            InputError: A text has half of a surrogate pair, texts of different lengths have no padding, or one is to
                be padded by a tokenizer without a padding token.
        """
        del verbose
        many = not isinstance(text, str)
        texts = [text] if isinstance(text, str) else list(text)
        check_unicode("text", *texts)
        encoded = self.backend_tokenizer.encode_batch(texts, add_special_tokens=False)
        before, after = self.template if add_special_tokens else ((), ())
        limit = None if max_length is None or not truncation else max(0, max_length - len(before) - len(after))
        rows = [[*before, *one.ids[:limit], *after] for one in encoded]
        width = max(map(len, rows), default=0)
        if return_tensors is not None and not padding and len(set(map(len, rows))) > 1:
            raise InputError("`return_tensors` needs texts of one length: pass padding=True too")
        fill = self._needed("pad") if padding and min(map(len, rows), default=0) < width else 0
        extra = [width - len(row) if padding else 0 for row in rows]
        found: dict[str, Any] = {
            "input_ids": [row + [fill] * more for row, more in zip(rows, extra, strict=True)],
            "attention_mask": [[1] * len(row) + [0] * more for row, more in zip(rows, extra, strict=True)],
        }
        if return_offsets_mapping:
            offsets = [[*[(0, 0)] * len(before), *one.offsets[:limit], *[(0, 0)] * len(after)] for one in encoded]
            found["offset_mapping"] = [row + [(0, 0)] * more for row, more in zip(offsets, extra, strict=True)]
        if return_tensors is not None:
            return {name: torch.tensor(values) for name, values in found.items()}
        return found if many else {name: values[0] for name, values in found.items()}

    @overload
    def decode(self, ids: Sequence[int]) -> str: ...
    @overload
    def decode(self, ids: Sequence[Sequence[int]]) -> list[str]: ...
    def decode(self, ids: Sequence[int] | Sequence[Sequence[int]]) -> str | list[str]:
        """Return the text of ids, or the texts of lists of ids, without special tokens other than the unknown one."""
        many = [list(one) for one in ids if not isinstance(one, int)]
        if many:
            return [self._decoded(one) for one in many]
        return self._decoded([one for one in ids if isinstance(one, int)])

    def convert_ids_to_tokens(self, ids: Sequence[int]) -> list[str]:
        """Return the token of each id as the vocabulary has it: a space is "▁" in BPE and Unigram."""
        return [self.backend_tokenizer.id_to_token(one) or f"[{one}]" for one in ids]

    @cached_property
    def backend_tokenizer(self) -> "tokenizers.Tokenizer":
        """The tokenizer of the package tokenizers, without truncation and padding, whatever the file has."""
        try:
            from tokenizers import Tokenizer as Backend
        except ImportError as missing:
            raise MissingExtraError("tokenizers", "train") from missing
        tokenizer = Backend.from_str(self.json)
        tokenizer.no_truncation()
        tokenizer.no_padding()
        tokenizer.encode_special_tokens = self.split_special_tokens  # then "<s>" in a text is text
        return tokenizer

    @cached_property
    def template(self) -> Template:
        """The special tokens that the tokenizer.json puts before and after a text."""
        return template_of(parse_json(self.json)) or ((), ())

    @cached_property
    def is_made_by_regard(self) -> bool:
        """Whether the special tokens are the five of `train`."""
        return is_made_by_regard(self.backend_tokenizer)

    def build_inputs_with_special_tokens(self, token_ids: Sequence[int]) -> list[int]:
        """Return the tokens of a text between those of `template`, as transformers' tokenizers do."""
        before, after = self.template
        return [*before, *token_ids, *after]

    @property
    def added_tokens_decoder(self) -> dict[int, Any]:
        """Added tokens by id, as in transformers; `special` of each is whether it is no text."""
        return dict(self.backend_tokenizer.get_added_tokens_decoder())

    @cached_property
    def all_special_ids(self) -> list[int]:
        """All ids that are not text, in order."""
        added = {index for index, token in self.added_tokens_decoder.items() if token.special}
        roles = {getattr(self, f"{role}_token_id") for role in ROLES} - {None}
        return sorted(added | roles)

    @cached_property
    def sha256(self) -> str:
        """The SHA-256 of the tokenizer.json, as loaded and as saved."""
        return hashlib.sha256(self.json.encode("utf-8")).hexdigest()

    @cached_property
    def special_tokens_sha256(self) -> str:
        """The SHA-256 of the special tokens, of which are put around a text, and of whether one in a text is text."""
        ids = [getattr(self, f"{role}_token_id") for role in ROLES]
        meaning = [ids, self.template, self.split_special_tokens]
        return hashlib.sha256(json.dumps(meaning).encode()).hexdigest()

    def to_config(self) -> bytes:
        """Return a tokenizer_config.json, by which transformers' AutoTokenizer opens what `save` saves."""
        ids = {role: getattr(self, f"{role}_token_id") for role in ROLES}
        names = {f"{role}_token": self.convert_ids_to_tokens([one])[0] for role, one in ids.items() if one is not None}
        options = {"tokenizer_class": "PreTrainedTokenizerFast", "split_special_tokens": self.split_special_tokens}
        return (json.dumps(options | names, ensure_ascii=False, indent=2) + "\n").encode()

    @property
    def vocab_size(self) -> int:
        """Number of tokens without added ones, as in transformers; `len(tokenizer)` counts all."""
        return self.backend_tokenizer.get_vocab_size(with_added_tokens=False)

    def __len__(self) -> int:
        return self.backend_tokenizer.get_vocab_size(with_added_tokens=True)

    @cached_property
    def _left_out(self) -> frozenset[int]:
        """The special ids without text; "unknown" is shown, unless it is another special token too."""
        others = (self.pad_token_id, self.bos_token_id, self.eos_token_id, self.mask_token_id)
        return frozenset(one for one in self.all_special_ids if one != self.unk_token_id or one in others)

    def _decoded(self, ids: Sequence[int]) -> str:
        return self.backend_tokenizer.decode(
            [one for one in ids if one not in self._left_out], skip_special_tokens=False
        )

    def _needed(self, role: str) -> int:
        found = getattr(self, f"{role}_token_id")
        if found is None:
            raise InputError(f'this tokenizer has no {role} token: name it, Tokenizer.load(path, {role}_token="…")')
        return int(found)
