"""What users hold to see attention: watch(), look(), load(), and the adapter for transformers."""

from regard.seeing.adapter import register_with_transformers
from regard.seeing.look import Looked, look
from regard.seeing.models import load_model
from regard.seeing.sight import Sight, load
from regard.seeing.watch import watch

__all__ = ["Looked", "Sight", "load", "load_model", "look", "register_with_transformers", "watch"]
