"""Training: a configuration, one loop, checkpoints that a kill cannot break, and what listens to it."""

from regard.train.config import Config
from regard.train.config_file import read_config
from regard.train.curves import Curves, curves_figure
from regard.train.jsonl_log import Journal, read_journal
from regard.train.loop import train
from regard.train.metrics import Score, translation_scores
from regard.train.translator import Translator

__all__ = [
    "Config",
    "Curves",
    "Journal",
    "Score",
    "Translator",
    "curves_figure",
    "read_config",
    "read_journal",
    "train",
    "translation_scores",
]
