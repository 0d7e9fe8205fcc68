"""Load a model and its tokenizer by name: by transformers, by `regard.models`, or by an extension's loader."""

import re
import unicodedata
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from regard.errors import InputError, MissingExtraError, RegardError
from regard.extensions import extension
from regard.hub import BundledModelError, Loaded, ModelKind, folder
from regard.hub.file_faults import check_model
from regard.hub.loaded import quiet
from regard.hub.names import ModelName, is_offline, resolve
from regard.models.as_transformers import load_bundled, load_bundled_tokenizer
from regard.models.loading import load_saved
from regard.models.standard_names import LOAD_MODEL
from regard.nn.checks import refuse_unknown
from regard.record.tokens_from_tokenizer import unknown_share

__all__ = [
    "advice",
    "load_model",
    "load_to_look_once",
    "model_for",
    "name_for",
    "positions",
]


# Output heads, which do not affect attention; a checkpoint of a base model lacks them.
_HEADS = re.compile(r"lm_head|pooler|classifier|score|qa_outputs|final_logits_bias|^cls\.|embed_out|predictions")
_PIECES = 2.5  # pieces per word, at most, of a text in a language of the vocabulary
_OPENED_FAST = ("me5", "minilm")  # without importing transformers, which takes about half of the time
_UNKNOWN = 0.1  # share of unknown pieces above which a text is reported as unsuitable for a model


@refuse_unknown("load_model", LOAD_MODEL)
def load_model(name: str, *, attn_implementation: str | None = None) -> Loaded:
    """Load a model in eval mode and its tokenizer, without executing or unpickling any file of the checkpoint.

    Args:
        name: `me5`, `minilm`, `smollm2`, a folder with a Hugging Face checkpoint, an output of `regard train` (a run,
            or a checkpoint in it), an id of the hub, or `loader:name` for the loader of an installed extension.
        attn_implementation: As in transformers; by default PyTorch's fused kernel, if the model supports it.

    Raises:
        InputError: The model does not exist, or has no weights or no tokenizer.
        MissingExtraError: transformers is not installed.
    """
    found = resolve(name)
    if found.loader is not None:
        return _by_extension(name, found.loader, attn_implementation)
    if found.kind == "saved":
        if attn_implementation is not None:
            raise InputError(f"`attn_implementation` is for models of transformers, and {name} was made by regard")
        return load_saved(name)
    return _by_transformers(found, attn_implementation)


def _by_extension(name: str, loader: str, attn_implementation: str | None) -> Loaded:
    """Load a model with the loader of another package, which returns a `Loaded`."""
    load = extension("regard.model_loaders", loader)
    loaded = load(name[len(loader) + 1 :], attn_implementation=attn_implementation)
    if not isinstance(loaded, Loaded):
        raise InputError(f"the loader {loader!r} must return regard.hub.Loaded, got {loaded!r}")
    return loaded


def _by_transformers(name: ModelName, attn_implementation: str | None) -> Loaded:
    """Load a bundled model, a folder or an id of the hub, without output on the terminal."""
    try:
        import transformers
        from safetensors import SafetensorError
    except ImportError as missing:
        raise MissingExtraError(missing.name or "transformers", "models") from missing
    if name.folder is not None:
        check_model(name.folder)
    local = name.kind == "bundled" or is_offline(name.text)
    where = folder(name.text) if name.kind == "bundled" else name.folder or name.text
    with quiet(transformers.utils.logging):
        try:
            return _open(transformers, name, where, attn_implementation, local_files_only=local)
        except RegardError:
            raise
        except (OSError, ValueError, KeyError, ImportError, RuntimeError, SafetensorError) as problem:
            reason = " ".join(str(problem).split()) or type(problem).__name__
            reason = reason if len(reason) <= 300 else reason[:299] + "…"
            raise InputError(f"cannot load the model {name.text!r}: {reason}") from problem


