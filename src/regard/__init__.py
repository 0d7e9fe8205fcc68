"""Attention for PyTorch that people can build with, trust and see."""

import importlib
from importlib import util
from typing import TYPE_CHECKING, Any

from regard.errors import (
    AtlasError,
    InputError,
    MissingExtraError,
    NonFiniteLossError,
    ObservationError,
    RankError,
    RegardError,
)
from regard.hooks import KEPT_WEIGHTS, OVER_RANKS

if TYPE_CHECKING:
    from regard import masks, models, nn, normalizers, positions, scores
    from regard.backends import use_backend
    from regard.functional import attention, explain
    from regard.heads import HeadSet
    from regard.interpret.ablate_heads import ablate_heads
    from regard.interpret.compare import LookPair, compare_looks, compare_models, compare_records, compare_texts
    from regard.interpret.find_heads import find_heads
    from regard.interpret.head_scores import head_scores
    from regard.interpret.lesson import lesson
    from regard.interpret.look import LookResult, look
    from regard.interpret.model_loading import load_model
    from regard.interpret.observation import Observation, load_atlas
    from regard.interpret.sources import sources
    from regard.interpret.tap import tap
    from regard.interpret.transformers_adapter import register_with_transformers
    from regard.interpret.watch import watch
    from regard.interpret.word_pairs import score_heads_for_pairs
    from regard.lessons.lesson import Lesson
    from regard.nn.summary import summary
    from regard.observe import statistics
    from regard.parallel.sequence_parallel import sequence_parallel
    from regard.parallel.shard_sequence import shard_sequence
    from regard.record.records import Layer, Record

    __version__: str

__all__ = [
    "AtlasError",
    "HeadSet",
    "InputError",
    "Layer",
    "Lesson",
    "LookPair",
    "LookResult",
    "MissingExtraError",
    "NonFiniteLossError",
    "Observation",
    "ObservationError",
    "RankError",
    "Record",
    "RegardError",
    "ablate_heads",
    "attention",
    "compare_looks",
    "compare_models",
    "compare_records",
    "compare_texts",
    "explain",
    "find_heads",
    "head_scores",
    "lesson",
    "load_atlas",
    "load_model",
    "look",
    "masks",
    "models",
    "nn",
    "normalizers",
    "positions",
    "register_with_transformers",
    "score_heads_for_pairs",
    "scores",
    "sequence_parallel",
    "shard_sequence",
    "sources",
    "statistics",
    "summary",
    "tap",
    "use_backend",
    "watch",
]


OVER_RANKS["DTensor"] = lambda: importlib.import_module("regard.parallel.dtensors")
KEPT_WEIGHTS.append(lambda: importlib.import_module("regard.observe.kept_tiles"))

# Where each name comes from: read when it is asked for, as PyTorch takes seconds, and `regard --help` does without it.
_MODULES = {name: name for name in ("masks", "models", "nn", "normalizers", "positions", "scores")}
_MODULES["statistics"] = "observe.statistics"
_HOMES = {
    "attention": "functional",
    "explain": "functional",
    "use_backend": "backends",
    "summary": "nn",
    "HeadSet": "heads",
    "Layer": "record.records",
    "Record": "record.records",
    "Lesson": "lessons.lesson",
    "LookResult": "interpret.look",
    "Observation": "interpret.observation",
    "ablate_heads": "interpret.ablate_heads",
    "LookPair": "interpret.compare",
    "compare_looks": "interpret.compare",
    "compare_models": "interpret.compare",
    "compare_records": "interpret.compare",
    "compare_texts": "interpret.compare",
    "score_heads_for_pairs": "interpret.word_pairs",
    "find_heads": "interpret.find_heads",
    "head_scores": "interpret.head_scores",
    "load_atlas": "interpret.observation",
    "load_model": "interpret.model_loading",
    "lesson": "interpret.lesson",
    "look": "interpret.look",
    "register_with_transformers": "interpret.transformers_adapter",
    "tap": "interpret.tap",
    "sequence_parallel": "parallel.sequence_parallel",
    "shard_sequence": "parallel.shard_sequence",
    "sources": "interpret.sources",
    "watch": "interpret.watch",
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
