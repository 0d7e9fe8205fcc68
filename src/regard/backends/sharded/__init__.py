"""Sequences over the ranks of a process group."""

from regard.backends.sharded.backend import Sharded
from regard.backends.sharded.dtensors import attend_dtensors

__all__ = ["Sharded", "attend_dtensors"]
