"""Run the model on a sentence typed in the page and record its attention, one sentence at a time."""

import dataclasses
import threading
from typing import Any, Protocol

from regard.errors import InputError
from regard.record.records import Record

__all__ = ["LONGEST", "ModelReader", "Reader"]

LONGEST = 20_000  # maximum number of characters of a typed text


class Reader(Protocol):
    """The interface of an object that makes a record from a text."""

    name: str

    def read(self, text: str) -> tuple[Record, str | None]:
        """Return the record of a text, and a note on it or None."""


class ModelReader:
    """A model for typed sentences.

    Args:
        model: A bundled model, a Hugging Face folder or id. It is loaded immediately, so that a wrong name raises here.
    """

    def __init__(self, model: str) -> None:
        from regard.interpret.model_loading import load_model

        self.name = model
        self._loaded: Any = load_model(model)
        self._busy = threading.Lock()

    def read(self, text: str) -> tuple[Record, str | None]:
        """Run the model on a text and record it; a second text at the same time is refused.

        Raises:
            InputError: The text is empty or too long, or the model is running on another text.
        """
        from regard.interpret.look import prepare
        from regard.interpret.model_loading import advice
        from regard.interpret.watch import watch

        if len(text) > LONGEST:
            raise InputError(f"the text has {len(text):,} characters, more than {LONGEST:,}: use `regard look --out`")
        if not self._busy.acquire(blocking=False):
            raise InputError(f"{self.name} is reading another text: try again when it has finished")
        try:
            prepared = prepare(text, model=self._loaded)
            # Up to 512 tokens the maps contain every weight.
            long = max(len(stream[0]) for stream in prepared.tokens.values()) > 512
            with watch(self._loaded.model, keep="qk" if long else "maps") as seen:
                prepared.run()
        finally:
            self._busy.release()
        record = dataclasses.replace(seen.record, tokens=prepared.tokens, model=self.name)
        return record, advice(self._loaded, text)
