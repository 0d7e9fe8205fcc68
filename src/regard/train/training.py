"""The table [training]: optimizer, schedule, length, checkpoints, and the folder of the run."""

from typing import Annotated, Literal

from pydantic import Field

from regard.errors import InputError
from regard.train.loss_and_optimizer import Schedule, SchedulerKwargs, SchedulerType
from regard.train.settings import Count, FilePath, Fraction, settings

__all__ = ["Training"]


@settings
class Training:
    """How a model is trained; names and meanings are those of `transformers.TrainingArguments` where it has them.

    Args:
        output_dir: Folder of the run: checkpoints, log, figure, and the final model.
        max_steps: Number of optimizer steps.
        num_train_epochs: Number of epochs, which may end within one; either this or `max_steps`.
        learning_rate: Peak learning rate of AdamW (Loshchilov & Hutter 2019, arXiv:1711.05101).
        lr_scheduler_type: How the learning rate changes over the steps, see `schedules.Schedule`.
        warmup_steps: Steps of a linear rise from 0; below 1 a fraction of all steps.
        lr_scheduler_kwargs: Options of the schedule.
        weight_decay: AdamW's, for matrices only: neither biases nor norms decay.
        adam_beta1, adam_beta2, adam_epsilon: AdamW's.
        max_grad_norm: Norm that the gradient is clipped to; 0 for no clipping.
        label_smoothing: Fraction of the target that is spread over all classes, as in `torch.nn.CrossEntropyLoss`.
        max_tokens_per_batch: Tokens of a batch, padding included, for each process and accumulation step.
        gradient_accumulation_steps: Batches whose gradients are added before an optimizer step.
        mixed_precision: "bf16" or "fp16" for autocast, as in accelerate; weights stay in float32.
        torch_compile: Whether the model is compiled by torch.compile.
        eval_steps: Steps between evaluations, each of which saves a checkpoint; None for one after each epoch.
        save_steps: Steps between further checkpoints; None for no further ones.
        save_total_limit: Number of checkpoints that are kept; the best and the last always are.
        num_averaged_checkpoints: The final model is the mean of this many of the last evaluated checkpoints; 1 for the
            best one.
        early_stopping_patience: Evaluations without improvement after which training ends; None for no such end.
        metric_for_best_model: Name of the score that measures improvement, with or without "eval_"; None for the loss.
        context_parallel_size: Processes that share the tokens of each row (docs/sharded.md).
        num_threads: Threads of the processor; None for PyTorch's choice. Sums depend on it in their last bits.
        seed: Seed of the weights, the order of the data, and dropout.
    """

    output_dir: FilePath
    max_steps: Annotated[int, Field(ge=1, le=10**12)] | None = None
    num_train_epochs: Annotated[float, Field(gt=0, le=10_000)] | None = None
    learning_rate: Annotated[float, Field(gt=0, lt=10)] = 1e-3
    lr_scheduler_type: SchedulerType = "inverse_sqrt"
    warmup_steps: float = 1000
    lr_scheduler_kwargs: SchedulerKwargs = SchedulerKwargs()
    weight_decay: Annotated[float, Field(ge=0)] = 0.01
    adam_beta1: Fraction = 0.9
    adam_beta2: Fraction = 0.98
    adam_epsilon: Annotated[float, Field(gt=0)] = 1e-9
    max_grad_norm: Annotated[float, Field(ge=0)] = 1.0
    label_smoothing: Fraction = 0.0
    max_tokens_per_batch: Annotated[int, Field(ge=1, le=2**31)] = 4096
    gradient_accumulation_steps: Annotated[int, Field(ge=1, le=10_000)] = 1
    mixed_precision: Literal["no", "bf16", "fp16"] = "no"
    torch_compile: bool = False
    eval_steps: Count | None = None
    save_steps: Count | None = None
    save_total_limit: Count = 3
    num_averaged_checkpoints: Count = 1
    early_stopping_patience: Count | None = None
    metric_for_best_model: str | None = None
    context_parallel_size: Annotated[int, Field(ge=1, le=4096)] = 1
    num_threads: Annotated[int, Field(ge=1, le=4096)] | None = None
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0

    def __post_init__(self) -> None:
        if not self.output_dir.strip():
            raise InputError("`output_dir` must name the folder of the run, got an empty text")
        if (self.max_steps is None) == (self.num_train_epochs is None):
            raise InputError("training ends after `max_steps` or after `num_train_epochs`: give one of them")
        _ = self.schedule  # which checks its arguments
        if self.num_averaged_checkpoints > self.save_total_limit:
            raise InputError(
                f"`num_averaged_checkpoints` is {self.num_averaged_checkpoints}, more than `save_total_limit`, "
                f"{self.save_total_limit}: raise `save_total_limit`"
            )

    @property
    def schedule(self) -> Schedule:
        """The learning-rate schedule."""
        return Schedule(self.lr_scheduler_type, self.warmup_steps, self.lr_scheduler_kwargs)
