"""The training loop of the lab's small models: Adam, a schedule, and evaluations in between."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from regard.train.loss_and_optimizer import Schedule
from regard_lab.measuring import one_thread

__all__ = ["fit", "seeded"]


def fit(
    model: nn.Module,
    loss: Callable[[], Tensor],
    max_steps: int,
    *,
    learning_rate: float = 3e-3,
    schedule: Schedule | None = None,
    max_grad_norm: float | None = None,
    evaluate: Callable[[int], None] | None = None,
    eval_steps: int = 1,
) -> None:
    """Train a model, and switch it to eval mode.

    Args:
        model: The model; all its parameters are trained.
        loss: A function that draws a batch and returns its loss; called once per step.
        max_steps: Number of steps.
        learning_rate: The peak learning rate.
        schedule: The learning-rate schedule; constant by default.
        max_grad_norm: The maximum norm of the gradient.
        evaluate: Called with the number of a step after it, in eval mode and without gradients.
        eval_steps: Number of steps between calls of `evaluate`.

    >>> line, seen = nn.Linear(1, 1), []
    >>> loss = lambda: (line(torch.ones(1, 1)) - 3).square().sum()
    >>> fit(line, loss, 400, learning_rate=0.1, evaluate=seen.append, eval_steps=200)
    >>> round(line(torch.ones(1, 1)).item(), 2), seen
    (3.0, [200, 400])
    """
    schedule = schedule or Schedule("constant")
    optimizer = torch.optim.Adam(model.parameters(), lr=learning_rate)
    model.train()
    for step in range(1, max_steps + 1):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate * schedule.factor(step, max_steps)
        optimizer.zero_grad()
        loss().backward()
        if max_grad_norm is not None:
            nn.utils.clip_grad_norm_(model.parameters(), max_grad_norm)
        optimizer.step()
        if evaluate is not None and step % eval_steps == 0:
            model.eval()
            with torch.no_grad():
                evaluate(step)
            model.train()
    model.eval()


@contextmanager
def seeded(seed: int) -> Iterator[torch.Generator]:
    """Run PyTorch on one thread with a seeded generator inside the block, and yield another generator for data."""
    with torch.random.fork_rng(devices=[]), one_thread():
        torch.manual_seed(seed)
        yield torch.Generator().manual_seed(seed)
