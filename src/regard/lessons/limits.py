"""What a lesson page holds at most, as its browser client has it (lessons/page/limits.js)."""

import json

from regard.render.browser_script import package_text

__all__ = ["LARGEST_COUNT", "LARGEST_NUMBER", "MOST_BYTES", "MOST_HEADS", "MOST_TOKENS"]

_LIMITS = json.loads(package_text("lessons/page/limits.js").partition("LIMITS = ")[2].rstrip().removesuffix(";"))

MOST_TOKENS: int = _LIMITS["tokens"]  # rows of X and of the other side: a page in which each number can be touched
MOST_HEADS: int = _LIMITS["heads"]
MOST_BYTES: int = _LIMITS["bytes"]  # of the numbers of a page
LARGEST_NUMBER: float = _LIMITS["number"]  # so that (x·W_Q)·(x·W_K) is finite in float64
LARGEST_COUNT: int = _LIMITS["count"]  # of a window or a prefix
