"""What `regard train` made, opened for looking: a run, its model or a checkpoint, called as those of transformers."""

import json
from pathlib import Path
from typing import Any

from regard.data import Tokenizer
from regard.errors import InputError, MissingExtraError
from regard.files import read_text
from regard.hub import Loaded
from regard.models.as_transformers import AsTransformers
from regard.models.inputs_outputs import SpecialTokens
from regard.strict_json import is_version
from regard.train.checkpoints import Checkpoints
from regard.train.config import Config, task_of
from regard.train.key_names import FORMAT
from regard.train.translator import saved_model

__all__ = ["load_trained"]


def load_trained(name: str) -> Loaded:
    """Load a model of our own with its tokenizer.

    Args:
        name: The folder of a run, the `model` folder in it, one of its checkpoints, or what `save_pretrained` wrote
            with a tokenizer.json beside it. Of a run without a model yet the last checkpoint is taken.

    Raises:
        InputError: There is no model in it, or its tokens are no text.
        MissingExtraError: transformers or tokenizers is not installed.
    """
    folder = Path(name).expanduser()
    if (folder / "run.json").is_file():
        steps = Checkpoints(folder / "checkpoints").steps()
        if not (folder / "model").is_dir() and not steps:
            raise InputError(f"the run in {name} has no model and no checkpoint yet: train on")
        folder = folder / "model" if (folder / "model").is_dir() else Checkpoints(folder / "checkpoints").at(steps[-1])
    model, words = _at_step(folder) if (folder / "place.json").is_file() else (saved_model(folder), folder)
    opened = AsTransformers(model.eval())
    kind = opened.config.kind
    if kind == "encoder-decoder":
        if not (words / "source.json").is_file():
            raise InputError(f"{name} was trained on made-up symbols, which are no text: there is nothing to tokenize")
        source, target = (Tokenizer.load(words / f"{side}.json") for side in ("source", "target"))
        forced = getattr(model.config, "special_tokens", SpecialTokens()).forced_bos_token_id
        return Loaded(name, opened, _tokenizer(source, eos=True), kind, _tokenizer(target, bos=forced, eos=True))
    if not (words / "tokenizer.json").is_file():
        raise InputError(
            f"{name} has no tokenizer.json: put the one that the model was trained with beside its weights"
        )
    vocabulary = Tokenizer.load(words / "tokenizer.json")
    starts = vocabulary.bos_token_id is not None and (
        kind == "encoder" or vocabulary.bos_token_id != vocabulary.eos_token_id
    )
    start = vocabulary.bos_token_id if starts else None
    return Loaded(name, opened, _tokenizer(vocabulary, bos=start, eos=kind == "encoder"), kind)


def _at_step(folder: Path) -> tuple[Any, Path]:
    """The model of a checkpoint, made anew by its run's task, and where its tokenizers are."""
    run = folder.parent.parent
    try:
        record = json.loads(read_text(run / "run.json"))
        config, version, data = record["config"], record.get("version", 1), dict(record.get("data", {}))
        step = int(folder.name.removeprefix("step-"))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as problem:
        raise InputError(f"{folder} is no checkpoint within the folder of its run: {problem}") from problem
    if not is_version(version, FORMAT):
        raise InputError(
            f"{run / 'run.json'} is of format {version}, and this release reads format {FORMAT}: open it with the "
            "release that trained it"
        )
    restored = Config.from_dict(config)
    task = task_of(restored, run / "vocabulary")
    for name in ("source.json", "target.json", "tokenizer.json"):
        if name in data and task.data.get(name) != data[name]:
            raise InputError(
                f"cannot read {run / 'vocabulary' / name}: its SHA-256 is not that of the run's start, so it was "
                "damaged or changed; bring the old file back"
            )
    model = task.model(restored.model)
    model.load_state_dict(Checkpoints(folder.parent).weights(step))
    return model, run / "vocabulary"


def _tokenizer(vocabulary: Tokenizer, *, bos: int | None = None, eos: bool = False) -> Any:
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
