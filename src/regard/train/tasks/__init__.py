"""Tasks: each file has the table [task] of one type, and makes a model, batches and scores for the training loop.

A task of your own is a file with a Task and its settings, and its name here.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from regard.train.tasks.base import Batch, Task, TaskSettings
from regard.train.tasks.classification import ClassificationSettings, ClassificationTask
from regard.train.tasks.language import CausalLMSettings, CausalTask, MaskedLMSettings, MaskedTask
from regard.train.tasks.synthetic import SyntheticSettings, SyntheticTask
from regard.train.tasks.translation import TranslationSettings, TranslationTask

if TYPE_CHECKING:
    from regard.train.config import Config

__all__ = [
    "TASKS",
    "Batch",
    "CausalLMSettings",
    "ClassificationSettings",
    "MaskedLMSettings",
    "SyntheticSettings",
    "Task",
    "TaskSettings",
    "TranslationSettings",
    "task_of",
]

TASKS: tuple[type[Task], ...] = (TranslationTask, SyntheticTask, CausalTask, MaskedTask, ClassificationTask)


def task_of(config: "Config", vocabulary: Path) -> Task:
    """Return the task of a configuration with its data; `vocabulary` is the folder of the tokenizers of the run.

    Raises:
        InputError: The data cannot be read, or the model does not fit the task.
    """
    return next(one for one in TASKS if one.settings is type(config.task))(config, vocabulary)
