"""The training loop: batches, gradients, optimizer steps, evaluations, checkpoints; callbacks receive its events.

A step is a pure function of weights, optimizer, seed and the step's number: the order of the data follows from seed and
epoch, dropout from seed and step, the learning rate from the step. So a run that was killed resumes bit for bit.
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
from torch import Tensor, nn

from regard.backends.native.choice import attends_by
from regard.data import shard_batch
from regard.errors import InputError, MissingExtraError, NonFiniteLossError
from regard.nn import unregistered_parameters
from regard.train.callbacks import Callback, Ended, Evaluated, Event, Sample, Saved, Started, Stepped
from regard.train.checkpoints import Checkpoints, TrainerState
from regard.train.config import Config, task_of
from regard.train.loss_and_optimizer import OneProcess, optimizer_of, summed_cross_entropy, total_steps
from regard.train.machine_memory import check_size
from regard.train.optional_parts import optional_part, reason_of
from regard.train.run_dir import Folder, hold_folder, last_checkpoint_named
from regard.train.tasks import Task
from regard.train.unreached import unreached_settings

__all__ = ["Trainer", "train"]


def train(
    config: Config, callbacks: Sequence[Callback] = (), *, should_stop: Callable[[], bool] = lambda: False
) -> Ended:
    """Train a model, or resume a run of the same configuration that has ended or was killed.

    It runs on one process, or on as many processes as `accelerate launch` or `torchrun` has started. When it returns,
    PyTorch's global generator and its number of threads are the same as before.

    Args:
        config: Task, model, training and output folder.
        callbacks: Functions of each event; of several processes the first calls them.
        should_stop: Called after each step; once it returns True, a checkpoint is saved and training ends.

    Returns:
        The last event: the step, why training ended, scores, and the folder of the model.

    Raises:
        InputError: The data, the configuration or the folder of the run does not fit, or a checkpoint cannot be saved.
        NonFiniteLossError: The loss or the gradient's norm is NaN or infinite. The last checkpoint is kept.
        MissingExtraError: accelerate or tokenizers is not installed.
    """
    try:
        from accelerate import Accelerator
    except ImportError as missing:
        raise MissingExtraError(missing.name or "accelerate", "train") from missing
    training = config.training
    precision = training.mixed_precision
    if precision == "fp16" and not torch.cuda.is_available():  # accelerate would silently train in fp32
        raise InputError('`training.mixed_precision` "fp16" needs a GPU, and PyTorch sees none: take "bf16" or "no"')
    try:
        accelerator = Accelerator(mixed_precision=precision, cpu=not torch.cuda.is_available())
    except ValueError as problem:  # the device has no bf16, or this process has trained in another precision before
        raise InputError(
            f"`training.mixed_precision` {precision} is not available in this process: {problem}"
        ) from problem
    check_size(config, on_cpu=accelerator.device.type == "cpu")
    first, ranks = accelerator.is_main_process, OneProcess()
    if accelerator.num_processes > 1 or training.context_parallel_size > 1:
        from regard.train.ranks import Ranks

        ranks = Ranks(accelerator, training.context_parallel_size)
    path = Path(training.output_dir)
    with _threads(training.num_threads), last_checkpoint_named(path), hold_folder(path) if first else nullcontext():
        with torch.random.fork_rng(), ranks.main_process_first():
            folder = Folder(path, config, writes=first, processes=ranks.data_ranks)
            task = task_of(folder.config, folder.tokenizers)
            torch.manual_seed(training.seed)
            model = task.model(config.model)
            task.leave_out_long_rows(model)
            by = "the backend sharded" if ranks.sequence_ranks > 1 else attends_by(accelerator.device)
            folder.begin(task, model, attends_by=by)
        task.ranks = ranks
        with torch.random.fork_rng():
            return Trainer(config, folder, task, model, accelerator, callbacks if first else (), should_stop).run()


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
        callbacks: Sequence[Callback],
        should_stop: Callable[[], bool],
    ) -> None:
        self.config, self.folder, self.task, self.accelerator = config, folder, task, accelerator
        self.training, self.ranks = config.training, task.ranks
        self.callbacks, self.should_stop = callbacks, should_stop
        self.num_shards = self.ranks.data_ranks * self.training.gradient_accumulation_steps
        self.total = total_steps(self.training.max_steps, self.training.num_train_epochs, self._batches)
        self.num_parameters = sum(one.numel() for one in model.parameters())
        if self.training.torch_compile:
            model.compile(dynamic=True)
        optimizer = optimizer_of(
            model,
            learning_rate=self.training.learning_rate,
            weight_decay=self.training.weight_decay,
            betas=(self.training.adam_beta1, self.training.adam_beta2),
            eps=self.training.adam_epsilon,
        )
        self.model, self.optimizer = accelerator.prepare(model, optimizer)
        self.ranks.prepare(self.model)
        self.checkpoints = Checkpoints(folder.checkpoints)
        self.metric, self.higher = task.metric(self.training.metric_for_best_model)
        self.place = TrainerState()
        self.warnings: list[str] = []  # of what was left out so far
        self.checked = False  # whether the model has all parameters of its loss
        self.unscored: int | None = None  # the last step, if its evaluation has failed

    def run(self) -> Ended:
        """Train to the end."""
        if last := self.checkpoints.steps():
            self.place = self.checkpoints.load(last[-1], self.model, self.optimizer.optimizer)
            if not all(self.metric in one for one in self.place.scores):
                raise InputError(
                    f"`training.metric_for_best_model` is {self.metric}, which earlier evaluations of this run did not "
                    "compute: take another"
                )
        notes = (*self.task.notes, *self.folder.notes, *self.unreached())
        self.notify(Started(self.folder.path, self.place.step, self.total, self.num_parameters, notes))
        reason = self.over()
        if reason is None and self.place.step > 0 and self.evaluates() and not self.scored():
            # It failed before the checkpoint was saved, or the run was stopped before it.
            self.evaluate()
            reason = self.over()
        steps = self.steps()
        while reason is None:
            began = time.perf_counter()
            rows, place = next(steps)
            self.step(rows, place, began)
            stops = self.stopped() and not self.done()  # an evaluation can take minutes: the resumed run makes it up
            if self.evaluates() and not stops:
                self.evaluate()
            elif self.training.save_steps and self.place.step % self.training.save_steps == 0:
                self.save()
            reason = self.over() or ("should_stop" if stops else None)
        return self.end(reason)

    def unreached(self) -> tuple[str, ...]:
        """Return a sentence for each setting that this run will not reach."""
        training, evaluations = self.training, None
        if training.num_train_epochs is not None:
            evaluations = math.ceil(training.num_train_epochs)
        elif self.total <= len(self._batches(0)):
            evaluations = 1
        found = unreached_settings(training, self.total, evaluations)
        if self.num_shards == 1:
            return found
        tokens = training.max_tokens_per_batch
        parts = f"`gradient_accumulation_steps` × processes is {self.num_shards:,}"
        longest = max(row if isinstance(row, int) else max(row) for row in self.task.lengths)
        if longest > tokens:  # `batches` refuses only what is longer than all batches of a step together
            return (*found, f"a row has {longest:,} tokens, more than `training.max_tokens_per_batch`, {tokens:,}")
        if (num_batches := len(self.task.epoch(tokens, training.seed, 0))) < self.num_shards:
            return (*found, f"{parts}, and an epoch has {num_batches:,} batches: each step is a whole epoch")
        return found

    def stopped(self) -> bool:
        """Whether any process should stop: all end after the same step, or they would wait for each other."""
        requested = torch.tensor(int(self.should_stop()), device=self.accelerator.device)
        return bool(self.ranks.sum(requested))

    def steps(self) -> Iterator[tuple[tuple[int, ...], TrainerState]]:
        """Yield the rows of each step from here on, and the place after it, at which `step` arrives."""
        for epoch in count(self.place.epoch):
            batches = self._batches(epoch)
            for batch in range(self.place.batch, len(batches)):
                epoch_after, batch_after = (epoch, batch + 1) if batch + 1 < len(batches) else (epoch + 1, 0)
                step = self.place.step + 1
                yield batches[batch], replace(self.place, step=step, epoch=epoch_after, batch=batch_after)

    def step(self, rows: tuple[int, ...], place: TrainerState, began: float) -> None:
        """Run the rows through the model, over accumulation steps and processes, and take an optimizer step.

        Until it is taken, `self.place` is the one before, of which a checkpoint can be saved.
        """
        accelerator, training, ranks, step = self.accelerator, self.training, self.ranks, place.step
        torch.manual_seed(training.seed * 2**32 + step * 2**10 + ranks.data_rank)  # another for each step and rows
        self.model.train()
        shards = shard_batch(rows, self.num_shards)[ranks.data_rank :: ranks.data_ranks]
        batches = [self.task.batch(shard or rows[:1], labelled=bool(shard)).to(accelerator.device) for shard in shards]
        counts = torch.tensor([[int(one.num_labels), one.num_tokens] for one in batches], device=accelerator.device)
        num_labels, num_tokens = ranks.sum(counts.sum(0)) // ranks.sequence_ranks
        loss = torch.zeros((), device=accelerator.device)
        with ranks.over(accelerator.unwrap_model(self.model)) as cut:
            for index, batch in enumerate(batches):
                with accelerator.no_sync(self.model) if index < len(batches) - 1 else nullcontext():
                    logits = self.model(**batch.inputs).logits
                    part = summed_cross_entropy(logits, cut(batch.labels), training.label_smoothing) / num_labels
                    if not self.checked:
                        self._check_parameters(part)
                    accelerator.backward(part * accelerator.num_processes)  # DDP takes the mean over processes
                loss += part.detach()
        value = float(ranks.sum(loss))
        norm = float(accelerator.clip_grad_norm_(self.model.parameters(), training.max_grad_norm or math.inf))
        if not math.isfinite(value) or (training.mixed_precision != "fp16" and not math.isfinite(norm)):
            raise NonFiniteLossError(self._non_finite(step, value, norm))
        learning_rate = training.learning_rate * training.schedule.factor(step - 1, self.total)
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.place = place
        seconds = time.perf_counter() - began
        self.notify(Stepped(step, place.epoch_of_step, value, learning_rate, norm, int(num_tokens), seconds))

    def evaluates(self) -> bool:
        """Whether the held-out data is evaluated after this step."""
        every, place = self.training.eval_steps, self.place
        return place.batch == 0 or self.done() if every is None else place.step % every == 0 or self.done()

    def scored(self) -> bool:
        """Whether the held-out data was evaluated after this step."""
        return bool(self.place.scores) and self.place.scores[-1]["step"] == self.place.step

    def evaluate(self) -> None:
        """Score the held-out data, and save, whatever fails."""
        began = time.perf_counter()
        self.model.eval()
        try:
            scores = self.task.evaluate(self.accelerator.unwrap_model(self.model), self.training.max_tokens_per_batch)
        except Exception as problem:
            self.save()
            if not self.done() or self.ranks.sequence_ranks > 1:
                raise
            self.unscored = self.place.step
            self.task.warnings.append(f"the evaluation of step {self.place.step:,} is left out: {reason_of(problem)}")
            return
        before = self.place.best(self.metric, self.higher)
        self.place = self.place.scored(scores)
        best = before is None or self.place.best(self.metric, self.higher) != before
        samples: tuple[Sample, ...] = ()
        with optional_part("the list of samples", self.task.warnings):
            samples = self.task.samples(self.accelerator.unwrap_model(self.model))
        seconds, warnings = time.perf_counter() - began, self.take_warnings()
        # Before it is saved: killed in between, the run evaluates again, and the log drops what came after.
        try:
            self.notify(Evaluated(self.place.step, self.place.epoch_of_step, scores, best, seconds, samples, warnings))
        except Exception:
            self.save()
            raise
        self.save()

    def save(self) -> None:
        """Save a checkpoint; keep the last ones, the best, and those that the mean will need."""
        first = self.accelerator.is_main_process
        path = self.checkpoints.save(self.model, self.optimizer.optimizer, self.place, writes=first)
        if first:
            best = self.place.best(self.metric, self.higher)
            scored = [int(one["step"]) for one in self.place.scores]
            steps, needed = self.checkpoints.steps(), {self.place.step, *([int(best["step"])] if best else ())}
            if self.training.num_averaged_checkpoints > 1:
                needed |= set(scored[-self.training.num_averaged_checkpoints :])
            others = [step for step in steps if step not in needed]
            free = max(0, self.training.save_total_limit - len(needed))
            with optional_part("removing old checkpoints", self.task.warnings):
                self.checkpoints.prune(sorted(needed | set(others[len(others) - free :])))
        self.notify(Saved(self.place.step, path))

    def done(self) -> bool:
        """Whether the last step is done."""
        return self.place.step >= self.total

    def over(self) -> str | None:
        """Why training ends here, if it does."""
        patience = self.training.early_stopping_patience
        if self.done():
            return "max_steps"
        if patience is not None and self.place.since_best(self.metric, self.higher) >= patience:
            return "early_stopping"
        return None

    def end(self, reason: str) -> Ended:
        """Save the model: the best one, or the mean of the last; a checkpoint where training was stopped.

        What comes after may fail, and is left out: scores of the final model, the figure, callbacks.
        """
        if reason == "should_stop":
            if self.place.step not in self.checkpoints.steps():
                self.save()
            self.draw()
            ended = Ended(self.place.step, reason, {}, None, warnings=self.take_warnings())
        else:
            if self.unscored is None and not self.scored():
                self.evaluate()
            scores: dict[str, float] = {}
            self.ranks.meet()  # the first process has saved the last checkpoint
            if self.accelerator.is_main_process or self.ranks.sequence_ranks > 1:
                scores = self.folder.finish(
                    self.task, self.checkpoints, self.place, self.metric, self.higher, self.accelerator.device
                )
            self.ranks.meet()
            self.draw()
            warnings = self.take_warnings()
            ended = Ended(self.place.step, reason, scores, self.folder.model, self.task.counted, warnings)
        self.notify(ended)
        self.take_warnings()
        return replace(ended, warnings=tuple(dict.fromkeys(self.warnings)))

    def draw(self) -> None:
        """Draw the model's attention at the last step."""
        self.model.eval()  # a run that resumes after its last step has not evaluated
        if self.accelerator.is_main_process:
            with optional_part("the figure of the model's attention", self.task.warnings):
                self.task.draw(self.accelerator.unwrap_model(self.model), self.folder.path)

    def notify(self, event: Event) -> None:
        """Call all callbacks with an event; after the last step, do without one that fails."""
        ends = isinstance(event, Ended) or (self.over() is not None and not isinstance(event, Started))
        for callback in self.callbacks:
            with optional_part(_name_of(callback), self.task.warnings) if ends else self.saved_first(event):
                callback(event)

    @contextmanager
    def saved_first(self, event: Event) -> Iterator[None]:
        """Save the step before an error of a callback ends the run: it is finished, the disk being full or not."""
        try:
            yield
        except Exception:
            if isinstance(event, Stepped) and self.accelerator.num_processes == 1:  # others would wait in the next step
                self.save()
            raise

    def take_warnings(self) -> tuple[str, ...]:
        """Return the warnings since the last call."""
        warnings = tuple(self.task.warnings)
        self.warnings += warnings
        self.task.warnings.clear()
        return warnings

    def _batches(self, epoch: int) -> list[tuple[int, ...]]:
        return self.task.epoch(self.training.max_tokens_per_batch * self.num_shards, self.training.seed, epoch)

    def _check_parameters(self, loss: Tensor) -> None:
        """Refuse a model whose loss depends on tensors that it would neither train nor save."""
        self.checked = True
        if self.ranks.sequence_ranks > 1:
            return  # whose graph has the shards
        if outside := unregistered_parameters(loss, self.accelerator.unwrap_model(self.model)):
            shapes = ", ".join(str(tuple(tensor.shape)) for tensor in outside)
            raise InputError(
                f"the loss depends on {len(outside)} tensors that the model does not have, of shape {shapes}, so that "
                "they would neither be trained nor saved: register them in __init__ as nn.Parameter, or as "
                "regard.nn.ValueModule(value) where a bias, score or normalizer of regard holds them"
            )

    def _non_finite(self, step: int, loss: float, norm: float) -> str:
        last = self.checkpoints.steps()
        what = f"the loss is {loss}" if not math.isfinite(loss) else f"the gradient's norm is {norm}"
        kept = f"the checkpoint of step {last[-1]} is as it was" if last else "there is no checkpoint yet"
        return (
            f"{what} at step {step}, and no step was taken; {kept}: lower "
            'training.learning_rate, raise training.warmup_steps, or set training.mixed_precision = "no", in another '
            "folder"
        )


def _name_of(callback: Callback) -> str:
    """The file that a callback writes, or its own name."""
    path = getattr(callback, "path", None)
    return path.name if isinstance(path, Path) else getattr(callback, "__qualname__", type(callback).__name__)
