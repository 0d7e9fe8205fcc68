"""MHA, GQA, MQA: size of the cache, speed of generation, and loss with fewer key–value heads."""

from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.models import Transformer
from regard.positions import RoPE
from regard_lab.characters import HEADS, LENGTH, WIDTH, losses, trained
from regard_lab.charts import Bars
from regard_lab.experiment import Claim, Finding, Numbers, Part, Setting, within
from regard_lab.measuring import seconds_in_turn
from regard_lab.texts import reference, split

__all__ = ["CLAIM", "cache_bytes", "judge", "run"]

CLAIM = Claim(
    number=13,
    name="kv-heads",
    title="MHA, GQA, MQA",
    statement="With fewer key–value heads the cache takes exactly heads / kv heads times less, and the loss is within "
    "2 % of that of as many as there are heads.",
    source="Shazeer 2019 (multi-query), arXiv:1911.02150; Ainslie et al. 2023 (grouped-query), arXiv:2305.13245",
)
CLOSE = 0.02  # relative increase of the loss that counts as small
KINDS = {"MHA": HEADS, "GQA": HEADS // 2, "MQA": 1}
FEWER = ("GQA", "MQA")
STEPS, RUNS, REPEATS = {True: 800, False: 2500}, {True: 1, False: 3}, {True: 9, False: 21}
ROWS = 500  # number of rows of held-out text
TEXTS, READ, STEP = (
    64,
    512,
    8,
)  # of a large batch: texts, characters of the prompt, characters generated per measurement
CACHED = 1024  # characters in the cache whose bytes are reported
BYTES, LOSS, MANY = "bytes of the cache", "loss", f"{TEXTS} long texts"
SPEED = "speed beside MHA, median of neighbours in time"


def judge(numbers: Numbers) -> tuple[Part, ...]:
    """Return the parts: exact bytes, and the increase of the loss; speed is not judged, since it depends on the
    machine.
    """
    parts = []
    whole, loss = numbers[BYTES]["MHA"], _mean_loss(numbers)
    for name in FEWER:
        kv_heads, found = KINDS[name], numbers[BYTES][name]
        held = found * HEADS == whole * kv_heads
        parts.append(
            Part(f"{name}, {kv_heads} of {HEADS} heads: the cache is {whole / found:g} times smaller", within(held))
        )
        rise = loss[name] / loss["MHA"] - 1
        parts.append(Part(f"{name}: the loss changes by {rise:+.1%}", within(rise <= CLOSE)))
    return tuple(parts)


def cache_bytes(model: Transformer, texts: int, characters: int) -> int:
    """Return the bytes of a model's keys and values after `characters` characters of `texts` texts.

    With gradients enabled the cache reserves no spare room, so the bytes are those of the characters only.
    """
    cache = model.cache()
    with torch.enable_grad():
        model(torch.zeros(texts, characters, dtype=torch.long), past_key_values=cache)
    return cache.bytes


def run(setting: Setting) -> Finding:
    """Train a model with each number of key–value heads, and time their generation alternately."""
    text, count = split(reference()), RUNS[setting.quick]
    rows = text.rows(LENGTH, ROWS)
    models: dict[str, list[Transformer]] = {}
    for at in range(count):
        for name, kv_heads in KINDS.items():
            setting.progress(f"{name}, run {at + 1} of {count}")
            model = trained(
                text, STEPS[setting.quick], setting.seed + at,
                positions=RoPE(WIDTH // HEADS), num_key_value_heads=kv_heads,
            )  # fmt: skip
            models.setdefault(name, []).append(model)
    first = {name: found[0] for name, found in models.items()}
    setting.progress("writing in turn")
    repeats = REPEATS[setting.quick]
    seconds = {
        "one text": seconds_in_turn({name: _writes(one) for name, one in first.items()}, repeats),
        MANY: seconds_in_turn({name: _goes_on(one) for name, one in first.items()}, repeats),
    }
    numbers: dict[str, Any] = {
        "heads": HEADS,
        "kv heads": KINDS,
        "steps": STEPS[setting.quick],
        "parameters": {name: sum(p.numel() for p in one.parameters()) for name, one in first.items()},
        BYTES: {name: cache_bytes(one, 1, CACHED) for name, one in first.items()},
        "characters in the cache": CACHED,
        LOSS: {name: [float(losses(one, rows).double().mean()) for one in found] for name, found in models.items()},
        "seconds, median": {
            what: {name: median(each) for name, each in found.items()} for what, found in seconds.items()
        },
        SPEED: {
            what: {
                name: median(whole / one for whole, one in zip(found["MHA"], each, strict=True))
                for name, each in found.items()
            }
            for what, found in seconds.items()
        },
    }
    loss = _mean_loss(numbers)
    rises = {name: loss[name] / loss["MHA"] - 1 for name in FEWER}
    speeds = numbers[SPEED]
    said = "; ".join(f"{what}: " + ", ".join(f"{name} × {speeds[what][name]:.2f}" for name in FEWER) for what in speeds)
    return Finding(
        judge(numbers), numbers,
        "loss " + ", ".join(f"{name} {rise:+.1%}" for name, rise in rises.items())
        + f"; × {speeds[MANY]['MQA']:.2f} as fast with MQA, {MANY}",
        f"The cache shrinks to the byte as the heads do. How fast each writes beside MHA, {said}.",
        f"Two layers, {WIDTH} wide, on characters of Python's reference; a percent of loss lies within what two runs "
        "differ by. Nothing is put in the place of the weights that fewer heads save (Shazeer widened the "
        "feed-forward layers). A model this small is no measure of quality at the sizes for which caches matter. Speed "
        "is that of one core of this machine, and not judged.",
        (_chart(numbers),),
    )  # fmt: skip


def _writes(model: Transformer) -> Callable[[], object]:
    """Return a function that generates LENGTH characters after LENGTH others, in one text, and returns one row with
    its prompt.
    """
    prompt = [list(b"e" * LENGTH)]
    return lambda: model.generate(prompt, max_new_tokens=LENGTH, eos_token_id=())


def _goes_on(model: Transformer) -> Callable[[], object]:
    """Return a function that generates STEP more characters at each call, in many long texts at once."""
    cache, token = model.cache(), torch.full((TEXTS, 1), ord("e"))

    def read(tokens: Tensor, times: int = 1) -> None:
        with torch.inference_mode():
            for _ in range(times):
                model(tokens, past_key_values=cache, logits_to_keep=1)

    read(token.expand(-1, READ))
    return lambda: read(token, STEP)


def _mean_loss(numbers: Numbers) -> dict[str, float]:
    return {name: float(np.mean(found)) for name, found in numbers[LOSS].items()}


def _chart(numbers: Numbers) -> Bars:
    """Return a chart of all measures relative to MHA, which is 1."""
    loss, cache, speeds = _mean_loss(numbers), numbers[BYTES], numbers[SPEED]
    values = {
        "cache": [cache[name] / cache["MHA"] for name in KINDS],
        "loss": [loss[name] / loss["MHA"] for name in KINDS],
        **{f"speed, {what}": [found[name] for name in KINDS] for what, found in speeds.items()},
    }
    return Bars(
        "Fewer key–value heads, beside MHA",
        f"Bytes of the cache, loss, and how many characters are written in a second, {KINDS['MHA']} key–value heads "
        "being 1.", "beside MHA", tuple(f"{name}, {count} of {HEADS}" for name, count in KINDS.items()),
        tuple(values), tuple(map(tuple, values.values())), level=1.0,
    )  # fmt: skip
