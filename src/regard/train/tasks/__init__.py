"""Tasks: each makes a model, batches and scores for the training loop."""

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
    """Return the task of a configuration with its data; `vocabulary` is the folder of the tokenizers of the run.

    Raises:
        InputError: The data cannot be read, or the model does not fit the task.
    """
    kinds: dict[type, type[Task]] = {
        chosen.Translation: TranslationTask,
        chosen.Synthetic: SyntheticTask,
        chosen.CausalLM: CausalTask,
        chosen.MaskedLM: MaskedTask,
        chosen.Classification: ClassificationTask,
    }
    return kinds[type(config.task)](config, vocabulary)
