"""Tasks: each file has the table [task] of one type, and makes a model, batches and scores for the training loop.

A task of your own is a file with a Task and its settings, and its name here.
"""

from regard.train.tasks.base import Batch, Task, TaskSettings
from regard.train.tasks.classification import ClassificationSettings, ClassificationTask
from regard.train.tasks.language import CausalLMSettings, CausalTask, MaskedLMSettings, MaskedTask
from regard.train.tasks.synthetic import SyntheticSettings, SyntheticTask
from regard.train.tasks.translation import TranslationSettings, TranslationTask

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
]

TASKS: tuple[type[Task], ...] = (TranslationTask, SyntheticTask, CausalTask, MaskedTask, ClassificationTask)
