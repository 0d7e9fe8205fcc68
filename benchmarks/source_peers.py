"""How good is `regard.sources` beside other tools that find the source of an answer, and how long do they take?

    python benchmarks/source_peers.py [--set texts|prompts]
    python benchmarks/source_peers.py --seconds-only 2   # the times alone, of the first of each set, interleaved
    python benchmarks/source_peers.py --table            # writes the tables of docs/sources.md

Two sets, with SmolLM2-135M. `texts`: 24 running texts with a question each (running_texts.py); the parts are sentences,
and the answer is the model's own, greedy, of at most 40 tokens. `prompts`: prompts of sources.py with 8 to 16 documents
as parts, a given answer, and a known source, spread over its 200.

Each method gives a score to each part of the same prompt for the same answer. For each are measured:

- the drop: log p(answer | prompt) − log p(answer | prompt without the 1, 3 or 5 parts with the largest scores), the
  prompt tokenized again, in nats for each token of the answer. The aim, set before the first run: on the texts, the
  lower end of the 95 % interval of regard's drops at 1 and at 3 minus those of ContextCite with 32 ablations ≥ −0.02.
- the linear datamodelling score: Spearman's correlation of the sum of the scores of the parts that are kept with the
  log-probability of the answer, over 16 prompts that keep each part with probability 1/2, which no method has seen
  (Park et al. 2023, arXiv:2303.14186; as ContextCite uses it, Cohen-Wang et al. 2024, arXiv:2409.00729).
- whether the known source comes first (prompts alone).

Of ContextCite its own code runs, with our parts and our prompt (checked id by id). Its first 32 ablations of 64 are
those of 32, so they run once. Its packages for splitting text and for tables (nltk, spacy, pandas, datasets) are not
used and not imported. What it costs is measured by `--seconds-only`, where it runs as it is.

The results are written to benchmarks/results/source-peers-texts.json and source-peers-prompts.json after each method; a
run that was stopped resumes.
"""

import argparse
import json
import os
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

import regard
from regard import load_model
from regard.heads.head_set import ReadoutScore
from running_texts import draw_texts
from source_methods import Asked, Kept, Question, Scores, by_context_cite, by_regard, held_out, methods
from sources import processor, prompt, save

REMOVED = (1, 3, 5)
FIRST_PROMPT = 200  # of the seeds of sources.py
RESULTS = Path(__file__).parent / "results"
DOCS = Path(__file__).parent.parent / "docs" / "sources.md"
_PROBLEMS = (ImportError, AttributeError, TypeError, RuntimeError, ValueError, KeyError)  # of another's package


def questions(kind: str, count: int) -> list[Question]:
    """The first questions of a set: every fifth of the 200 prompts, of which the first ten are spread over all."""
    if kind == "texts":
        return [Question(one.title, {"text": one.text}, one.question, None, "sentence") for one in draw_texts()[:count]]
    order = sorted(range(40), key=lambda at: (at % 4, at))
    made = ((seed, prompt(seed)) for seed in (FIRST_PROMPT + 5 * at for at in order[:count]))
    return [
        Question(f"prompt {seed}", one.documents, one.question, one.answer, "document", one.source)
        for seed, one in made
    ]


# What is measured of the scores.


def drops(scores: Scores, log_prob: Callable[[Kept], float], tokens: int) -> dict[str, float]:
    """What the answer loses without the parts with the largest scores, in nats per token of the answer."""
    order = np.argsort(-scores, kind="stable")
    whole = log_prob(np.ones(len(scores), dtype=bool))
    found = {}
    for count in REMOVED:
        kept = np.ones(len(scores), dtype=bool)
        kept[order[:count]] = False
        found[str(count)] = (whole - log_prob(kept)) / tokens
    return found


def datamodelling(scores: Scores, kept: npt.NDArray[np.bool_], log_probs: Scores) -> float:
    """Spearman's correlation of the sums of the kept parts' scores with the log-probabilities; 0 if either is constant.

    >>> kept = np.array([[0, 0], [1, 0], [0, 1], [1, 1]], dtype=bool)
    >>> datamodelling(np.array([1.0, 2.0]), kept, np.array([-9.0, -3.0, -2.0, -1.0]))
    1.0
    """
    one, other = ranks(kept @ scores), ranks(log_probs)
    spread = one.std() * other.std()
    return float(((one - one.mean()) * (other - other.mean())).mean() / spread) if spread else 0.0


def ranks(values: Scores) -> Scores:
    """The ranks from 0; equal values share the mean of theirs."""
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts + 1) / 2)[place]


