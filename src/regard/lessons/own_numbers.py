"""Numbers of the reader's own, as Python has them: checked at the door, and worked out head by head."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from regard.errors import InputError
from regard.lessons.heads import WorkedHeads, join_heads
from regard.lessons.limits import LARGEST_NUMBER
from regard.lessons.steps import Floats, Worked, work, work_from

__all__ = ["OwnNumbers", "as_array", "shown"]

_SHOWN = 60  # characters of a value in an error


@dataclass(frozen=True, eq=False)
class OwnNumbers:
    """What heads are made of. Shapes for H heads, n queries, m keys: `x` (n, D), `key_x` (m, D_k), `value_x` (m, D_v);
    `w_query`, `w_key` and `w_value` (H, D, d), None where the three inputs are Q, K and V; `w_output` (H·dv, any).
    """

    x: Floats
    projections: tuple[Floats, Floats, Floats] | None = None
    w_output: Floats | None = None
    key_x: Floats | None = None
    value_x: Floats | None = None
    tokens: tuple[str, ...] | None = None
    query_tokens: tuple[str, ...] | None = None

    @classmethod
    def read(
        cls,
        x: Any,
        *,
        w_query: Any = None,
        w_key: Any = None,
        w_value: Any = None,
        w_output: Any = None,
        key_x: Any = None,
        value_x: Any = None,
        tokens: Any = None,
        query_tokens: Any = None,
    ) -> "OwnNumbers":
        """Read lists, arrays or tensors; of several heads a list of matrices for each of the three.

        Raises:
            InputError: One is no matrix of finite numbers, or is missing beside the others.
        """
        queries = _matrix("x", x)
        keys = None if key_x is None else _matrix("key_x", key_x)
        values = None if value_x is None else _matrix("value_x", value_x)
        given = {"w_query": w_query, "w_key": w_key, "w_value": w_value}
        missing = [f"`{name}`" for name, value in given.items() if value is None]
        if 0 < len(missing) < 3:
            raise InputError(f"`w_query`, `w_key` and `w_value` belong together: give {' and '.join(missing)} too")
        if missing and (keys is None or values is None):
            raise InputError(
                "`x` needs `w_query`, `w_key` and `w_value`; or give `key_x` and `value_x`, and these three are Q, K, V"
            )
        crossed = queries if keys is None else keys
        if values is not None and len(values) != len(crossed):
            raise InputError(f"`value_x` must have a row for each key ({len(crossed)}), got shape {values.shape}")
        if query_tokens is not None and keys is None:
            raise InputError(
                "`query_tokens` names queries that are not the keys: give `key_x`, or `tokens` in its place"
            )
        names = _names("query_tokens", query_tokens, len(queries))
        if names is None and keys is not None:
            names = tuple(f"query {row + 1}" for row in range(len(queries)))
        return cls(
            queries,
            None if missing else _projections(given),
            None if w_output is None else _matrix("w_output", w_output),
            keys,
            values,
            _names("tokens", tokens, len(crossed)),
            names,
        )

    @property
    def pairs(self) -> tuple[int, int]:
        """Number of queries and of keys."""
        return len(self.x), len(self.x if self.key_x is None else self.key_x)

    @property
    def count(self) -> int:
        """Number of heads."""
        return 1 if self.projections is None else len(self.projections[0])

    def work(self, *, scale: float | None = None, visible: npt.NDArray[np.bool_] | None = None) -> WorkedHeads:
        """Work out all heads, and join them.

        Raises:
            InputError: The shapes do not fit each other, or a product is too large.
        """
        return join_heads(self._heads(scale, visible), self.w_output)

    def _heads(self, scale: float | None, visible: npt.NDArray[np.bool_] | None) -> list[Worked]:
        if self.projections is not None:
            return [
                work(
                    self.x,
                    w_query,
                    w_key,
                    w_value,
                    self.tokens,
                    key_x=self.key_x,
                    value_x=self.value_x,
                    query_tokens=self.query_tokens,
                    scale=scale,
                    visible=visible,
                )
                for w_query, w_key, w_value in zip(*self.projections, strict=True)
            ]
        if self.key_x is None or self.value_x is None:
            raise InputError("queries alone are no head: give `key_x` and `value_x`, or the three projections")
        names = self.query_tokens
        return [
            work_from(self.x, self.key_x, self.value_x, self.tokens, query_tokens=names, scale=scale, visible=visible)
        ]


def _projections(given: Mapping[str, Any]) -> tuple[Floats, Floats, Floats]:
    query, key, value = (_matrices(name, matrices) for name, matrices in given.items())
    if not len(query) == len(key) == len(value):
        raise InputError(
            f"every head needs its W_Q, W_K and W_V, got {len(query)} in `w_query`, {len(key)} in `w_key` and "
            f"{len(value)} in `w_value`"
        )
    return query, key, value


def _names(name: str, names: Any, count: int) -> tuple[str, ...] | None:
    if names is None:
        return None
    listed = names.split() if isinstance(names, str) else names
    if not isinstance(listed, list | tuple) or not all(isinstance(entry, str) for entry in listed):
        raise InputError(f"`{name}` must be a list of texts, or one text that spaces divide, got {shown(names)}")
    if len(listed) != count:
        raise InputError(f"`{name}` must name each of the {count} rows, got {len(listed)} names: {shown(names)}")
    return tuple(listed)


def as_array(name: str, value: Any) -> npt.NDArray[Any]:
    """Return an array of whatever entries; a tensor may be on any device, of any type, and require gradients."""
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        value = value.double() if value.is_floating_point() else value
    try:
        return np.asarray(value)
    except (TypeError, ValueError):
        raise InputError(f"`{name}` must have rows of one length, and numbers in them, got {shown(value)}") from None


def _numbers(name: str, value: Any, dims: Sequence[int], what: str) -> Floats:
    """Return an array of finite numbers with one of these numbers of dimensions."""
    raw = as_array(name, value)
    if raw.dtype.kind not in "iuf":
        raise InputError(f"`{name}` must be {what} of numbers such as [[1, 0], [0, 1]], got {shown(value)}")
    if raw.ndim not in dims or 0 in raw.shape:
        raise InputError(f"`{name}` must be {what} with rows and columns, got shape {raw.shape}")
    with np.errstate(over="ignore"):  # of a wider type
        numbers = raw.astype(np.float64)
    if not (fits := np.abs(numbers) <= LARGEST_NUMBER).all():  # nor is a NaN
        place = tuple(np.argwhere(~fits)[0].tolist())
        raise InputError(
            f"`{name}` must hold finite numbers up to {LARGEST_NUMBER:.0e}, got {numbers[place]} in row "
            f"{place[-2] + 1}, column {place[-1] + 1}: replace it"
        )
    return numbers


def _matrix(name: str, value: Any) -> Floats:
    return _numbers(name, value, [2], "a matrix")


def _matrices(name: str, value: Any) -> Floats:
    """Return the matrices of all heads: (heads, rows, columns)."""
    numbers = _numbers(name, value, [2, 3], "a matrix, or one for each head,")
    return numbers if numbers.ndim == 3 else numbers[None]


def shown(value: Any) -> str:
    """Return a value as an error names it: in one line, shortened."""
    text = " ".join(repr(value).split())
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"
