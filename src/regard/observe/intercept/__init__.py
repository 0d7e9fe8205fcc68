"""Intercept attention calls from outside, without changing any bit of the model's output."""

from regard.observe.intercept.interception import Interception
from regard.observe.intercept.watching_mode import is_watching

__all__ = ["Interception", "is_watching"]
