"""Order: attention without positions is permutation equivariant; a linear map shifts sinusoidal positions."""

import torch
from jaxtyping import Float
from torch import Tensor

from regard.nn import MultiHeadAttention
from regard.positions import sinusoidal
from regard_lab.charts import Bars, Line, Lines
from regard_lab.experiment import Claim, Finding, Numbers, Part, Setting, within

__all__ = ["CLAIM", "judge", "rotation", "run"]

CLAIM = Claim(
    number=3,
    name="order",
    title="Blind to order, and positions that turn",
    statement="Attention without positions is permutation equivariant: shuffled words give the same outputs, shuffled. "
    "Sinusoidal positions turn by a linear map that depends on the offset alone: PE(p + k) = R_k PE(p).",
    source="Vaswani et al. 2017, 3.5, arXiv:1706.03762; Lee et al. 2019, property 1, arXiv:1810.00825",
)
WIDTH, HEADS, TOKENS = 64, 4, 32
LENGTH, OFFSETS = 1000, (1, 2, 5, 10, 50, 100, 500)
ROUNDING = {"float64": 1e-12, "float32": 1e-5}  # relative differences explained by rounding
SEEN = 0.01  # relative difference above which the output counts as depending on the order
TURNED = 1e-9  # absolute error of R_k PE(p), float64: angles of up to 1,500 are rounded at 1e-13


def judge(numbers: Numbers) -> tuple[Part, ...]:
    """Return the parts: equivariance to rounding without positions, none with them, and an exact map for every p and
    k.
    """
    parts = [
        Part(
            f"without positions, {kind}: shuffling first or last differs by {numbers[f'shuffled, {kind}']:.1e}",
            within(numbers[f"shuffled, {kind}"] <= most),
        )
        for kind, most in ROUNDING.items()
    ]
    with_positions, turned = numbers["shuffled, with positions"], max(numbers["error of R_k"])
    fitted, random = max(numbers["fitted map, sinusoids"]), min(numbers["fitted map, random table"])
    return (
        *parts,
        Part(f"with positions added it does see order: {with_positions:.2f}", within(with_positions >= SEEN)),
        Part(
            f"R_k PE(p) is PE(p + k) for every p below {LENGTH} and each k: {turned:.1e} apart at most",
            within(turned <= TURNED),
        ),
        Part(
            f"which is special: fitted linear maps leave {fitted:.0e} of a sinusoidal table, {random:.2f} of a "
            "random one",
            within(fitted <= TURNED < SEEN <= random),
        ),
    )


def run(setting: Setting) -> Finding:
    """Permute before and after attention; shift a table by k, and fit maps to it and to a random table."""
    generator = torch.Generator().manual_seed(setting.seed)
    numbers: dict[str, object] = {}
    for kind, dtype in (("float64", torch.float64), ("float32", torch.float32)):
        numbers[f"shuffled, {kind}"] = _shuffled(dtype, generator, positions=False)
    numbers["shuffled, with positions"] = _shuffled(torch.float64, generator, positions=True)
    table = sinusoidal(LENGTH + max(OFFSETS), WIDTH, dtype=torch.float64)
    noise = torch.randn(table.shape, generator=generator, dtype=torch.float64) * table.square().mean().sqrt()
    errors = [_turned(table, k) for k in OFFSETS]
    numbers["k"] = list(OFFSETS)
    numbers["error of R_k"] = [max(one) for one in errors]
    for name, one in (("sinusoids", table), ("random table", noise)):
        numbers[f"fitted map, {name}"] = [_fitted(one, k) for k in OFFSETS]
    parts = judge(numbers)
    text = (
        "Shuffled words give shuffled outputs to the last digits of the number format. One matrix of cosines and sines "
        "of k turns every position by k; no matrix does so for a table of random vectors."
    )
    return Finding(
        parts, numbers, f"{numbers['shuffled, float64']:.0e} from equal; R_k to {max(numbers['error of R_k']):.0e}",  # type: ignore[call-overload]
        text,
        "A causal mask sees order too, without any positions; nothing here says that a model makes use of R_k.",
        tuple(_charts(numbers, errors)),
    )  # fmt: skip


def _shuffled(dtype: torch.dtype, generator: torch.Generator, *, positions: bool) -> float:
    """Return the difference between attention over permuted words and permuted attention over words, relative to its
    size.
    """
    layer = MultiHeadAttention(WIDTH, HEADS).to(dtype)
    x = torch.randn(TOKENS, WIDTH, generator=generator, dtype=torch.float64).to(dtype)
    order = torch.randperm(TOKENS, generator=generator)
    table = sinusoidal(TOKENS, WIDTH, dtype=dtype) if positions else torch.zeros(TOKENS, WIDTH, dtype=dtype)
    with torch.no_grad():
        after, before = layer(x + table)[order], layer(x[order] + table)
    return float((after - before).norm() / after.norm())


def rotation(offset: int, width: int, base: float = 10000.0) -> Float[Tensor, "width width"]:
    """Return R_k: for each pair of columns (sin pω, cos pω) the rotation by kω, which does not depend on p.

    >>> table = sinusoidal(9, 4, dtype=torch.float64)
    >>> torch.allclose(rotation(3, 4) @ table[5], table[8])
    True
    """
    angles = offset * base ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    cosines, sines = angles.cos(), angles.sin()
    blocks = torch.stack([torch.stack([cosines, sines], -1), torch.stack([-sines, cosines], -1)], -2)
    turned: Tensor = torch.block_diag(*blocks)
    return turned


def _turned(table: Float[Tensor, "positions width"], k: int) -> list[float]:
    """Return the largest error of R_k PE(p) at each p."""
    turned = table[:LENGTH] @ rotation(k, table.shape[1]).T
    errors: list[float] = (turned - table[k : LENGTH + k]).abs().amax(1).tolist()
    return errors


def _fitted(table: Float[Tensor, "positions width"], k: int) -> float:
    """Return the residual of the best linear map from p to p + k for a table, relative to its size."""
    before, after = table[:LENGTH], table[k : LENGTH + k]
    best = torch.linalg.lstsq(before, after, driver="gelsd").solution
    return float((before @ best - after).norm() / after.norm())


def _charts(numbers: Numbers, errors: list[list[float]]) -> list[Bars | Lines]:
    names = ("without positions, float64", "without positions, float32", "with sinusoidal positions, float64")
    values = tuple(numbers[f"shuffled, {one}"] for one in ("float64", "float32", "with positions"))
    x = tuple(map(float, range(0, LENGTH, 10)))
    drawn = [at for at, k in enumerate(OFFSETS) if k in (1, 10, 100)]
    floor = 1e-17
    lines = tuple(Line(f"k = {OFFSETS[at]}", x, tuple(max(one, floor) for one in errors[at][::10])) for at in drawn)
    return [
        Bars(
            "Shuffled first, or last: the difference", "The difference between shuffling first and last, as a share "
            "of the output.", "relative difference", names, ("difference",), (values,),
            log_across=True,
        ),
        Lines(
            "|R_k PE(p) − PE(p + k)|, float64",
            "The error of the linear map at each position; angles of later positions "
            "are rounded more coarsely.", "position p", "largest error", lines, log_up=True,
        ),
    ]  # fmt: skip
