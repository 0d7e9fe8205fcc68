"""Translation of texts by a trained model: as a stream, in order, and with the attention of its decoder."""

import json
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from regard.checks import check_size
from regard.data import Tokenizer, find_language, to_script
from regard.errors import InputError
from regard.files import read_text
from regard.hub.catalogue import BUNDLED
from regard.hub.model_files import ModelFiles
from regard.interpret.watch import watch
from regard.models.decoding import BeamSearch, Decoding, GeneratedSequence, Greedy
from regard.models.loading import pair_tokenizers, saved_model
from regard.record.records import Record
from regard.record.subwords import is_unspaced
from regard.record.tokens_from_tokenizer import tokens_of
from regard.strict_json import is_version

__all__ = ["Translation", "Translator"]

# The score of a text differs by up to 5e-7 a token between batches, as matrices of another size are summed in another
# order (measured, in float32). A text whose tokens were chosen by less than this, for each token of the source and the
# translation, is translated once more by itself.
_MARGIN = 1e-5
_JOINS = "-'’"  # within a word: Jean-Luc, O'Brien
_WINDOW = 16  # batches of texts that are held, so that texts of like lengths find each other


@dataclass(frozen=True)
class Translation:
    """The translations of one text.

    Args:
        texts: The best ones, best first; a single empty one for an empty text.
        scores: Of each, Σ log p / length ** length_penalty.
        problem: Why the text has an empty translation though it is not empty; None where it has another.
    """

    texts: tuple[str, ...] = ("",)
    scores: tuple[float, ...] = (0.0,)
    problem: str | None = None


def _code(language: str) -> str:
    """The code of a language in a file of 0.2, which took any text for one."""
    try:
        find_language(language)
    except InputError:
        return "und"
    return language


_ABOUT, _VERSION = "translation.json", 2


def save_languages(folder: Path, source_lang: str, target_lang: str, script: str | None) -> None:
    """Save the languages of a translation in the folder of its model, for `Translator.load`."""
    about = {"version": _VERSION, "source_lang": source_lang, "target_lang": target_lang, "script": script}
    (folder / _ABOUT).write_text(json.dumps(about, indent=2) + "\n", "utf-8")


