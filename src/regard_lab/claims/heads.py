"""Heads differ: their rules in real models, the targets of "it" and 它, the effect of ablation, and one head against
several.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from regard.heads.scores import RULES, HeadScores
from regard.interpret.head_scores import head_scores
from regard.interpret.model_loading import load_model
from regard_lab.charts import Bars, Line, Lines
from regard_lab.experiment import Claim, Finding, Numbers, Part, Setting, Verdict, within
from regard_lab.measuring import one_thread
from regard_lab.pronouns import Looks, effect_on_completion, effect_on_word, looks
from regard_lab.two_relations import TwoRelationsRun, accuracy_over_steps

__all__ = ["CLAIM", "judge", "run"]

CLAIM = Claim(
    number=9,
    name="heads",
    title="Heads differ",
    statement="The heads of a model do different things; “it” looks at the animal in “… because it was too tired” and "
    "at the street in “… too wide” (so it is told; measured, it looks at the animal in both), and so does 它; a head "
    "that does so matters; several heads do better than one of the same size on a task with two relations at once.",
    source="Uszkoreit 2017 (Google's blog on the Transformer); Vaswani et al. 2017, 3.2.2, arXiv:1706.03762; Voita et "
    "al. 2019, arXiv:1905.09418; Michel et al. 2019, arXiv:1905.10650; Jain & Wallace 2019, arXiv:1902.10186",
)
KINDS = 3  # number of rules followed by heads of one model above which the heads count as different
LEAD = 1.5  # ratio to the weight of the other noun above which a head counts as attending to this one
RARE = 0.95  # share of other heads with a smaller effect above which a head counts as important
BETTER, BETTER_AT = 0.05, 0.9  # accuracy: a difference that counts, and the level to reach
HEADS = 4
OTHERS = {True: 30, False: 1000}  # number of other heads that are removed one at a time, at most
STEPS, RUNS = {True: 1000, False: 3000}, {True: 2, False: 5}  # of training on two relations
TIRED = "The animal didn't cross the street because it was too tired."
WIDE = "The animal didn't cross the street because it was too wide."
CAT, MOUSE = "貓追老鼠，因為它餓了", "老鼠追貓，因為它餓了"
ENGLISH, CHINESE = ("it", "animal", "street"), ("它", "貓", "老鼠")


def judge(numbers: Numbers) -> tuple[Part, ...]:
    """Return the parts: rules of heads, targets of pronouns, effect of removal, and one head against several."""
    return (*_kinds(numbers), *_pronouns(numbers), *_removed(numbers), _several(numbers))


def _kinds(numbers: Numbers) -> list[Part]:
    parts = []
    for model, counts in numbers["heads by rule"].items():
        kinds = [name for name, count in counts.items() if count and name != "none"]
        text = f"{model}: {len(kinds)} rules take more than half of some head's weight ({', '.join(kinds)})"
        parts.append(Part(text, within(len(kinds) >= KINDS)))
    return parts


def _pronouns(numbers: Numbers) -> list[Part]:
    parts = []
    for sentence, found in numbers["where the pronoun looks"].items():
        right, wrong, share = found["right"], found["wrong"], found["weights"]
        text = f"{sentence}, head {found['head']}: {right} {share[right]:.2f}, {wrong} {share[wrong]:.2f}"
        parts.append(Part(text, within(share[right] >= LEAD * share[wrong])))
    for model, found in numbers["heads whose choice turns with the sentence"].items():
        text = f"{model}: {found['right']} heads turn as the meaning does, {found['wrong']} against it"
        parts.append(Part(text, within(found["right"] > found["wrong"])))
    return parts


def _removed(numbers: Numbers) -> list[Part]:
    parts = []
    for what, found in numbers["without the head"].items():
        text = (
            f"without {found['head']} {what} by {found['change']:.2g}, more than {found['rank']:.0%} of other heads do"
        )
        parts.append(Part(text, within(found["rank"] >= RARE)))
    return parts


def _several(numbers: Numbers) -> Part:
    one, several = (numbers["accuracy, two relations"][name] for name in ("1", str(HEADS)))
    text = (
        f"on two relations at once {HEADS} heads reach {np.mean(several):.2f}, one head of the same size "
        f"{np.mean(one):.2f} (means of {len(one)} runs)"
    )
    if min(several) > max(one) + BETTER:
        return Part(text, Verdict.HOLDS)
    return Part(text, within(float(np.mean(several) - np.mean(one)) > BETTER))


_TOLD: dict[str, Callable[[Numbers], Sequence[Part]]] = {
    "heads follow different rules": _kinds,
    "pronouns look at what is meant": _pronouns,
    "removal matters": _removed,
    "several heads do better": lambda numbers: [_several(numbers)],
}


def run(setting: Setting) -> Finding:
    """Score heads, measure the weights of pronouns, remove heads, and train small models."""
    models = {name: load_model(name) for name in ("minilm", "smollm2", "me5")}
    scores = {name: head_scores(models[name], progress=setting.progress) for name in ("minilm", "smollm2")}
    setting.progress("where pronouns look")
    english = {name: looks(models[name], (TIRED, WIDE), ENGLISH) for name in ("minilm", "me5")}
    chinese = looks(models["me5"], (CAT, MOUSE), CHINESE)
    several = _courses(setting)
    numbers: dict[str, Any] = {
        "heads by rule": {name: one.counts() for name, one in scores.items()},
        "strongest heads": {name: _strongest(one) for name, one in scores.items()},
        "where the pronoun looks": _where(english, chinese),
        "heads whose choice turns with the sentence": {
            **{f"{name}, it": one.turning() for name, one in english.items()},
            "me5, 它": chinese.turning(),
        },
        "without the head": _effects(setting, models, english["minilm"], chinese),
        "accuracy, two relations": {name: [one.accuracy[-1] for one in runs] for name, runs in several.items()},
        f"steps to {BETTER_AT}, two relations": {name: _steps(runs) for name, runs in several.items()},
        "parameters, two relations": {name: runs[0].parameters for name, runs in several.items()},
    }
    parts = judge(numbers)
    held = sum(part.verdict == Verdict.HOLDS for part in parts)
    one, more = (float(np.mean(numbers["accuracy, two relations"][name])) for name in ("1", str(HEADS)))
    verdicts = {name: [part.verdict == Verdict.HOLDS for part in told(numbers)] for name, told in _TOLD.items()}
    text = "; ".join(f"{name}: {sum(each)} of {len(each)}" for name, each in verdicts.items())
    text = (
        f"{_tired_and_wide(numbers)} What holds: {text}. One head reaches {BETTER_AT:.0%} on two relations at once "
        f"after {_steps(several['1'])} steps, {HEADS} heads after {_steps(several[str(HEADS)])} (each run)."
    )
    return Finding(
        parts, numbers, f"{held} of {len(parts)} parts; {HEADS} heads {more:.2f}, one {one:.2f}", text,
        "Two sentences a language, chosen by others for the effect; three small models. A weight says where a head "
        "looks, not what for, nor that the model has understood; the two relations are a made-up task.",
        (_rules_chart(scores), _looks_chart(numbers), _course_chart(several)),
    )  # fmt: skip


def _tired_and_wide(numbers: Numbers) -> str:
    """Return the result for the best-known sentence, which begins the text of the finding."""
    found = [numbers["where the pronoun looks"][f"“too {end}”, minilm"] for end in ("tired", "wide")]
    tired, wide = (one["weights"] for one in found)
    turning = numbers["heads whose choice turns with the sentence"]["minilm, it"]
    more = [max(one, key=one.__getitem__) for one in (tired, wide)]
    verdict = f"looks at the {more[0]} in both" if more[0] == more[1] else f"turns from the {more[0]} to the {more[1]}"
    return (
        f"“It” in “… too tired” and “… too wide”: head {found[0]['head']} of minilm {verdict} (animal "
        f"{tired['animal']:.2f} and {wide['animal']:.2f}, street {tired['street']:.2f} and {wide['street']:.2f}). Of "
        f"the {turning['asked']} heads that look at the two, {turning['right']} change sides as the meaning does and "
        f"{turning['wrong']} against it: these weights do not show that the model has understood the sentence."
    )


def _steps(runs: Sequence[TwoRelationsRun]) -> list[int | None]:
    """Return the step at which each run first reached the accuracy, None if it never did."""
    return [
        next((step for step, accuracy in zip(one.steps, one.accuracy, strict=True) if accuracy >= BETTER_AT), None)
        for one in runs
    ]


def _strongest(scores: HeadScores) -> dict[str, str]:
    found = {}
    for name in scores.rules:
        top = scores.top(name, 1)
        if top:
            layer, head, share = top[0]
            found[name] = f"{layer}.{head} ({share:.2f})"
    return found


def _where(english: Mapping[str, Looks], chinese: Looks) -> dict[str, dict[str, Any]]:
    """Return the weights of each model's own head for pronouns, sentence by sentence."""
    found: dict[str, dict[str, Any]] = {}
    for model, one in english.items():
        for at, (name, right, wrong) in enumerate((("tired", "animal", "street"), ("wide", "street", "animal"))):
            found[f"“too {name}”, {model}"] = one.of_head(at) | {"model": model, "right": right, "wrong": wrong}
    for at, (sentence, right, wrong) in enumerate(((CAT, "貓", "老鼠"), (MOUSE, "老鼠", "貓"))):
        found[f"「{sentence}」 me5"] = chinese.of_head(at) | {"model": "me5", "right": right, "wrong": wrong}
    return found


