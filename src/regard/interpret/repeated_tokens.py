"""Sequences of random tokens that are repeated once: only a head that attends to the first copy can predict the
second.
"""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from regard.errors import InputError
from regard.interpret.bundled import Loaded
from regard.interpret.model_loading import positions

__all__ = ["Probe", "Repeated", "repeated_tokens"]


@dataclass(frozen=True)
class Probe:
    """`sequences` random sequences of `length` different tokens, each repeated once (Olsson et al. 2022,
    arXiv:2209.11895).
    """

    length: int = 32
    sequences: int = 4
    seed: int = 0

    def __post_init__(self) -> None:
        if self.length < 2 or self.sequences < 1:
            raise InputError(
                f"`Probe` needs a length from 2 and at least 1 sequence, got {self.length} and {self.sequences}"
            )

    def __str__(self) -> str:
        return f"{self.sequences} × 2 × {self.length} random tokens"


@dataclass(frozen=True, eq=False)
class Repeated:
    """Token ids of shape (sequences, positions), with the model's special tokens around them, and the positions of the
    second copy.
    """

    ids: Int[Tensor, "sequences positions"]
    first: slice
    second: slice


def repeated_tokens(loaded: Loaded, probe: Probe) -> Repeated:
    """Draw tokens uniformly from a model's vocabulary, without special tokens and without repetition within a copy.

    Raises:
        InputError: The model has too few tokens or positions for the length.
    """
    before, after = _around(loaded)
    allowed = _plain(loaded)
    needed, limit = len(before) + 2 * probe.length + len(after), positions(loaded)
    if len(allowed) < probe.length:
        raise InputError(
            f"`Probe` of {probe.length} different tokens needs as many, and {loaded.name} has {len(allowed)}: choose "
            f"Probe(length={len(allowed)}) or less"
        )
    if limit is not None and needed > limit:
        raise InputError(
            f"`Probe` of twice {probe.length} tokens takes {needed} positions, and {loaded.name} has {limit}: choose "
            f"Probe(length={max(2, (limit - len(before) - len(after)) // 2)})"
        )
    generator = np.random.default_rng(probe.seed)
    rows = []
    for _ in range(probe.sequences):
        drawn = generator.choice(allowed, probe.length, replace=False).tolist()
        rows.append([*before, *drawn, *drawn, *after])
    start = len(before)
    middle = start + probe.length
    return Repeated(torch.tensor(rows), slice(start, middle), slice(middle, middle + probe.length))


def _around(loaded: Loaded) -> tuple[list[int], list[int]]:
    """Return the special tokens that the tokenizer adds before and after a text."""
    ids: list[int] = loaded.tokenizer("a", verbose=False)["input_ids"]
    special = set(loaded.tokenizer.all_special_ids)
    own = [at for at, one in enumerate(ids) if one not in special]
    return (ids[: own[0]], ids[own[-1] + 1 :]) if own else (ids, [])


def _plain(loaded: Loaded) -> list[int]:
    tokenizer = loaded.tokenizer
    added = getattr(tokenizer, "added_tokens_decoder", {})
    special = {one for one, token in added.items() if getattr(token, "special", False)} | set(tokenizer.all_special_ids)
    rows = loaded.model.get_input_embeddings().weight.shape[0]  # type: ignore[operator]
    return [one for one in range(min(len(tokenizer), rows)) if one not in special]
