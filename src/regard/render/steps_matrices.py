"""Attention computed in matrices: X and the projections, Q, K, V, the scores, the weights, the output."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from regard.capture.steps import Floats, Worked
from regard.render.matrix_text import Block, flow, matrix
from regard.render.steps_scalars import Section, scaling
from regard.render.steps_text import Wording

__all__ = ["matrix_sections"]


def matrix_sections(
    worked: Worked, rows: Sequence[int], keys: Sequence[int], say: Wording, room: int
) -> Iterator[Section]:
    """Yield the steps in matrices, for the chosen queries and keys: all of them, or one query with its
    strongest keys.
    """
    asked, seen = [worked.query_tokens[row] for row in rows], [worked.tokens[key] for key in keys]

    def block(name: str, values: Floats, labels: Sequence[str] = (), at: Sequence[int] | None = None) -> Block:
        chosen = values if at is None else values[list(at)]
        return matrix(name, chosen, room, rows=labels, of=(values.shape[0], values.shape[1]), note=say.size)

    projected = worked.x is not None
    if worked.x is not None:
        projections = {"W_Q": worked.w_query, "W_K": worked.w_key, "W_V": worked.w_value}
        known = [block(name, found) for name, found in projections.items() if found is not None]
        yield say.given_matrices, list(flow([*_inputs(worked, block), *known], room))
    names = ("Q", "K", "V")
    if projected:
        names = ("Q = X W_Q", "K = X W_K", "V = X W_V")
    if worked.key_x is not None:
        names = ("Q = X_Q W_Q", "K = X_K W_K", "V = X_V W_V")
    vectors = [
        block(names[0], worked.queries, asked, rows),
        block(names[1], worked.keys, seen, keys),
        block(names[2], worked.values, seen, keys),
    ]
    yield say.vectors, list(flow(vectors, room))
    yield (
        say.products,
        list(flow([_pairs(worked, stage, rows, keys, say, room) for stage in _stages(worked, say)], room)),
    )
    yield say.result, list(flow([block("Z = W V", worked.output, asked, rows)], room))


def _inputs(worked: Worked, block: Callable[..., Block]) -> list[Block]:
    """Return the inputs of queries, keys and values: one X, or three."""
    if worked.key_x is None:
        return [block("X", worked.x, worked.tokens)]
    return [
        block("X_Q", worked.x, worked.query_tokens),
        block("X_K", worked.key_x, worked.tokens),
        block("X_V", worked.value_x, worked.tokens),
    ]


def _stages(worked: Worked, say: Wording) -> Iterator[tuple[str, Floats]]:
    """Yield the matrices of pairs, with their titles, from the scores to the weights."""
    scaled = f"S {scaling(worked)}"
    plain = worked.softcap is None and worked.bias is None
    yield "S = Q Kᵀ", worked.scores
    yield scaled, worked.scaled
    if not plain:
        yield say.logits, worked.logits
    yield f"W = softmax({scaled if plain else 'L'})", worked.weights


def _pairs(
    worked: Worked, stage: tuple[str, Floats], rows: Sequence[int], keys: Sequence[int], say: Wording, room: int
) -> Block:
    title, values = stage
    at = np.ix_(rows, keys)
    return matrix(
        title,
        values[at],
        room,
        rows=[worked.query_tokens[row] for row in rows],
        columns=[worked.tokens[key] for key in keys],
        visible=worked.visible[at],
        of=(values.shape[0], values.shape[1]),
        note=say.size,
    )
