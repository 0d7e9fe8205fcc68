"""Intercept attention calls from outside, without changing any bit of the model's output."""

from regard.capture.intercept.interception import Interception
from regard.capture.intercept.watching_mode import is_watching

__all__ = ["Interception", "is_watching"]
