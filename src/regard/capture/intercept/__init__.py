"""Seeing attention calls from outside, without changing a bit of what the model computes."""

from regard.capture.intercept.fastpath import is_watching
from regard.capture.intercept.torch_function_mode import Interception

__all__ = ["Interception", "is_watching"]
