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
    from regard.seeing import (
        Looked,
        Sight,
        ablated,
        compare_models,
        compare_records,
        compare_texts,
        head_likeness,
        head_scores,
        load,
        load_model,
        register_with_transformers,
    )
    from regard.seeing.look import look
    from regard.seeing.watch import watch

__all__ = [
    "AtlasError",
    "InputError",
    "Layer",
    "Looked",
    "MissingExtraError",
    "ObservationError",
    "Record",
    "RegardError",
    "Sight",
    "ablated",
    "attention",
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
_MODULES = {"masks", "models", "nn", "normalizers", "positions", "scores"}
_HOMES = {
    "attention": "functional",
    "explain": "functional",
    "prefer": "backends",
    "summary": "nn",
    "statistics": "observe",
    "Layer": "observe.records",
    "Record": "observe.records",
}


def __getattr__(name: str) -> Any:
    if name in _MODULES or (name not in __all__ and util.find_spec(f"regard.{name}")):
        return importlib.import_module(f"regard.{name}")
    if name not in __all__:
        raise AttributeError(f"module 'regard' has no attribute {name!r}")
    found = getattr(importlib.import_module(f"regard.{_HOMES.get(name, 'seeing')}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
