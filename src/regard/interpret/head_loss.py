"""head_loss(): what a model's prediction loses without some of its heads."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from regard.errors import InputError
from regard.interpret.ablate_heads import Replacement, ablate_heads, by_layer, head_outputs
from regard.interpret.bundled import Loaded
from regard.interpret.head_scores import default_texts, read
from regard.interpret.look import Prepared, prepare
from regard.interpret.repeated_tokens import Probe, Repeated, repeated_tokens
from regard.render.head_loss import Loss, Lost

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
    """Measure what a model loses without some heads, and what without random ones: as many of the other heads.

    Of a causal language model: its loss, in nats a token, on the text, on random tokens, and on their second copy,
    which an induction head can tell from the first (Olsson et al. 2022, arXiv:2209.11895; the copy's first token,
    which nothing tells, is left out). Of an encoder, which predicts nothing here: 1 − cosine between its outputs with
    and without, of the mean over the text and of its tokens on average.

    Args:
        heads: Layer and head of each.
        model: A bundled model, a Hugging Face folder or id, or one that is loaded; `smollm2` by default.
        text: What it reads; by default a few English sentences.
        replace: What stands in place of a head's output: "zero", or "mean" of its positions.
        random, probe: How many random sets, and random tokens.
        progress: Called with the number of runs that are done, and of all.

    Raises:
        InputError: No such head or model; no text; fewer other heads than are removed.
        ObservationError: The model's output projections are not found.
    """
    loaded = read(model, otherwise="smollm2")
    by_layer(head_outputs(loaded.model), heads)  # refuses a head that is not there before anything runs
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
    """Sets of as many heads, drawn from all others."""
    layers = head_outputs(loaded.model)
    others = [(at, head) for at, layer in enumerate(layers) for head in range(layer.heads) if (at, head) not in heads]
    if count and len(others) < len(heads):
        raise InputError(
            f"random sets of {len(heads)} other heads need as many, and {loaded.name} has {len(others)} others: "
            "remove fewer, or choose random=0"
        )
    generator = np.random.default_rng(seed)
    drawn = [generator.choice(len(others), len(heads), replace=False) for _ in range(count)]
    return [tuple(others[at] for at in sorted(one.tolist())) for one in drawn]


def _losses(prepared: Prepared, repeated: Repeated) -> Callable[[], dict[str, float]]:
    """How well a language model predicts the text, and random tokens said twice."""
    model, ids = prepared.loaded.model, prepared.inputs["input_ids"]
    if ids.shape[1] < 2:
        raise InputError("the text has one token, so that nothing is predicted: write a sentence")
    # Position 0 is predicted by none; the first token of the second copy follows from nothing.
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
    """The losses of all tokens of a copy but its first; the loss of token i stands at i − 1."""
    return slice(copy.start, copy.stop - 1)


def _token_losses(model: Any, ids: Int[Tensor, "batch n"]) -> Float[Tensor, "batch rest"]:
    """−ln p of each token but the first, in nats."""
    with torch.inference_mode():
        logits = model(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False).logits
        return functional.cross_entropy(
            logits[:, :-1].flatten(0, 1).float(), ids[:, 1:].flatten(), reduction="none"
        ).view(len(ids), -1)


def _changes(prepared: Prepared) -> Callable[[], dict[str, float]]:
    """How far the output of an encoder moves from what it is now."""

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
