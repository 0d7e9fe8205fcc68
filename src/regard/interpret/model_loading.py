"""A model and its tokenizer by name: one of the bundled ones, a folder, or an id of the Hugging Face hub."""

import json
import re
import unicodedata
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from typing import Any, cast

from regard.errors import InputError, MissingExtraError
from regard.interpret import bundled
from regard.interpret.bundled import BUNDLED, Loaded, ModelKind
from regard.interpret.bundled.catalogue import refuse_mistyped
from regard.interpret.bundled.load import quiet
from regard.interpret.tokens_from_tokenizer import unknown_share

__all__ = ["advice", "load_model", "load_to_look_once", "model_for", "name_for", "positions"]

# Parts that turn hidden states into answers, of which attention takes no notice; a base checkpoint lacks them.
_HEADS = re.compile(r"lm_head|pooler|classifier|score|qa_outputs|final_logits_bias|^cls\.|embed_out|predictions")
_PIECES = 2.5  # a word, at most, of a text that a vocabulary was made for
_OPENED_FAST = ("me5", "minilm")  # without importing transformers, which takes as long as all the rest
_UNKNOWN = 0.1  # share of unknown pieces from which on a text is said to be beyond a model


def load_model(name: str, *, attn_implementation: str | None = None) -> Loaded:
    """Load a model in eval mode and its tokenizer; nothing that comes with a model is ever executed or unpickled.

    Args:
        name: `me5`, `minilm`, `smollm2`, a folder with a Hugging Face checkpoint, what `regard train` made (a run, or
            a checkpoint in it), or an id of the hub.
        attn_implementation: As in transformers; by default PyTorch's fused kernel where the model has it.

    Raises:
        InputError: There is no such model, or it has no weights or no tokenizer.
        MissingExtraError: transformers is not installed.
    """
    if name in BUNDLED:
        return bundled.load(name, attn_implementation=attn_implementation or "sdpa")
    refuse_mistyped(name)
    if _is_trained(Path(name).expanduser()):
        if attn_implementation is not None:
            raise InputError(f"`attn_implementation` is for models of transformers, and {name} was made by regard")
        return cast("Loaded", import_module("regard.train.open_run").load_trained(name))  # which is above this folder
    try:
        import transformers
        from safetensors import SafetensorError
    except ImportError as missing:
        raise MissingExtraError(missing.name or "transformers", "models") from missing
    if not name.strip():
        raise InputError(f"`model` must not be empty: name one of {', '.join(BUNDLED)}, a folder or an id of the hub")
    if name.startswith((".", "/", "~")) and not Path(name).expanduser().is_dir():
        raise InputError(f"`model` {name!r} is no folder; bundled models: {', '.join(BUNDLED)}")
    where = str(Path(name).expanduser()) if Path(name).expanduser().is_dir() else name
    with quiet(transformers.utils.logging):
        try:
            return _from_transformers(transformers, name, where, attn_implementation)
        except (OSError, ValueError, KeyError, ImportError, RuntimeError, SafetensorError) as problem:
            reason = " ".join(str(problem).split()) or type(problem).__name__
            reason = reason if len(reason) <= 300 else reason[:299] + "…"
            raise InputError(f"cannot load the model {name!r}: {reason}") from problem


def _is_trained(folder: Path) -> bool:
    """Whether regard made it: a run, a checkpoint in it, or a saved model."""
    if any((folder / name).is_file() for name in ("run.json", "place.json")):
        return True
    try:
        return "regard" in json.loads((folder / "config.json").read_text("utf-8"))
    except (OSError, ValueError, TypeError, RecursionError):
        return False


def _from_transformers(transformers: Any, name: str, where: str, attn_implementation: str | None) -> Loaded:
    safe = {"trust_remote_code": False}
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
    chosen = {"attn_implementation": attn_implementation} if attn_implementation else {}
    if not hasattr(config.get_text_config(), "vocab_size"):
        raise InputError(f"the model {name!r} ({config.model_type}) reads no text: regard.watch sees it in Python")
    model, found = reader.from_pretrained(where, use_safetensors=True, output_loading_info=True, **safe, **chosen)
    _refuse_random_weights(name, found["missing_keys"])
    tokenizer = transformers.AutoTokenizer.from_pretrained(where, **safe)
    return Loaded(name, model.eval(), tokenizer, kind)


def _refuse_random_weights(name: str, missing: Iterable[str]) -> None:
    """Weights that a checkpoint lacks are drawn at random, and what they attend to would be shown as the model's."""
    lacking = sorted(one for one in missing if not _HEADS.search(one))
    if lacking:
        raise InputError(
            f"the checkpoint of {name!r} lacks {len(lacking)} weights, {lacking[0]} first: what it attends to would be "
            "random; load a whole checkpoint"
        )


def model_for(text: str) -> Loaded:
    """Load the bundled model that `name_for` chooses for a text."""
    return load_model(name_for(text))


def load_to_look_once(name: str | None, text: str) -> Loaded | str | None:
    """Load `me5` or `minilm` for one picture of a text, as a Transformer of ours, which opens sooner; or give the name.

    Its weights are those of transformers' model to a few units of float32; its layers have other names. Without a name
    the text chooses; a name of another model is returned as it is.

    Raises:
        BundledModelError: The model is not installed, or its files were changed.
        MissingExtraError: The extra `models` is not installed.
    """
    chosen = name_for(text) if name is None and text.strip() else name
    return cast("Loaded", _as_transformers().load_bundled(chosen)) if chosen in _OPENED_FAST else chosen


def name_for(text: str) -> str:
    """Choose a bundled model for a text: `minilm` where it knows its pieces as words, else `me5`.

    English vocabularies hold single letters of many scripts, so that to know every piece is not to read a text: its
    letters must be Latin, and its words of few pieces.
    """
    tokenizer = _as_transformers().load_bundled_tokenizer("minilm")
    latin = all(unicodedata.name(letter, "").startswith("LATIN") for letter in text if letter.isalpha())
    pieces = len(tokenizer(text, add_special_tokens=False)["input_ids"])
    reads = latin and pieces <= _PIECES * len(text.split()) and unknown_share(tokenizer, text) == 0
    return "minilm" if reads else "me5"


def _as_transformers() -> Any:
    return import_module("regard.models.as_transformers")  # which is above this folder


def advice(loaded: Loaded, text: str) -> str | None:
    """What to say of a model that does not know much of a text: which one would, or None where all is well."""
    share = unknown_share(loaded.tokenizer, text)
    if share <= _UNKNOWN:
        return None
    better = "--model me5 reads 100 languages" if loaded.name != "me5" else "no bundled model knows them"
    return f"{loaded.name} does not know {share:.0%} of this text's pieces and sees [UNK] in their place: {better}"


def positions(loaded: Loaded) -> int | None:
    """How many tokens the model can read, or None where nothing limits them."""
    config = loaded.model.config
    limit = getattr(config, "max_position_embeddings", None) or getattr(config, "n_positions", None)
    return int(limit) if limit and limit > 0 else None
