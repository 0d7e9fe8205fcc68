"""How well trained translators do by the length of what they read: BLEU and chrF of held-out pairs, by words.

    python examples/data/by_length.py runs/gru-* [--out results.json] [--figure by-length.svg] [--beams 4]

Each run translates its own held-out pairs. Runs of one model with different seeds count together: their mean, and in
the figure a band from the worst to the best. Another seed has other weights and holds out other pairs.
"""

import argparse
import importlib.metadata
import json
import platform
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import torch

from regard.errors import InputError, RegardError
from regard.files import write_atomically
from regard.render.mpl_figure import write_figure
from regard.train import TranslationScore, Translator, read_log, translation_scores
from regard.train.config import Config, task_of
from regard.train.model_types import RecurrentSettings
from regard.train.tasks import TranslationSettings
from regard_lab.charts import Line, Lines
from regard_lab.drawing import PAPER, figure_of

ALL = "all"
BUCKETS = ((1, 3), (4, 5), (6, 7), (8, 9), (10, 11), (12, None))  # words, both ends included
PACKAGES = ("regard", "torch", "tokenizers", "sacrebleu", "numpy")


@dataclass(frozen=True)
class Bucket:
    """The scores of sentences of like length: how many there are, and their mean number of words."""

    sentences: int
    words: float
    score: TranslationScore


@dataclass(frozen=True)
class Run:
    """A run of training: what was trained, and its scores by the name of the bucket."""

    model: str
    seed: int
    parameters: int
    minutes: float
    buckets: dict[str, Bucket]


def name_of(low: int, high: int | None) -> str:
    """How a bucket is called."""
    return f"{low} and more" if high is None else f"{low} to {high}"


NAMES = [name_of(*ends) for ends in BUCKETS]


def bucket_of(text: str) -> str:
    """The name of the bucket that a sentence belongs in."""
    words = max(1, len(text.split()))
    return next(name_of(low, high) for low, high in BUCKETS if low <= words and (high is None or words <= high))


def scores_by_length(
    translator: Translator, sources: Sequence[str], references: Sequence[Sequence[str]], num_beams: int
) -> dict[str, Bucket]:
    """Translate all, and score each bucket that has a sentence, and the whole."""
    said = translator.translate(sources, num_beams=num_beams)
    places = [bucket_of(text) for text in sources]
    found = {}
    for name in (*NAMES, ALL):
        rows = [row for row, place in enumerate(places) if name in (place, ALL)]
        if rows:
            score = translation_scores(
                [said[row] for row in rows], [references[row] for row in rows], translator.target_lang
            )
            found[name] = Bucket(len(rows), mean(len(sources[row].split()) for row in rows), score)
    return found


def read_run(folder: Path, num_beams: int) -> Run:
    """Translate the held-out pairs of a run with the model that came of it."""
    translator = Translator.load(folder)
    try:
        known = json.loads((folder / "run.json").read_text("utf-8"))
    except (OSError, ValueError) as problem:
        raise InputError(f"cannot read {folder / 'run.json'}: {problem}") from problem
    config = Config.from_dict(known["config"])
    task: Any = task_of(config, folder / "model")
    if task.data != known["data"]:
        raise InputError(f"the data of {folder} has changed since it was trained: bring the old files back")
    parameters = sum(one.numel() for one in translator.model.parameters())
    events = read_log(folder / "log.jsonl")
    seconds = sum(one["seconds"] for one in events if one["event"] in ("stepped", "evaluated"))
    buckets = scores_by_length(translator, task.held.texts["source"], task.held.references, num_beams)
    return Run(model_of(config), config.training.seed, parameters, seconds / 60, buckets)


def model_of(config: Config) -> str:
    """What a run trains, in words."""
    assert isinstance(config.task, TranslationSettings)
    model = config.model
    if not isinstance(model, RecurrentSettings):
        return type(model).__name__
    spelled = {"none": "no", "bahdanau": "Bahdanau's"}
    return f"{model.cell.upper()} {model.hidden_size}, {spelled.get(model.attention, model.attention)} attention"


