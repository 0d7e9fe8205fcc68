"""Training with options that PyTorch's fused kernel lacks: dropout, a learned bias, values of another width."""

from collections.abc import Iterator

import torch

from regard.masks import Causal
from regard.positions import T5Bias
from regard_bench.cases.inputs import DIM, HEADS, inputs, training
from regard_bench.comparing import compare
from regard_bench.rows import Effort, Row, at_most

__all__ = ["NAME", "TITLE", "rows"]

NAME, TITLE = "beyond", "dropout, learned bias and value width, training"
DROPOUT, BIAS = at_most(2.5), at_most(2.0)


def rows(effort: Effort) -> Iterator[Row]:
    """Yield the time of causal training with each option relative to causal training without."""
    n = min(4096, effort.max_tokens)
    tensors, mask = inputs(n), Causal()
    plain = training(tensors, mask=mask)
    table = T5Bias(torch.randn(32, HEADS, requires_grad=True), bidirectional=False)
    wide = inputs(n, value_dim=2 * DIM)
    options = {
        "dropout 0.1": (training(tensors, mask=mask, dropout=0.1), DROPOUT),
        "a T5 table that learns": (training(tensors, mask=mask, bias=table), BIAS),
        "values of 128": (training(wide, mask=mask), None),
    }
    for name, (call, target) in options.items():
        sides = {"with": call, "without": plain}
        yield compare(
            effort, f"causal, {name}", f"{n:,} tokens", "training / without", sides, over=("with", "without"),
            target=target,
        )  # fmt: skip
