"""Pairs of token rows, source and target: the base of translation and the synthetic tasks."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from regard.data import pad
from regard.models.config import SpecialTokens
from regard.models.output_heads import LanguageModel
from regard.train.config import Config, Model
from regard.train.optimization import IGNORED
from regard.train.tasks.base import Batch, Task
from regard.train.tasks.build_model import pair_model

__all__ = ["PairsTask", "Rows"]

Rows = Sequence[tuple[list[int], list[int]]]  # (source, target), neither with a start token, the source with an end


class PairsTask(Task):
    """A task of pairs; a subclass sets `trained` and `held`."""

    def __init__(self, config: Config, folder: Path) -> None:
        super().__init__(config, folder)
        self.sizes = 0, 0  # of the vocabularies
        self.tokens = SpecialTokens()

    def take(self, trained: Rows, held: Rows) -> None:
        """Set the rows."""
        self.trained, self.held = list(trained), list(held)
        self.lengths, self.held_lengths = ([(len(a), len(b) + 1) for a, b in rows] for rows in (trained, held))

    def model(self, chosen: Model) -> Any:
        """Return an encoder–decoder with positions for twice the longest row."""
        longest = max(max(pair) for pair in (*self.lengths, *self.held_lengths))
        head = LanguageModel(tie_word_embeddings=True, bias=True)
        return pair_model(chosen, *self.sizes, self.tokens, head, 2 * longest)

    def rows(self, rows: Sequence[int], *, held: bool) -> Batch:
        """Return sources and targets: decoder inputs begin with the start token, labels end with the end token."""
        chosen = [(self.held if held else self.trained)[row] for row in rows]
        filled, start = self.tokens.pad_token_id or 0, self.tokens.bos_token_id
        assert start is not None
        ids, real = pad([source for source, _ in chosen], filled)
        read, _ = pad([[start, *target] for _, target in chosen], filled)  # no token attends to the padding after it
        labels, _ = pad([[*target, self.tokens.eos_token_ids[0]] for _, target in chosen], IGNORED)
        inputs = {"input_ids": ids, "decoder_input_ids": read}
        inputs |= {} if bool(real.all()) else {"attention_mask": real}
        return Batch(inputs, labels, int(real.sum()) + int((labels != IGNORED).sum()))


def written_of(model: Any, sources: Sequence[list[int]], *, rows: int = 100, **asked: Any) -> list[list[int]]:
    """Return what a model generates for each source, in batches of sources of like length, in the order given."""
    order = sorted(range(len(sources)), key=lambda row: len(sources[row]))
    found: list[list[int]] = [[] for _ in sources]
    for first in range(0, len(order), rows):
        chosen = order[first : first + rows]
        longest = max(len(sources[row]) for row in chosen)
        with torch.inference_mode():
            options = {"max_new_tokens": 2 * longest + 10, "return_dict_in_generate": True} | asked
            written = model.generate([sources[row] for row in chosen], **options).new_tokens
        for row, tokens in zip(chosen, written, strict=True):
            found[row] = tokens
    return found
