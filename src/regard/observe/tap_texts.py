"""The texts of a tapped generation: several may run in turn, each with a cache of its own."""

import sys
import weakref
from dataclasses import dataclass, field, replace
from types import FrameType
from typing import Any

from torch import Tensor

from regard.observe.cached_text import reference_to

__all__ = ["TapText", "TapTexts", "proposed_tokens"]

_MOST = 64  # texts begun without a cache whose cache has not been seen yet


@dataclass(eq=False)
class TapText:
    """What the last step of a text leaves to its next one."""

    number: int = -1  # of its last step
    end: int = 0  # positions after it
    batch: int = 0
    cached: bool = False
    parent: Tensor | None = None
    ids: Tensor | None = None  # of its last step
    numbers: dict[int, int] = field(default_factory=dict)  # of its steps, by the positions after them


class TapTexts:
    """Finds the text that a step belongs to by its cache."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[weakref.ref[Any], TapText]] = {}
        self._begun: list[TapText] = []  # without a cache, which their next step may have
        self._latest = TapText()
        self._plain = self._latest  # the one without a cache, or with caches that are new in each step (tuples)

    def known(self, cache: Any) -> TapText | None:
        """Return the text that has had this cache, or None."""
        place, text = self._known.get(id(cache), (None, None))
        return text if place is not None and cache is not None and place() is cache else None

    def of(self, cache: Any, past: int) -> TapText:
        """Return the text of a step with this cache, which had `past` positions.

        A model that is called without a cache makes one, with which the text then continues; a copy of a cache
        continues what its original has read.
        """
        text = self.known(cache)
        if text is None and reference_to(cache)() is None:
            text = self._plain
        elif text is None:
            text = self._keep(cache, self._copied(past))
        self._latest = text
        return text

    def _copied(self, past: int) -> TapText:
        """Return the text whose cache was copied, or is seen for the first time, when it had `past` positions."""
        texts = (*self._begun, self._latest, *(one for _, one in self._known.values()))
        before = next((one for one in texts if one.end == past), None)
        if before is None:  # it has continued since
            longer = next((one for one in texts if past in one.numbers), self._latest)
            number, numbers = longer.numbers.get(past, longer.number), dict(longer.numbers)
            return replace(longer, number=number, end=past, ids=None, parent=None, numbers=numbers)
        self._begun = [one for one in self._begun if one is not before]
        return replace(before, numbers=dict(before.numbers))

    def begin(self, cache: Any) -> TapText:
        """Return a new text, with this cache or without one."""
        self._latest = text = TapText()
        if reference_to(cache)() is None:
            self._plain = text
            self._begun = [*self._begun[1 - _MOST :], text]
            return text
        return self._keep(cache, text)

    def _keep(self, cache: Any, text: TapText) -> TapText:
        self._known = {key: one for key, one in self._known.items() if one[0]() is not None}
        self._known[id(cache)] = weakref.ref(cache), text
        return text


def proposed_tokens() -> int | None:
    """Return the number of tokens that an assistant of transformers has proposed in the call that begins, or None.

    The first call reads the prompt with them, and models without `logits_to_keep` are not told how many there are.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_name != "generate":  # that of the assistant, if it is tapped itself
        if frame.f_code.co_name == "_assisted_decoding":
            found = frame.f_locals.get("candidate_length")
            return found if isinstance(found, int) else None
        frame = frame.f_back
    return None
