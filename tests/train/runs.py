"""Tiny runs of training for tests."""

from pathlib import Path
from typing import Any

from regard.train.config import Config


def tiny(out: Path, **changes: Any) -> Config:
    """Copying three symbols, in a model that takes a step in milliseconds."""
    found: dict[str, Any] = {
        "task": {"type": "synthetic", "task_name": "copy", "num_symbols": 5, "min_length": 1, "max_length": 4}
        | {"num_examples": 200, "validation_size": 20},
        "model": {
            "type": "transformer",
            "hidden_size": 16,
            "num_attention_heads": 2,
            "intermediate_size": 16,
            "num_hidden_layers": 1,
            "dropout": 0.2,
        },
        "training": {"output_dir": str(out), "learning_rate": 3e-3, "warmup_steps": 10, "max_steps": 12}
        | {"max_tokens_per_batch": 60, "eval_steps": 5, "save_steps": 1, "num_threads": 1},
    }
    for name, value in changes.items():
        section, _, key = name.partition("__")
        if key:
            found[section] = dict(found[section]) | {key: value}
        else:
            found[section] = value
    found["training"] = {key: value for key, value in found["training"].items() if value is not None}
    return Config.from_dict(found)
