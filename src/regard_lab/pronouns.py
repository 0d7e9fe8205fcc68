"""Measure the weights of heads from a pronoun, and the effect of removing one of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from regard.errors import InputError
from regard.heads.scores import head_number
from regard.hub import Loaded
from regard.interpret.ablate_heads import ablate_heads, head_outputs
from regard.interpret.look import prepare
from regard.interpret.word_pairs import score_heads_for_pairs
from regard.record.minimal_pair import HeadFlips
from regard.record.places import find_places

__all__ = ["Looks", "effect_on_completion", "effect_on_word", "looks"]


@dataclass(frozen=True, eq=False)
class Looks:
    """Weights from a pronoun to two nouns in two sentences, of shape (sentences, nouns, layers, heads).

    In the first sentence the pronoun refers to the first of `nouns`, in the second sentence to the second.
    """

    nouns: tuple[str, str]
    weights: npt.NDArray[np.float64]

    @property
    def head(self) -> tuple[int, int]:
        """The head with the largest weight from the pronoun on the first noun, in the first sentence."""
        layer, head = divmod(int(self.weights[0, 0].argmax()), self.weights.shape[-1])
        return layer, head

    def of_head(self, sentence: int) -> dict[str, Any]:
        """Return that head's weights on both nouns in one sentence."""
        layer, head = self.head
        shares = self.weights[sentence, :, layer, head].tolist()
        return {"head": head_number(layer, head), "weights": dict(zip(self.nouns, shares, strict=True))}

    def turning(self) -> dict[str, int]:
        """Return how many heads prefer the right noun in both sentences, and how many the wrong noun in both.

        Only heads that give both nouns a tenth of their weight in each sentence count. If meaning had no effect, both
        numbers would be about equal.
        """
        found = HeadFlips(self.weights)
        right = sum(flip.to_second for flip in found.flips)
        return {"right": right, "wrong": len(found.flips) - right, "asked": found.counted}


def looks(model: Loaded, sentences: Sequence[str], words: tuple[str, str, str]) -> Looks:
    """Run a model on two sentences with a pronoun and two nouns, and return the weights."""
    pronoun, first, second = words
    pairs = [f"{pronoun}>{noun}" for noun in (first, second)]
    found = [[pair.mean for pair in score_heads_for_pairs(pairs, [one], model=model).pairs] for one in sentences]
    return Looks((first, second), np.array(found))


def effect_on_word(
    model: Loaded, sentence: str, word: str, head: tuple[int, int], others: int, seed: int
) -> dict[str, Any]:
    """Return the change of a word's last vectors without a head, as 1 − cosine, and that for other heads one at a
    time.
    """
    prepared = prepare(sentence, model=model)
    places = [at for place in find_places(prepared.tokens["text"][0], word) for at in place.positions]

    def states() -> Float[Tensor, "places width"]:
        with torch.inference_mode():
            found: Tensor = model.model(**prepared.inputs).last_hidden_state[0, places]
            return found

    before = states()

    def change() -> float:
        return float(1 - functional.cosine_similarity(before, states(), dim=-1).mean())

    return _compared(model, head, others, seed, change)


def effect_on_completion(
    model: Loaded, start: str, completions: tuple[str, str], words: tuple[str, str, str], others: int, seed: int
) -> dict[str, Any]:
    """Return the change of ln p(first) − ln p(second) of two completions without the head that has the largest weight
    on the first noun.
    """
    found = looks(model, [start], words)
    ids = prepare(start, model=model).inputs["input_ids"]
    each = [model.tokenizer(one, add_special_tokens=False)["input_ids"] for one in completions]
    if any(len(one) != 1 for one in each):
        raise InputError(f"`completions` must be one token each for {model.name}, got {completions}")
    network: Any = model.model

    def preference() -> float:
        with torch.inference_mode():
            logits = network(input_ids=ids, use_cache=False).logits[0, -1]
            return float(logits[each[0][0]] - logits[each[1][0]])

    before = preference()
    compared = _compared(model, found.head, others, seed, lambda: abs(preference() - before))
    return compared | {"whole": before}


def _compared(model: Loaded, head: tuple[int, int], others: int, seed: int, change: Any) -> dict[str, Any]:
    """Return the effect of removing one head, and the share of other heads with a smaller effect."""
    layers = head_outputs(model.model)
    rest = [(at, one) for at, layer in enumerate(layers) for one in range(layer.heads) if (at, one) != head]
    drawn = np.random.default_rng(seed).permutation(len(rest))[:others]
    changes = []
    for one in (head, *(rest[at] for at in drawn)):
        with ablate_heads(model.model, [one]):
            changes.append(change())
    less = float(np.mean([one < changes[0] for one in changes[1:]]))
    return {
        "head": f"{model.name} {head_number(*head)}",
        "change": changes[0],
        "rank": less,
        "median of others": float(np.median(changes[1:])),
        "others": len(changes) - 1,
    }
