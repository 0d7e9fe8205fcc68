"""What is wrong with the files of a downloaded checkpoint, and the way out: pointers, pages, halves, other formats."""

import json
import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from regard.errors import InputError
from regard.files import open_file

__all__ = ["check_files", "check_model", "fault_of", "files_in_use", "missing_shards"]

_AGAIN = "download it again"
_CONVERT = (
    "transformers converts it: AutoModel.from_pretrained(...).save_pretrained(...), of the model's own Auto class"
)
_INDEX = "model.safetensors.index.json"
# Of a model and its tokenizers, those of `regard train` included. A folder may have anything else, in any state.
_SETTINGS = re.compile(
    r"(|generation_|tokenizer_)config\.json|(special_tokens_map|added_tokens|tokenizer|source|target|translation)\.json"
    r"|chat_template\.(jinja|json)"
)
_VOCABULARIES = re.compile(r"(vocab|merges)\.(json|txt)|.*\.(model|spm|tiktoken)")  # where there is no tokenizer.json
_HALVES = (".incomplete", ".part", ".crdownload", ".aria2", ".download")
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack", ".onnx", ".npz")
_LARGEST_HEADER = 100_000_000  # bytes, as in safetensors

# What the beginning of a file says.
_BEGINNINGS: tuple[tuple[Callable[[bytes], bool], str], ...] = (
    (
        lambda start: start.startswith(b"version https://git-lfs"),
        "it is a pointer of Git LFS, not the file: run `git lfs pull` in its folder, or download the file",
    ),
    (
        lambda start: start.lstrip(b"\xef\xbb\xbf \t\r\n").lower().startswith((b"<!doctype", b"<html", b"<?xml")),
        "it is a web page, not the file: download it by its address with /resolve/, not /blob/, and sign in first "
        "where the model asks for it",
    ),
    (lambda start: start.startswith(b"GGUF"), f"it is a GGUF file, of llama.cpp: {_CONVERT}"),
    (
        lambda start: start.startswith((b"PK\x03\x04", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")),
        f"it is a pickle or a zip archive, such as torch.save writes, and regard never unpickles: {_CONVERT}",
    ),
    (lambda start: start.startswith((b"\x1f\x8b", b"\xfd7zXZ", b"BZh")), "it is compressed: unpack it first"),
    (lambda start: not start.strip(b"\0"), f"it begins with zeros, as a download that was cut off leaves it: {_AGAIN}"),
)
_MARKS = {b"\xef\xbb\xbf": "UTF-8 with a byte-order mark", b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16"}


def fault_of(path: Path) -> str | None:
    """Return what a file is in place of what its name says, with the way out, or None if that cannot be told.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "config.json"
    >>> _ = file.write_text("<!DOCTYPE html>")
    >>> fault_of(file)[:35]
    'it is a web page, not the file: dow'
    """
    try:
        size = path.stat().st_size
        with open_file(path) as file:
            start = file.read(1024)
    except ValueError:
        return None  # a NUL in its name
    except OSError:
        if os.path.islink(path) and not path.exists():
            return f"it is a link to {path.readlink()}, which is gone: {_AGAIN}"
        return None  # whoever reads it says why it cannot
    if not size:
        return f"it is empty, as a download that was cut off leaves it: {_AGAIN}"
    is_weights = path.suffix == ".safetensors"
    if is_weights and start[8:9] == b"{":  # behind the length of its header, which may look like anything
        return _cut_off(path, size)
    for is_it, what in _BEGINNINGS:
        if is_it(start):
            return what
    if is_weights and start.lstrip().startswith((b'{"', b"[")):
        said = " ".join(start[:100].decode(errors="replace").split())
        return f"it is JSON, such as the error of a server, not the file: it says {said}"
    mark = next((mark for mark in _MARKS if path.suffix == ".json" and start.startswith(mark)), None)
    if mark is not None:
        return f"it is {_MARKS[mark]}: save it as plain UTF-8"
    return _cut_off(path, size) if is_weights else None


def _cut_off(path: Path, size: int) -> str | None:
    """Whether a safetensors file is shorter than its header says."""
    if size < 8:
        return f"it has {size} bytes, fewer than any safetensors file: {_AGAIN}"
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > _LARGEST_HEADER:
            return None
        header = file.read(length)
    whole = 8 + length
    if len(header) == length:
        try:
            whole += max((int(one["data_offsets"][1]) for one in _tensors(json.loads(header))), default=0)
        except (ValueError, TypeError, LookupError, RecursionError):
            return None
    if size >= whole:
        return None
    return (
        f"it has {size:,} of {'at least ' if len(header) < length else ''}{whole:,} bytes, so it was cut off: {_AGAIN}"
    )


def _tensors(header: dict[str, Any]) -> Iterable[Any]:
    return (one for name, one in header.items() if name != "__metadata__")


def check_files(folder: Path) -> None:
    """Raise if one of a checkpoint's files that are in use is something else than its name says.

    Raises:
        InputError: It is a pointer of Git LFS, a web page, empty, cut off, or of another format.
    """
    for path in files_in_use(folder):
        if fault := fault_of(path):
            raise InputError(f"cannot read {path}: {fault}")


def files_in_use(folder: Path) -> list[Path]:
    """Return the files in a folder that opening a checkpoint and its tokenizers reads, in the order of their names."""
    names = {path.name for path in _files(folder)}
    weights = {"model.safetensors"}
    if _INDEX in names and not weights & names:
        weights = {_INDEX, *_shards(_index(folder))}
    used = {name for name in names if name in weights or _SETTINGS.fullmatch(name)}
    if "tokenizer.json" not in names:
        used |= {name for name in names if _VOCABULARIES.fullmatch(name)}
    return [folder / name for name in sorted(used)]


def _index(folder: Path) -> Any:
    """What the index of the weights says; None if it cannot be read."""
    try:
        return json.loads((folder / _INDEX).read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return None


def check_model(folder: Path) -> None:
    """Raise if a folder holds no whole checkpoint of transformers' format: with the reason, and the way out.

    Raises:
        InputError: As `check_files`; or a file is missing, or the folder is that of another library.
    """
    check_files(folder)
    names = [path.name for path in _files(folder)]
    if "config.json" not in names:
        raise InputError(f"the checkpoint {str(folder)!r} has no config.json: {_without_config(folder, names)}")
    try:
        config = json.loads((folder / "config.json").read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return  # whoever reads it says why it cannot
    if isinstance(config, dict) and "model_type" not in config and "regard" not in config:
        raise InputError(f"the config.json in {str(folder)!r} has no `model_type`: {_library(config)}")
    if "model.safetensors" in names:
        return
    if shards := _shards(_index(folder)):
        if lacking := missing_shards([one for one in shards if one not in names], len(shards)):
            raise InputError(f"the checkpoint {str(folder)!r} {lacking}")
    elif (why := _without_weights(folder, names)) is not None:
        raise InputError(f"the checkpoint {str(folder)!r} has no model.safetensors: {why}")


def _shards(index: Any) -> list[str]:
    """The files of an index; none of one that cannot be read, or names files elsewhere."""
    named = index.get("weight_map") if isinstance(index, dict) else None
    files = list(named.values()) if isinstance(named, dict) else []
    plain = all(isinstance(one, str) and Path(one).name == one for one in files)
    return sorted(set(files)) if plain else []


def missing_shards(lacking: list[str], count: int) -> str:
    """Say which files of an index are missing; "" if none.

    >>> missing_shards(["model-00002-of-00003.safetensors"], 3)
    'lacks 1 of its 3 files of weights, model-00002-of-00003.safetensors: the download is incomplete, fetch it again'
    """
    if not lacking:
        return ""
    first = lacking[0] if len(lacking) == 1 else f"{lacking[0]} first"
    them = "it" if len(lacking) == 1 else "them"
    what = f"lacks {len(lacking)} of its {count} files of weights, {first}"
    return f"{what}: the download is incomplete, fetch {them} again"


def _files(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if path.is_file() or os.path.islink(path))
    except OSError:
        return []


def _without_config(folder: Path, names: list[str]) -> str:
    inside = _checkpoints_in(folder)
    if (other := _other_format(folder, names)) is not None:
        return other
    if inside:
        return f"name {str(inside[0])!r}, which has one" + (f", or another of {len(inside)}" if inside[1:] else "")
    if any(name.endswith(_PICKLES) for name in names):
        pickle = next(name for name in names if name.endswith(_PICKLES))
        return f"weights alone, such as {pickle}, do not say which model they are of; name a folder with both"
    return "name a folder or an id with a model in it"


def _other_format(folder: Path, names: list[str]) -> str | None:
    """What a folder without a checkpoint of transformers holds."""
    if "adapter_config.json" in names:
        try:
            base = json.loads((folder / "adapter_config.json").read_text("utf-8")).get("base_model_name_or_path")
        except (OSError, ValueError, AttributeError, RecursionError):
            base = None
        of = f" of {base}" if isinstance(base, str) and base else ""
        return (
            f"it is a PEFT adapter{of}, not a model: merge it into its model, "
            "PeftModel.from_pretrained(model, folder).merge_and_unload().save_pretrained(...), and name what that saves"
        )
    if any(name.endswith(_HALVES) for name in names):
        half = next(name for name in names if name.endswith(_HALVES))
        return f"the download is incomplete, as {half} shows: {_AGAIN}"
    if any(name.endswith(".gguf") for name in names):
        gguf = next(name for name in names if name.endswith(".gguf"))
        return (
            f"it holds GGUF, of llama.cpp ({gguf}): transformers converts it, "
            f"AutoModelForCausalLM.from_pretrained(folder, gguf_file={gguf!r}).save_pretrained(...)"
        )
    if "modules.json" in names or "config_sentence_transformers.json" in names:
        inside = _checkpoints_in(folder)
        way = f"name {str(inside[0])!r}" if inside else "name the folder of its Transformer"
        return f"it is a folder of sentence-transformers: {way}"
    if "model_index.json" in names:
        return "it is a pipeline of diffusers, which makes images: its text encoder is a folder in it"
    return None


def _without_weights(folder: Path, names: list[str]) -> str | None:
    if (other := _other_format(folder, names)) is not None:
        return other
    if pickles := [name for name in names if name.endswith(_PICKLES)]:
        return f"regard reads safetensors alone, never pickles such as {pickles[0]}: {_CONVERT}"
    if first := next((name for name in names if re.fullmatch(r"model-\d+-of-\d+\.safetensors", name)), None):
        return f"it has shards such as {first}, and no {_INDEX}, which lists them: the download is incomplete"
    return None


def _checkpoints_in(folder: Path) -> list[Path]:
    """Folders in a folder that have a config.json: of sentence-transformers, or snapshots of the hub's cache."""
    try:
        return sorted(path.parent for depth in ("*", "snapshots/*") for path in folder.glob(f"{depth}/config.json"))
    except OSError:
        return []


# Keys that other libraries write into their config.json.
_LIBRARIES = {
    "pretrained_cfg": "timm",
    "_diffusers_version": "diffusers",
    "model_cfg": "open_clip",
    "peft_type": "PEFT (an adapter, not a model)",
    "add_source_bos": "CTranslate2",
    "registered_name": "Keras",
    "__version__": "sentence-transformers",
}


def _library(config: dict[str, Any]) -> str:
    known = next((library for key, library in _LIBRARIES.items() if key in config), None)
    whose = "it is not transformers'" if known is None else f"it is that of {known}"
    return f"{whose}, and regard reads checkpoints of transformers and its own; name one with a `model_type`"
