"""What regard saved, opened by its name: the model in modules of ours, called as those of transformers, and its
tokenizer; and the tokenizer of any model, by transformers.
"""

from collections.abc import Sequence
from typing import Any

from regard.data import Tokenizer
from regard.errors import InputError, MissingExtraError
from regard.hub import Loaded
from regard.hub.file_faults import check_files
from regard.hub.loaded import quiet
from regard.hub.model_files import ModelFiles
from regard.models.as_transformers import AsTransformers
from regard.models.checkpoint_files import Checkpoint
from regard.models.recurrent import RecurrentConfig, RecurrentSeq2Seq
from regard.models.transformer import Transformer

__all__ = ["load_saved", "load_tokenizer", "pair_tokenizers", "saved_model"]


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

    The tokenizer puts the special tokens around a text that training put there: those of its template.

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
    if kind == "encoder-decoder":
        source, target = pair_tokenizers(files)
        tokens = opened.model.config.special_tokens
        around = tokens.around_target(target.template, target.eos_token_id)
        return Loaded(name, opened, _of_transformers(source, source.template), kind, _of_transformers(target, around))
    if files.file("tokenizer_config.json") is not None:
        return Loaded(name, opened, load_tokenizer(files.chosen), kind)
    if (path := files.file("tokenizer.json")) is None:
        raise InputError(
            f"{name} has no tokenizer.json: put the one that the model was trained with beside its weights"
        )
    vocabulary = Tokenizer.load_saved(path, bos=True, eos=kind == "encoder")
    return Loaded(name, opened, _of_transformers(vocabulary, vocabulary.template), kind)


def pair_tokenizers(files: ModelFiles) -> tuple[Tokenizer, Tokenizer]:
    """Return the tokenizers of a saved encoder–decoder's sources and targets, which are one where a checkpoint had one.

    Raises:
        InputError: There are none, as the model was trained on made-up symbols, or one cannot be read.
    """
    paths = [files.file(name) or files.file("tokenizer.json") for name in ("source.json", "target.json")]
    if None in paths:
        raise InputError(
            f"{files.name} was trained on made-up symbols, which are no text: there is nothing to tokenize"
        )
    source, target = (Tokenizer.load_saved(path, eos=True) for path in paths if path is not None)
    return source, target


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


def _of_transformers(vocabulary: Tokenizer, around: tuple[Sequence[int], Sequence[int]]) -> Any:
    """Return a tokenizer of transformers that puts the tokens `around` each text, before and after it."""
    try:
        from tokenizers import Tokenizer as Backend
        from tokenizers import processors
        from transformers import PreTrainedTokenizerFast
    except ImportError as missing:
        raise MissingExtraError(missing.name or "transformers", "models") from missing
    ids = {role: getattr(vocabulary, f"{role}_token_id") for role in ("pad", "bos", "eos", "unk", "mask")}
    special = {
        f"{role}_token": str(vocabulary.backend_tokenizer.id_to_token(one))
        for role, one in ids.items()
        if one is not None
    }
    before, after = (list(vocabulary.convert_ids_to_tokens(some)) for some in around)
    backend = Backend.from_str(vocabulary.json)
    backend.no_truncation()
    backend.no_padding()
    backend.post_processor = processors.TemplateProcessing(
        single=[*before, "$A", *after],
        special_tokens=list(zip([*before, *after], [*around[0], *around[1]], strict=True)),
    )
    is_split = vocabulary.split_special_tokens
    return PreTrainedTokenizerFast(tokenizer_object=backend, split_special_tokens=is_split, **special)
