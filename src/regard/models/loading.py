"""What regard saved, opened by its name: the model in modules of ours, called as those of transformers, and its
tokenizer; and the tokenizer of any model, by transformers.
"""

from typing import Any

from regard.data import Tokenizer
from regard.errors import InputError, MissingExtraError
from regard.hub import Loaded
from regard.hub.file_faults import check_files
from regard.hub.loaded import quiet
from regard.hub.model_files import ModelFiles
from regard.models.as_transformers import AsTransformers
from regard.models.checkpoint_files import Checkpoint
from regard.models.inputs_outputs import SpecialTokens
from regard.models.recurrent import RecurrentConfig, RecurrentSeq2Seq
from regard.models.transformer import Transformer

__all__ = ["load_saved", "load_tokenizer", "saved_model"]


def saved_model(name: str) -> Transformer | RecurrentSeq2Seq:
    """Load a model that regard saved, of whichever kind it is.

    Args:
        name: Its folder, a run of `regard train`, or a checkpoint in it.

    Raises:
        InputError: There is none, or its files were changed.
    """
    checkpoint = Checkpoint(name)
    saved = checkpoint.config().get("regard")
    recurrent = isinstance(saved, dict) and saved.get("kind") == RecurrentConfig.__name__
    return (RecurrentSeq2Seq if recurrent else Transformer).from_pretrained(checkpoint.chosen)


def load_saved(name: str) -> Loaded:
    """Load a model that regard saved, called as those of transformers, with its tokenizer.

    The tokenizer is the one that training saved, which adds the special tokens that training added, or one of
    transformers with a tokenizer_config.json.

    Args:
        name: Its folder, a run of `regard train`, or a checkpoint in it; of a run without a model yet the last
            checkpoint is taken.

    Raises:
        InputError: There is no model in it, its files were changed, or its tokens are no text.
        MissingExtraError: transformers or tokenizers is not installed.
    """
    files = ModelFiles(name)
    opened = AsTransformers(saved_model(files.chosen).eval())
    kind = opened.config.kind
    if files.file("tokenizer_config.json") is not None:
        return Loaded(name, opened, load_tokenizer(files.chosen), kind)
    if kind == "encoder-decoder":
        source, target = (files.file(f"{side}.json") for side in ("source", "target"))
        if source is None or target is None:
            raise InputError(f"{name} was trained on made-up symbols, which are no text: there is nothing to tokenize")
        forced = getattr(opened.model.config, "special_tokens", SpecialTokens()).forced_bos_token_id
        return Loaded(
            name,
            opened,
            _with_special_tokens(Tokenizer.load(source), eos=True),
            kind,
            _with_special_tokens(Tokenizer.load(target), bos=forced, eos=True),
        )
    if (path := files.file("tokenizer.json")) is None:
        raise InputError(
            f"{name} has no tokenizer.json: put the one that the model was trained with beside its weights"
        )
    vocabulary = Tokenizer.load(path)
    starts = vocabulary.bos_token_id is not None and (
        kind == "encoder" or vocabulary.bos_token_id != vocabulary.eos_token_id
    )
    start = vocabulary.bos_token_id if starts else None
    return Loaded(name, opened, _with_special_tokens(vocabulary, bos=start, eos=kind == "encoder"), kind)


def load_tokenizer(name: str) -> Any:
    """Load a model's tokenizer by transformers.

    Args:
        name: A folder, an id of the hub, or a bundled model.

    Raises:
        InputError: It has none, or transformers cannot read it.
        MissingExtraError: transformers is not installed.
    """
    try:
        import transformers
    except ImportError as missing:
        raise MissingExtraError(missing.name or "transformers", "models") from missing
    files = ModelFiles(name)
    if files.folder is not None:
        check_files(files.folder)
    where, safe = files.folder or name, {"trust_remote_code": False, "local_files_only": files.is_local}
    with quiet(transformers.utils.logging):
        try:
            tokenizer = transformers.AutoTokenizer.from_pretrained(where, **safe)
        except Exception as problem:  # the library tokenizers raises nothing more special for a broken file
            reason = " ".join(str(problem).split())[:300] or type(problem).__name__
            raise _no_tokenizer(name, reason) from problem
    if len(tokenizer) - len(tokenizer.added_tokens_decoder) < 2:  # transformers makes up one without words
        raise _no_tokenizer(name, "there is none")
    return tokenizer


def _no_tokenizer(name: str, reason: str) -> InputError:
    return InputError(
        f"cannot load the tokenizer of {name!r}: put it beside the weights with tokenizer.save_pretrained ({reason})"
    )


def _with_special_tokens(vocabulary: Tokenizer, *, bos: int | None = None, eos: bool = False) -> Any:
    """Return a tokenizer of transformers that adds the special tokens that training added: `bos`, and the end token."""
    try:
        from tokenizers import Tokenizer as Backend
        from tokenizers import processors
        from transformers import PreTrainedTokenizerFast
    except ImportError as missing:
        raise MissingExtraError(missing.name or "transformers", "models") from missing
    ids = {role: getattr(vocabulary, f"{role}_token_id") for role in ("pad", "bos", "eos", "unk", "mask")}
    ids = {role: one for role, one in ids.items() if one is not None}
    named = {role: str(vocabulary.backend_tokenizer.id_to_token(one)) for role, one in ids.items()}
    before = {} if bos is None else {str(vocabulary.backend_tokenizer.id_to_token(bos)): bos}
    after = {named["eos"]: ids["eos"]} if eos and "eos" in named else {}
    backend = Backend.from_str(vocabulary.json)
    backend.no_truncation()
    backend.no_padding()
    backend.post_processor = processors.TemplateProcessing(
        single=[*before, "$A", *after],
        special_tokens=list((before | after).items()),
    )
    special = {f"{role}_token": token for role, token in named.items()}
    return PreTrainedTokenizerFast(tokenizer_object=backend, split_special_tokens=True, **special)
