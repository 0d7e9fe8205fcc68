"""Load the bundled models from verified files, without network access and without output on the terminal."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.errors import MissingExtraError
from regard.interpret.bundled.cache import converted
from regard.interpret.bundled.catalogue import BundledModelError, ModelKind, bundled
from regard.interpret.bundled.install import verified

if TYPE_CHECKING:
    import torch

__all__ = ["Loaded", "folder", "load", "quiet", "tokenizer_folder"]

_CONVERTED = ("me5", "smollm2")  # converted by the module of that name, which needs NumPy


@dataclass(frozen=True, eq=False)
class Loaded:
    """A model in eval mode with its tokenizer, which returns offsets (`return_offsets_mapping=True` works).

    `target_tokenizer` is the tokenizer of the decoder's tokens if an encoder–decoder has a separate one.
    """

    name: str
    model: "torch.nn.Module"
    tokenizer: Any
    kind: ModelKind
    target_tokenizer: Any = None


def load(name: str, *, attn_implementation: str = "sdpa", dtype: "torch.dtype | None" = None) -> Loaded:
    """Load a bundled model that is installed: verify its files, convert them at first use, and load them.

    `dtype` is float32 unless named. Raise BundledModelError if the model is not installed or its files were changed.
    """
    model = bundled(name)
    try:
        import safetensors
        import tokenizers
        import transformers
    except ImportError as error:
        raise MissingExtraError(error.name or "transformers", "models") from error
    del safetensors, tokenizers
    with quiet(transformers.utils.logging):
        where = folder(name)
        network = _read_model(transformers, where, model.kind, attn_implementation, dtype)
        tokenizer = transformers.AutoTokenizer.from_pretrained(where, local_files_only=True, trust_remote_code=False)
    network.config._name_or_path = name  # the model's name in a record
    return Loaded(name, network, tokenizer, model.kind)


def folder(name: str) -> Path:
    """Return the checkpoint folder of a bundled model, verified and, at first use, converted."""
    source = verified(name)
    if name not in _CONVERTED:
        return source.parent
    conversion = import_module(f"regard.interpret.bundled.{name}")
    return converted(name, bundled(name).file_sha256, conversion.VERSION, partial(conversion.convert, source))


def tokenizer_folder(name: str) -> Path:
    """Return the folder with a bundled model's tokenizer, verified; where weights are beside it they are not read."""
    return folder(name) if name in _CONVERTED else verified(name, "tokenizer.json", "tokenizer_config.json").parent


def _read_model(transformers: Any, folder: Path, kind: ModelKind, attention: str, dtype: "torch.dtype | None") -> Any:
    import torch

    reader = transformers.AutoModelForCausalLM if kind == "decoder" else transformers.AutoModel
    # The output is that of the last layer, never of the pooler, which me5 does not have.
    without_pooler = {} if kind == "decoder" else {"add_pooling_layer": False}
    network, found = reader.from_pretrained(
        folder,
        attn_implementation=attention,
        dtype=dtype or torch.float32,
        local_files_only=True,
        trust_remote_code=False,
        use_safetensors=True,
        output_loading_info=True,
        **without_pooler,
    )
    if missing := sorted(found["missing_keys"]):
        raise BundledModelError(
            f"the weights in {folder} must be whole, {len(missing)} are missing, {missing[0]} first: "
            "delete that folder and load again"
        )
    return network.eval()


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
