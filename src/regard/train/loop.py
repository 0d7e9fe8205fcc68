"""The loop: batches in, gradients, steps, evaluations, checkpoints; all else listens to its events.

A step is a pure function of weights, optimizer, seed and the step's number: the data's order follows from seed and
epoch, dropout from seed and step, the rate from the step. So a run that was killed goes on with the same bits.
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import torch
from torch import nn

from regard.data import deal
from regard.errors import InputError, MissingExtraError
from regard.train.checkpoints import Checkpoints, Place
from regard.train.config import Config, Run
from regard.train.events import Ended, Evaluated, Event, Listener, Saved, Started, Stepped
from regard.train.lock_file import alone
from regard.train.losses import summed_cross_entropy
from regard.train.memory_check import check_size
from regard.train.optimizers import optimizer_of
from regard.train.run_dir import Folder
from regard.train.tasks import Task, task_of

__all__ = ["Trainer", "train"]


def train(config: Config, listeners: Sequence[Listener] = (), *, stops: Callable[[], bool] = lambda: False) -> Ended:
    """Train a model, or go on where a run of the same configuration has ended or was killed.

    Runs on one process, or on as many as `accelerate launch` or `torchrun` has started. PyTorch's global generator and
    its number of threads are as before when it returns.

    Args:
        config: What is trained on what, how, and where it is kept.
        listeners: Functions of each event; in several processes those of the first are called.
        stops: Asked after each step; once it says True, a checkpoint is written and training ends.

    Raises:
        InputError: The data, the configuration or the run's folder does not fit; a checkpoint cannot be written; the
            loss is no number any more. The last checkpoint is whole in each case.
        MissingExtraError: accelerate or tokenizers is not installed.
    """
    try:
        from accelerate import Accelerator
    except ImportError as missing:
        raise MissingExtraError(missing.name or "accelerate", "train") from missing
    precision = "no" if config.run.precision == "fp32" else config.run.precision
    if precision == "fp16" and not torch.cuda.is_available():  # accelerate would train in fp32 and say nothing
        raise InputError('`run.precision` "fp16" needs a GPU, and PyTorch sees none: take "bf16" or "fp32"')
    try:
        accelerator = Accelerator(mixed_precision=precision, cpu=not torch.cuda.is_available())
    except ValueError as problem:  # the device has no bf16, or this process has trained in another precision before
        raise InputError(
            f"`run.precision` {config.run.precision} cannot be had in this process: {problem}"
        ) from problem
    check_size(config, on_cpu=accelerator.device.type == "cpu")
    first = accelerator.is_main_process
    with _threads(config.run.threads), alone(Path(config.out)) if first else nullcontext():
        with torch.random.fork_rng(), accelerator.main_process_first():
            folder = Folder(Path(config.out), config, writes=first, processes=accelerator.num_processes)
            task = task_of(config, folder.vocabulary)
            torch.manual_seed(config.seed)
            model = task.model(config.model)
            folder.begin(task)
        with torch.random.fork_rng():
            return Trainer(config, folder, task, model, accelerator, listeners if first else (), stops).run()


@contextmanager
def _threads(count: int | None) -> Iterator[None]:
    """So many threads of PyTorch; afterwards as many as before."""
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(before if count is None else count)
        yield
    finally:
        torch.set_num_threads(before)


class Trainer:
    """One run of training; `train` makes it."""

    def __init__(
        self,
        config: Config,
        folder: Folder,
        task: Task,
        model: nn.Module,
        accelerator: Any,
        listeners: Sequence[Listener],
        stops: Callable[[], bool],
    ) -> None:
        self.config, self.folder, self.task, self.accelerator = config, folder, task, accelerator
        self.listeners, self.stops = listeners, stops
        self.parts = accelerator.num_processes * config.run.parts
        self.total = _total(config.run, self._batches)
        self.parameters = sum(one.numel() for one in model.parameters())
        if config.run.compiled:
            model.compile(dynamic=True)
        self.model, self.optimizer = accelerator.prepare(model, optimizer_of(model, config.optimizer))
        self.checkpoints = Checkpoints(folder.checkpoints)
        self.metric, self.higher = task.metric(config.run.metric)
        self.place = Place()

    def run(self) -> Ended:
        """Train to the end."""
        if last := self.checkpoints.steps():
            self.place = self.checkpoints.load(last[-1], self.model, self.optimizer.optimizer)
            if not all(self.metric in one for one in self.place.scores):
                raise InputError(
                    f"`run.metric` is {self.metric}, which earlier evaluations of this run did not count: say another"
                )
        self.tell(Started(self.folder.path, self.place.step, self.total, self.parameters, self.task.notes))
        why = self.over()
        steps = self.steps()
        while why is None:
            began = time.perf_counter()
            epoch, rows = next(steps)
            self.step(epoch, rows, began)
            if self.evaluates():
                self.evaluate(epoch)
            elif self.config.run.save and self.place.step % self.config.run.save == 0:
                self.save()
            why = self.over() or ("stopped" if self.stopped() else None)
        return self.end(why)

    def stopped(self) -> bool:
        """Whether any process was asked to stop: all end behind the same step, or they would wait for each other."""
        asked = torch.tensor(int(self.stops()), device=self.accelerator.device)
        return bool(self.accelerator.reduce(asked))

    def steps(self) -> Iterator[tuple[int, tuple[int, ...]]]:
        """The epoch and the rows of each step from here on; the place is behind them when they are given."""
        for epoch in count(self.place.epoch):
            batches = self._batches(epoch)
            while self.place.batch < len(batches):
                rows = batches[self.place.batch]
                self.place = replace(self.place, batch=self.place.batch + 1)
                if self.place.batch == len(batches):
                    self.place = replace(self.place, epoch=epoch + 1, batch=0)
                yield epoch, rows
                if self.place.batch == 0:
                    break

    def step(self, epoch: int, rows: tuple[int, ...], began: float) -> None:
        """Read the rows, in parts and over all processes, and take a step."""
        accelerator, chosen = self.accelerator, self.config.optimizer
        step = self.place.step + 1
        rank = accelerator.process_index
        torch.manual_seed(self.config.seed * 2**32 + step * 2**10 + rank)  # another seed for each step and process
        self.model.train()
        dealt = deal(rows, self.parts)[rank :: accelerator.num_processes]
        batches = [self.task.batch(part or rows[:1], asked=bool(part)).to(accelerator.device) for part in dealt]
        asked = accelerator.reduce(sum(one.asked for one in batches))
        loss = torch.zeros((), device=accelerator.device)
        for index, batch in enumerate(batches):
            with accelerator.no_sync(self.model) if index < len(batches) - 1 else nullcontext():
                logits = self.model(**batch.inputs).logits
                part = summed_cross_entropy(logits, batch.labels, chosen.smoothing) / asked
                accelerator.backward(part * accelerator.num_processes)  # DDP takes the mean over processes
            loss += part.detach()
        value = float(accelerator.reduce(loss))
        norm = float(accelerator.clip_grad_norm_(self.model.parameters(), chosen.clip or math.inf))
        if not math.isfinite(value) or (self.config.run.precision != "fp16" and not math.isfinite(norm)):
            raise InputError(self._no_number(step, value, norm))
        rate = chosen.rate * chosen.schedule.factor(step, self.total)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.place = replace(self.place, step=step)
        tokens = int(accelerator.reduce(torch.tensor(sum(one.tokens for one in batches), device=accelerator.device)))
        self.tell(Stepped(step, epoch, value, rate, norm, tokens, time.perf_counter() - began))

    def evaluates(self) -> bool:
        """Whether the held-out data is looked at behind this step."""
        every, place = self.config.run.evaluate, self.place
        return place.batch == 0 if every is None else place.step % every == 0 or self.done()

    def evaluate(self, epoch: int) -> None:
        """Score the held-out data, and save."""
        began = time.perf_counter()
        self.model.eval()
        scores = self.task.evaluate(self.accelerator.unwrap_model(self.model), self.config.run.tokens)
        before = self.place.best(self.metric, self.higher)
        self.place = self.place.scored(scores)
        best = before is None or self.place.best(self.metric, self.higher) != before
        samples = self.task.samples(self.accelerator.unwrap_model(self.model))
        if self.accelerator.is_main_process:
            self.task.draw(self.accelerator.unwrap_model(self.model), self.folder.path)
        # Told before it is saved: killed in between, the run evaluates again, and the log forgets what came behind.
        self.tell(Evaluated(self.place.step, epoch, scores, best, time.perf_counter() - began, samples))
        self.save()

    def save(self) -> None:
        """Write a checkpoint; keep the last ones, the best, and those that the mean will need."""
        first = self.accelerator.is_main_process
        path = self.checkpoints.save(self.model, self.optimizer.optimizer, self.place, writes=first)
        if first:
            best = self.place.best(self.metric, self.higher)
            scored = [int(one["step"]) for one in self.place.scores]
            kept = {*self.checkpoints.steps()[-self.config.run.keep :], *scored[-self.config.run.average :]}
            self.checkpoints.prune(sorted(kept | ({int(best["step"])} if best else set())))
        self.tell(Saved(self.place.step, path))

    def done(self) -> bool:
        """Whether the last step or epoch is done."""
        run = self.config.run
        return self.place.epoch >= run.epochs if run.epochs else self.place.step >= (run.steps or 0)

    def over(self) -> str | None:
        """Why training ends here, if it does."""
        patience = self.config.run.patience
        if self.done():
            return "steps"
        if patience is not None and self.place.since_best(self.metric, self.higher) >= patience:
            return "patience"
        return None

    def end(self, why: str) -> Ended:
        """Write the model: the best one, or the mean of the last; or, where someone stopped it, a checkpoint."""
        if why == "stopped":
            if self.place.step not in self.checkpoints.steps():
                self.save()
            ended = Ended(self.place.step, why, {}, None)
        else:
            if not self.place.scores or self.place.scores[-1]["step"] != self.place.step:
                self.evaluate(self.place.epoch)
            scores: dict[str, float] = {}
            if self.accelerator.is_main_process:
                scores = self.folder.finish(
                    self.task, self.checkpoints, self.place, self.metric, self.higher, self.accelerator.device
                )
            self.accelerator.wait_for_everyone()
            ended = Ended(self.place.step, why, scores, self.folder.model, self.task.counted)
        self.tell(ended)
        return ended

    def tell(self, event: Event) -> None:
        """Tell all listeners."""
        for listener in self.listeners:
            listener(event)

    def _batches(self, epoch: int) -> list[tuple[int, ...]]:
        return self.task.epoch(self.config.run.tokens * self.parts, self.config.seed, epoch)

    def _no_number(self, step: int, loss: float, norm: float) -> str:
        last = self.checkpoints.steps()
        what = f"the loss is {loss}" if not math.isfinite(loss) else f"the gradient's norm is {norm}"
        kept = f"the checkpoint of step {last[-1]} is as it was" if last else "there is no checkpoint yet"
        return (
            f"{what} at step {step}, and no step was taken; {kept}: lower optimizer.rate, lengthen the warm-up, or "
            'take run.precision = "fp32", in another folder'
        )


def _total(run: Run, batches: Callable[[int], Sequence[Any]]) -> int:
    return run.steps or sum(len(batches(epoch)) for epoch in range(run.epochs or 0))