def mean_interval(values: Sequence[float], repeats: int = 10_000) -> dict[str, Any]:
    """The mean, with its 95 % interval by the bootstrap over prompts."""
    given = np.array(values, dtype=float)
    chosen = np.random.default_rng(0).integers(len(given), size=(repeats, len(given)))
    ends = np.quantile(given[chosen].mean(1), (0.025, 0.975))
    return {"mean": round(float(given.mean()), 4), "95 %": [round(float(one), 4) for one in ends]}


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The figures of one set; differences are regard's minus the other's, prompt by prompt."""
    found: dict[str, Any] = {"prompts": len(rows)}
    rows = [row for row in rows if "regard" in row["methods"]]
    for name in dict.fromkeys(name for row in rows for name in row["methods"]):
        some = [row for row in rows if "drops" in row["methods"].get(name, {})]
        if not some:
            found[name] = {"not run": rows[0]["methods"][name]["error"]}
            continue
        mine = [row["methods"][name] for row in some]
        one: dict[str, Any] = {"prompts": len(some)}
        if some[0]["source"] is not None:
            right = sum(made["first"] == row["source"] for made, row in zip(mine, some, strict=True))
            one["source found"] = str(ReadoutScore.of(right, len(some)))
        for count in map(str, REMOVED):
            one[f"drop at {count}"] = mean_interval([made["drops"][count] for made in mine])
            ours = [row["methods"]["regard"]["drops"][count] for row in some]
            one[f"regard's drop at {count} minus its"] = mean_interval(
                [of - made["drops"][count] for of, made in zip(ours, mine, strict=True)]
            )
        one["linear datamodelling score"] = mean_interval([made["datamodelling"] for made in mine])
        found[name] = one
    return found


# Running it.


def answered(loaded: Any, one: Question) -> str:
    """The given answer, or the model's own: greedy, at most 40 tokens."""
    return (
        one.answer
        or regard.sources(
            loaded, documents=one.documents, question=one.question, parts=one.parts, max_new_tokens=40
        ).answer
    )


def measure(row: dict[str, Any], asked: Asked, chosen: dict[str, Callable[[Asked], Any]]) -> Iterator[str]:
    """Measure what a row lacks; yields the name of each method."""
    if "held out" not in row:
        kept = held_out(asked)
        log_probs = [asked.log_prob(one) for one in kept]
        row["held out"] = {
            "kept": ["".join("01"[int(bit)] for bit in one) for one in kept],
            "log-probabilities": log_probs,
        }
    kept = np.array([[bit == "1" for bit in one] for one in row["held out"]["kept"]])
    asked.ablated = row.setdefault("ablated", [])
    for name, method in chosen.items():
        if name in row["methods"]:
            continue
        begun = time.perf_counter()
        try:
            scores = method(asked)
        except _PROBLEMS as problem:
            row["methods"][name] = {"error": f"{type(problem).__name__}: {' '.join(str(problem).split())[:300]}"}
        else:
            row["methods"][name] = {
                "first": int(scores.argmax()),
                "seconds, busy": round(time.perf_counter() - begun, 2),
                "drops": drops(scores, asked.log_prob, asked.new),
                "datamodelling": datamodelling(scores, kept, np.array(row["held out"]["log-probabilities"])),
                "scores": [float(f"{score:.5g}") for score in scores],
            }
        yield name


def seconds(loaded: Any, encoder: Any, kind: str, count: int, repeats: int, ablations: Sequence[int]) -> dict[str, Any]:
    """The median seconds of each method on the first prompts of a set, one after the other in each round."""
    timed = methods(encoder, "prompts", ())
    timed |= {f"context_cite {n}": partial(by_context_cite, ablations=n) for n in ablations}
    found: dict[str, list[tuple[float, float]]] = {}
    for one in questions(kind, count):
        answer = answered(loaded, one)
        by_regard(Asked(loaded, one, answer))
        for _ in range(repeats):
            for name, method in timed.items():
                asked = Asked(loaded, one, answer)
                begun = time.perf_counter(), time.process_time()
                try:
                    method(asked)
                except _PROBLEMS as problem:
                    print(f"{name}: {problem}", flush=True)
                    continue
                each = time.perf_counter() - begun[0], time.process_time() - begun[1]
                found.setdefault(name, []).append(each)
                print(f"{kind}, {one.name}, {name}: {each[0]:.2f} s, {each[1]:.2f} s of the processor", flush=True)
    clock, processor_time = ({name: np.array(one)[:, at] for name, one in found.items()} for at in (0, 1))
    theirs = f"context_cite {ablations[0]}"
    return {
        "prompts": count,
        "rounds": repeats,
        "load at the end": [round(one, 2) for one in os.getloadavg()],
        "machine": f"{processor()}, {torch.get_num_threads()} threads",
        "date": time.strftime("%Y-%m-%d %H:%M"),
        "seconds": {name: round(float(np.median(one)), 3) for name, one in clock.items()},
        "of the processor": {name: round(float(np.median(one)), 3) for name, one in processor_time.items()},
        f"{theirs} / regard, least, median, most": {
            name: [round(float(one), 2) for one in np.quantile(of[theirs] / of["regard"], (0, 0.5, 1))]
            for name, of in (("seconds", clock), ("of the processor", processor_time))
            if theirs in of
        },
    }


