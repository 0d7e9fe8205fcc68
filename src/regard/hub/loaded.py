"""What a model's name is opened as: the model with its tokenizer."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from regard.hub.catalogue import ModelKind

if TYPE_CHECKING:
    import torch

__all__ = ["Loaded", "quiet"]


@dataclass(frozen=True, eq=False)
class Loaded:
    """A model in eval mode with its tokenizer, of any kind that `regard.watch(tokenizer=)` takes.

    `target_tokenizer` is the tokenizer of the decoder's tokens if an encoder–decoder has a separate one.
    """

    name: str
    model: "torch.nn.Module"
    tokenizer: Any
    kind: ModelKind
    target_tokenizer: Any = None


@contextmanager
def quiet(logging: Any) -> Iterator[None]:
    """Silence the logger and the progress bars of transformers inside the `with` block."""
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()
