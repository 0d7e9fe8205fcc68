"""Attention for PyTorch that people can build with, trust and see."""

import importlib
from importlib import util
from typing import TYPE_CHECKING, Any

from regard.errors import AtlasError, InputError, MissingExtraError, ObservationError, RegardError

if TYPE_CHECKING:
    from regard import masks, models, nn, normalizers, positions, scores
    from regard.functional import attention, explain
    from regard.nn.summary import summary
    from regard.observe import statistics
    from regard.observe.records import Layer, Record
    from regard.seeing.ablate import ablated
    from regard.seeing.adapter import register_with_transformers
    from regard.seeing.compare import LookPair, compare_looks, compare_models, compare_records, compare_texts
    from regard.seeing.heads import head_scores
    from regard.seeing.likeness import head_likeness
    from regard.seeing.look import Looked, look
    from regard.seeing.models import load_model
    from regard.seeing.sight import Sight, load
    from regard.seeing.watch import watch

    __version__: str

__all__ = [
    "AtlasError",
    "InputError",
    "Layer",
    "LookPair",
    "Looked",
    "MissingExtraError",
    "ObservationError",
    "Record",
    "RegardError",
    "Sight",
    "ablated",
    "attention",
    "compare_looks",
    "compare_models",
    "compare_records",
    "compare_texts",
    "explain",
    "head_likeness",
    "head_scores",
    "load",
    "load_model",
    "look",
    "masks",
    "models",
    "nn",
    "normalizers",
    "positions",
    "prefer",
    "register_with_transformers",
    "scores",
    "statistics",
    "summary",
    "watch",
]


# Where each name comes from: read when it is asked for, as PyTorch takes seconds, and `regard --help` does without it.
_MODULES = {name: name for name in ("masks", "models", "nn", "normalizers", "positions", "scores")}
_MODULES["statistics"] = "observe.statistics"
_HOMES = {
    "attention": "functional",
    "explain": "functional",
    "prefer": "backends",
    "summary": "nn",
    "Layer": "observe.records",
    "Record": "observe.records",
    "Looked": "seeing.look",
    "Sight": "seeing.sight",
    "ablated": "seeing.ablate",
    "LookPair": "seeing.compare",
    "compare_looks": "seeing.compare",
    "compare_models": "seeing.compare",
    "compare_records": "seeing.compare",
    "compare_texts": "seeing.compare",
    "head_likeness": "seeing.likeness",
    "head_scores": "seeing.heads",
    "load": "seeing.sight",
    "load_model": "seeing.models",
    "look": "seeing.look",
    "register_with_transformers": "seeing.adapter",
    "watch": "seeing.watch",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return importlib.import_module("importlib.metadata").version("regard")
    if name in _MODULES or (name not in __all__ and util.find_spec(f"regard.{name}")):
        return importlib.import_module(f"regard.{_MODULES.get(name, name)}")
    if name not in __all__:
        raise AttributeError(f"module 'regard' has no attribute {name!r}")
    found = getattr(importlib.import_module(f"regard.{_HOMES[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "__version__"})
