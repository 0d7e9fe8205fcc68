"""Make the recorded data of the lesson page again: src/regard/lessons/data/*.json.

    python tools/lesson_data.py bottleneck                            # minutes: trains ten small models
    python tools/lesson_data.py translation runs/learning-machines    # after `regard train`, see below

`bottleneck` trains the models of regard_lab.repeating, keeps everything that they said in
benchmarks/results/lesson-bottleneck.json, and computes from it what the page shows. `--again` computes only that, from
the outputs that are kept. `translation` records how a translator writes a sentence. The one of the page is made by

    regard data hsk
    regard train examples/learning_machines.toml --training.num_threads 1
"""

import argparse
import importlib.metadata
import json
import platform
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from regard.errors import RegardError
from regard.files import write_atomically
from regard.interpret.translation_steps import record_translation
from regard_lab.repeating import Repeating, measured, summary

__all__ = ["bottleneck", "main", "translation"]

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT / "src/regard/lessons/data"
OUTPUTS = ROOT / "benchmarks/results/lesson-bottleneck.json"
SENTENCE = "I love deep learning."
PACKAGES = ("regard", "torch", "tokenizers", "numpy")
_MAKES_TRANSLATOR = "regard train examples/learning_machines.toml --training.num_threads 1"


def bottleneck(settings: Repeating, outputs: Path, data: Path, *, again: bool = False) -> None:
    """Train, measure and save both files; `again` reads the outputs in place of training."""
    if again:
        results = json.loads(outputs.read_text("utf-8"))
    else:
        begin = time.process_time()
        results = measured(settings, lambda message: print(message, flush=True))
        results["made"] = _made("python tools/lesson_data.py bottleneck") | {
            "processor_seconds": round(time.process_time() - begin)
        }
        _save(outputs, results)
    _save(data / "bottleneck.json", {**summary(results), "made": results["made"]})


def translation(run: str, sentence: str, data: Path) -> None:
    """Record a translation and save it."""
    recorded = asdict(record_translation(run, sentence))
    recorded["made"] = _made(f"python tools/lesson_data.py translation {run}") | {"translator": _MAKES_TRANSLATOR}
    _save(data / "translation.json", recorded)


def _made(command: str) -> dict[str, Any]:
    return {
        "command": command,
        "date": datetime.now(UTC).date().isoformat(),
        "versions": {name: importlib.metadata.version(name) for name in PACKAGES},
        "machine": f"{platform.machine()}, one thread",
    }


def _save(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":")) + "\n"
    write_atomically(path, text.encode())
    print(f"{path}: {len(text.encode()):,} bytes")


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(dest="part", required=True)
    first = parts.add_parser("bottleneck")
    first.add_argument("--again", action="store_true", help="read the outputs that are kept, and train nothing")
    second = parts.add_parser("translation")
    second.add_argument("run", help="the folder of a run of `regard train`")
    second.add_argument("--sentence", default=SENTENCE)
    chosen = parser.parse_args(arguments)
    try:
        if chosen.part == "bottleneck":
            bottleneck(Repeating(), OUTPUTS, DATA, again=chosen.again)
        else:
            translation(chosen.run, chosen.sentence, DATA)
    except RegardError as problem:
        sys.exit(str(problem))


if __name__ == "__main__":
    main()