def _open(
    transformers: Any, name: ModelName, where: Path | str, attn_implementation: str | None, *, local_files_only: bool
) -> Loaded:
    safe = {"trust_remote_code": False, "local_files_only": local_files_only}
    config = transformers.AutoConfig.from_pretrained(where, **safe)
    kind: ModelKind = "encoder-decoder" if getattr(config, "is_encoder_decoder", False) else "encoder"
    causal = any("CausalLM" in one or "LMHead" in one for one in config.architectures or ())
    if kind == "encoder" and (causal or getattr(config, "is_decoder", False)):
        kind = "decoder"
    reader = {
        "encoder-decoder": transformers.AutoModelForSeq2SeqLM,
        "decoder": transformers.AutoModelForCausalLM,
        "encoder": transformers.AutoModel,
    }[kind]
    options: dict[str, Any] = {"attn_implementation": attn_implementation} if attn_implementation else {}
    if name.kind == "bundled":
        options["dtype"] = torch.float32
        if kind == "encoder":  # the output is that of the last layer, never of the pooler, which me5 does not have
            options["add_pooling_layer"] = False
    if not hasattr(config.get_text_config(), "vocab_size"):
        raise InputError(f"the model {name.text!r} ({config.model_type}) reads no text: regard.watch sees it in Python")
    model, found = reader.from_pretrained(where, use_safetensors=True, output_loading_info=True, **safe, **options)
    if name.kind == "bundled":
        if missing := sorted(found["missing_keys"]):
            raise BundledModelError(
                f"the weights in {where} must be whole, {len(missing)} are missing, {missing[0]} first: "
                "delete that folder and load again"
            )
        model.config._name_or_path = name.text  # the model's name in a record
    _refuse_random_weights(name.text, found["missing_keys"])
    tokenizer = transformers.AutoTokenizer.from_pretrained(where, **safe)
    return Loaded(name.text, model.eval(), tokenizer, kind)


def _refuse_random_weights(name: str, missing: Iterable[str]) -> None:
    """Refuse a checkpoint that lacks weights: they would be random, and so would be the attention shown."""
    lacking = sorted(one for one in missing if not _HEADS.search(one))
    if lacking:
        raise InputError(
            f"the checkpoint of {name!r} lacks {len(lacking)} weights, {lacking[0]} first: what it attends to would be "
            "random; load a whole checkpoint"
        )


def model_for(text: str) -> Loaded:
    """Load the bundled model that `name_for` chooses for a text."""
    return _by_transformers(ModelName(name_for(text), "bundled"), None)


def load_to_look_once(name: str | None, text: str) -> Loaded | str | None:
    """Load `me5` or `minilm` for a single figure as a regard Transformer, which loads faster, or return the name of
    another model.

    Its weights equal those of transformers' model to a few units of float32; its layers have other names. Without a
    name, the model is chosen by the language of the text.

    Raises:
        BundledModelError: The model is not installed, or its files were changed.
        MissingExtraError: The extra `models` is not installed.
    """
    chosen = name_for(text) if name is None and text.strip() else name
    return load_bundled(chosen) if chosen in _OPENED_FAST else chosen


def name_for(text: str) -> str:
    """Return the name of a bundled model for a text: `minilm` for text in English, else `me5`.

    English vocabularies contain single letters of many scripts, so known pieces are not enough: the letters must be
    Latin, and the words of few pieces.
    """
    tokenizer = load_bundled_tokenizer("minilm")
    latin = all(unicodedata.name(letter, "").startswith("LATIN") for letter in text if letter.isalpha())
    pieces = len(tokenizer(text, add_special_tokens=False)["input_ids"])
    reads = latin and pieces <= _PIECES * len(text.split()) and unknown_share(tokenizer, text) == 0
    return "minilm" if reads else "me5"


def advice(loaded: Loaded, text: str) -> str | None:
    """Return a note if a model does not know many pieces of a text, with a model that does, or None."""
    share = unknown_share(loaded.tokenizer, text)
    if share <= _UNKNOWN:
        return None
    better = "--model me5 reads 100 languages" if loaded.name != "me5" else "no bundled model knows them"
    return f"{loaded.name} does not know {share:.0%} of this text's pieces, which become [UNK]: {better}"


def positions(loaded: Loaded) -> int | None:
    """Return the maximum number of tokens of the model, or None if there is no limit."""
    config = loaded.model.config
    limit = getattr(config, "max_position_embeddings", None) or getattr(config, "n_positions", None)
    return int(limit) if limit and limit > 0 else None
