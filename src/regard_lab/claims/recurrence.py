"""Plain recurrences forget: the gradient of the last output with respect to step t decays or grows exponentially."""

import math
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from regard.nn import Elman, MultiHeadAttention
from regard_lab.charts import Line, Lines
from regard_lab.experiment import Claim, Finding, Numbers, Part, Setting, within

__all__ = ["CLAIM", "judge", "rate", "run"]

CLAIM = Claim(
    number=14,
    name="recurrence",
    title="Plain recurrences forget",
    statement="The gradient of an Elman RNN's last output towards step t falls (or grows) exponentially with the steps "
    "between; an attention layer's does not.",
    source="Hochreiter 1991; Bengio et al. 1994, doi:10.1109/72.279181; Pascanu et al. 2013, arXiv:1211.5063",
)
WIDTH, STEPS = 64, 100
STRAIGHT = 0.95  # R² of ln(gradient) against steps above which it counts as exponential
FALLS, GROWS = 0.9, 1.1  # factors per step
FLAT = 0.01  # allowed difference of an attention layer's factor from 1
# Activation and ‖W_hh‖, the factor on an orthogonal W_hh.
NETWORKS = {
    "tanh, as initialized": ("tanh", None),
    "tanh, ‖W‖ = 1.0": ("tanh", 1.0),
    "relu, ‖W‖ = 2": ("relu", 2.0),
}
FALLING, GROWING = ("tanh, as initialized", "tanh, ‖W‖ = 1.0"), ("relu, ‖W‖ = 2",)
ATTENTION = "attention"


def judge(numbers: Numbers) -> tuple[Part, ...]:
    """Return the parts: a straight line in the logarithm that falls or rises; for attention a factor near 1."""
    parts = []
    for name in (*FALLING, *GROWING):
        factor, straight = numbers["factor a step"][name], numbers["R²"][name]
        held = straight >= STRAIGHT and (factor <= FALLS if name in FALLING else factor >= GROWS)
        word = "falls" if name in FALLING else "grows"
        parts.append(
            Part(f"{name}: it {word} by a factor of {factor:.3f} a step (R² of the line {straight:.3f})", within(held))
        )
    factor = numbers["factor a step"][ATTENTION]
    parts.append(Part(f"an attention layer's has a factor of {factor:.4f} a step", within(abs(factor - 1) <= FLAT)))
    return tuple(parts)


def run(setting: Setting) -> Finding:
    """Average gradients over sequences of noise, at initialization."""
    draws = 8 if setting.quick else 64
    generator = torch.Generator().manual_seed(setting.seed)
    gradients: dict[str, list[float]] = {}
    for name, (activation, factor) in NETWORKS.items():
        setting.progress(name)
        gradients[name] = _mean(partial(_elman, activation, factor), draws, generator)
    gradients[ATTENTION] = _mean(_attention, draws, generator)
    rates = {name: rate(values) for name, values in gradients.items()}
    numbers = {
        "steps": STEPS,
        "draws": draws,
        "factor a step": {name: factor for name, (factor, _) in rates.items()},
        "R²": {name: straight for name, (_, straight) in rates.items()},
        "gradient towards the first step, of that towards the last": {
            name: values[-1] / values[0] if values[0] else math.nan for name, values in gradients.items()
        },
    }
    parts = judge(numbers)
    share = _last_share(gradients["tanh, as initialized"])
    text = (
        f"Over {STEPS} steps the gradient of a plain recurrence falls to {share:.0e} of what it was, or grows without "
        "bound; every step is one step away for attention."
    )
    plain = numbers["factor a step"]["tanh, as initialized"]  # type: ignore[index]
    return Finding(
        parts, numbers, f"× {plain:.2f} a step; attention × {numbers['factor a step'][ATTENTION]:.3f}",  # type: ignore[index]
        text,
        "At initialization, on noise, for one layer. Gates (GRU, LSTM) and training change the factor.",
        (_chart(gradients),),
    )  # fmt: skip


def _last_share(values: Sequence[float]) -> float:
    """Return the gradient with respect to the first step as a share of that for the last step."""
    return values[-1] / values[0]


def rate(values: Sequence[float]) -> tuple[float, float]:
    """Return the factor per step of the best-fitting exponential, and R² of its line in the logarithm.

    >>> factor, straight = rate([8.0, 4.0, 2.0, 1.0])
    >>> round(factor, 6), round(straight, 6)
    (0.5, 1.0)
    """
    logs = torch.tensor([math.log(one) for one in values if one > 0], dtype=torch.float64)
    steps = torch.arange(len(logs), dtype=torch.float64)
    x, y = steps - steps.mean(), logs - logs.mean()
    slope = (x * y).sum() / x.square().sum()
    left = (y - slope * x).square().sum()
    return float(slope.exp()), float(1 - left / y.square().sum())


def _mean(make: Callable[[], Callable[[Tensor], Tensor]], draws: int, generator: torch.Generator) -> list[float]:
    """Return ‖∂ last output / ∂ x_t‖ by distance from the last step, the geometric mean over draws of network and
    input.
    """
    logs = torch.zeros(STEPS, dtype=torch.float64)
    for _ in range(draws):
        call = make()
        x = torch.randn(1, STEPS, WIDTH, generator=generator, dtype=torch.float64).requires_grad_()
        last = call(x)[0, -1]
        along = torch.randn(last.shape, generator=generator, dtype=torch.float64)
        (gradient,) = torch.autograd.grad(last @ along, x)
        logs += gradient[0].norm(dim=-1).log()
    means: list[float] = (logs / draws).exp().flip(0).tolist()
    return means


def _elman(activation: str, factor: float | None) -> Callable[[Tensor], Tensor]:
    network = Elman(WIDTH, WIDTH, nonlinearity=activation).double()  # type: ignore[arg-type]
    if factor is not None:
        with torch.no_grad():
            torch.nn.init.orthogonal_(network.cell.hidden_to_hidden.weight, gain=factor)
    return lambda x: network(x)[0]


def _attention() -> Callable[[Tensor], Tensor]:
    layer = MultiHeadAttention(WIDTH, 4).double()
    return lambda x: layer(x)


def _chart(gradients: dict[str, list[float]]) -> Lines:
    steps = tuple(float(at) for at in range(STEPS))
    lines = tuple(Line(name, steps, tuple(values)) for name, values in gradients.items())
    return Lines(
        "Gradient of the last output towards earlier steps", "A straight line in this logarithmic picture is "
        "exponential, a level one does not depend on the distance.", "steps back",
        "‖gradient‖", lines, log_up=True,
    )  # fmt: skip
