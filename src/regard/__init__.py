"""Attention for PyTorch that people can build with, trust and see."""

from regard import masks, normalizers, scores
from regard.errors import AtlasError, InputError, MissingExtraError, ObservationError, RegardError
from regard.functional import attention, explain
from regard.observe.records import Layer, Record
from regard.seeing import Sight, load, watch

__all__ = [
    "AtlasError",
    "InputError",
    "Layer",
    "MissingExtraError",
    "ObservationError",
    "Record",
    "RegardError",
    "Sight",
    "attention",
    "explain",
    "load",
    "masks",
    "normalizers",
    "scores",
    "watch",
]
