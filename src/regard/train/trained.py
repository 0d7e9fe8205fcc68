"""What `regard train` made, opened for looking: a run, its model or a checkpoint, called as those of transformers."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from regard.data import Vocabulary
from regard.errors import InputError, MissingExtraError
from regard.models import RecurrentConfig, RecurrentSeq2Seq, Transformer
from regard.models.written import to_json
from regard.seeing.bundled import Loaded
from regard.train.checkpoints import Checkpoints
from regard.train.config import Config
from regard.train.reading import from_mapping
from regard.train.tasks import task_of

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
    model, words = _at_step(folder) if (folder / "place.json").is_file() else (_model(folder), folder)
    opened = _Opened(model.eval())
    kind = opened.config.kind
    if kind == "encoder-decoder":
        if not (words / "source.json").is_file():
            raise InputError(f"{name} was trained on made-up symbols, which are no text: there is nothing to tokenize")
        source, target = (Vocabulary.load(words / f"{side}.json") for side in ("source", "target"))
        return Loaded(name, opened, _tokenizer(source, end=True), kind, _tokenizer(target, end=True))
    if not (words / "tokenizer.json").is_file():
        raise InputError(
            f"{name} has no tokenizer.json: put the one that the model was trained with beside its weights"
        )
    vocabulary = Vocabulary.load(words / "tokenizer.json")
    starts = vocabulary.start is not None and (kind == "encoder" or vocabulary.start != vocabulary.end)
    return Loaded(name, opened, _tokenizer(vocabulary, start=starts, end=kind == "encoder"), kind)


def _model(folder: Path) -> Any:
    try:
        recurrent = "RecurrentConfig" in (folder / "config.json").read_text("utf-8")
    except (OSError, UnicodeDecodeError) as problem:
        raise InputError(f"cannot read {folder / 'config.json'}: {problem}") from problem
    return (RecurrentSeq2Seq if recurrent else Transformer).from_pretrained(folder)


def _at_step(folder: Path) -> tuple[Any, Path]:
    """The model of a checkpoint, made anew by its run's task, and where its tokenizers are."""
    run = folder.parent.parent
    try:
        config = json.loads((run / "run.json").read_text("utf-8"))["config"]
        step = int(folder.name.removeprefix("step-"))
    except (OSError, ValueError, KeyError, TypeError) as problem:
        raise InputError(f"{folder} is no checkpoint within the folder of its run: {problem}") from problem
    asked: Config = from_mapping(Config, config)
    model = task_of(asked, run / "vocabulary").model(asked.model)
    model.load_state_dict(Checkpoints(folder.parent).weights(step))
    return model, run / "vocabulary"


def _tokenizer(vocabulary: Vocabulary, *, start: bool = False, end: bool = False) -> Any:
    """A tokenizer of transformers that puts around a text what training put there."""
    try:
        from tokenizers import Tokenizer, processors
        from transformers import PreTrainedTokenizerFast
    except ImportError as missing:
        raise MissingExtraError(missing.name or "transformers", "models") from missing
    ids = {role: getattr(vocabulary, role) for role in _IN_TRANSFORMERS if getattr(vocabulary, role) is not None}
    named = {role: str(vocabulary.tokenizer.id_to_token(one)) for role, one in ids.items()}
    before = [named["start"]] if start and "start" in named else []
    behind = [named["end"]] if end and "end" in named else []
    backend = Tokenizer.from_str(vocabulary.json)
    backend.no_truncation()
    backend.no_padding()
    backend.post_processor = processors.TemplateProcessing(
        single=[*before, "$A", *behind],
        special_tokens=[(named[role], ids[role]) for role in ("start", "end") if named.get(role) in before + behind],
    )
    special = {_IN_TRANSFORMERS[role]: token for role, token in named.items()}
    return PreTrainedTokenizerFast(tokenizer_object=backend, split_special_tokens=True, **special)


_IN_TRANSFORMERS = {
    "pad": "pad_token", "start": "bos_token", "end": "eos_token", "unknown": "unk_token", "mask": "mask_token"
}  # fmt: skip


@dataclass(frozen=True)
class _OpenedConfig:
    """What is asked of a configuration of transformers."""

    kind: Any
    max_position_embeddings: int | None
    num_hidden_layers: int | None  # None where calls of attention are not counted so
    num_layers: int | None
    num_decoder_layers: int | None
    decoder_start_token_id: int | None
    text: str

    def to_json_string(self) -> str:
        """All of it, for telling runs apart."""
        return self.text


class _Result(NamedTuple):
    logits: Tensor | None
    last_hidden_state: Tensor | None


class _Opened(nn.Module):
    """A model of ours, called as one of transformers."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        config = model.config
        recurrent = isinstance(config, RecurrentConfig)
        paired = recurrent or config.kind == "encoder-decoder"
        layers = (None, None) if recurrent else (config.encoder_layers, config.decoder_layers)
        self.config = _OpenedConfig(
            kind="encoder-decoder" if recurrent else config.kind,
            max_position_embeddings=getattr(config, "length", None),
            num_hidden_layers=None if paired else sum(one or 0 for one in layers),
            num_layers=layers[0],
            num_decoder_layers=layers[1],
            decoder_start_token_id=config.start_token if recurrent else config.tokens.start,
            text=json.dumps(to_json(config)),
        )

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, decoder_input_ids: Tensor | None = None, **_: Any
    ) -> _Result:
        """Run on a text, or on a source and a target."""
        given = [input_ids] if decoder_input_ids is None else [input_ids, decoder_input_ids]
        real = None if attention_mask is None or bool(attention_mask.all()) else attention_mask.bool()
        found = self.model(*given, real=real)
        return _Result(found.logits, getattr(found, "states", None))

    def generate(self, input_ids: Tensor, max_new_tokens: int, **_: Any) -> Tensor:
        """What an encoder–decoder writes, its start token first."""
        written = self.model.generate(input_ids.tolist(), most=max_new_tokens)[0]
        return torch.tensor([[self.config.decoder_start_token_id or 0, *written]])

    def get_input_embeddings(self) -> nn.Embedding:
        """The table of the tokens that are read."""
        return next(one for one in self.model.modules() if isinstance(one, nn.Embedding))
