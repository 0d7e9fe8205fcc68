"""What users hold to see attention: watch(), look(), load(), heads and what they do, the adapter for transformers."""

from regard.seeing.ablate import ablated
from regard.seeing.adapter import register_with_transformers
from regard.seeing.compare import compare_models, compare_records, compare_texts
from regard.seeing.heads import head_scores
from regard.seeing.likeness import head_likeness
from regard.seeing.look import Looked, look
from regard.seeing.models import load_model
from regard.seeing.sight import Sight, load
from regard.seeing.watch import watch

__all__ = [
    "Looked",
    "Sight",
    "ablated",
    "compare_models",
    "compare_records",
    "compare_texts",
    "head_likeness",
    "head_scores",
    "load",
    "load_model",
    "look",
    "register_with_transformers",
    "watch",
]
