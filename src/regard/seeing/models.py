"""A model and its tokenizer by name: one of the bundled ones, a folder, or an id of the Hugging Face hub."""

from pathlib import Path
from typing import Any

from regard.errors import InputError, MissingExtraError
from regard.seeing import bundled
from regard.seeing.bundled import BUNDLED, Loaded, ModelKind
from regard.seeing.bundled.load import quiet
from regard.seeing.tokens import unknown_share

__all__ = ["load_model", "model_for", "positions"]

_UNKNOWN = 0.1  # share of unknown pieces from which on a text is said to be beyond a model


def load_model(name: str, *, attn_implementation: str | None = None) -> Loaded:
    """Load a model in eval mode and its tokenizer; nothing that comes with a model is ever executed or unpickled.

    Args:
        name: `me5`, `minilm`, `smollm2`, a folder with a Hugging Face checkpoint, or an id of the hub.
        attn_implementation: As in transformers; by default PyTorch's fused kernel where the model has it.

    Raises:
        InputError: There is no such model, or it has no weights or no tokenizer.
        MissingExtraError: transformers is not installed.
    """
    if name in BUNDLED:
        return bundled.load(name, attn_implementation=attn_implementation or "sdpa")
    try:
        import transformers
    except ImportError as missing:
        raise MissingExtraError("transformers", "models") from missing
    if name.startswith((".", "/", "~")) and not Path(name).expanduser().is_dir():
        raise InputError(f"`model` {name!r} is no folder; bundled models: {', '.join(BUNDLED)}")
    where = str(Path(name).expanduser()) if Path(name).expanduser().is_dir() else name
    with quiet(transformers.utils.logging):
        try:
            return _from_transformers(transformers, name, where, attn_implementation)
        except (OSError, ValueError, KeyError, ImportError) as problem:
            reason = " ".join(str(problem).split())[:300] or type(problem).__name__
            raise InputError(f"cannot load the model {name!r}: {reason} (bundled: {', '.join(BUNDLED)})") from problem


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
    model = reader.from_pretrained(where, use_safetensors=True, **safe, **chosen)
    tokenizer = transformers.AutoTokenizer.from_pretrained(where, **safe)
    return Loaded(name, model.eval(), tokenizer, kind)


def model_for(text: str) -> Loaded:
    """Choose a bundled model for a text: `minilm` where it knows every piece of it, else `me5`."""
    loaded = load_model("minilm")
    return loaded if unknown_share(loaded.tokenizer, text) == 0 else load_model("me5")


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
