"""head_loss(): measure how much worse a model predicts without some of its heads."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from regard.errors import InputError
from regard.heads.change_loss_and_pairs import Loss, Lost
from regard.hub import Loaded
from regard.interpret.ablate_heads import Replacement, ablate_heads, by_layer, head_outputs
from regard.interpret.head_scores import Probe, Repeated, default_texts, read, repeated_tokens
from regard.interpret.look import Prepared, prepare

__all__ = ["head_loss", "random_sets"]

TEXT_LOSS, FIRST_LOSS, SECOND_LOSS = "loss on the text", "loss on random tokens", "loss on their second copy"
SENTENCE, TOKENS = "change of the text's vector", "change of its tokens' vectors"
Set = Sequence[tuple[int, int]]


def head_loss(
    heads: Set,
    *,
    model: str | Loaded | None = None,
    text: str | None = None,
    replace: Replacement = "zero",
    random: int = 20,
    probe: Probe | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Lost:
    """Measure the loss of a model without some heads, and without equally many random other heads.

    For a causal language model, the measures are its loss in nats per token on the text, on random tokens, and on a
    second copy of these, which an induction head predicts from the first copy (Olsson et al. 2022, arXiv:2209.11895;
    the second copy's first token is unpredictable and left out). For an encoder, which predicts nothing here, they are
    1 − cosine between its outputs with and without the heads: of the mean over the text, and on average over its
    tokens.

    Args:
        heads: Layer and head of each.
        model: A bundled model, a Hugging Face folder or id, or a loaded model; `smollm2` by default.
        text: The input text; by default a few English sentences.
        replace: The replacement of a head's output: "zero", or "mean" over its positions.
        random, probe: Number of random sets of heads; number and length of the sequences of random tokens.
        progress: Called with the number of finished runs and the total number of runs.

    Raises:
        InputError: The head or model does not exist, the text is empty, or there are fewer other heads than removed
            ones.
        ObservationError: The model's output projections are not found.
    """
    loaded = read(model, otherwise="smollm2")
    by_layer(head_outputs(loaded.model), heads)  # raises for a head that does not exist, before the model runs
    probe = probe or Probe()
    sets = [tuple(heads), *random_sets(loaded, heads, random, seed=probe.seed)]
    prepared = prepare(default_texts(loaded)[0] if text is None else text, model=loaded)
    predicts = loaded.kind == "decoder"
    measure = _losses(prepared, repeated_tokens(loaded, probe)) if predicts else _changes(prepared)
    whole = measure()
    found: list[dict[str, float]] = []
    for number, one in enumerate(sets, 1):
        with ablate_heads(loaded.model, one, replace=replace):
            found.append(measure())
        if progress is not None:
            progress(number, len(sets))
    losses = tuple(Loss(name, whole[name], found[0][name], tuple(one[name] for one in found[1:])) for name in whole)
    return Lost(loaded.name, sets[0], replace, losses, str(probe) if predicts else "", tuple(sets[1:]))


def random_sets(loaded: Loaded, heads: Set, count: int, *, seed: int = 0) -> list[tuple[tuple[int, int], ...]]:
    """Return `count` random sets of as many heads as `heads`, drawn from all other heads."""
    layers = head_outputs(loaded.model)
    every = [(layer.number, head) for layer in layers for head in range(layer.heads)]
    others = [one for one in every if one not in heads]
    if count and len(others) < len(heads):
        raise InputError(
            f"random sets of {len(heads)} other heads need as many, and {loaded.name} has {len(others)} others: "
            "remove fewer, or choose random=0"
        )
    generator = np.random.default_rng(seed)
    drawn = [generator.choice(len(others), len(heads), replace=False) for _ in range(count)]
    return [tuple(others[at] for at in sorted(one.tolist())) for one in drawn]


def _losses(prepared: Prepared, repeated: Repeated) -> Callable[[], dict[str, float]]:
    """Return a function that computes a language model's losses on the text and on repeated random tokens."""
    model, ids = prepared.loaded.model, prepared.inputs["input_ids"]
    if ids.shape[1] < 2:
        raise InputError("the text has one token, so that nothing is predicted: write a sentence")
    # No position predicts token 0, and the first token of the second copy is unpredictable.
    first, second = _behind(repeated.first), _behind(repeated.second)

    def measure() -> dict[str, float]:
        of_text, of_probe = _token_losses(model, ids), _token_losses(model, repeated.ids)
        return {
            TEXT_LOSS: float(of_text.mean()),
            FIRST_LOSS: float(of_probe[:, first].mean()),
            SECOND_LOSS: float(of_probe[:, second].mean()),
        }

    return measure


def _behind(copy: slice) -> slice:
    """Return the slice of losses of all tokens of a copy but its first; the loss of token i is at index i − 1."""
    return slice(copy.start, copy.stop - 1)


def _token_losses(model: Any, ids: Int[Tensor, "batch n"]) -> Float[Tensor, "batch rest"]:
    """Return −ln p of each token but the first, in nats."""
    with torch.inference_mode():
        logits = model(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False).logits
        return functional.cross_entropy(
            logits[:, :-1].flatten(0, 1).float(), ids[:, 1:].flatten(), reduction="none"
        ).view(len(ids), -1)


def _changes(prepared: Prepared) -> Callable[[], dict[str, float]]:
    """Return a function that computes how far the output of an encoder moves from its present output."""

    def states() -> Float[Tensor, "n width"]:
        with torch.inference_mode():
            found: Tensor = prepared.loaded.model(**prepared.inputs).last_hidden_state[0].float()
            return found

    before = states()

    def measure() -> dict[str, float]:
        after = states()
        mean = functional.cosine_similarity(before.mean(0), after.mean(0), dim=0)
        each = functional.cosine_similarity(before, after, dim=-1).mean()
        return {SENTENCE: float(1 - mean), TOKENS: float(1 - each)}

    return measure
