"""Texts as vectors, without padding."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from regard.errors import InputError
from regard.models.output_heads import SentenceEmbedding
from regard.models.transformer import Transformer

__all__ = ["embed"]


def embed(
    model: Transformer, input_ids: Sequence[Sequence[int]], *, max_tokens_per_batch: int = 4096
) -> Float[Tensor, "texts width"]:
    """One vector for each text; texts of one length share a batch, so that nothing is filled up or masked.

    Args:
        model: A Transformer with the head `output_heads.SentenceEmbedding`, such as
            `Transformer.from_pretrained("minilm", output_head=output_heads.SentenceEmbedding())`. It is put into
            eval mode for the call; no gradients are kept.
        input_ids: The tokens of each text, at least one.
        max_tokens_per_batch: Tokens of a batch at most; a longer text is a batch of its own.

    Raises:
        InputError: The model has another head, or a text is empty.
    """
    if not isinstance(model.config.output_head, SentenceEmbedding):
        raise InputError(
            "`model` must have the output head output_heads.SentenceEmbedding, "
            f"got {type(model.config.output_head).__name__ if model.config.output_head else 'none'}: load it with "
            "output_head=..."
        )
    by_length: dict[int, list[int]] = {}
    for place, text in enumerate(input_ids):
        if len(text) == 0:
            raise InputError(f"`input_ids` must have at least one token of each text, text {place} has none")
        by_length.setdefault(len(text), []).append(place)
    weight = model.embedding.weight
    vectors = weight.new_empty(len(input_ids), model.config.hidden_size)
    trained = model.training
    model.eval()
    try:
        with torch.inference_mode():
            for length, places in by_length.items():
                rows = max(1, max_tokens_per_batch // length)
                for first in range(0, len(places), rows):
                    some = places[first : first + rows]
                    ids = torch.tensor([list(input_ids[place]) for place in some], device=weight.device)
                    vectors[some] = model(ids).logits
    finally:
        model.train(trained)
    return vectors
