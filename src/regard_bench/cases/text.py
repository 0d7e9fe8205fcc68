"""Real text to read: what is attended to decides what top-k costs, and random tokens are attended to by chance."""

from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

import regard
from regard.errors import InputError

__all__ = ["real_tokens"]

_SOURCES = Path(regard.__file__).parent


def real_tokens(tokenizer: Any, count: int) -> Int[Tensor, "1 count"]:
    """The first tokens of regard's own source code.

    Raises:
        InputError: It has fewer.
    """
    text = "\n".join(path.read_text(encoding="utf-8") for path in sorted(_SOURCES.rglob("*.py")))
    ids = tokenizer(text[: 12 * count], verbose=False)["input_ids"][:count]
    if len(ids) < count:
        raise InputError(f"`count` must be at most {len(ids):,}, the tokens of regard's sources, got {count:,}")
    return torch.tensor([ids])