def about(loaded: Any) -> dict[str, Any]:
    packages = ("torch", "transformers", "context-cite", "scikit-learn", "lxt", "captum")
    known = {one.metadata["Name"].lower().replace("_", "-"): one.version for one in metadata.distributions()}
    return {
        "machine": f"{processor()}, {torch.get_num_threads()} threads",
        "versions": {"python": platform.python_version(), **{name: known.get(name, "missing") for name in packages}},
        "date": time.strftime("%Y-%m-%d"),
        "model": loaded.name,
    }


def table(kind: str, known: dict[str, Any]) -> str:
    """The figures of a set for docs/sources.md, with 95 % intervals."""
    source = "source first | " if kind == "prompts" else ""
    times = known.get("seconds", {}).get("of the processor", {})
    text = f"{known['prompts']} of {24 if kind == 'texts' else 40} {kind}, {known['date']}, {known['machine']}.\n\n"
    text += (
        f"|  | {source}drop at 1 | at 3 | at 5 | regard's minus its at 1 | at 3 | datamodelling | processor seconds |\n"
    )
    text += "| --- |" + " ---: |" * (text.splitlines()[-1].count("|") - 2) + "\n"
    for name, one in known.items():
        if name not in known["rows"][0]["methods"]:
            continue
        if "not run" in one:
            text += f"| {name} | not run: {one['not run']} |\n"
            continue
        columns = [name]
        columns += [one["source found"].split(",")[0] + ")"] if source else []
        columns += [span(one[f"drop at {count}"]) for count in REMOVED]
        columns += ["" if name == "regard" else span(one[f"regard's drop at {count} minus its"]) for count in (1, 3)]
        columns += [
            span(one["linear datamodelling score"]),
            str(times.get(name, "not measured")),
        ]
        text += f"| {' | '.join(columns)} |\n"
    return text


def span(found: dict[str, Any]) -> str:
    return f"{found['mean']:.2f} ({found['95 %'][0]:.2f} to {found['95 %'][1]:.2f})"


def write_tables(results: Path, page: Path = DOCS) -> None:
    """Write the tables into the page, between their marks."""
    text = page.read_text("utf-8")
    for kind in ("texts", "prompts"):
        known = json.loads((results / f"source-peers-{kind}.json").read_text("utf-8"))
        begin, end = f"<!-- {kind}: written by benchmarks/source_peers.py --table -->\n", f"<!-- end of {kind} -->"
        before, rest = text.split(begin)
        text = before + begin + "\n" + table(kind, known) + "\n" + end + rest.split(end)[1]
    page.write_text(text, "utf-8")


def main() -> None:
    """Measure, or go on measuring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--set", choices=("texts", "prompts"), action="append", help="one of the sets; default both")
    parser.add_argument("--texts", type=int, default=24, help="how many of 24")
    parser.add_argument("--prompts", type=int, default=40, help="how many of 40")
    parser.add_argument("--ablations", type=int, nargs="+", default=(32, 64), help="of ContextCite")
    parser.add_argument("--seconds-only", type=int, metavar="N", help="the times alone, on the first N of each set")
    parser.add_argument("--rounds", type=int, default=1, help="of --seconds-only")
    parser.add_argument("--results", type=Path, default=RESULTS, help="a folder")
    parser.add_argument("--table", action="store_true", help="write the tables of docs/sources.md from the results")
    given = parser.parse_args()
    if given.table:
        write_tables(given.results)
        return
    loaded, encoder = load_model("smollm2"), load_model("me5")
    for kind in given.set or ("texts", "prompts"):
        path = given.results / f"source-peers-{kind}.json"
        known = json.loads(path.read_text("utf-8")) if path.exists() else {"rows": []}
        if given.seconds_only:
            known["seconds"] = seconds(loaded, encoder, kind, given.seconds_only, given.rounds, given.ablations)
            save(path, known)
            continue
        rows = {row["name"]: row for row in known["rows"]}
        for one in questions(kind, given.texts if kind == "texts" else given.prompts):
            row = rows.setdefault(one.name, {"name": one.name, "source": one.source, "question": one.question})
            row.setdefault("methods", {})
            row.setdefault("answer", answered(loaded, one))
            asked = Asked(loaded, one, row["answer"])
            row |= {"tokens": len(asked.ids), "of the answer": asked.new, "parts": asked.parts}
            row["log-probability"] = asked.log_prob(asked.whole())
            begun = time.perf_counter()
            for _ in measure(row, asked, methods(encoder, kind, given.ablations)):
                save(path, known | {"rows": list(rows.values())})
            print(f"{kind}, {len(rows)}: {one.name}, {time.perf_counter() - begun:.0f} s", flush=True)
        done = list(rows.values())
        times = {"seconds": known["seconds"]} if "seconds" in known else {}
        save(path, {**about(loaded), **times, **summary(done), "rows": done})
        print(json.dumps(summary(done), indent=1), flush=True)


if __name__ == "__main__":
    main()
