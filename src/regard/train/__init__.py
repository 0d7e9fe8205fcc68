"""Training: a configuration, one loop, checkpoints that survive a kill, and callbacks."""

from regard.metrics import TranslationScore, translation_scores
from regard.train.callbacks import Curves, JsonlLog, curves_figure, read_log
from regard.train.config import Config, read_config
from regard.train.loop import train
from regard.train.translator import Translation, Translator

__all__ = [
    "Config",
    "Curves",
    "JsonlLog",
    "Translation",
    "TranslationScore",
    "Translator",
    "curves_figure",
    "read_config",
    "read_log",
    "train",
    "translation_scores",
]
