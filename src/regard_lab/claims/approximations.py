"""Approximations: Performer's error over the number of features, and its bias; Linformer's error over the rank."""

import math
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

import regard
from regard.approximations import performer_attention, random_features
from regard.approximations.features import positive_features
from regard_lab.charts import Line, Lines
from regard_lab.experiment import Claim, Finding, Numbers, Part, Setting, within
from regard_lab.measuring import exponent

__all__ = ["CLAIM", "judge", "lemma", "performer_error", "run"]

CLAIM = Claim(
    number=7,
    name="approximations",
    title="How good approximations are",
    statement="Performer's error falls as 1/√m with m random features, and those of a plain QR are biased where those "
    "with the signs put right are not; Linformer's falls as 1/√k with the rank k, from .25 to .06 for k = 16 to 256, "
    "whatever the length.",
    source="Choromanski et al. 2021, 2.4, arXiv:2009.14794; Mezzadri 2007, arXiv:math-ph/0609050; Wang et al. 2020, "
    "theorem 1, arXiv:2006.04768",
)
FEATURES, RANKS = (16, 64, 256, 1024), (4, 8, 16, 32, 64, 128, 256)
SMALL, USUAL = 0.35, 1.0  # standard deviations of q and k: small, and standard normal
HALF = (-0.6, -0.4)  # range of powers that count as −1/2
CLOSE = 0.1  # relative error that counts as small
ERRORS = 4.0  # standard errors within which a mean counts as unbiased
SAID = {16: (0.25, 0.03), 256: (0.06, 0.01)}  # Linformer's error at a rank, and the rounding error of its two digits
PLAIN, FIXED = "plain QR", "QR with the signs put right"
DIRECTIONS = {"q = k = (½, …, ½)": 0.5, "q = k = (−½, …, −½)": -0.5}
LENGTHS = {True: (256, 1024, 4096), False: (256, 1024, 4096, 8192)}


def judge(numbers: Numbers) -> tuple[Part, ...]:
    """Return the parts: powers within their range, errors as claimed, one mean unbiased and the other biased by many
    standard errors.
    """
    power, close = numbers["Performer: power of m"], numbers["Performer"][str(SMALL)][str(FEATURES[-1])]
    far = numbers["Performer"][str(USUAL)][str(FEATURES[-1])]
    parts = [
        Part(f"Performer's error falls as m^{power:.2f} where q and k are small", within(HALF[0] <= power <= HALF[1])),
        Part(f"to {close:.3f} at {FEATURES[-1]:,} features, deviation {SMALL}", within(close <= CLOSE)),
        Part(f"and for standard normal q and k of width 64 to {far:.2f}", within(far <= CLOSE)),
    ]
    for name, biased in ((PLAIN, True), (FIXED, False)):
        means = numbers["Performer: mean of the estimate"][name].values()
        apart = max(abs(mean - 1) / error for mean, error in means)
        told = " and ".join(f"{mean:.3f}" for mean, _ in means)
        text = f"{name}, at d = m = 8: the mean is {told} of the truth, up to {apart:.1f} standard errors from 1"
        parts.append(Part(text, within((apart > ERRORS) == biased)))
    for rank, (said, room) in SAID.items():
        found = [of_ranks[str(rank)] for of_ranks in numbers["Linformer"].values()]
        text = f"Linformer at rank {rank}: {_range(found)} over all lengths, {said} was said"
        parts.append(Part(text, within(all(abs(one - said) <= room for one in found))))
    powers = list(numbers["Linformer: power of k"].values())
    text = f"falling as k^{_range(powers)}"
    parts.append(Part(text, within(all(HALF[0] <= one <= HALF[1] for one in powers))))
    return tuple(parts)


def _range(found: list[float]) -> str:
    low, high = f"{min(found):.2f}", f"{max(found):.2f}"
    return low if low == high else f"{low} to {high}"


def run(setting: Setting) -> Finding:
    """Measure relative errors against exact attention, and the mean of a product of features."""
    draws = 3 if setting.quick else 10
    performer: dict[str, dict[str, float]] = {}
    for spread in (SMALL, 0.5, USUAL):
        setting.progress(f"Performer, deviation {spread}")
        errors = {str(m): performer_error(m, spread, draws=draws, seed=setting.seed) for m in FEATURES}
        performer[str(spread)] = errors
    setting.progress("Performer's bias")
    means = _means(20_000 if setting.quick else 200_000, setting.seed)
    linformer: dict[str, dict[str, float]] = {}
    for n in LENGTHS[setting.quick]:
        setting.progress(f"Linformer, {n:,} tokens")
        linformer[str(n)] = {str(rank): lemma(rank, n, seed=setting.seed) for rank in RANKS}
    small = [performer[str(SMALL)][str(m)] for m in FEATURES]
    numbers: dict[str, Any] = {
        "draws": draws,
        "Performer": performer,
        "Performer: power of m": exponent(FEATURES, small),
        "Performer: mean of the estimate": means,
        "Linformer": linformer,
        "Linformer: power of k": {n: exponent(RANKS, list(one.values())) for n, one in linformer.items()},
    }
    parts = judge(numbers)
    plain, fixed = means[PLAIN]["q = k = (½, …, ½)"][0], means[FIXED]["q = k = (½, …, ½)"][0]
    text = (
        f"Performer comes to {small[-1]:.1%} of exact attention with {FEATURES[-1]:,} features where scores "
        "are small, and "
        f"to {performer[str(USUAL)][str(FEATURES[-1])]:.0%} where they are not: the variance of the estimate "
        "grows with "
        "exp(|q + k|²/√d)."
    )
    return Finding(
        parts, numbers, f"bias ×{plain:.2f}, fixed ×{fixed:.2f}; Linformer {linformer['256']['16']:.2f}→"
        f"{linformer['256']['256']:.2f}", text,
        "Linformer's error is a share of ‖row of weights‖ · ‖values‖, as in its theorem, with a random "
        "projection; as a "
        "share of the output it is not bounded so, and fitted projections are another matter (docs/approximations.md).",
        tuple(_charts(performer, linformer)),
    )  # fmt: skip


