"""Settings that a run will not reach: a warm-up longer than the run, evaluations after its end."""

from regard.train.training import Training

__all__ = ["unreached_settings"]


def unreached_settings(training: Training, total: int, evaluations: int | None = None) -> tuple[str, ...]:
    """Return a sentence for each setting that has no effect, or not the one that its name promises.

    Args:
        training: The table [training].
        total: Number of optimizer steps of the whole run.
        evaluations: Number of evaluations; None where it is not known and does not follow from `eval_steps`.

    >>> unreached_settings(Training(output_dir="a", max_steps=100, warmup_steps=10, eval_steps=200), 100)
    ('`training.eval_steps` is 200 and the run has 100 steps: held-out data is evaluated once, after the last step',)
    """
    run = f"and the run has {total:,} steps"
    found = [*_learning_rate(training, total)]
    if training.eval_steps is not None:
        evaluations = -(-total // training.eval_steps)
        if training.eval_steps > total:
            found.append(
                f"`training.eval_steps` is {training.eval_steps:,} {run}: held-out data is evaluated once, after the "
                "last step"
            )
    if training.save_steps is not None and training.save_steps > total:
        found.append(f"`training.save_steps` is {training.save_steps:,} {run}: it saves no further checkpoint")
    if evaluations is not None:
        run = f"and the run has {evaluations:,} evaluation{'s'[: evaluations > 1]}"
        patience, averaged = training.early_stopping_patience, training.num_averaged_checkpoints
        if patience is not None and patience >= evaluations:
            found.append(f"`training.early_stopping_patience` is {patience:,} {run}: it never ends training early")
        if averaged > evaluations:
            found.append(f"`training.num_averaged_checkpoints` is {averaged:,} {run}: the model is the mean of those")
    return tuple(found)


def _learning_rate(training: Training, total: int) -> list[str]:
    """Say that the learning rate never comes to its peak."""
    schedule = training.schedule
    warmup = schedule.num_warmup_steps(total)
    # All schedules rise until the warm-up ends, and never after it.
    steps = {step for step in (warmup - 1, warmup, total - 1) if 0 <= step <= min(warmup, total - 1)}
    highest = max(schedule.factor(step, total) for step in steps)
    if highest == 1:
        return []
    rate = f"the learning rate never reaches {training.learning_rate:g}, and is {highest * training.learning_rate:.3g} "
    if warmup >= total:
        return [
            f"`training.warmup_steps` is {warmup:,} and the run has {total:,} steps: {rate}at its end; lower "
            "`warmup_steps` (below 1, it is a fraction of all steps), or train longer"
        ]
    return [
        f"`training.warmup_steps`, {warmup:,}, and `training.lr_scheduler_kwargs.num_decay_steps` overlap in a run of "
        f"{total:,} steps: {rate}at most; lower one of them"
    ]
