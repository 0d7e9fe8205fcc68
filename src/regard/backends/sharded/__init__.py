"""Sequences over the ranks of a process group."""

from regard.backends.sharded.backend import Sharded

__all__ = ["Sharded"]
