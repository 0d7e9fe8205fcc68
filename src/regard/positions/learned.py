"""Learned positions: rows of a table of parameters, added to the embeddings."""

from jaxtyping import Float
from torch import Tensor

from regard.errors import InputError
from regard.positions.checks import check_count

__all__ = ["learned"]


def learned(table: Float[Tensor, "positions dim"], length: int, *, start: int = 0) -> Float[Tensor, "length dim"]:
    """Take the rows start, ..., start + length − 1 of a learned table (Gehring et al. 2017, arXiv:1705.03122; BERT).

    Formula: x_p + table[p]

    It is a view, through which the table gets its gradient. Unlike a slice it never comes out shorter than asked. With
    a cache `start` is the number of tokens in it; OPT and BART keep 2 rows before the first position (start + 2).

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
