"""Sparse masks in training: what the backward costs, and how time grows with the text."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

import torch

from regard.masks import Causal, Document, Mask, Window, bigbird, longformer
from regard_bench.cases.inputs import HEADS, backward, forward, inputs, training
from regard_bench.comparing import compare
from regard_bench.rows import Effort, Row, at_most
from regard_bench.timing import Ratio, in_turn
from regard_lab.measuring import exponent

__all__ = ["NAME", "TITLE", "rows"]

NAME, TITLE = "sparse", "window, Longformer, BigBird and documents, training"
BACKWARD, SLOPE = at_most(3.5), at_most(1.1)
LENGTHS = (4096, 8192, 16384)
_DOCUMENT = 512


def rows(effort: Effort) -> Iterator[Row]:
    """The backward over the forward at the shortest length; the power of n of forward and backward together."""
    lengths = [n for n in LENGTHS if n <= effort.max_tokens] or [effort.max_tokens]
    for name in _masks(lengths[0]):
        n, mask = lengths[0], _masks(lengths[0])[name]
        tensors = inputs(n)
        sides = {"forward": forward(tensors, mask=mask), "backward": backward(tensors, mask=mask)}
        case = f"{name}, training"
        yield compare(
            effort, case, f"{n:,} tokens", "backward / forward", sides, over=("backward", "forward"), target=BACKWARD
        )
        at = f"{lengths[0]:,} to {lengths[-1]:,} tokens"
        growth = Row(case, at, "power of n", target=SLOPE, unit="")
        if len(lengths) < 2 or not effort.wants(growth):
            continue
        effort.progress(f"{case}, growth")
        times = in_turn(
            {str(n): training(inputs(n), mask=_masks(n)[name]) for n in lengths}, max_seconds=effort.max_seconds
        )
        powers = [exponent(lengths, each) for each in zip(*(times.seconds[str(n)] for n in lengths), strict=True)]
        seconds = tuple((f"{n:,}", times.median(str(n))) for n in lengths)
        yield replace(growth, ratio=Ratio.of(powers), seconds=seconds)


def _masks(n: int) -> Mapping[str, Mask]:
    lengths = torch.full((n // _DOCUMENT,), _DOCUMENT)
    return {
        "window 512": Causal() & Window(512),
        "Longformer": longformer(512, global_positions=[0]),
        "BigBird": bigbird(heads=HEADS),
        "documents of 512": Document.from_lengths(lengths),
    }
