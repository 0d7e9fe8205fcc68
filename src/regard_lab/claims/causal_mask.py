"""Leaks: gradients towards later inputs under a causal mask, and under masks of large finite numbers."""

import math
from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor, nn

import regard
from regard.masks import Causal, Padding
from regard_lab.charts import LabeledMatrix, Line, Lines, Matrices
from regard_lab.experiment import Claim, Finding, Numbers, Part, Setting, Verdict, within

__all__ = ["CLAIM", "judge", "run"]

CLAIM = Claim(
    number=4,
    name="causal-mask",
    title="A causal mask leaks nothing",
    statement="Under a causal mask the gradient of every output towards every later input is exactly 0; a mask that "
    "adds a large finite number instead leaks.",
    source="Vaswani et al. 2017, 3.2.3 (−∞), arXiv:1706.03762; −1e4 and −1e9 are in many tutorials",
)
BACKENDS = ("reference", "sdpa", "strips")
FINITE = (1.0, 3.0, 10.0, 30.0, 60.0, 80.0, 100.0, 120.0, 1e3, 1e4, 1e9)
LARGE = 10.0  # smallest number that counts as large: exp(−10) = 4.5e-5
TOKENS, WIDTH = 12, 8


def judge(numbers: Numbers) -> tuple[Part, ...]:
    """Return the parts: the gradient under Causal must be exactly 0; for finite masks, the numbers at which it
    is not.
    """
    parts = [
        Part(f"{name}: the largest gradient towards a later input is {most:g}", within(most == 0.0))
        for name, most in numbers["gradient under Causal"].items()
    ]
    leaks = {number: most for number, most in numbers["gradient under a finite number"] if number >= LARGE}
    leaking = [number for number, most in leaks.items() if most > 0]
    verdict = Verdict.WITHIN if 0 < len(leaking) < len(leaks) else within(bool(leaking))
    tight = [number for number in leaks if number not in leaking]
    last = f"−{max(leaking):g}" if leaking else "none"
    first = f"; from −{min(tight):g} on it does not, as exp rounds to 0 in float32" if tight else ""
    parts.append(Part(f"a finite number leaks in a row that sees some keys, down to {last}{first}", verdict))
    hidden = numbers["weight on hidden keys, a row that may see none, −1e9"]
    parts.append(
        Part(
            f"it leaks in a row that may see nothing, such as padding on the left: its hidden keys get {hidden:.2f}",
            within(hidden > 0),
        )
    )
    none = numbers["weight on hidden keys, a row that may see none, masks"]
    parts.append(Part(f"regard's masks give such a row weights of 0: {none:g}", within(none == 0.0)))
    return tuple(parts)


def run(setting: Setting) -> Finding:
    """Compute gradients of two blocks of a Transformer, and of attention with finite masks."""
    generator = torch.Generator().manual_seed(setting.seed)
    x = torch.randn(1, TOKENS, WIDTH, generator=generator)
    exact = {name: _later(_jacobian(_blocks(name), x)) for name in BACKENDS}
    finite = [(number, _later(_jacobian(_finite(number), x))) for number in FINITE]
    numbers = {
        "tokens": TOKENS,
        "gradient under Causal": exact,
        "gradient under a finite number": finite,
        "weight on hidden keys, a row that may see none, −1e9": _empty_row(-1e9),
        "weight on hidden keys, a row that may see none, masks": _empty_row(-math.inf),
    }
    parts = judge(numbers)
    leaking = [number for number, most in finite if most > 0]
    text = (
        "Through two blocks and each backend not one gradient towards a later input differs from 0. A finite number "
        f"leaks as exp(−number): in float32 up to {max(leaking, default=0):g}; −1e4 and −1e9 leak only in a row that "
        "may see nothing, and there evenly onto all keys."
    )
    jacobians = {
        "Causal()": _jacobian(lambda one: regard.attention(one, one, one, mask=Causal()), x),
        "−1 in place of −∞": _jacobian(_finite(1.0), x),
    }
    return Finding(
        parts, numbers, f"gradient {max(exact.values()):g}; −10 leaks {dict(finite)[10.0]:.0e}", text,
        "Scores here are of the order of 1: where they differ by hundreds, larger numbers leak too. Timing and the "
        "number of tokens are seen whatever the mask.",
        (_matrices(jacobians), _lines(finite)),
    )  # fmt: skip


Call = Callable[[Tensor], Tensor]


def _blocks(backend: str) -> Call:
    """Return two layers of causal attention and feed-forward, each with a residual, on one backend."""
    layers = [(nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)) for _ in range(2)]

    def call(x: Tensor) -> Tensor:
        for project, feed in layers:
            q, k, v = project(x).chunk(3, -1)
            x = x + regard.attention(q, k, v, mask=Causal(), backend=backend)
            x = x + torch.relu(feed(x))
        return x

    return call


def _finite(number: float) -> Call:
    """Return attention whose mask adds −number to the scores of later keys."""
    later = torch.ones(TOKENS, TOKENS).triu(1) * -number
    return lambda x: regard.attention(x, x, x, bias=later, backend="reference")


def _jacobian(call: Call, x: Float[Tensor, "1 n width"]) -> Float[Tensor, "n n"]:
    """Return ‖∂ output_i / ∂ input_j‖ for each pair, in float32."""
    full = torch.autograd.functional.jacobian(lambda one: call(one[None])[0], x[0])
    assert isinstance(full, Tensor)
    norms: Tensor = full.double().norm(dim=(1, 3))  # in float32 the square of the gradient would be 0
    return norms


def _later(jacobian: Float[Tensor, "n n"]) -> float:
    """Return the largest gradient of an output towards a later input."""
    return float(jacobian.triu(1).max())


def _empty_row(number: float) -> float:
    """Return the weight that a fully masked first query, after one padding token on the left, gives to its hidden
    keys.
    """
    x = torch.linspace(-1, 1, 4 * WIDTH).view(4, WIDTH)
    real = torch.tensor([[False, True, True, True]])
    mask = Causal() & Padding(real)
    if math.isinf(number):
        weights = regard.attention(x, x, x, mask=mask, return_weights=True)[1]
    else:
        hidden = (~mask.bind(4, 4).dense()[0, 0]).float() * number
        weights = regard.attention(x, x, x, bias=hidden, return_weights=True)[1]
    return float(weights[0].sum())


def _matrices(jacobians: dict[str, Float[Tensor, "n n"]]) -> Matrices:
    names = tuple(str(at + 1) for at in range(TOKENS))
    matrices = tuple(
        LabeledMatrix(name, names, names, tuple(tuple(row) for row in one.tolist()), digits=None)
        for name, one in jacobians.items()
    )
    return Matrices(
        "How strongly an output (row) depends on an input (column)", "Under Causal() nothing stands right of the "
        "diagonal; with −1 in place of −∞ later inputs shine through.", matrices,
    )  # fmt: skip


def _lines(finite: list[tuple[float, float]]) -> Lines:
    seen = [(number, most) for number, most in finite if most > 0]
    first = seen[0][1] * math.exp(seen[0][0])
    x = tuple(number for number, _ in seen)
    return Lines(
        "What leaks through −number in place of −∞", "The largest gradient towards a later input, beside "
        "exp(−number); the line ends where float32 makes it 0.", "number", "largest gradient",
        (Line("measured", x, tuple(most for _, most in seen)),
         Line("exp(−number)", x, tuple(first * math.exp(-one) for one in x), dashed=True)), log_up=True,
    )  # fmt: skip
