"""Attention and sources: which document an answer came from, by few heads and by all, and what weights do not tell."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from regard.heads.answer_sources import Sources
from regard.heads.head_set import HeadSet
from regard.hub import Loaded
from regard.interpret.model_loading import load_model
from regard.interpret.source_examples import draw_question
from regard.interpret.sources import sources
from regard_lab.charts import Bars
from regard_lab.experiment import Claim, Finding, Numbers, Part, Setting, within

__all__ = ["CLAIM", "judge", "run"]

CLAIM = Claim(
    number=17,
    name="sources",
    title="Attention and sources",
    statement="While a model answers from documents, its attention weights tell which document the answer came from: "
    "those of few heads do, and the mean over all heads does as well; where no document has the answer they are small; "
    "and the answer depends on what has a large weight (so it is told; measured, a fact that the model knows has the "
    "same weights as one that it can only have read, and loses nothing without its document).",
    source="Cohen-Wang et al. 2025 (AT2), arXiv:2504.13752; Wu et al. 2024 (retrieval heads), arXiv:2404.15574; Jain & "
    "Wallace 2019, arXiv:1902.10186; the heads by `regard heads --for sources`",
)
FOUND = 0.8  # share of prompts in which the source must come first
AS_GOOD = 0.1  # difference of two such shares below which one is as good as the other
TOLD_APART = 0.9  # AUROC of the largest score, with and without the document that has the answer
CLEAR = 1.0  # nats that removal must cost more than that of another document
DEPENDS = 0.5  # share of the drop of made-up facts that known ones must have too
CAPITALS = (
    ("France", "Paris", "Lille"), ("Italy", "Rome", "Milan"), ("Egypt", "Cairo", "Luxor"),
    ("Germany", "Berlin", "Hamburg"), ("Japan", "Tokyo", "Osaka"), ("Spain", "Madrid", "Seville"),
    ("Russia", "Moscow", "Kazan"), ("China", "Beijing", "Wuhan"),
)  # fmt: skip


def judge(numbers: Numbers) -> tuple[Part, ...]:
    """Return the parts: few heads, the mean of all, removal, answers from nowhere, and facts that the model knows."""
    few, every = (numbers["source found"][name] for name in ("few heads", "mean of all heads"))
    auroc = numbers["AUROC with and without the answer"]
    known, made_up = (numbers["capitals"][name] for name in ("known", "made up"))
    drops = [float(np.mean(one["drop"])) for one in (known, made_up)]
    scores = [float(np.mean(one["score"])) for one in (known, made_up)]
    control = float(np.mean(made_up["drop of another"]))
    return (
        Part(f"few heads find the source of {few:.0%} of {numbers['prompts']} answers", within(few >= FOUND)),
        Part(f"the mean of all heads finds {every:.0%}", within(every >= few - AS_GOOD)),
        Part(
            f"without the first document made-up facts lose {drops[1]:.1f} nats, without another {control:.1f}",
            within(drops[1] > control + CLEAR),
        ),
        Part(f"with and without the answer's document: AUROC {auroc:.2f}", within(auroc >= TOLD_APART)),
        Part(
            f"true and false capitals have scores of {scores[0]:.2f} and {scores[1]:.2f}, and lose {drops[0]:.1f} and "
            f"{drops[1]:.1f} nats without their document",
            within(drops[0] >= DEPENDS * drops[1]),
        ),
    )


def run(setting: Setting) -> Finding:
    """Score the documents of made prompts, remove those that come first, and do so with true and false capitals."""
    model = load_model("smollm2")
    prompts, documents, countries = (4, 6, 2) if setting.quick else (40, 8, len(CAPITALS))
    numbers: dict[str, Any] = {
        **_prompts(model, setting, prompts, documents),
        "capitals": {
            name: _capitals(model, setting, countries, which) for name, which in (("known", 1), ("made up", 2))
        },
    }
    parts = judge(numbers)
    few, every = (numbers["source found"][name] for name in ("few heads", "mean of all heads"))
    known, made_up = (np.mean(numbers["capitals"][name]["drop"]) for name in ("known", "made up"))
    return Finding(
        parts, numbers, f"{few:.0%} by few heads, {every:.0%} by the mean of all",
        f"Few heads find the document with the answer in {few:.0%} of {prompts} prompts of {documents} documents, the "
        f"mean of all heads in {every:.0%}. The weights on “The capital of France is Paris.” and on “… is Lille.” are "
        f"alike; without that document the true answer loses {known:.1f} nats, the false one {made_up:.1f}: a weight "
        "says what was read, and removal whether it mattered.",
        "One model of 135 million parameters, English sentences of the kind that its heads were found on, given "
        "answers. benchmarks/sources.py has other sentences and languages, with more documents.",
        (_chart(numbers),),
    )  # fmt: skip


def _prompts(model: Loaded, setting: Setting, count: int, documents: int) -> dict[str, Any]:
    """Return what is found in prompts of which one document has the answer, and in the same without that document."""
    layers, heads = model.model.config.num_hidden_layers, model.model.config.num_attention_heads  # type: ignore[union-attr]
    everywhere = HeadSet([(layer, head) for layer in range(layers) for head in range(heads)])  # type: ignore[arg-type]
    draw = np.random.default_rng([setting.seed, CLAIM.number])
    few, every, there, gone = [], [], [], []
    for number in range(1, count + 1):
        setting.progress(f"documents, prompt {number} of {count}")
        asked, absent = draw_question(draw, documents)
        found = _scored(model, asked.documents, asked.question, asked.answer)
        mean = _scored(model, asked.documents, asked.question, asked.answer, heads=everywhere)
        few.append(int(found.scores.argmax()) == asked.source)
        every.append(int(mean.scores.argmax()) == asked.source)
        there.append(_strength(found))
        gone.append(_strength(_scored(model, absent.documents, absent.question, absent.answer)))
    return {
        "prompts": count,
        "source found": {"few heads": float(np.mean(few)), "mean of all heads": float(np.mean(every))},
        "largest score": {"with the answer": there, "without it": gone},
        "AUROC with and without the answer": float(np.mean([one > other for one in there for other in gone])),
    }


def _capitals(model: Loaded, setting: Setting, count: int, which: int) -> dict[str, list[float]]:
    """Return the score of the first sentence, the country's, and what the answer loses without it and another."""
    found: dict[str, list[float]] = {"score": [], "drop": [], "drop of another": []}
    for at, (country, *_) in enumerate(CAPITALS[:count]):
        setting.progress(f"capitals, {country}")
        around = [CAPITALS[(at + one) % len(CAPITALS)] for one in range(4)]
        texts = [f"The capital of {one[0]} is {one[which]}." for one in around]
        one = _scored(model, texts, f"What is the capital of {country}?", texts[0], verify=True)
        (removal,) = one.removals
        found["score"].append(_strength(one))
        found["drop"].append(removal.drop)
        found["drop of another"].append(removal.control_drop or 0.0)
    return found


def _strength(found: Sources) -> float:
    assert found.strength is not None, "the heads that come with SmolLM2 have strength_weights"
    return found.strength


def _scored(
    model: Loaded, texts: Sequence[str], question: str, answer: str, *,
    heads: HeadSet | None = None, verify: bool = False,
) -> Sources:  # fmt: skip
    return sources(
        model, documents=texts, question=question, answer=answer, parts="document", heads=heads, verify=verify
    )


def _chart(numbers: Numbers) -> Bars:
    known, made_up = (numbers["capitals"][name] for name in ("known", "made up"))
    groups = tuple(country for country, *_ in CAPITALS[: len(known["drop"])])
    return Bars(
        "What an answer loses without the document that has it",
        "The drop of the answer's log-probability; the weights on the document are alike.", "nats", groups,
        ("a true capital", "a false one"), (tuple(known["drop"]), tuple(made_up["drop"])),
    )  # fmt: skip