def _effects(setting: Setting, models: Mapping[str, Any], english: Looks, chinese: Looks) -> dict[str, dict[str, Any]]:
    """Return the effect of removing the head, and of removing other heads one at a time."""
    others = OTHERS[setting.quick]
    setting.progress("without the head of minilm")
    found = {"“it” moves": effect_on_word(models["minilm"], TIRED, "it", english.head, others, setting.seed)}
    setting.progress("without the head of me5")
    found["它 moves"] = effect_on_word(models["me5"], CAT, "它", chinese.head, others, setting.seed)
    setting.progress("without the head of smollm2")
    found["“tired” against “wide” moves"] = effect_on_completion(
        models["smollm2"], TIRED.rpartition(" ")[0], (" tired", " wide"), ENGLISH, others, setting.seed
    )
    return found


def _courses(setting: Setting) -> dict[str, list[TwoRelationsRun]]:
    steps, runs = STEPS[setting.quick], RUNS[setting.quick]
    found: dict[str, list[TwoRelationsRun]] = {}
    for heads in (1, HEADS):
        for run_ in range(runs):
            setting.progress(f"two relations, {heads} head{'s' if heads > 1 else ''}, run {run_ + 1} of {runs}")
            with torch.random.fork_rng(devices=[]), one_thread():
                found.setdefault(str(heads), []).append(accuracy_over_steps(heads, steps, setting.seed + run_))
    return found


