"""Positions that are added to the embeddings.

sinusoidal: a fixed table of sines and cosines, one row a position, that is added to the embeddings.

learned: learned positions: rows of a table of parameters, added to the embeddings.
"""

from typing import Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from regard.checks import check_count, check_number
from regard.errors import InputError

__all__ = ["Sinusoids", "learned", "sinusoidal"]

Sinusoids = Literal["paper", "tensor2tensor", "marian"]


def sinusoidal(
    length: int,
    dim: int,
    *,
    base: float = 10000.0,
    variant: Sinusoids = "paper",
    start: int = 0,
    device: torch.device | str | None = None,
    dtype: torch.dtype = torch.float32,
) -> Float[Tensor, "length dim"]:
    """Make the sines and cosines of positions start, start + 1, ... (Vaswani et al. 2017, 3.5, arXiv:1706.03762).

    Formula: x_p + [sin(p ω_i), cos(p ω_i)], ω_i = base^(−2i/d)

    Column pair i turns by base^(−e) radians a position. The variants differ in e and in where the columns stand:

    - "paper": e = 2i/d, interleaved: sin₀ cos₀ sin₁ cos₁ ... (the paper, XLM, The Annotated Transformer). With an odd
      width the last cosine is missing.
    - "tensor2tensor": e = i/(⌊d/2⌋ − 1), so that the slowest pair turns by 1/base exactly; all sines, then all cosines,
      then a column of zeros if the width is odd (tensor2tensor, fairseq, M2M-100, Whisper). fairseq counts positions
      from padding_idx + 1: pass it as `start`.
    - "marian": e = 2i/d as in the paper; all sines, then all cosines, one sine more if the width is odd (Marian,
      Pegasus, Transformer-XL).

    Args:
        length: How many positions.
        dim: Width d of the embedding; it may be odd.
        base: What the slowest wavelength is about 2π times of.
        variant: Which library's table; see above.
        start: Position of the first row; it may be negative (Transformer-XL's distances).
        device: Where the table is made.
        dtype: Its type. It is computed in float64 and rounded once.

    Cost: O(length · dim) time and memory, once; attention itself is as before.

    Raises:
        InputError: A size is not a positive integer, or the variant does not exist.

    >>> sinusoidal(2, 4, base=100.0)
    tensor([[0.0000, 1.0000, 0.0000, 1.0000],
            [0.8415, 0.5403, 0.0998, 0.9950]])
    >>> sinusoidal(1, 4, base=100.0, variant="marian", start=1)
    tensor([[0.8415, 0.0998, 0.5403, 0.9950]])
    >>> sinusoidal(1, 5, base=100.0, variant="tensor2tensor", start=1)
    tensor([[0.8415, 0.0100, 0.5403, 0.9999, 0.0000]])
    """
    if variant not in get_args(Sinusoids):
        raise InputError(f"`variant` must be one of {', '.join(map(repr, get_args(Sinusoids)))}, got {variant!r}")
    check_count("length", length, 0, "counts positions")
    check_count("dim", dim, 2 if variant == "tensor2tensor" else 1, "is the width of the embedding")
    check_number("base", base, "is the ratio of the slowest wavelength to the fastest", least=1.0)
    if isinstance(start, bool) or not isinstance(start, int):
        raise InputError(f"`start` is the position of the first row and must be an integer, got {start!r}")
    if not dtype.is_floating_point:
        raise InputError(f"`dtype` must be a floating-point type, got {dtype}")

    pairs = dim // 2 if variant == "tensor2tensor" else (dim + 1) // 2
    exponents = torch.arange(pairs, dtype=torch.float64, device="cpu")
    exponents = exponents / max(pairs - 1, 1) if variant == "tensor2tensor" else 2 * exponents / dim
    # On the CPU: some devices have no float64.
    angles = torch.arange(start, start + length, dtype=torch.float64, device="cpu")[:, None] * base**-exponents
    sines, cosines = angles.sin(), angles.cos()
    if variant == "paper":
        table = torch.stack([sines, cosines], -1).flatten(-2)[:, :dim]
    elif variant == "marian":
        table = torch.cat([sines, cosines[:, : dim // 2]], 1)
    else:
        table = torch.cat([sines, cosines, sines.new_zeros(length, dim % 2)], 1)
    return table.to(device=torch.empty(0).device if device is None else device, dtype=dtype)


def learned(table: Float[Tensor, "positions dim"], length: int, *, start: int = 0) -> Float[Tensor, "length dim"]:
    """Take the rows start, ..., start + length − 1 of a learned table (Gehring et al. 2017, arXiv:1705.03122; BERT).

    Formula: x_p + table[p]

    The result is a view, through which the table gets its gradient. Unlike a slice, it always has the requested length;
    otherwise an error is raised. With a cache, `start` is the number of tokens in the cache. OPT and BART have 2 more
    rows before the first position (start + 2).

    Cost: positions · dim parameters and no time; attention itself is as before.

    Raises:
        InputError: The table has too few positions.

    >>> import torch
    >>> learned(torch.tensor([[0.0], [0.1], [0.2]]), 2, start=1)
    tensor([[0.1000],
            [0.2000]])
    """
    if not isinstance(table, Tensor) or table.ndim != 2:
        raise InputError(f"`table` must be a tensor (positions, dim), got {getattr(table, 'shape', table)!r}")
    check_count("length", length, 0, "counts positions")
    check_count("start", start, 0, "is the position of the first row")
    if start + length > table.shape[0]:
        asked = f"{start + length} asked" if start == 0 else f"{start + length} asked ({length} from {start} on)"
        raise InputError(
            f"the table has {table.shape[0]} positions, {asked}: cut the text, or take positions without an end "
            "(sinusoidal, RoPE, ALiBi)"
        )
    return table[start : start + length]
