"""Translation of texts by a trained model, with the attention of its decoder, and BLEU and chrF by sacreBLEU."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from regard.data import Tokenizer, find_language, to_script
from regard.errors import InputError, MissingExtraError
from regard.files import read_text
from regard.hub.model_files import ModelFiles
from regard.interpret.watch import watch
from regard.models.decoding import BeamSearch, Decoding, Greedy
from regard.models.loading import pair_tokenizers, saved_model
from regard.record.records import Record
from regard.record.tokens_from_tokenizer import tokens_of
from regard.strict_json import is_version

__all__ = ["TranslationScore", "Translator", "bleu_tokenizer", "translation_scores"]


@dataclass(frozen=True)
class TranslationScore:
    """BLEU and chrF, 0 to 100, each with its sacreBLEU signature."""

    bleu: float
    chrf: float
    bleu_signature: str
    chrf_signature: str


def bleu_tokenizer(language: str) -> str:
    """Return the name of sacreBLEU's tokenizer for a language, by any of its codes.

    Raises:
        InputError: It is no code of a language.

    >>> bleu_tokenizer("zh"), bleu_tokenizer("de"), bleu_tokenizer("zho_Hant")
    ('zh', '13a', 'zh')
    """
    return find_language(language).bleu_tokenizer


def _code(language: str) -> str:
    """The code of a language in a file of 0.2, which took any text for one."""
    try:
        find_language(language)
    except InputError:
        return "und"
    return language


def translation_scores(
    predictions: Sequence[str], references: Sequence[Sequence[str]], target_lang: str
) -> TranslationScore:
    """Return corpus BLEU (Papineni et al. 2002; Post 2018, arXiv:1804.08771) and chrF (Popović 2015).

    Args:
        predictions: A translation of each sentence.
        references: One or several reference translations of each.
        target_lang: The target language, ISO 639-1.

    Raises:
        InputError: There is nothing to score, or a sentence has no reference.
        MissingExtraError: sacrebleu is not installed.
    """
    try:
        from sacrebleu.metrics import BLEU, CHRF
    except ImportError as missing:
        raise MissingExtraError("sacrebleu", "train") from missing
    if not predictions or len(predictions) != len(references) or not all(references):
        raise InputError(f"each of {len(predictions)} translations needs a reference, got {sum(map(bool, references))}")
    most = max(map(len, references))
    # sacreBLEU wants one list for each rank of reference; None where a sentence has fewer.
    ranks = [[one[rank] if rank < len(one) else None for one in references] for rank in range(most)]
    bleu, chrf = BLEU(tokenize=bleu_tokenizer(target_lang)), CHRF()
    found, letters = bleu.corpus_score(list(predictions), ranks), chrf.corpus_score(list(predictions), ranks)
    return TranslationScore(found.score, letters.score, str(bleu.get_signature()), str(chrf.get_signature()))


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
        source_lang, target_lang: The languages, ISO 639-1.
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
        script = self.script if find_language(self.source_lang).is_chinese else None
        ids: list[int] = self.src_tokenizer(to_script(text, script) if script else text)["input_ids"]
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
            progress: Called with the number of texts done after each batch.

        Raises:
            InputError: A text is longer than the model has positions for.
        """
        sources = {place: self.encode(text) for place, text in enumerate(texts) if text.strip()}
        limit = getattr(getattr(self.model, "config", None), "max_position_embeddings", None)
        for place, source in sources.items():  # before any text is translated
            if limit is not None and len(source) > limit:
                raise InputError(
                    f"text {place + 1} has {len(source)} tokens, and this model has positions for {limit}: shorten it"
                )
        search: Decoding = BeamSearch(num_beams, length_penalty) if num_beams > 1 else Greedy()
        order = sorted(sources, key=lambda place: len(sources[place]))
        found = [""] * len(texts)
        for first in range(0, len(order), batch_size):
            chosen = order[first : first + batch_size]
            longest = len(sources[chosen[-1]])
            writer: Any = self.model
            with torch.inference_mode():
                asked = {"search_strategy": search, "max_new_tokens": 2 * longest + 10, "return_dict_in_generate": True}
                written = writer.generate([sources[place] for place in chosen], **asked).new_tokens
            for place, tokens in zip(chosen, written, strict=True):
                found[place] = self.decode(tokens)
            progress(first + len(chosen))
        return found

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
        model: Any = self.model
        source = self.encode(text)
        search: Decoding = BeamSearch(num_beams, length_penalty) if num_beams > 1 else Greedy()
        with torch.inference_mode():
            asked = {"search_strategy": search, "max_new_tokens": 2 * len(source) + 10, "return_dict_in_generate": True}
            target = model.generate([source], **asked).sequences[0].tolist()  # the model's own start token first
            with watch(model, keep="weights") as seen:
                device = next(self.model.parameters()).device
                read = torch.tensor([target], device=device)
                model(torch.tensor([source], device=device), decoder_input_ids=read)
        words = {"source": (tokens_of(self.src_tokenizer, source),), "target": (tokens_of(self.tgt_tokenizer, target),)}
        return replace(seen.record, tokens=words)
