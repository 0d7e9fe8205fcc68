"""Several heads over the same vectors, joined: MultiHead(X) = [Z₁ Z₂ …] W_O (Vaswani et al. 2017, section 3.2.2)."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from regard.errors import InputError
from regard.lessons.steps import Floats, Numbers, Worked, as_matrix

__all__ = ["WorkedHeads", "join_heads"]


@dataclass(frozen=True, eq=False)
class WorkedHeads:
    """Every step of H heads of the same shapes. `joined` (n, H·dv) has their outputs side by side; `result` is that
    times `w_output` (H·dv, any width), None where that is not known.
    """

    heads: tuple[Worked, ...]
    joined: Floats
    w_output: Floats | None = None
    result: Floats | None = None


def join_heads(heads: Sequence[Worked], w_output: Numbers | None = None) -> WorkedHeads:
    """Join the outputs of heads, and project them.

    Raises:
        InputError: The heads differ in their shapes, or `w_output` does not have a row for each number of the joined
            outputs.
    """
    shapes = [(head.queries.shape, head.keys.shape, head.values.shape) for head in heads]
    if len(set(shapes)) != 1:
        raise InputError(
            "all heads must have queries, keys and values of the same shapes, got "
            + " and ".join(f"{queries}, {keys}, {values}" for queries, keys, values in dict.fromkeys(shapes))
        )
    joined = np.concatenate([head.output for head in heads], axis=1)
    if w_output is None:
        return WorkedHeads(tuple(heads), joined)
    matrix = as_matrix("w_output", w_output)
    if len(matrix) != joined.shape[1]:
        raise InputError(
            f"`w_output` must have a row for each number of the joined outputs ({len(heads)} heads × "
            f"{heads[0].output.shape[1]} = {joined.shape[1]}), got `w_output` of shape {matrix.shape}"
        )
    with np.errstate(over="ignore", invalid="ignore"):
        result = joined @ matrix
    if not np.isfinite(result).all():
        raise InputError(
            "the outputs times `w_output` must be finite, got products too large for float64: scale `w_output` down"
        )
    return WorkedHeads(tuple(heads), joined, matrix, result)
