"""Scaling: the variance of q·k grows with the width; without 1/√d the softmax saturates and its gradient vanishes."""

import math
from collections.abc import Mapping

import torch
from jaxtyping import Float
from torch import Tensor

from regard_lab.charts import Line, Lines
from regard_lab.experiment import Claim, Finding, Numbers, Part, Setting, within

__all__ = ["CLAIM", "judge", "run"]

CLAIM = Claim(
    number=2,
    name="scaling",
    title="Why scores are divided by √d",
    statement="The variance of q·k grows as d_k; without 1/√d_k the softmax saturates and its gradient vanishes.",
    source="Vaswani et al. 2017, 3.2.1 and footnote 4, arXiv:1706.03762",
)
WIDTHS = (4, 8, 16, 32, 64, 128, 256, 512, 1024)
KEYS = 64
VARIANCE = 0.05  # allowed difference of variance / d from 1
SATURATED = 0.9  # mean of a row's largest weight above which the softmax counts as saturated
VANISHED = 0.1  # median gradient without the scale relative to that with it, below which it counts as vanished
STEADY = 1.25  # with the scale: largest value over all widths divided by the smallest


def judge(numbers: Numbers) -> tuple[Part, ...]:
    """Return the parts: the variance is d at every width; at the largest, rows saturate and gradients vanish, but not
    with the scale.
    """
    ratios = [one / width for width, one in zip(numbers["d"], numbers["variance"], strict=True)]
    worst = max(abs(one - 1) for one in ratios)
    confidence, gradient = numbers["largest weight, unscaled"][-1], numbers["median gradient, unscaled"][-1]
    share = gradient / numbers["median gradient, scaled"][-1]
    steady = max(_spread(numbers[f"{name}, scaled"]) for name in ("largest weight", "median gradient"))
    most = numbers["d"][-1]
    return (
        Part(
            f"the variance of q·k is d: the ratio is within {worst:.1%} of 1 at every width", within(worst <= VARIANCE)
        ),
        Part(
            f"unscaled, the softmax saturates: at d = {most} the largest of {KEYS} weights is {confidence:.2f} on "
            "average",
            within(confidence >= SATURATED),
        ),
        Part(
            f"and its gradient vanishes: at d = {most} the median is {share:.2g} of the scaled one's",
            within(share <= VANISHED),
        ),
        Part(f"with 1/√d neither changes with d: by a factor of {steady:.2f} at most", within(steady <= STEADY)),
    )


def _spread(numbers: list[float]) -> float:
    return max(numbers) / min(numbers)


def run(setting: Setting) -> Finding:
    """Draw standard normal queries and keys at each width."""
    pairs = 64_000 if setting.quick else 640_000
    generator = torch.Generator().manual_seed(setting.seed)
    found: dict[str, list[float]] = {}
    for width in WIDTHS:
        setting.progress(f"d = {width}")
        for name, number in _measure(width, max(pairs // width, pairs // 64), generator).items():
            found.setdefault(name, []).append(number)
    numbers: dict[str, object] = {"d": list(WIDTHS), "keys": KEYS, **found}
    unscaled, scaled = found["mean gradient, unscaled"][-1], found["mean gradient, scaled"][-1]
    share = found["median gradient, unscaled"][-1] / found["median gradient, scaled"][-1]
    text = (
        f"At d = {WIDTHS[-1]} without the scale the median row's gradient is {share:.1g} of the scaled one's; the mean "
        f"over rows is still {unscaled / scaled:.0%} of it, from those rows where two keys come close."
    )
    parts = judge(numbers)
    return Finding(
        parts, numbers, f"gradient at d = {WIDTHS[-1]}: {share:.1g} of scaled", text,
        "Queries and keys are independent and standard normal, as at the start of training; trained ones are not. The "
        "gradient is that of the weights towards the scores, ‖diag(p) − p pᵀ‖.",
        tuple(_charts(found)),
    )  # fmt: skip


def _measure(width: int, rows: int, generator: torch.Generator) -> dict[str, float]:
    """Measure one width: `rows` queries, each with `KEYS` keys of its own, in parts."""
    pieces = []
    for start in range(0, rows, 500):
        count = min(500, rows - start)
        q = torch.randn(count, 1, width, generator=generator)
        k = torch.randn(count, width, KEYS, generator=generator)
        pieces.append((q @ k)[:, 0])
    scores = torch.cat(pieces).double()
    found = {"variance": float(scores.var())}
    for name, scale in (("unscaled", 1.0), ("scaled", 1 / math.sqrt(width))):
        weights = (scores * scale).softmax(-1)
        gradient = _gradient(weights)
        found[f"largest weight, {name}"] = float(weights.amax(-1).mean())
        found[f"mean gradient, {name}"] = float(gradient.mean())
        for share, called in ((0.1, "lower"), (0.5, "median"), (0.9, "upper")):
            found[f"{called} gradient, {name}"] = float(gradient.quantile(share))
    return found


def _gradient(p: Float[Tensor, "rows keys"]) -> Float[Tensor, " rows"]:
    """Return ‖diag(p) − p pᵀ‖ of each row; where one weight is nearly 1, 1 − p is computed as the sum of the others."""
    first, others = p.sort(-1, descending=True).values.split([1, p.shape[-1] - 1], -1)
    squares = others.square().sum(-1)
    diagonal = (first * others.sum(-1, keepdim=True)).square().sum(-1) + (others * (1 - others)).square().sum(-1)
    pairs = 2 * first[:, 0].square() * squares + squares.square() - others.pow(4).sum(-1)
    norm: Tensor = (diagonal + pairs).sqrt()
    return norm


def _charts(found: Mapping[str, list[float]]) -> list[Lines]:
    x = tuple(map(float, WIDTHS))

    def line(name: str, key: str) -> Line:
        return Line(name, x, tuple(found[key]))

    def median(name: str) -> Line:
        low = tuple(max(one, 1e-20) for one in found[f"lower gradient, {name}"])
        middle = tuple(max(one, 1e-20) for one in found[f"median gradient, {name}"])
        return Line(name, x, middle, low, tuple(found[f"upper gradient, {name}"]))

    return [
        Lines(
            "The variance of q·k",
            "The variance of q·k, measured, and the line d that the claim says.", "d", "variance",
            (line("measured", "variance"), Line("d", x, x, dashed=True)), log_across=True, log_up=True,
        ),
        Lines(
            "The largest of 64 weights", "Mean over rows of the largest weight, without the scale and with it.",
            "d", "mean of the largest weight",
            (line("q·k", "largest weight, unscaled"), line("q·k / √d", "largest weight, scaled")), log_across=True,
        ),
        Lines(
            "The gradient of the softmax", "Median over rows, and the band from the 10th to the 90th of 100.",
            "d", "‖diag(p) − p pᵀ‖",
            (median("unscaled"), median("scaled")), log_across=True, log_up=True,
        ),
    ]  # fmt: skip
