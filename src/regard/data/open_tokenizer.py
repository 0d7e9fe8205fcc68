"""A tokenizer.json opened: checked, with the special tokens that the files of its checkpoint give it.

The settings of a checkpoint are its tokenizer_config.json and special_tokens_map.json, which name tokens, the template
of its tokenizer.json, and the ids in its generation_config.json and config.json. A token is never guessed from its
name; only the files of regard's own tokenizers, which have none of these settings, are known by their five tokens.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.data.train_tokenizer import SPECIAL
from regard.errors import InputError, MissingExtraError
from regard.files import printable, read_text
from regard.hub.file_faults import fault_of
from regard.strict_json import DuplicateKeyError, parse_json

if TYPE_CHECKING:
    import tokenizers

__all__ = [
    "LARGEST_VOCABULARY",
    "ROLES",
    "TOKENIZER_FILES",
    "Template",
    "find_special_tokens",
    "is_made_by_regard",
    "open_tokenizer",
    "read_settings",
    "template_of",
    "with_template",
]

LARGEST_VOCABULARY = 2**20  # tokens; the trainers reserve memory for as many, and abort the process where there is none

# What a checkpoint says of its tokens beside its tokenizer.json and config.json; a model keeps these files.
TOKENIZER_FILES = (
    *("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    *("chat_template.jinja", "chat_template.json", "generation_config.json"),
)
ROLES = ("pad", "bos", "eos", "unk", "mask")  # in the order of the tokens that regard's own tokenizers begin with
_NAMES: Mapping[str, tuple[str, ...]] = {
    "pad": ("pad_token",),
    "bos": ("bos_token", "cls_token"),
    "eos": ("eos_token", "sep_token"),
    "unk": ("unk_token",),
    "mask": ("mask_token",),
}

Template = tuple[tuple[int, ...], tuple[int, ...]]  # the tokens before and after a text


def open_tokenizer(path: Path, kind: Callable[[str], Any]) -> tuple[Any, dict[str, Any]]:
    """Return the `kind` of tokenizer that is in a file, its special tokens not known yet, and the file parsed."""
    if (fault := fault_of(path)) is not None:
        raise InputError(f"cannot read the tokenizer {printable(path)}: {fault}")
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
        _check_vocabulary(found := parse_json(tokenizer.json), tokenizer.backend_tokenizer)
        template_of(found)
    except (DuplicateKeyError, InputError) as problem:
        raise InputError(f"cannot read the tokenizer {path}: {problem}; bring back the file as it was saved") from None
    return tokenizer, found


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


def find_special_tokens(
    tokenizer: "tokenizers.Tokenizer", found: Mapping[str, Any], given: Mapping[str, str | None], path: Path
) -> dict[str, int | None]:
    """Return the id of the token of each role: the one named by the caller, else by the checkpoint's settings.

    Args:
        tokenizer: The tokenizer of a tokenizer.json.
        found: The file, parsed.
        given: By role, the text of the token that the caller names.
        path: The file, beside which the other settings are.

    Raises:
        InputError: A token that the caller named is not in the vocabulary, or a file of settings cannot be read.
    """
    names = _named(path)
    if names is None and is_made_by_regard(tokenizer):
        numbers = {role: index for index, role in enumerate(ROLES)}
    else:
        numbers = _used(found, tokenizer) | _numbered(path)
    ids: dict[str, int | None] = {}
    for role, text in given.items():
        if text is not None and tokenizer.token_to_id(text) is None:
            raise InputError(f"`{role}_token` must be a token of {path}, got {text!r}")
        texts = (text, *(_text((names or {}).get(key)) for key in _NAMES[role]))
        by_name = (tokenizer.token_to_id(one) for one in texts if one is not None)
        candidates = (one for one in (*by_name, numbers.get(role)) if one is not None)
        ids[role] = next((one for one in candidates if tokenizer.id_to_token(one) is not None), None)
    return ids


def is_made_by_regard(tokenizer: "tokenizers.Tokenizer") -> bool:
    """Return whether the first five tokens are those that `Tokenizer.train` begins with."""
    return tuple(tokenizer.id_to_token(index) for index in range(len(SPECIAL))) == SPECIAL and {
        index for index, token in tokenizer.get_added_tokens_decoder().items() if token.special
    } >= set(range(len(SPECIAL)))


def template_of(tokenizer_json: Mapping[str, Any]) -> Template | None:
    """Return the tokens that the post-processor of a parsed tokenizer.json adds to a text; None where it has none.

    Raises:
        InputError: The post-processor is of a kind that is not known.
    """
    post_processor = tokenizer_json.get("post_processor")
    return None if post_processor is None else _added_by(post_processor)


def with_template(text: str, before: Mapping[str, int], after: Mapping[str, int]) -> str:
    """Return a tokenizer.json whose template puts these tokens, by their texts, before and after a text."""
    found = parse_json(text)

    def tokens(names: Mapping[str, int], type_id: int) -> list[dict[str, Any]]:
        return [{"SpecialToken": {"id": name, "type_id": type_id}} for name in names]

    first = [*tokens(before, 0), {"Sequence": {"id": "A", "type_id": 0}}, *tokens(after, 0)]
    second = [{"Sequence": {"id": "B", "type_id": 1}}, *tokens(after, 1)]
    used = {name: {"id": name, "ids": [index], "tokens": [name]} for name, index in {**before, **after}.items()}
    found["post_processor"] = {
        "type": "TemplateProcessing",
        "single": first,
        "pair": [*first, *second],
        "special_tokens": used,
    }
    return json.dumps(found, ensure_ascii=False, indent=2)


def _added_by(post_processor: Mapping[str, Any]) -> Template:
    kind = post_processor.get("type")
    if kind == "TemplateProcessing":
        parts = post_processor["single"]
        at = next(index for index, part in enumerate(parts) if "Sequence" in part)
        ids = {name: tuple(token["ids"]) for name, token in post_processor["special_tokens"].items()}
        before, after = (
            tuple(index for part in some for index in ids[part["SpecialToken"]["id"]])
            for some in (parts[:at], parts[at + 1 :])
        )
        return before, after
    if kind in ("BertProcessing", "RobertaProcessing"):
        return (post_processor["cls"][1],), (post_processor["sep"][1],)
    if kind == "ByteLevel":
        return (), ()
    if kind == "Sequence":  # the package tokenizers adds those of one processor, the first that has some
        added = map(_added_by, post_processor["processors"])
        return next((one for one in added if one != ((), ())), ((), ()))
    raise InputError(f"the `post_processor` of its tokenizer.json is of the kind {kind!r}, which regard does not know")


def _named(path: Path) -> dict[str, Any] | None:
    """Return the names of special tokens by role; None where no file beside the tokenizer gives any.

    As in transformers, special_tokens_map.json holds over tokenizer_config.json, unless that has the
    `added_tokens_decoder` which came after it.
    """
    files = [read_settings(path.with_name(name)) for name in ("tokenizer_config.json", "special_tokens_map.json")]
    if files == [None, None]:
        return None
    if files[0] and "added_tokens_decoder" in files[0]:
        files.reverse()
    return {key: value for one in files for key, value in (one or {}).items() if value is not None}


def _numbered(path: Path) -> dict[str, int]:
    """Return the ids that the configuration of the model beside the tokenizer gives; of several ends none."""
    config = read_settings(path.with_name("config.json")) or {}
    saved = config.get("regard")  # a configuration that regard saved has its tokens under this key
    if isinstance(saved, dict):
        config = saved | (saved.get("special_tokens") or {})
    config = config | {
        key: value
        for key, value in (read_settings(path.with_name("generation_config.json")) or {}).items()
        if value is not None
    }
    ids = {role: config.get(f"{role}_token_id") for role in ROLES}
    ids = {role: one[0] if isinstance(one, list) and len(one) == 1 else one for role, one in ids.items()}
    return {role: one for role, one in ids.items() if isinstance(one, int) and not isinstance(one, bool) and one >= 0}


def _used(found: Mapping[str, Any], tokenizer: "tokenizers.Tokenizer") -> dict[str, int]:
    """Return the ids that tokenizer.json itself uses: a single token before and after a text, and for unknown text."""
    before, after = template_of(found) or ((), ())
    used = {role: ids[0] for role, ids in (("bos", before), ("eos", after)) if len(ids) == 1}
    unknown = found["model"].get("unk_token")
    number = found["model"].get("unk_id") if unknown is None else tokenizer.token_to_id(unknown)
    return used if number is None else used | {"unk": number}


def read_settings(path: Path) -> dict[str, Any] | None:
    """Return a JSON object that lies beside a tokenizer; None where there is no such file."""
    try:
        found = parse_json(read_text(path))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, RecursionError) as problem:
        reason = fault_of(path) or " ".join(str(problem).split())
        raise InputError(f"cannot read {printable(path)}: {reason}") from problem
    if not isinstance(found, dict):
        raise InputError(f"cannot read {printable(path)}: it must be a JSON object, got a {type(found).__name__}")
    return found


def _text(named: object) -> str | None:
    """Return the text of a token, which settings name as a string or as an AddedToken."""
    text = named.get("content") if isinstance(named, dict) else named
    return text if isinstance(text, str) else None
