"""What every head gives the right keys and each candidate, in examples of a job."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from regard.errors import ObservationError
from regard.heads.scores import PerHead
from regard.hub import Loaded
from regard.interpret.head_examples import HeadExample
from regard.interpret.look import Prepared
from regard.interpret.watch import watch
from regard.record.layers import stream_of
from regard.record.records import Layer, Record

__all__ = ["Features", "SeenHeads", "layers_of_stream", "masses_of", "measured", "per_head"]

Features = npt.NDArray[np.float64]  # (examples, candidates, heads)


@dataclass(frozen=True, eq=False)
class SeenHeads:
    """The weights of every head: on the right keys (examples, heads), and on each candidate (examples, candidates,
    heads).
    """

    heads: list[tuple[int, int]]
    stream: str | tuple[str, str]
    right: npt.NDArray[np.float64]
    features: Features
    labels: npt.NDArray[np.int_]


def measured(loaded: Loaded, made: Sequence[HeadExample], say: Callable[[str], None]) -> SeenHeads:
    """Run the model on each example, and return what its heads give the keys."""
    stream = ("target", "source") if loaded.kind == "encoder-decoder" else "text"
    heads: list[tuple[int, int]] = []
    right, features = [], []
    for number, one in enumerate(made, 1):
        say(f"{loaded.name} reads example {number} of {len(made)}")
        heads, weights = _weights(loaded, one, stream)
        right.append(_mass(weights, one.right).mean(0))
        features.append([_mass(weights, keys).mean(0) for keys in one.candidates])
    return SeenHeads(heads, stream, np.array(right), np.array(features), np.array([one.label for one in made]))


def masses_of(loaded: Loaded, one: HeadExample) -> tuple[list[tuple[int, int]], npt.NDArray[np.float64]]:
    """Run a causal model on an example, and return its heads and the weight of each row on each candidate, of shape
    (rows, candidates, heads).
    """
    heads, weights = _weights(loaded, one, "text")
    return heads, np.stack([_mass(weights, keys) for keys in one.candidates], 1)


def _weights(
    loaded: Loaded, one: HeadExample, stream: str | tuple[str, str]
) -> tuple[list[tuple[int, int]], npt.NDArray[Any]]:
    """Return the heads of a stream, and the weights of the example's rows, (heads, rows, keys)."""
    with watch(loaded.model, keep="weights") as seen:
        Prepared(loaded, dict(one.inputs), {}).run()
    record = seen.records[0]
    layers = layers_of_stream(record, stream)
    weights = [layer.weights[0][:, list(one.rows)] for layer in layers if layer.weights is not None]
    return [(record.number(layer), head) for layer in layers for head in range(layer.heads)], np.concatenate(weights)


def layers_of_stream(record: Record, stream: str | tuple[str, str]) -> list[Layer]:
    """Return the layers of a stream.

    Raises:
        ObservationError: There are none.
    """
    found = [layer for layer in record.layers if stream_of(layer) == stream]
    if not found:
        there = ", ".join(sorted({str(stream_of(layer)) for layer in record.layers}))
        raise ObservationError(f"the model must attend in the stream {stream}, and was seen to attend in {there}")
    return found


def _mass(weights: npt.NDArray[Any], keys: Sequence[Sequence[int]]) -> npt.NDArray[np.float64]:
    """Return the weight on each row's keys, of shape (rows, heads)."""
    return np.stack([weights[:, row, list(some)].sum(-1, dtype=np.float64) for row, some in enumerate(keys)])


def per_head(heads: list[tuple[int, int]], values: npt.NDArray[np.float64]) -> PerHead:
    """Return one number per head as (layers, heads), NaN where there is none."""
    found = np.full((1 + max(layer for layer, _ in heads), 1 + max(head for _, head in heads)), np.nan)
    for (layer, head), value in zip(heads, values.tolist(), strict=True):
        found[layer, head] = value
    return found
