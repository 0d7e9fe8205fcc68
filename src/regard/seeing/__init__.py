"""What users hold to see attention: watch(), load(), and looking at a text."""

from regard.seeing.watch import Sight, load, watch

__all__ = ["Sight", "load", "watch"]