def results(runs: Sequence[Run], num_beams: int) -> dict[str, Any]:
    """Everything as JSON keeps it: for each model lists with a number for each seed."""
    models: dict[str, dict[str, Any]] = {}
    for model in dict.fromkeys(run.model for run in runs):
        own = sorted((run for run in runs if run.model == model), key=lambda run: run.seed)
        if len({run.seed for run in own}) < len(own):
            raise InputError(f"two runs of {model!r} have the same seed: name each once")
        names = [name for name in (*NAMES, ALL) if all(name in run.buckets for run in own)]
        models[model] = {
            "seeds": [run.seed for run in own],
            "parameters": [run.parameters for run in own],
            "minutes": [round(run.minutes, 2) for run in own],
            "sentences": {name: [run.buckets[name].sentences for run in own] for name in names},
            "words": {name: [round(run.buckets[name].words, 2) for run in own] for name in names},
            "BLEU": {name: [round(run.buckets[name].score.bleu, 2) for run in own] for name in names},
            "chrF": {name: [round(run.buckets[name].score.chrf, 2) for run in own] for name in names},
        }
    score = runs[0].buckets[ALL].score
    return {
        "models": models,
        "num_beams": num_beams,
        "signatures": [score.bleu_signature, score.chrf_signature],
        "versions": {name: importlib.metadata.version(name) for name in PACKAGES},
        "machine": f"{platform.machine()}, {torch.get_num_threads()} threads",
        "date": time.strftime("%Y-%m-%d"),
    }


def told(values: Sequence[float]) -> str:
    """The mean, and between which numbers the values lie where there are several."""
    return f"{mean(values):.1f}" + (f" ({min(values):.1f} to {max(values):.1f})" if len(values) > 1 else "")


def table(found: dict[str, Any]) -> str:
    """A table in Markdown: a row for each bucket."""
    models = found["models"]
    heads = ["words", "sentences", *(f"{name}: {score}" for name in models for score in ("BLEU", "chrF"))]
    lines = [heads, ["---", *["---:"] * (len(heads) - 1)]]
    for name in (*NAMES, ALL):
        having = [one for one in models.values() if name in one["BLEU"]]
        if having:
            counts = having[0]["sentences"][name]
            cells = [
                told(one[score][name]) if one in having else "" for one in models.values() for score in ("BLEU", "chrF")
            ]
            lines.append([name, f"{sum(counts):,}", *cells])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def chart(found: dict[str, Any]) -> Lines:
    """BLEU by the mean number of words in a bucket."""
    lines = []
    for model, one in found["models"].items():
        names = [name for name in NAMES if name in one["BLEU"]]
        across = tuple(mean(one["words"][name]) for name in names)
        values = [one["BLEU"][name] for name in names]
        lines.append(Line(model, across, *(tuple(map(fold, values)) for fold in (mean, min, max))))
    return Lines(
        "BLEU by the length of what is translated",
        "BLEU on held-out pairs: the mean over seeds, and a band from the worst to the best.",
        "words of the source", "BLEU", tuple(lines),
    )  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, help="folders of runs of `regard train`")
    parser.add_argument("--out", type=Path, help="a JSON file for all numbers")
    parser.add_argument("--figure", type=Path, help="a PNG or SVG file")
    parser.add_argument("--num-beams", type=int, default=4)
    given = parser.parse_args(arguments)
    try:
        found = results([read_run(folder, given.num_beams) for folder in given.runs], given.num_beams)
        if given.out:
            write_atomically(given.out, (json.dumps(found, indent=2, ensure_ascii=False) + "\n").encode())
        if given.figure:
            figure = figure_of(chart(found))
            figure.set_facecolor(PAPER)
            write_figure(figure, given.figure)
    except RegardError as problem:
        sys.exit(str(problem))
    print(table(found))
    for model, one in found["models"].items():
        print(f"{model}: {', '.join(f'{count:,}' for count in one['parameters'])} parameters")
    print(*found["signatures"], sep="\n")


if __name__ == "__main__":
    main()
