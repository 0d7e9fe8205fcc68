"""Seeing attention calls from outside, without changing a bit of what the model computes."""

from regard.observe.intercept.fastpath import is_watching
from regard.observe.intercept.mode import Interception

__all__ = ["Interception", "is_watching"]
