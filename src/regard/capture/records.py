"""What was seen of one forward pass: its layers in the order of their calls, and the tokens, where they are known.

A record does not hold the n × n weights unless they were asked for or the sequence is so short that its heat map is
exact; it holds what answers questions about them: pooled heat maps, the strongest keys of each query, the entropy of
each row and what each key received.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from regard.capture.layers import Computable, HeadScore, Layer
from regard.capture.missing_attention import Missing
from regard.capture.record_methods import Answers
from regard.capture.tokens import Token

__all__ = ["Computable", "HeadScore", "Layer", "Record"]


@dataclass(frozen=True, eq=False)
class Record(Answers):
    """One forward pass as it was seen.

    `layers` are in the order of their calls. `tokens` maps a stream to the tokens of each sequence of the batch: "text"
    for encoders and decoders, "source" and "target" for encoder–decoders, "image" (or "audio", "video") for the tower
    that encodes one. `missing` is the attention of this pass that could not be seen. `len(record)` is the number of its
    layers.
    """

    layers: tuple[Layer, ...]
    tokens: Mapping[str, tuple[tuple[Token, ...], ...]] = field(default_factory=dict)
    model: str = ""
    notes: Mapping[str, Any] = field(default_factory=dict)
    missing: tuple[Missing, ...] = ()

    def __len__(self) -> int:
        return len(self.layers)

    def __iter__(self) -> Iterator[Layer]:
        return iter(self.layers)
