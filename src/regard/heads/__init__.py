"""What attention heads do, as numpy values: patterns, scores, sinks, and how they change."""

from regard.heads.sinks import Sink, find_sinks

__all__ = ["Sink", "find_sinks"]
