"""Compute one attention head step by step, with all intermediate results.

    Q = X W_Q, K = X W_K, V = X W_V        S = Q Kᵀ        weights = softmax(cap(scale · S) + bias)        Z = weights V

Scale, then soft cap, then bias, then mask, then softmax (Vaswani et al. 2017, equation 1, which has scale = 1/√d and
neither cap nor bias). Plain numpy in float64.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from regard.errors import InputError
from regard.record.tokens import Token

__all__ = ["CapturedHead", "Floats", "Numbers", "Worked", "as_matrix", "work", "work_captured", "work_from"]

Floats = npt.NDArray[np.float64]
Numbers = npt.NDArray[Any] | Sequence[Sequence[float]]  # a matrix as nested lists


@dataclass(frozen=True, eq=False)
class CapturedHead:
    """The inputs of one head of a real model as they enter the formula, after rotation and normalization.

    Shapes: `queries` (n, d), `keys` (m, d), `values` (m, dv), `visible` (n, m) or None when every key may be seen,
    `bias` (n, m) or broadcast to it, `sink` the logit of a sink that takes weight but has no value. `tokens` are the
    tokens of the keys; `query_tokens` those of the queries where they are others (cross-attention).
    """

    tokens: tuple[Token, ...]
    queries: npt.NDArray[Any]
    keys: npt.NDArray[Any]
    values: npt.NDArray[Any]
    scale: float | None = None
    visible: npt.NDArray[np.bool_] | None = None
    bias: npt.NDArray[Any] | None = None
    softcap: float | None = None
    sink: float | None = None
    query_tokens: tuple[Token, ...] | None = None
    first_query: int | None = (
        None  # position of the first query in its text; None if the queries are the last positions
    )
    name: str = ""  # name of the head, such as "me5, layer 3, head 5"

    def position(self, index: int) -> int:
        """Return the position of a query in its text."""
        if self.first_query is not None:
            return self.first_query + index
        return index if self.query_tokens is not None else index + len(self.keys) - len(self.queries)

    def row(self, index: int) -> "CapturedHead":
        """Return the head with only one query, so that long texts need no n × m matrices."""
        tokens = self.query_tokens or self.tokens[-len(self.queries) :]
        pairs = (len(self.queries), len(self.keys))
        at = slice(index, index + 1)
        return replace(
            self,
            queries=self.queries[at],
            visible=None if self.visible is None else np.broadcast_to(self.visible, pairs)[at],
            bias=None if self.bias is None else np.broadcast_to(self.bias, pairs)[at],
            query_tokens=tokens[at],
            first_query=self.position(index),
        )


@dataclass(frozen=True, eq=False)
class Worked:
    """Every step of one head. Shapes for n queries, m keys, width d, value width dv, model width D:

    `x` (n, D) and `w_query`, `w_key` (D, d), `w_value` (D, dv), None where only what follows is known; `key_x` and
    `value_x`, of which keys and values are made where that is not `x`; `queries` (n, d), `keys` (m, d), `values`
    (m, dv); `scores`, `scaled`, `logits`, `visible`, `weights` (n, m); `output` (n, dv). `scores` are the raw products
    q·k, `scaled` these times `scale`, `logits` what enters the softmax: scaled, capped and biased. Hidden keys and rows
    that see nothing have weight 0. Where the values are not known, they and `output` have a width dv of 0.
    """

    tokens: tuple[str, ...]
    query_tokens: tuple[str, ...]
    queries: Floats
    keys: Floats
    values: Floats
    scores: Floats
    scale: float
    scaled: Floats
    logits: Floats
    visible: npt.NDArray[np.bool_]
    weights: Floats
    output: Floats
    x: Floats | None = None
    w_query: Floats | None = None
    w_key: Floats | None = None
    w_value: Floats | None = None
    key_x: Floats | None = None
    value_x: Floats | None = None
    bias: Floats | None = None
    softcap: float | None = None
    sink: float | None = None
    first_query: int = 0  # position of the first query in its text, counted from 0

    @property
    def has_values(self) -> bool:
        """Whether the values are known, and with them the output."""
        return bool(self.values.shape[1])


def work(
    x: Numbers,
    w_query: Numbers,
    w_key: Numbers,
    w_value: Numbers,
    tokens: Sequence[str] | None = None,
    *,
    key_x: Numbers | None = None,
    value_x: Numbers | None = None,
    query_tokens: Sequence[str] | None = None,
    scale: float | None = None,
    visible: npt.NDArray[np.bool_] | None = None,
) -> Worked:
    """Compute attention from the word vectors `x` (n, D) and the matrices (D, d), (D, d) and (D, dv).

    Keys and values are computed from `x` too, or from other vectors: keys from `key_x` (m, D), values from `value_x`
    (m, any width), which is `key_x` by default.

    The second word looks at the first with e^0 and at itself with e^(ln 3): weights 1/4 and 3/4.

    >>> import math
    >>> eye = [[1, 0], [0, 1]]
    >>> worked = work([[1, 0], [0, 1]], eye, [[0, 0], [0, math.log(3)]], eye, ["a", "b"], scale=1.0)
    >>> worked.weights.round(2).tolist()
    [[0.5, 0.5], [0.25, 0.75]]
    >>> worked.output[1].round(2).tolist()
    [0.25, 0.75]

    Raises:
        InputError: a matrix is not one of finite numbers, or its height is not the width of what it multiplies.
    """
    words = as_matrix("x", x)
    of_keys = words if key_x is None else as_matrix("key_x", key_x)
    of_values = of_keys if value_x is None else as_matrix("value_x", value_x)
    of_keys_name = "x" if key_x is None else "key_x"
    queries, w_q = _projected("x", words, "w_query", w_query)
    keys, w_k = _projected(of_keys_name, of_keys, "w_key", w_key)
    values, w_v = _projected(of_keys_name if value_x is None else "value_x", of_values, "w_value", w_value)
    worked = work_from(queries, keys, values, tokens, query_tokens=query_tokens, scale=scale, visible=visible)
    worked = replace(worked, x=words, w_query=w_q, w_key=w_k, w_value=w_v)
    return worked if key_x is None and value_x is None else replace(worked, key_x=of_keys, value_x=of_values)


def work_from(
    queries: Numbers,
    keys: Numbers,
    values: Numbers,
    tokens: Sequence[str] | None = None,
    *,
    query_tokens: Sequence[str] | None = None,
    scale: float | None = None,
    visible: npt.NDArray[np.bool_] | None = None,
    bias: npt.NDArray[Any] | None = None,
    softcap: float | None = None,
    sink: float | None = None,
    first_query: int | None = None,
) -> Worked:
    """Compute one head from its queries (n, d), keys (m, d) and values (m, dv). `visible`: True = may see.

    >>> import math
    >>> worked = work_from([[math.log(3)]], [[1], [0]], [[8], [4]], scale=1.0)
    >>> worked.weights.round(2).tolist(), worked.output.round(2).tolist()
    ([[0.75, 0.25]], [[7.0]])

    Raises:
        InputError: shapes that do not fit, or numbers or scaled scores that are not finite.
    """
    q, k, v = as_matrix("queries", queries), as_matrix("keys", keys), as_matrix("values", values)
    _check_shapes(q, k, v)
    key_names, query_names, first = _stand(tokens, query_tokens, len(q), len(k))
    allowed, added = _mask_and_bias(visible, bias, (len(q), len(k)))
    factor = float(1 / np.sqrt(q.shape[1])) if scale is None else scale
    scores = _products(q, k)
    scaled = _scaled(scores, factor)
    capped = scaled if softcap is None else softcap * np.tanh(scaled / softcap)
    logits = capped if added is None else capped + added
    weights = _softmax(logits, allowed, sink)
    return Worked(
        tokens=key_names,
        query_tokens=query_names,
        queries=q,
        keys=k,
        values=v,
        scores=scores,
        scale=factor,
        scaled=scaled,
        logits=logits,
        visible=allowed,
        weights=weights,
        output=weights @ v,
        bias=added,
        softcap=softcap,
        sink=sink,
        first_query=first if first_query is None else first_query,
    )


def work_captured(captured: CapturedHead) -> Worked:
    """Compute a head of a real model from its captured inputs."""
    named = None if captured.query_tokens is None else [token.text for token in captured.query_tokens]
    return work_from(
        captured.queries,
        captured.keys,
        captured.values,
        [token.text for token in captured.tokens],
        query_tokens=named,
        scale=captured.scale,
        visible=captured.visible,
        bias=captured.bias,
        softcap=captured.softcap,
        sink=captured.sink,
        first_query=captured.first_query,
    )


def _projected(name: str, rows: Floats, w_name: str, w: Numbers) -> tuple[Floats, Floats]:
    """Return rows times a matrix, and the matrix."""
    matrix = as_matrix(w_name, w)
    if len(matrix) != rows.shape[1]:
        raise InputError(
            f"`{w_name}` must have as many rows as `{name}` has columns ({rows.shape[1]}), got `{w_name}` of shape "
            f"{matrix.shape} for {name} of shape {rows.shape}; each row of `{name}` is one word"
        )
    with np.errstate(over="ignore", invalid="ignore"):
        projected = rows @ matrix
    if not np.isfinite(projected).all():
        raise InputError(
            f"`{name}` times `{w_name}` must be finite, got products too large for float64: scale `{name}` down"
        )
    return projected, matrix


def _products(q: Floats, k: Floats) -> Floats:
    with np.errstate(over="ignore", invalid="ignore"):
        scores = q @ k.T
    if not np.isfinite(scores).all():
        raise InputError("the scores q·k must be finite, got products too large for float64: scale `x` down")
    return scores


def _scaled(scores: Floats, factor: float) -> Floats:
    with np.errstate(over="ignore"):
        scaled = factor * scores
    if not np.isfinite(scaled).all():
        raise InputError(
            f"the scores times `scale` ({factor:.3g}) must be finite, got products too large for float64: make `scale` "
            "smaller, or scale `x` down"
        )
    return scaled


def _softmax(logits: Floats, visible: npt.NDArray[np.bool_], sink: float | None) -> Floats:
    """Return the softmax of each row over its visible keys, with the largest logit subtracted first to avoid
    overflow.
    """
    masked = np.where(visible, logits, -np.inf)
    floor = -np.inf if sink is None else sink
    largest = masked.max(axis=1, keepdims=True, initial=floor)
    largest = np.where(np.isfinite(largest), largest, 0.0)  # a row that sees nothing: e^(−∞ − 0) = 0
    powers = np.exp(masked - largest)
    total = powers.sum(axis=1, keepdims=True) + np.exp(floor - largest)
    return np.asarray(powers / np.where(total > 0, total, 1.0), dtype=np.float64)


def as_matrix(name: str, numbers: Numbers) -> Floats:
    """Return a matrix of finite numbers in float64; raise an InputError that names it otherwise."""
    try:
        matrix = np.asarray(numbers, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError(f"`{name}` must be a matrix of numbers with rows of one length") from None
    if matrix.ndim != 2 or 0 in matrix.shape:
        raise InputError(f"`{name}` must be a matrix (rows and columns), got shape {matrix.shape}")
    if not np.isfinite(matrix).all():
        row, column = np.argwhere(~np.isfinite(matrix))[0].tolist()
        raise InputError(
            f"`{name}` must hold finite numbers, got {matrix[row, column]} in row {row + 1}, column {column + 1}"
        )
    return matrix


def _check_shapes(q: Floats, k: Floats, v: Floats) -> None:
    if q.shape[1] != k.shape[1]:
        raise InputError(
            f"queries and keys must have one width for q·k, got queries of shape {q.shape} and keys of shape "
            f"{k.shape}: give them, or `w_query` and `w_key`, as many columns as each other"
        )
    if len(k) != len(v):
        raise InputError(f"every key needs its value, got keys of shape {k.shape} and values of shape {v.shape}")


def _mask_and_bias(
    visible: npt.NDArray[np.bool_] | None, bias: npt.NDArray[Any] | None, pairs: tuple[int, int]
) -> tuple[npt.NDArray[np.bool_], Floats | None]:
    """Return both for every pair; a bias of −∞ is a mask."""
    allowed = (
        np.ones(pairs, dtype=bool) if visible is None else _spread("visible", np.asarray(visible, dtype=bool), pairs)
    )
    if bias is None:
        return allowed, None
    added = _spread("bias", np.asarray(bias, dtype=np.float64), pairs)
    allowed = allowed & (added != -np.inf)
    return allowed, np.where(allowed, added, 0.0)


def _stand(
    tokens: Sequence[str] | None, query_tokens: Sequence[str] | None, queries: int, keys: int
) -> tuple[tuple[str, ...], tuple[str, ...], int]:
    """Return the names of keys and queries and the position of the first query: the queries are the last positions of
    the keys.
    """
    names = _names(tokens, keys, "tokens")
    if query_tokens is None and queries <= keys:
        return names, names[keys - queries :], keys - queries
    return names, _names(query_tokens, queries, "query_tokens"), 0


def _spread(name: str, array: npt.NDArray[Any], pairs: tuple[int, int]) -> npt.NDArray[Any]:
    try:
        return np.broadcast_to(array, pairs)
    except ValueError:
        raise InputError(f"`{name}` must have the shape (queries, keys) = {pairs}, got {array.shape}") from None


def _names(tokens: Sequence[str] | None, count: int, name: str) -> tuple[str, ...]:
    if tokens is None:
        return tuple(f"x{index + 1}" for index in range(count))
    if len(tokens) != count:
        raise InputError(f"`{name}` must name each of the {count} rows, got {len(tokens)} ({' '.join(tokens[:8])})")
    return tuple(tokens)
