"""A translation written a token at a time: at each step the likeliest tokens, and the weights of cross-attention."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from regard.errors import InputError
from regard.hub import Loaded
from regard.interpret.look import prepare
from regard.interpret.watch import watch
from regard.models import TransformerConfig
from regard.record.tokenizer_adapter import adapt
from regard.record.tokens_from_tokenizer import tokens_of

__all__ = ["RecordedTranslation", "TranslationStep", "record_translation"]

_LIKELIEST = 5
_DIGITS = 4  # of weights and probabilities, after the point


@dataclass(frozen=True, kw_only=True)
class TranslationStep:
    """One step of a decoder: it reads `input`, the token written before, and writes `token`.

    `likeliest` holds the five likeliest tokens with their probabilities (all where the vocabulary is smaller).
    `weights` holds a row of cross-attention, with a weight for each source token, for each head of each layer.
    """

    input: str
    token: str
    special: bool
    probability: float
    likeliest: tuple[tuple[str, float], ...]
    weights: tuple[tuple[tuple[float, ...], ...], ...]


@dataclass(frozen=True, kw_only=True)
class RecordedTranslation:
    """A sentence, its translation, and the steps in which it was written; `ended` is whether an end token was written.

    `special` has a flag for each source token: whether it stands for no text. `sizes` are those of a Transformer of
    `regard train`, by the names of its configuration, and None for other models.
    """

    model: str
    sentence: str
    translation: str
    source: tuple[str, ...]
    special: tuple[bool, ...]
    steps: tuple[TranslationStep, ...]
    ended: bool
    sizes: Mapping[str, int | bool | None] | None


def record_translation(model: str | Loaded, sentence: str) -> RecordedTranslation:
    """Translate a sentence greedily, and return each written token with the row of cross-attention that it came from.

    The row of a step is that of the decoder's input token, by which the next token is chosen. Numbers are rounded to
    four digits after the point.

    Args:
        model: A run of `regard train`, another name that `regard.load_model` takes, or a loaded model: an
            encoder–decoder with attention.
        sentence: The source.

    Raises:
        InputError: The sentence is empty or too long, or the model is no encoder–decoder, or its attention is none
            between its two sides.
        ObservationError: The model has no attention, or none that can be seen.
        MissingExtraError: transformers or tokenizers is not installed.

        record_translation("runs/learning-machines", "I love deep learning.").steps[2].likeliest
    """
    prepared = prepare(sentence, model=model)
    loaded = prepared.loaded
    if loaded.kind != "encoder-decoder":
        raise InputError(
            f"`model` must be a translator, an encoder–decoder, got {loaded.name}, whose kind is {loaded.kind}: name a "
            "run of `regard train` whose task is translation"
        )
    tokenizer = loaded.tokenizer if loaded.target_tokenizer is None else loaded.target_tokenizer
    inputs = prepared.inputs["decoder_input_ids"][0].tolist()
    with torch.inference_mode(), watch(loaded.model, keep="weights") as seen:
        logits = loaded.model(**prepared.inputs).logits[0].double()
    cross = [seen.record.weights(layer=layer)[0].tolist() for layer in seen.record.layers if layer.kind == "cross"]
    if not cross:
        raise InputError(f"{loaded.name} has no attention from its target to its source: name a translator that has")
    probabilities = logits.softmax(-1)
    written = [*inputs[1:], int(probabilities[-1].argmax())]
    tokens = tokens_of(tokenizer, [inputs[0], *written])
    steps = tuple(
        TranslationStep(
            input=tokens[number].text,
            token=tokens[number + 1].text,
            special=tokens[number + 1].special,
            probability=_rounded(probabilities[number, token]),
            likeliest=_likeliest(tokenizer, probabilities[number]),
            weights=tuple(tuple(tuple(map(_rounded, head[number])) for head in layer) for layer in cross),
        )
        for number, token in enumerate(written)
    )
    adapter, (source,) = adapt(tokenizer), prepared.tokens["source"]
    return RecordedTranslation(
        model=loaded.name,
        sentence=sentence,
        translation=adapter.text_of([one for one in written if one not in adapter.special]).text.strip(),
        source=tuple(token.text for token in source),
        special=tuple(token.special for token in source),
        steps=steps,
        ended=steps[-1].special,
        sizes=_sizes(loaded),
    )


def _sizes(loaded: Loaded) -> dict[str, Any] | None:
    config = getattr(getattr(loaded.model, "model", None), "config", None)
    names = (
        "encoder_layers",
        "decoder_layers",
        "hidden_size",
        "num_attention_heads",
        "intermediate_size",
        "norm_first",
    )
    return {name: getattr(config, name) for name in names} if isinstance(config, TransformerConfig) else None


def _likeliest(tokenizer: Any, probabilities: Float[Tensor, " vocabulary"]) -> tuple[tuple[str, float], ...]:
    values, ids = probabilities.topk(min(_LIKELIEST, len(probabilities)))
    texts = [tokens_of(tokenizer, [token])[0].text for token in ids.tolist()]
    return tuple(zip(texts, map(_rounded, values), strict=True))


def _rounded(value: float | Tensor) -> float:
    return round(float(value), _DIGITS)
