"""The record of one forward pass: its layers in the order of their calls, and the tokens, if known.

A record contains the n × n weights only if they were requested or if the sequence is so short that its heat map is
exact. Otherwise it contains pooled heat maps, the strongest keys of each query, the entropy of each row and the
attention that each key received.
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
    """The recorded attention of one forward pass.

    `layers` are in the order of their calls. `tokens` maps the name of a stream to the tokens of each sequence of the
    batch. Encoders and decoders have the stream "text". Encoder–decoders have the streams "source" and "target". A
    tower that encodes images, audio or video has the stream "image", "audio" or "video". `missing` lists the attention
    of this pass that could not be recorded. `len(record)` is the number of layers.
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
