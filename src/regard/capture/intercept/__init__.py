"""Intercept attention calls from outside, without changing any bit of the model's output."""

from regard.capture.intercept.fastpath import is_watching
from regard.capture.intercept.torch_function_mode import Interception

__all__ = ["Interception", "is_watching"]