def _rules_chart(scores: Mapping[str, HeadScores]) -> Bars:
    names = [*RULES, "none"]
    counts = {model: one.counts() for model, one in scores.items()}
    labels = {"none": "no rule", **{name: one.label for name, one in RULES.items()}}
    values = tuple(
        tuple(counts[model].get(name, 0) / sum(counts[model].values()) for name in names) for model in scores
    )
    return Bars(
        "What heads do: the rule that takes more than half of their weight",
        "The share of the heads of each model that "
        "follow a rule; most follow none.", "share of heads", tuple(labels[name] for name in names), tuple(scores),
        values,
    )  # fmt: skip


def _looks_chart(numbers: Numbers) -> Bars:
    found = numbers["where the pronoun looks"]
    groups = tuple(f"{name} → {one['right']}" for name, one in found.items())
    values = tuple(tuple(one["weights"][one[which]] for one in found.values()) for which in ("right", "wrong"))
    return Bars(
        "Where the pronoun looks, in the head that looks at the first noun most",
        "The weight on the noun that is meant "
        "(named behind the arrow) and on the other noun.", "weight", groups,
        ("the noun that is meant", "the other noun"), values,
    )  # fmt: skip


def _course_chart(several: Mapping[str, Sequence[TwoRelationsRun]]) -> Lines:
    lines = []
    for heads, runs in several.items():
        each = np.array([one.accuracy for one in runs])
        lines.append(
            Line(
                f"{heads} head" + ("s" if heads != "1" else ""), tuple(map(float, runs[0].steps)),
                tuple(each.mean(0).tolist()), tuple(each.min(0).tolist()), tuple(each.max(0).tolist()),
            )
        )  # fmt: skip
    return Lines(
        "Two relations at once, equal parameters",
        "Accuracy on fresh sequences as training goes; the mean, with a band "
        "from the worst run to the best.", "steps", "accuracy", tuple(lines),
    )  # fmt: skip
