"""A tokenizer.json opened: checked, and its special tokens found by their usual names."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.errors import InputError, MissingExtraError
from regard.files import printable, read_text
from regard.strict_json import DuplicateKeyError, parse_json

if TYPE_CHECKING:
    import tokenizers

__all__ = ["LARGEST_VOCABULARY", "USUAL_NAMES", "find_token", "open_tokenizer", "read_settings"]

LARGEST_VOCABULARY = 2**20  # tokens; the trainers reserve memory for as many, and abort the process where there is none

# The names of special tokens in checkpoints, the likeliest name first.
USUAL_NAMES: Mapping[str, tuple[str, ...]] = {
    "pad": ("<pad>", "[PAD]", "<|pad|>", "<|padding|>", "<|finetune_right_pad_id|>"),
    "bos": (
        "<s>",
        "[CLS]",
        "<bos>",
        "[BOS]",
        "<|begin_of_text|>",
        "<|startoftext|>",
        "<|im_start|>",
        "<|endoftext|>",
    ),
    "eos": ("</s>", "[SEP]", "<eos>", "[EOS]", "<|end_of_text|>", "<|im_end|>", "<|endoftext|>"),
    "unk": ("<unk>", "[UNK]", "<|unk|>"),
    "mask": ("<mask>", "[MASK]", "<|mask|>"),
}
_IN_CONFIG = {
    "pad": ("pad_token",),
    "bos": ("cls_token", "bos_token"),
    "eos": ("sep_token", "eos_token"),
    "unk": ("unk_token",),
    "mask": ("mask_token",),
}


def open_tokenizer(path: Path, kind: Callable[[str], Any]) -> Any:
    """Return the `kind` of tokenizer that is in a file, its special tokens not known yet."""
    try:
        tokenizer = kind(read_text(path))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"cannot read the tokenizer {printable(path)}: {getattr(error, 'strerror', None) or error}"
        ) from error
    try:
        len(tokenizer)
    except MissingExtraError:
        raise
    except Exception as error:  # that is what tokenizers raises
        raise InputError(f"{path} must be a tokenizer.json of the package tokenizers, but {error}") from error
    try:
        _check_vocabulary(parse_json(tokenizer.json), tokenizer.backend_tokenizer)
    except (DuplicateKeyError, InputError) as problem:
        raise InputError(f"cannot read the tokenizer {path}: {problem}; bring back the file as it was saved") from None
    return tokenizer


def _check_vocabulary(found: dict[str, Any], backend: "tokenizers.Tokenizer") -> None:
    """Refuse what the package tokenizers loads, and then encodes wrongly or not at all."""
    model = found["model"]
    vocabulary = model["vocab"]
    if not vocabulary:
        raise InputError("its vocabulary is empty")
    added = [(one["content"], one["id"]) for one in found.get("added_tokens") or ()]
    tokens: dict[int, str] = {}
    if isinstance(vocabulary, list):  # Unigram has pairs of a token and its score, in the order of their ids
        last = len(vocabulary) - 1
        beside = {index for _, index in added if index <= last}
        pairs = [(vocabulary[index][0], index) for index in sorted({*beside, last})]  # others have an id of their own
    else:
        pairs = list(vocabulary.items())
    for token, index in [*pairs, *added]:
        if tokens.setdefault(index, token) != token:
            raise InputError(f"the tokens {tokens[index]!r} and {token!r} have one id, {index}")
        if index >= LARGEST_VOCABULARY:
            raise InputError(f"the token {token!r} has the id {index}, beyond the largest vocabulary")
    unknown = model.get("unk_token")
    if unknown and backend.token_to_id(unknown) is None:
        raise InputError(f"its `unk_token`, {unknown!r}, is not in the vocabulary")


def read_settings(path: Path) -> dict[str, Any]:
    """Return a tokenizer_config.json; nothing where there is none that can be read."""
    try:
        found = json.loads(read_text(path))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def find_token(
    tokenizer: "tokenizers.Tokenizer", role: str, given: str | None, config: dict[str, Any], path: Path
) -> int | None:
    """Return the id of a special token: the one named, else the configuration's, else one with a usual name."""
    if given is not None:
        if (index := tokenizer.token_to_id(given)) is None:
            raise InputError(f"`{role}_token` must be a token of {path}, got {given!r}")
        return index
    named = [config.get(key) for key in _IN_CONFIG[role]]
    texts = [name.get("content") if isinstance(name, dict) else name for name in named]
    for text in (*texts, *USUAL_NAMES[role]):
        if isinstance(text, str) and (index := tokenizer.token_to_id(text)) is not None:
            return index
    return None
