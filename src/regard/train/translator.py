"""A trained model that translates: texts in, texts out, and what it looked at."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from regard.capture.records import Record
from regard.capture.tokens import Token
from regard.data import Vocabulary, to_script
from regard.errors import InputError
from regard.interpret.watch import watch
from regard.models import RecurrentSeq2Seq, Transformer
from regard.models.decoding import Beam, Decoding

__all__ = ["Translator"]

_ABOUT = "translation.json"
_IDEOGRAPHS = 0x2E80  # from here on Unicode has Chinese, Japanese and Korean


@dataclass(frozen=True, eq=False)
class Translator:
    """A model with the vocabularies of both sides.

    Args:
        model: A Transformer or RecurrentSeq2Seq in eval mode.
        source, target: The vocabularies.
        languages: Of source and target, ISO 639-1.
        script: What Chinese is written in, "hans" or "hant"; None as it comes.
    """

    model: nn.Module
    source: Vocabulary
    target: Vocabulary
    languages: tuple[str, str]
    script: Literal["hans", "hant"] | None = None

    @classmethod
    def load(cls, folder: str | Path) -> "Translator":
        """Read the folder that `regard train` wrote, or its `model` folder.

        Raises:
            InputError: It is not the folder of a translation, or a file in it cannot be read.
        """
        path = Path(folder)
        path = path / "model" if (path / "model").is_dir() else path
        if not path.is_dir():
            raise InputError(f"there is no folder {str(folder)!r}: name what `regard train` wrote")
        try:
            about = json.loads((path / _ABOUT).read_text("utf-8"))
            (source, target), script = about["languages"], about["script"]
            if not isinstance(source, str) or not isinstance(target, str) or script not in ("hans", "hant", None):
                raise ValueError(f"it must have two languages and a script, got {about}")
        except FileNotFoundError:
            raise InputError(f"{folder} holds no model that translates: {_why_none(Path(folder))}") from None
        except (OSError, ValueError, KeyError, TypeError) as problem:
            raise InputError(f"cannot read {path / _ABOUT}: {problem}") from problem
        try:
            recurrent = "RecurrentConfig" in (path / "config.json").read_text("utf-8")
        except (OSError, UnicodeDecodeError) as problem:
            raise InputError(f"cannot read {path / 'config.json'}: {problem}") from problem
        kind = RecurrentSeq2Seq if recurrent else Transformer
        reads, writes = (Vocabulary.load(path / f"{side}.json") for side in ("source", "target"))
        return cls(kind.from_pretrained(path), reads, writes, (source, target), script)

    def save(self, folder: Path) -> None:
        """Write all but the model beside it."""
        self.source.save(folder / "source.json")
        self.target.save(folder / "target.json")
        about = {"languages": list(self.languages), "script": self.script}
        (folder / _ABOUT).write_text(json.dumps(about, indent=2) + "\n", "utf-8")

    def read(self, text: str) -> list[int]:
        """A source as tokens, the end token behind it."""
        chinese = self.script is not None and self.languages[0] == "zh"
        return self.source.encode([to_script(text, self.script) if chinese and self.script else text], end=True)[0]

    def said(self, tokens: Sequence[int]) -> str:
        """Tokens of the target as text."""
        return self.target.decode(list(tokens)).strip()

    def translate(
        self,
        texts: Sequence[str],
        *,
        beams: int = 4,
        length_penalty: float = 1.0,
        rows: int = 64,
        progress: Callable[[int], None] = lambda _: None,
    ) -> list[str]:
        """Translate texts, in batches of like length; the order stays, and an empty text stays empty.

        Args:
            texts: One sentence each.
            beams: Translations that are followed side by side; 1 takes the likeliest token each time.
            length_penalty: Above 1 longer translations gain.
            rows: Texts in a batch.
            progress: Told how many texts are done each time some are.

        Raises:
            InputError: A text is longer than the model has positions for.
        """
        sources = {place: self.read(text) for place, text in enumerate(texts) if text.strip()}
        limit = getattr(getattr(self.model, "config", None), "length", None)
        for place, source in sources.items():  # before others are translated in vain
            if limit is not None and len(source) > limit:
                raise InputError(
                    f"text {place + 1} has {len(source)} tokens, and this model has positions for {limit}: shorten it"
                )
        decoding: Decoding | None = Beam(beams, length_penalty) if beams > 1 else None
        order = sorted(sources, key=lambda place: len(sources[place]))
        found = [""] * len(texts)
        for first in range(0, len(order), rows):
            chosen = order[first : first + rows]
            longest = len(sources[chosen[-1]])
            writer: Any = self.model
            with torch.inference_mode():
                written = writer.generate(
                    [sources[place] for place in chosen], decoding=decoding, most=2 * longest + 10
                )
            for place, tokens in zip(chosen, written, strict=True):
                found[place] = self.said(tokens)
            progress(first + len(chosen))
        return found

    def aligned(self, text: str, *, beams: int = 4, length_penalty: float = 1.0) -> Record:
        """Translate a text, and give what each token of the translation looked at, every weight of every head.

        The rows of its cross-attention are the tokens that the decoder had read; the one that it then wrote stands one
        row further (`rows="written"` of an alignment).

        Raises:
            InputError: The text is empty.
            ObservationError: The model has no attention.
        """
        if not text.strip():
            raise InputError("the text is empty: there is nothing to align")
        model: Any = self.model
        source = self.read(text)
        decoding: Decoding | None = Beam(beams, length_penalty) if beams > 1 else None
        with torch.inference_mode():
            written = model.generate([source], decoding=decoding, most=2 * len(source) + 10)[0]
            if self.target.start is None:
                raise InputError("the target's vocabulary has no start token")
            target = [self.target.start, *written]
            with watch(model, keep="weights") as seen:
                device = next(self.model.parameters()).device
                model(torch.tensor([source], device=device), torch.tensor([target], device=device))
        words = {"source": (_named(self.source, source),), "target": (_named(self.target, target),)}
        return replace(seen.record, tokens=words)


def _why_none(folder: Path) -> str:
    """What a folder without a translation holds instead."""
    if (folder / "model").is_dir():
        return "it was trained for another task"
    if (folder / "run.json").is_file():
        return "its training has not ended; the same `regard train` continues it"
    return f"it has no {_ABOUT}"


def _named(vocabulary: Vocabulary, ids: Sequence[int]) -> tuple[Token, ...]:
    """Tokens as people read them; a piece without a space before it goes on with a word of letters."""
    found: list[Token] = []
    word = 0
    for one, piece in zip(ids, vocabulary.tokens(ids), strict=True):
        if one in vocabulary.special and one != vocabulary.unknown:
            found.append(Token(piece, special=True))
            continue
        text = piece.replace("▁", "")
        begins = piece.startswith("▁") or not found or found[-1].special or not _goes_on(found[-1].text, text)
        word += begins
        found.append(Token(text or "␣", word=word, space=piece.startswith("▁")))
    return tuple(found)


def _goes_on(before: str, text: str) -> bool:
    """Whether a piece may be of one word with the piece before it: Chinese characters stand alone."""
    return bool(before and text) and all(one.isalpha() and ord(one) < _IDEOGRAPHS for one in (before[-1], text[0]))