@dataclass(frozen=True, eq=False)
class Translator:
    """A model with the tokenizers of both sides.

    Args:
        model: A Transformer or RecurrentSeq2Seq in eval mode.
        src_tokenizer, tgt_tokenizer: The tokenizers, with the template that the model was trained with.
        source_lang, target_lang: The languages, by any of their codes.
        script: Script that Chinese sources are converted to, "hans" or "hant"; None for no conversion.
    """

    model: nn.Module
    src_tokenizer: Tokenizer
    tgt_tokenizer: Tokenizer
    source_lang: str
    target_lang: str
    script: Literal["hans", "hant"] | None = None

    @classmethod
    def load(cls, folder: str | Path) -> "Translator":
        """Load a run of `regard train`, its model, or one of its checkpoints; of a run without a model yet the last.

        Raises:
            InputError: It is not the folder of a translation, or a file in it cannot be read.
        """
        path = Path(folder).expanduser()
        if not path.is_dir():
            if str(folder) in BUNDLED:
                raise InputError(f"{folder} is no translator: name the folder of a run whose task is translation")
            raise InputError(f"there is no folder {str(folder)!r}: name the folder of a run of `regard train`")
        files = ModelFiles(path)
        found = files.file(_ABOUT)
        if found is None:
            raise InputError(f"{folder} is no translation, as it has no {_ABOUT}: name a run whose task is translation")
        try:
            about = json.loads(read_text(found))
            if not is_version(version := about.get("version", 1), _VERSION):
                raise ValueError(
                    f"it is of format {version}, and this release reads format {_VERSION}: train the model again, or "
                    f"use the release that saved it"
                )
            source, target, script = (about[name] for name in ("source_lang", "target_lang", "script"))
            if not isinstance(source, str) or not isinstance(target, str) or script not in ("hans", "hant", None):
                raise ValueError(f"it must have two languages and a script, got {about}")
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as problem:
            raise InputError(f"cannot read {found}: {problem}") from problem
        model = saved_model(files.chosen)  # first: it checks the checksums of the other files too
        return cls(model, *pair_tokenizers(files), _code(source), _code(target), script)

    def save(self, folder: Path) -> None:
        """Save the tokenizers and languages in a folder, for `load` with the model."""
        self.src_tokenizer.save(folder / "source.json")
        self.tgt_tokenizer.save(folder / "target.json")
        save_languages(folder, self.source_lang, self.target_lang, self.script)

    def encode(self, text: str) -> list[int]:
        """Return the token ids of a source, with the special tokens of the tokenizer's template around them."""
        ids: list[int] = self.src_tokenizer(self._converted(text))["input_ids"]
        return ids

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return token ids of the target as text."""
        return self.tgt_tokenizer.decode(list(token_ids)).strip()

    def translate(
        self,
        texts: Sequence[str],
        *,
        num_beams: int = 4,
        length_penalty: float = 1.0,
        batch_size: int = 64,
        progress: Callable[[int], None] = lambda _: None,
    ) -> list[str]:
        """Return the translations of texts, in their order; an empty text stays empty.

        Args:
            texts: One sentence each.
            num_beams: Width of the beam search; 1 for greedy search.
            length_penalty: Exponent of the length by which a score is divided; above 1 favours longer translations.
            batch_size: Texts in a batch.
            progress: Called with the number of texts done as they are.

        Raises:
            InputError: A text is longer than the model has positions for.
        """
        if isinstance(texts, str):
            raise InputError(f"`texts` must be a list of texts, got one text: write [{texts[:40]!r}]")
        check_size("batch_size", batch_size, "counts the texts of a batch")
        search, sources = _Search.of(num_beams, length_penalty), [(text, self.encode(text)) for text in texts]
        for place, (_, source) in enumerate(sources):  # before any text is translated
            if problem := self._problem(source):
                raise InputError(f"text {place + 1} {problem}: shorten it")
        found: list[str] = []
        for one in self._stream(iter(sources), search, False, batch_size, lambda: True):
            found.append(one.texts[0])
            progress(len(found))
        return found

    def stream(
        self,
        texts: Iterable[str],
        *,
        num_beams: int = 4,
        length_penalty: float = 1.0,
        n_best: int = 1,
        replace_unk: bool = False,
        batch_size: int = 64,
        ready: Callable[[], bool] = lambda: True,
    ) -> Iterator[Translation]:
        """Yield the translation of each text as soon as it and those before it are done.

        A text has one translation, whatever texts are beside it: its length alone limits that of its translation, and
        where another batch's rounding could change a choice, it is translated once more by itself.

        Args:
            texts: One sentence each; read as far as they are needed, never more than a window of 16 batches ahead.
            num_beams, length_penalty, batch_size: As in `translate`.
            n_best: Translations of each text; `num_beams` at most.
            replace_unk: Whether an unknown token is replaced by the source word that it attends to most, by the mean of
                all heads of the cross-attention. Unknown tokens in a row with the same word are replaced by it once.
            ready: Whether the next text can be read without waiting; if not, those that were read are translated first.

        Raises:
            InputError: An option is out of its range, or the model has no attention and `replace_unk` needs one; what
                `texts` raises comes after the translations of the texts before.
        """
        if isinstance(texts, str):
            raise InputError(f"`texts` must be a list of texts, got one text: write [{texts[:40]!r}]")
        check_size("batch_size", batch_size, "counts the texts of a batch")
        search = _Search.of(num_beams, length_penalty, n_best)
        if replace_unk and getattr(getattr(self.model, "config", None), "attention", "") is None:
            raise InputError("`replace_unk` needs the attention of the model, and this one has none: leave it out")
        sources = ((text, self.encode(text)) for text in texts)
        return self._stream(sources, search, replace_unk, batch_size, ready)

    def _stream(
        self,
        sources: Iterator[tuple[str, list[int]]],
        search: "_Search",
        replace_unk: bool,
        batch_size: int,
        ready: Callable[[], bool],
    ) -> Iterator[Translation]:
        waiting: dict[int, tuple[str, list[int]]] = {}  # texts and tokens by number, in order
        done: dict[int, Translation] = {}
        count, following = 0, 0  # texts that were read, and the one to be yielded next
        ended: Exception | None = None
        while ended is None or waiting or done:
            while ended is None and len(waiting) + len(done) < _WINDOW * batch_size:
                if (waiting or following in done) and not ready():
                    break
                try:
                    text, source = next(sources)
                except (StopIteration, InputError) as reason:  # what was read before is translated first
                    ended = reason
                    break
                if not text.strip():
                    done[count] = Translation()
                elif problem := self._problem(source):
                    done[count] = Translation(problem=problem)
                else:
                    waiting[count] = text, source
                count += 1
            if following not in done and waiting:  # the next one, and those that are nearest to it in length
                length = len(waiting[following][1])
                nearest = sorted(waiting, key=lambda number: abs(len(waiting[number][1]) - length))[:batch_size]
                batch = [waiting.pop(number) for number in nearest]
                done.update(zip(nearest, self._translations(batch, search, replace_unk), strict=True))
            while following in done:
                yield done.pop(following)
                following += 1
        if isinstance(ended, InputError):
            raise ended

    def _problem(self, source: list[int]) -> str | None:
        """Why a source cannot be translated."""
        limit = getattr(getattr(self.model, "config", None), "max_position_embeddings", None)
        if limit is not None and len(source) > limit:
            return f"has {len(source)} tokens, and this model has positions for {limit}"
        return None

    def _translations(
        self, batch: list[tuple[str, list[int]]], search: "_Search", replace_unk: bool
    ) -> Iterator[Translation]:
        for (text, source), found in zip(batch, self._generate([ids for _, ids in batch], search), strict=True):
            start, sequences = found
            length = len(source) + max(len(one.tokens) for one in sequences)
            if len(batch) > 1 and sequences[0].margin < _MARGIN * length:
                start, sequences = self._generate([source], search)[0]
            texts = [
                self._with_source_words(text, source, start, one.tokens) if replace_unk else self.decode(one.tokens)
                for one in sequences
            ]
            yield Translation(tuple(texts), tuple(map(search.score, sequences)))

    def _generate(self, sources: list[list[int]], search: "_Search") -> list[tuple[list[int], list[GeneratedSequence]]]:
        """Return for each source the tokens that the decoder starts with, and the sequences that follow."""
        model: Any = self.model
        found: list[tuple[list[int], list[GeneratedSequence]]]
        found = model.search(sources, search.decoding, [2 * len(source) + 10 for source in sources])
        return found

    def _with_source_words(self, text: str, source: list[int], start: list[int], tokens: Sequence[int]) -> str:
        """Return a translation with a word of the source in place of each unknown token."""
        tokenizer, unknown = self.tgt_tokenizer, self.tgt_tokenizer.unk_token_id
        if unknown is None or unknown not in tokens:
            return self.decode(tokens)
        name = tokenizer.convert_ids_to_tokens([unknown])[0]
        if name not in tokenizer.decode([unknown]):  # it is the end token too, and not shown
            return self.decode(tokens)
        text = self._converted(text)
        record = self._attention(source, [*start, *tokens])
        cross = [record.weights(layer=layer)[0].mean(0) for layer in record.layers if layer.kind == "cross"]
        weights = sum(cross) / len(cross)  # (target tokens, source tokens), each row of the token that comes next
        spans, first_token = _words_of_tokens(self.src_tokenizer, text), len(self.src_tokenizer.template[0])
        first, *others = tokenizer.decode(list(tokens)).split(name)
        shown, before = [name] * len(others), None
        for place, token in enumerate(tokens):
            if token != unknown:
                before = None
                continue
            total = {span: 0.0 for span in spans if span[0] < span[1]}  # a space is no word
            row = weights[len(start) + place - 1, first_token:].tolist()
            for span, weight in zip(spans, row, strict=False):  # not of the special tokens around the text
                if span in total:
                    total[span] += weight
            span = max(total, key=lambda one: total[one])
            ordinal = tokenizer.decode(list(tokens[:place])).count(name)  # a text may also have "<unk>" in letters
            shown[ordinal] = "" if span == before else text[slice(*span)]
            before = span
        return (first + "".join(word + piece for word, piece in zip(shown, others, strict=True))).strip()

    def align(self, text: str, *, num_beams: int = 4, length_penalty: float = 1.0) -> Record:
        """Translate a text, and return a record with all attention weights of that translation.

        A row of its cross-attention belongs to the decoder's input token; the token generated from it is that of the
        next row (`rows="written"` of an alignment).

        Raises:
            InputError: The text is empty.
            ObservationError: The model has no attention.
        """
        if not text.strip():
            raise InputError("the text is empty: there is nothing to align")
        source = self.encode(text)
        start, (best, *_) = self._generate([source], _Search.of(num_beams, length_penalty))[0]
        target = [*start, *best.tokens]
        words = {"source": (tokens_of(self.src_tokenizer, source),), "target": (tokens_of(self.tgt_tokenizer, target),)}
        return replace(self._attention(source, target), tokens=words)

    def _attention(self, source: list[int], target: list[int]) -> Record:
        """Run on a source and a whole target, and return the record of all weights."""
        device = next(self.model.parameters()).device
        with torch.inference_mode(), watch(self.model, keep="weights") as seen:
            self.model(torch.tensor([source], device=device), decoder_input_ids=torch.tensor([target], device=device))
        return seen.record

    def _converted(self, text: str) -> str:
        """Return a source in the script that the model was trained on."""
        script = self.script if find_language(self.source_lang).is_chinese else None
        return to_script(text, script) if script else text


@dataclass(frozen=True)
class _Search:
    """How translations are searched, and the exponent of the length by which a score is still to be divided."""

    decoding: Decoding
    length_penalty: float

    @classmethod
    def of(cls, num_beams: int, length_penalty: float, n_best: int = 1) -> "_Search":
        if num_beams == n_best == 1:
            return cls(Greedy(), length_penalty)
        return cls(BeamSearch(num_beams, length_penalty, num_return_sequences=n_best), 0.0)

    def score(self, sequence: GeneratedSequence) -> float:
        return sequence.score / float(len(sequence.tokens) ** self.length_penalty)


def _words_of_tokens(tokenizer: Tokenizer, text: str) -> list[tuple[int, int]]:
    """Return for each token of a text, without special tokens, where the word begins and ends that it belongs to.

    A word goes as far as letters, digits, and single hyphens and apostrophes between them. Where words are not parted
    by spaces, as in Chinese, a token is one, and a space is none: it is empty.

    >>> english = Tokenizer.train(["O'Brien saw it."] * 2, model_type="char", vocab_size=50)
    >>> words = _words_of_tokens(english, "O'Brien saw it.")
    >>> sorted({"O'Brien saw it."[start:end] for start, end in words})
    ['', '.', "O'Brien", 'it', 'saw']
    """
    words = []
    for start, end in tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).offsets:
        while start < end and text[start].isspace():
            start += 1
        while start < end and _within_word(text, start):
            start -= 1
        while start < end and _within_word(text, end):
            end += 1
        words.append((start, end))
    return words


def _within_word(text: str, place: int) -> bool:
    """Whether a word goes on from the character before a place to the one at it."""
    if not 0 < place < len(text):
        return False
    before, after = text[place - 1], text[place]
    if before in _JOINS:
        return place > 1 and _is_letter(text[place - 2]) and _is_letter(after)
    if after in _JOINS:
        return _is_letter(before) and _is_letter(text[place + 1 : place + 2])
    return _is_letter(before) and _is_letter(after)


def _is_letter(character: str) -> bool:
    """Whether it is a letter, a mark on one, or a digit, of a script in which spaces part words."""
    return unicodedata.category(character or " ")[0] in "LMN" and not is_unspaced(character)
