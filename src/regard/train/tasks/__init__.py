"""What a model is trained on: each task makes a model, batches and scores; the loop knows nothing else of it."""

from pathlib import Path

from regard.train import config as chosen
from regard.train.config import Config
from regard.train.tasks.base import Batch, Task
from regard.train.tasks.classification import ClassificationTask
from regard.train.tasks.language import CausalTask
from regard.train.tasks.masked import MaskedTask
from regard.train.tasks.synthetic import SyntheticTask
from regard.train.tasks.translation import TranslationTask

__all__ = ["Batch", "Task", "task_of"]


def task_of(config: Config, vocabulary: Path) -> Task:
    """The task that a configuration names, its data read; `vocabulary` is where tokenizers of the run lie, or shall.

    Raises:
        InputError: The data cannot be read, or the model does not fit the task.
    """
    kinds: dict[type, type[Task]] = {
        chosen.Translation: TranslationTask,
        chosen.Synthetic: SyntheticTask,
        chosen.CausalLanguage: CausalTask,
        chosen.MaskedLanguage: MaskedTask,
        chosen.Classification: ClassificationTask,
    }
    return kinds[type(config.task)](config, vocabulary)
