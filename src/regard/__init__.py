"""Attention for PyTorch that people can build with, trust and see."""

from regard import masks, nn, normalizers, positions, scores
from regard.errors import AtlasError, InputError, MissingExtraError, ObservationError, RegardError
from regard.functional import attention, explain
from regard.nn import summary
from regard.observe.records import Layer, Record
from regard.seeing import Looked, Sight, load, load_model, look, register_with_transformers, watch

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
    "attention",
    "explain",
    "load",
    "load_model",
    "look",
    "masks",
    "nn",
    "normalizers",
    "positions",
    "register_with_transformers",
    "scores",
    "summary",
    "watch",
]
