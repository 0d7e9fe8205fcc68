"""Tiny runs of training for tests."""

from pathlib import Path
from typing import Any

from regard.train.config import Config
from regard.train.config_file import from_mapping


def tiny(out: Path, **changes: Any) -> Config:
    """Copying three symbols, in a model that takes a step in milliseconds."""
    found: dict[str, Any] = {
        "out": str(out),
        "task": {"kind": "synthetic", "task": "copy", "symbols": 5, "shortest": 1, "longest": 4, "examples": 200}
        | {"held_out": 20},
        "model": {"kind": "transformer", "width": 16, "heads": 2, "hidden": 16, "layers": 1, "dropout": 0.2},
        "optimizer": {"rate": 3e-3, "schedule": {"kind": "noam", "warmup": 10}},
        "run": {"steps": 12, "tokens": 60, "evaluate": 5, "save": 1, "threads": 1},
    }
    for name, value in changes.items():
        section, _, key = name.partition("__")
        if key:
            found[section] = dict(found[section]) | {key: value}
        else:
            found[section] = value
    found["run"] = {key: value for key, value in found["run"].items() if value is not None}
    made: Config = from_mapping(Config, found)
    return made
