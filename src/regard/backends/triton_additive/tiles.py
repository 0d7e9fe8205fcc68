"""The hidden layer of a tile of pairs: computed, used and forgotten, four units at a time.

With a and b 2 log₂e times their parts of x_ijh, and d_ijh = 1 + 2^(a_ih + b_jh),

    half_ijh = tanh(x_ijh) / 2 = ½ − 1 / d_ijh

is right at both ends. d is capped at 2³⁰, from where on half is ½ in float32, so that four of them can be multiplied
and share one division: 1 / d₀ = d₁ (d₂ d₃) / (d₀ d₁ d₂ d₃). Where `product`, a and b come as powers of two already, and
2^(a + b) is a product, without an exponential for each pair; the caller sees to it that no power overflows. Neither
libdevice's tanh nor tanh.approx is used: one does not run under the interpreter, the other has 11 bits.
"""

# Parameters have no types: Triton reads annotations, and would take `Any` for a variable.
# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations  # `tl.constexpr` is not read where there is no Triton; no shapes stand here

import contextlib

from regard.backends.kernel_compilers import kernel

with contextlib.suppress(ImportError):  # it can be read without; `refuses` says that it is missing
    import triton.language as tl

__all__ = ["add", "down_slopes", "half_tanhs", "score"]


@kernel
def layer(down, along, unit, down_length, along_length, rows, columns, product: tl.constexpr):
    """1 + e^2x of each pair for one hidden unit, capped: `rows` of `down` (hidden, length), `columns` of `along`."""
    place = tl.cast(unit, tl.int64)
    here = tl.load(down + place * down_length + rows, mask=rows < down_length, other=0.0)
    there = tl.load(along + place * along_length + columns, mask=columns < along_length, other=0.0)
    power = here[:, None] * there[None, :] if product else tl.exp2(here[:, None] + there[None, :])
    return tl.minimum(1.0 + power, 1073741824.0, propagate_nan=tl.PropagateNan.ALL)


@kernel
def score(
    down,
    along,
    strength,
    down_length,
    along_length,
    rows,
    columns,
    hidden: tl.constexpr,
    product: tl.constexpr,
):
    """The scores of a tile: Σ strength / 2 less Σ strength / d."""
    whole = 0.0
    less = tl.zeros((rows.shape[0], columns.shape[0]), tl.float32)
    for unit in range(0, hidden, 4):
        d0 = layer(down, along, unit, down_length, along_length, rows, columns, product)
        d1 = layer(down, along, unit + 1, down_length, along_length, rows, columns, product)
        d2 = layer(down, along, unit + 2, down_length, along_length, rows, columns, product)
        d3 = layer(down, along, unit + 3, down_length, along_length, rows, columns, product)
        s0, s1 = tl.load(strength + unit), tl.load(strength + unit + 1)
        s2, s3 = tl.load(strength + unit + 2), tl.load(strength + unit + 3)
        whole += (s0 + s1) + (s2 + s3)
        d01, d23 = d0 * d1, d2 * d3
        less += ((s0 * d1 + s1 * d0) * d23 + (s2 * d3 + s3 * d2) * d01) / (d01 * d23)
    return 0.5 * whole - less


@kernel
def half_tanhs(down, along, unit, down_length, along_length, rows, columns, product: tl.constexpr):
    """Half the tanh of each pair, for four hidden units."""
    d0 = layer(down, along, unit, down_length, along_length, rows, columns, product)
    d1 = layer(down, along, unit + 1, down_length, along_length, rows, columns, product)
    d2 = layer(down, along, unit + 2, down_length, along_length, rows, columns, product)
    d3 = layer(down, along, unit + 3, down_length, along_length, rows, columns, product)
    d01, d23 = d0 * d1, d2 * d3
    all4 = 1.0 / (d01 * d23)
    r01, r23 = all4 * d23, all4 * d01
    return 0.5 - r01 * d1, 0.5 - r01 * d0, 0.5 - r23 * d3, 0.5 - r23 * d2


@kernel
def down_slopes(slopes, halves):
    """What comes down a column of the tile through one hidden unit, but for its strength."""
    return tl.sum(slopes * (0.25 - halves * halves), 0)


@kernel
def add(place, more, mask):
    """Add to what this program alone has written."""
    tl.store(place, tl.load(place, mask=mask, other=0.0) + more, mask=mask)
