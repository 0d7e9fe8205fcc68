"""Attention for PyTorch that people can build with, trust and see."""

import importlib
from typing import TYPE_CHECKING, Any

from regard import masks, nn, normalizers, positions, scores
from regard.errors import AtlasError, InputError, MissingExtraError, ObservationError, RegardError
from regard.functional import attention, explain
from regard.nn import summary
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
    look,
    register_with_transformers,
    watch,
)

if TYPE_CHECKING:
    from regard import models

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
    "register_with_transformers",
    "scores",
    "statistics",
    "summary",
    "watch",
]


def __getattr__(name: str) -> Any:
    """Load `regard.models` when it is asked for: it brings huggingface_hub, which takes its time."""
    if name == "models":
        return importlib.import_module("regard.models")
    raise AttributeError(f"module 'regard' has no attribute {name!r}")