def _normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def performer_error(count: int, spread: float, *, draws: int, seed: int = 0, tokens: int = 1024) -> float:
    """Return the relative error with `count` features for normal q and k of this standard deviation, averaged over
    draws.
    """
    errors = []
    for draw in range(draws):
        first = 1000 * seed + 10 * draw
        q, k, v = (_normal(tokens, 64, seed=first + part) * size for part, size in enumerate((spread, spread, 1.0)))
        features = random_features(count, 64, generator=torch.Generator().manual_seed(first + 9))
        errors.append(performer_attention(q, k, v, features).error(regard.attention(q, k, v)))
    return sum(errors) / len(errors)


def lemma(rank: int, length: int, *, seed: int = 0) -> float:
    """Return the change of a row by RᵀR between weights and values, as a share of ‖weights‖ · ‖values‖ (Linformer's
    theorem 1).
    """
    q, k, v = (_normal(length, 64, seed=1000 * seed + part) for part in range(3))
    weights = (q @ k.T / math.sqrt(64)).softmax(-1)
    r = _normal(rank, length, seed=1000 * seed + 7) * rank**-0.5
    apart = (weights @ r.T) @ (r @ v) - weights @ v
    return float((apart / weights.norm(dim=1, keepdim=True) / v.norm(dim=0)).square().mean().sqrt())


def _means(draws: int, seed: int) -> dict[str, dict[str, list[float]]]:
    """Return mean and standard error of φ(q)·φ(k) / exp(q·k/√d) at d = m = 8, for both ways to draw rotations.

    A rotation from a plain QR is biased to one side: the estimate is too small in one direction and too large in the
    opposite one.
    """
    generator = torch.Generator().manual_seed(seed)
    normal = torch.randn(draws, 8, 8, generator=generator, dtype=torch.float64)
    lengths = torch.randn(draws, 8, 8, generator=generator, dtype=torch.float64).norm(dim=-1, keepdim=True)
    plain, r = torch.linalg.qr(normal)
    fixed = plain * r.diagonal(dim1=-2, dim2=-1).sign()[:, None]
    return {
        name: {told: _mean(rotations * lengths, each) for told, each in DIRECTIONS.items()}
        for name, rotations in ((PLAIN, plain), (FIXED, fixed))
    }


def _mean(features: Float[Tensor, "draws 8 8"], each_entry: float) -> list[float]:
    q = k = torch.full((1, 8), each_entry, dtype=torch.float64)
    (log_q, half_q), (log_k, half_k) = (positive_features(x, features.flatten(0, 1)) for x in (q, k))
    each = (log_q - half_q + log_k - half_k).exp().view(-1, 8).mean(1) / (q @ k.T / math.sqrt(8)).exp().squeeze()
    return [float(each.mean()), float(each.std() / math.sqrt(len(each)))]


def _charts(performer: dict[str, dict[str, float]], linformer: dict[str, dict[str, float]]) -> list[Lines]:
    m, k = tuple(map(float, FEATURES)), tuple(map(float, RANKS))
    first = performer[str(SMALL)][str(FEATURES[0])]
    half = Line("1/√m", m, tuple(first * math.sqrt(m[0] / one) for one in m), dashed=True)
    root = Line("1/√k", k, tuple(1 / math.sqrt(one) for one in k), dashed=True)
    return [
        Lines(
            "Performer: error over features",
            "One line a deviation of q and k; the dashed one falls as 1/√m.", "features m", "relative error",
            (*(Line(f"deviation {name}", m, tuple(one.values())) for name, one in performer.items()), half),
            log_across=True, log_up=True,
        ),
        Lines(
            "Linformer: error over rank", "One line a length; the dashed one is 1/√k.", "rank k",
            "share of ‖weights‖ · ‖values‖",
            (*(Line(f"{int(n):,} tokens", k, tuple(one.values())) for n, one in linformer.items()), root),
            log_across=True, log_up=True,
        ),
    ]  # fmt: skip
