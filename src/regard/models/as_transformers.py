"""Models of ours called as those of transformers, for what looks at any model; and bundled ones opened without it."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from regard.errors import MissingExtraError
from regard.hub import Loaded
from regard.hub.catalogue import bundled
from regard.hub.converted import folder, tokenizer_folder
from regard.models.pretrained_mixin import to_json
from regard.models.recurrent import RecurrentConfig
from regard.models.transformer import Transformer

__all__ = ["AsTransformers", "FileTokenizer", "load_bundled", "load_bundled_tokenizer"]


def load_bundled(name: str) -> Loaded:
    """Open a bundled encoder as a Transformer of ours, without importing transformers.

    Raises:
        BundledModelError: The model is not installed, or its files were changed.
        MissingExtraError: safetensors or tokenizers is not installed.
    """
    where = folder(name)  # once: each time the files' checksums are computed
    model = Transformer.from_pretrained(where, dtype=torch.float32)
    return Loaded(name, AsTransformers(model.eval()), FileTokenizer(where), bundled(name).kind)


def load_bundled_tokenizer(name: str) -> "FileTokenizer":
    """Open the tokenizer of a bundled model alone."""
    return FileTokenizer(tokenizer_folder(name))


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


class AsTransformers(nn.Module):
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
            max_position_embeddings=getattr(config, "max_position_embeddings", None),
            num_hidden_layers=None if paired else sum(one or 0 for one in layers),
            num_layers=layers[0],
            num_decoder_layers=layers[1],
            decoder_start_token_id=config.bos_token_id if recurrent else config.start_token_id,
            text=json.dumps(to_json(config)),
        )

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, decoder_input_ids: Tensor | None = None, **_: Any
    ) -> _Result:
        """Run on a text, or on a source and a target."""
        given = {} if decoder_input_ids is None else {"decoder_input_ids": decoder_input_ids}
        mask = None if attention_mask is None or bool(attention_mask.all()) else attention_mask
        found = self.model(input_ids, attention_mask=mask, **given)
        return _Result(found.logits, getattr(found, "last_hidden_state", None))

    def generate(self, input_ids: Tensor, max_new_tokens: int, **_: Any) -> Tensor:
        """What an encoder–decoder writes, token by token the likeliest one, its start token first."""
        options = {"max_new_tokens": max_new_tokens, "do_sample": False, "num_beams": 1, "num_return_sequences": 1}
        sequences: Tensor = self.model.generate(input_ids, **options)
        return sequences

    def get_input_embeddings(self) -> nn.Embedding:
        """The table of the tokens that are read."""
        return next(one for one in self.model.modules() if isinstance(one, nn.Embedding))


class FileTokenizer:
    """A folder's tokenizer.json with the calls that looking needs of a tokenizer of transformers.

    Raises:
        MissingExtraError: tokenizers is not installed.
    """

    def __init__(self, where: Path) -> None:
        try:
            from tokenizers import Tokenizer
        except ImportError as missing:
            raise MissingExtraError("tokenizers", "models") from missing
        self.backend_tokenizer = Tokenizer.from_file(str(where / "tokenizer.json"))
        self.backend_tokenizer.no_truncation()
        self.backend_tokenizer.no_padding()
        settings = json.loads((where / "tokenizer_config.json").read_text("utf-8"))
        named = {key: self.backend_tokenizer.token_to_id(settings[key]) for key in _SPECIAL if key in settings}
        self.all_special_ids = sorted({number for number in named.values() if number is not None})
        self.unk_token_id: int | None = named.get("unk_token")
        self.added_tokens_decoder = self.backend_tokenizer.get_added_tokens_decoder()

    def __call__(
        self, text: str, *, add_special_tokens: bool = True, return_offsets_mapping: bool = False, **_: Any
    ) -> dict[str, Any]:
        """Give `input_ids` and, on request, the `offset_mapping` of a text; it is neither cut nor padded."""
        encoded = self.backend_tokenizer.encode(text, add_special_tokens=add_special_tokens)
        return {"input_ids": encoded.ids} | ({"offset_mapping": encoded.offsets} if return_offsets_mapping else {})

    def convert_ids_to_tokens(self, ids: list[int]) -> list[str | None]:
        """How the vocabulary spells each id."""
        return [self.backend_tokenizer.id_to_token(number) for number in ids]


_SPECIAL = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
