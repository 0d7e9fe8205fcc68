"""Beyond the trained length: small language models with different position encodings, tested at four times the
length.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Int
from torch import Tensor

from regard.models import Transformer
from regard.models.config import Sinusoidal
from regard.positions import RoPE
from regard_lab.characters import HEADS, LENGTH, WIDTH, losses, trained
from regard_lab.charts import Line, Lines
from regard_lab.experiment import Claim, Finding, Numbers, Part, Setting, within
from regard_lab.texts import made_up, reference, split

__all__ = ["CLAIM", "LengthRun", "course", "judge", "run"]

CLAIM = Claim(
    number=8,
    name="length",
    title="Beyond the trained length",
    statement="Trained on 64 tokens and tested on 256, ALiBi's loss rises by under 5 %, that of sinusoidal positions "
    "by over 50 %; RoPE and T5's buckets fall between. Of Shaw's clipped distances only a clip of 0 is clearly worse "
    "than 1, 4 and 16.",
    source="Press et al. 2022, arXiv:2108.12409; Shaw et al. 2018, table 2 and 4.3, arXiv:1803.02155",
)
FAR = 4 * LENGTH  # characters per test row
HOLDS, BREAKS = 0.05, 0.50  # relative increases of the loss that count as small and as large
SAME = 0.01  # difference of two increases that does not count
WORSE = 0.05  # loss relative to the best clip's above which a clip counts as clearly worse
ALIBI, SINES, BETWEEN = "ALiBi", "sinusoidal", ("RoPE", "T5")
KINDS: Mapping[str, Mapping[str, Any]] = {
    ALIBI: {"position_bias": "alibi"},
    SINES: {"positions": Sinusoidal()},
    "RoPE": {"positions": RoPE(WIDTH // HEADS)},
    # All buckets are trained, as in T5, whose 32 buckets end at distance 128 of 512 tokens in training.
    "T5": {"position_bias": "t5", "relative_attention_num_buckets": 16, "relative_attention_max_distance": 32},
}
CLIPS = (0, 1, 4, 16)
MADE_UP, PYTHON = "made-up language", "Python's reference"
STEPS, OF_CLIPS = {True: 500, False: 800}, {True: 300, False: 400}  # Shaw's models take two to three times as long
LONGER = 2000  # training steps on Python's reference in a full run
RUNS, ROWS = {True: 1, False: 2}, 64
BIN = 8  # characters averaged per point of the figure
RISE, CLIP = "rise beyond the trained length", "loss by Shaw's clip"


def judge(numbers: Numbers) -> tuple[Part, ...]:
    """Return the parts: the increase for each position encoding, and the loss of each clip relative to the best; means
    over the runs.
    """
    parts = []
    for language, found in numbers[RISE].items():
        rise = {name: float(np.mean(each)) for name, each in found.items()}
        parts.append(Part(f"{language}, {ALIBI}: {rise[ALIBI]:+.1%}", within(rise[ALIBI] < HOLDS)))
        parts.append(Part(f"{language}, {SINES}: {rise[SINES]:+.0%}", within(rise[SINES] > BREAKS)))
        for name in BETWEEN:
            held = rise[ALIBI] - SAME <= rise[name] <= rise[SINES] + SAME
            parts.append(Part(f"{language}, {name} falls between them: {rise[name]:+.0%}", within(held)))
    for clip, more in _more(numbers).items():
        word = "is" if clip == 0 else "is not"
        held = (more > WORSE) == (clip == 0)
        parts.append(Part(f"a clip of {clip} {word} clearly worse than the best: {more:+.0%}", within(held)))
    return tuple(parts)


def run(setting: Setting) -> Finding:
    """Train a model for each position encoding on rows of 64, and measure its loss on held-out rows of 256."""
    count, steps, of_clips = RUNS[setting.quick], STEPS[setting.quick], OF_CLIPS[setting.quick]
    kinds = [(name, options, steps) for name, options in KINDS.items()]
    kinds += [(_clip(clip), {"position_bias": "shaw", "max_relative_position": clip}, of_clips) for clip in CLIPS]
    runs: dict[str, dict[str, list[LengthRun]]] = {MADE_UP: {}}
    for at in range(count):
        text = split(made_up(300_000, setting.seed + at))
        rows = text.rows(FAR, ROWS)
        for name, options, some in kinds:
            setting.progress(f"{name}, run {at + 1} of {count}")
            found = course(trained(text, some, setting.seed + at, **options), rows)
            runs[MADE_UP].setdefault(name, []).append(found)
    if not setting.quick:
        text = split(reference())
        rows = text.rows(FAR, ROWS)
        runs[PYTHON] = {}
        for name, options in KINDS.items():
            setting.progress(f"{name}, {PYTHON}")
            runs[PYTHON][name] = [course(trained(text, LONGER, setting.seed, **options), rows)]
    numbers: dict[str, Any] = {
        "steps": {MADE_UP: steps, "of Shaw's": of_clips} | ({} if setting.quick else {PYTHON: LONGER}),
        "loss within the trained length": _each(runs, "near"),
        "loss of the same characters beyond it": _each(runs, "far"),
        RISE: {language: {name: found[name] for name in KINDS} for language, found in _each(runs, "rise").items()},
        "rise of whole rows, as Press et al. count": _each(runs, "whole"),
        CLIP: {str(clip): [one.near for one in runs[MADE_UP][_clip(clip)]] for clip in CLIPS},
    }
    rise = {name: float(np.mean(found)) for name, found in numbers[RISE][MADE_UP].items()}
    clips = ", ".join(f"{clip}: {more:+.0%}" for clip, more in _more(numbers).items())
    return Finding(
        judge(numbers), numbers, f"{ALIBI} {rise[ALIBI]:+.1%}, {SINES} {rise[SINES]:+.0%}; clip {clips}",
        f"With up to {FAR - 1} characters before them in place of {LENGTH // 2} to {LENGTH - 1}, the loss of the same "
        f"characters changes by: {'; '.join(f'{name} {rise[name]:+.0%}' for name in KINDS)}. Within the trained length "
        f"Shaw's clips lose more than the best of them by {clips}: a causal model with a clip of 1 tells itself from "
        "what came before, and no more.",
        f"Two layers, {WIDTH} wide, a few hundred thousand characters. What can be foreseen in the made-up language "
        "hangs on the few letters before, so that a model that loses its way beyond 64 loses everything: how far a "
        "loss rises is the language's as much as the model's, and smaller in prose (a full run has both). Shaw et al. "
        "measured translation by an encoder–decoder of six layers, whose encoder tells before from behind with a clip "
        "of 1; this one needs to count letters.",
        (
            _chart("Positions beyond the trained length", KINDS, runs[MADE_UP]),
            *(_chart(f"{PYTHON}, beyond the trained length", KINDS, found) for found in [runs.get(PYTHON)] if found),
            _chart("Shaw's distances by their clip", [_clip(clip) for clip in CLIPS], runs[MADE_UP]),
        ),
    )  # fmt: skip


@dataclass(frozen=True)
class LengthRun:
    """The losses of one model, in nats per character.

    `near` and `far` are of the same characters, those after the trained length: with 32 to 63 characters of context,
    and with the whole row. `whole` is the increase of the mean over all characters from rows of the trained length to
    long ones. `along` is the loss along a long row.
    """

    near: float
    far: float
    whole: float
    along: tuple[float, ...]

    @property
    def rise(self) -> float:
        """The relative increase of the loss with more context than in training."""
        return self.far / self.near - 1


def course(model: Transformer, rows: Int[Tensor, "rows n+1"]) -> LengthRun:
    """Compute the losses on whole rows, and on pieces of the trained length that start at every half of it."""
    full = losses(model, rows).double()
    half = LENGTH // 2
    pieces = rows.unfold(1, LENGTH + 1, half)
    read = losses(model, pieces.flatten(0, 1)).double().view(*pieces.shape[:2], LENGTH)
    near, far = read[:, 1:, half:].flatten(1), full[:, LENGTH:]
    assert near.shape == far.shape
    whole = full.mean() / read[:, ::2].mean() - 1
    return LengthRun(
        float(near.mean()), float(far.mean()), float(whole), tuple(full.mean(0).view(-1, BIN).mean(1).tolist())
    )


def _more(numbers: Numbers) -> dict[int, float]:
    """Return the increase of each clip's loss relative to the best clip."""
    loss = {int(clip): float(np.mean(found)) for clip, found in numbers[CLIP].items()}
    return {clip: found / min(loss.values()) - 1 for clip, found in loss.items()}


def _each(runs: Mapping[str, Mapping[str, Sequence[LengthRun]]], what: str) -> dict[str, dict[str, list[float]]]:
    return {
        language: {name: [getattr(one, what) for one in found] for name, found in of_language.items()}
        for language, of_language in runs.items()
    }


def _clip(clip: int) -> str:
    return f"clip {clip}"


def _chart(title: str, names: Iterable[str], runs: Mapping[str, Sequence[LengthRun]]) -> Lines:
    lines = []
    for name in names:
        each = np.array([one.along for one in runs[name]])
        low, mean, high = (tuple(one.tolist()) for one in (each.min(0), each.mean(0), each.max(0)))
        lines.append(Line(name, tuple(BIN * (at + 0.5) for at in range(each.shape[1])), mean, low, high))
    return Lines(
        title,
        f"The loss at each place of a row of {FAR} characters, means over {BIN}; trained on rows of {LENGTH}.",
        "character of the row", "nats a character", tuple(lines), log_up=True,
    )  # fmt: skip
