"""200 texts whose headline is known not to be a place where heads rest, if another head looks at a word.

100 English and 100 Chinese sentences, made of the lists below, are looked at with the bundled models: 60 in English
with minilm and 40 with smollm2, 60 in Chinese with me5 and 40 with smollm2. The headline of a text, the first head of
`regard.look`, rests if its word is

- a special token,
- the first token of a text that a causal model reads,
- a sink of its layer (the rule of docs/atlas.md), or
- a word that gets more than half of its head's weight from the other words too, in the mean.

All of this is computed here, from transformers' eager weights.
"""

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

import regard

__all__ = ["Case", "cases", "eager_weights", "judge"]

PEOPLE = ("Maria", "Anna", "Tom", "Peter", "Dogs", "Children", "Teachers", "Cats", "Farmers", "Robots")
ENGLISH = (
    "{} barked at strangers because they were hungry",
    "{} gave the book to John because he asked",
    "Yesterday {} bought a red car and sold it in the evening",
    "The animal did not cross the street because it was too tired",
    "{} told the lawyer that she had won the prize",
    "When the rain stopped, {} took the umbrella home and dried it",
    "The trophy that {} won does not fit in the suitcase because it is too big",
    "{} sleep",
    "{} wrote a long letter to the bank, but nobody answered it",
    "In spring {} plant trees along the river",
)
NAMES = ("小明", "老师", "猫", "狗", "医生", "孩子们", "农民", "机器人", "司机", "妈妈")
CHINESE = (
    "{}追老鼠，因为它饿了",
    "{}把书给了小红，因为她想看",
    "昨天{}买了一辆红色的汽车，晚上又把它卖了",
    "动物没有过马路，因为它太累了",
    "{}告诉律师他赢得了奖品",
    "雨停了，{}把雨伞带回家晾干",
    "奖杯放不进箱子，因为它太大了",
    "{}睡觉",
    "{}给银行写了一封长信，但是没有人回答",
    "春天{}在河边种树",
)


@dataclass(frozen=True)
class Case:
    """A text, its model, and the name of its language."""

    text: str
    model: str
    language: str


def cases() -> list[Case]:
    """The 200 texts: every sentence with every name, of those without a place for one with a name before it."""
    found = []
    for language, lines, names, first, before in (
        ("English", ENGLISH, PEOPLE, "minilm", "{} know: {}"),
        ("Chinese", CHINESE, NAMES, "me5", "{}说：{}"),
    ):
        for number, (line, name) in enumerate(itertools.product(lines, names)):
            text = line.format(name) if "{}" in line else before.format(name, line)
            found.append(Case(text, first if number % 5 < 3 else "smollm2", language))
    return found


def sinks(weights: np.ndarray, *, causal: bool) -> np.ndarray:
    """The sinks of a layer (heads, queries, keys), by the rule of docs/atlas.md."""
    n = weights.shape[-1]
    seeing = np.arange(n, 0, -1) if causal else np.full(n, n)
    even = np.tril(np.ones((n, n))) if causal else np.ones((n, n))
    blind = (even / even.sum(1, keepdims=True)).sum(0) / seeing
    share = weights.mean(0).sum(0) / seeing
    return (share > 0.05) & (share > 4 / n) & (share > 2 * blind) & (seeing >= n / 4)


def habit(weights: np.ndarray, query: slice, key: slice, text: np.ndarray, *, causal: bool) -> np.ndarray:
    """The mean weight of each head on a word from the rows of other words that can see it (heads)."""
    n = weights.shape[-1]
    rows = [i for i in range(n) if text[i] and not query.start <= i < query.stop and not key.start <= i < key.stop]
    rows = [i for i in rows if i >= key.start or not causal]
    return weights[:, rows, key].sum(-1).mean(-1) if rows else np.zeros(len(weights))


def eager_weights(text: str, loaded: Any) -> list[np.ndarray]:
    """The weights of each layer (heads, queries, keys), as transformers' eager attention returns them."""
    ids = loaded.tokenizer(text, return_tensors="pt")
    before = loaded.model.config._attn_implementation
    loaded.model.set_attn_implementation("eager")
    with torch.no_grad():
        output = loaded.model(input_ids=ids["input_ids"], attention_mask=ids["attention_mask"], output_attentions=True)
    loaded.model.set_attn_implementation(before)
    return [layer[0].double().numpy() for layer in output.attentions]


def judge(case: Case, loaded: Any) -> dict[str, Any]:
    """Look at one text, and weigh what is shown against every other weight of the same word."""
    looked = regard.look(case.text, model=loaded)
    focus, causal = looked.highlight, case.model == "smollm2"
    first, eager = focus.looks[0], eager_weights(case.text, loaded)
    special = np.array(loaded.tokenizer(case.text, return_special_tokens_mask=True)["special_tokens_mask"], bool)
    words = [slice(word.pieces[0], word.pieces[-1] + 1) for word in focus.keys]
    query = words[focus.word]

    def rests(layer: int, key: slice) -> np.ndarray:
        weights = eager[layer]
        sink = sinks(weights, causal=causal)[key].any() or (causal and key.start == 0) or special[key].any()
        return habit(weights, query, key, ~special, causal=causal) > 0.5 if not sink else np.ones(len(weights), bool)

    better, others = 0, 0.0
    for layer, weights in enumerate(eager):
        for number, key in enumerate(words):
            if special[key].any() or number in (focus.word, focus.word - 1):
                continue
            given = np.where(rests(layer, key), 0, weights[:, query, key].sum(-1).mean(-1))
            better += int((given > first.weight + 1e-5).sum())
            others = max(others, float(given.max()))
    target = words[first.target]
    return {
        "text": case.text,
        "model": case.model,
        "language": case.language,
        "said": str(looked).splitlines() if type(looked).__str__ is not object.__str__ else repr(first),
        "weight": float(eager[first.layer][first.head, query, target].sum(-1).mean()),
        "rests": bool(rests(first.layer, target)[first.head]),
        "neighbour": first.target in (focus.word, focus.word - 1),
        "heads with more on another word": better,
        "the most on another word": round(others, 4),
    }
