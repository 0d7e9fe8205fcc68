"""Translation of sentence pairs."""

import random
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field
from torch import nn

from regard.data import Corpus, read_corpus, references, split, to_script, without_sources
from regard.errors import InputError
from regard.metrics import translation_scores
from regard.train.callbacks import Sample
from regard.train.model_types import ModelSettings
from regard.train.optional_parts import optional_part
from regard.train.settings import Length, Rows, TokenizerConfig, nested, settings
from regard.train.tasks.base import PairsTask, TaskSettings, special_tokens
from regard.train.training import Training
from regard.train.translator import Translator

__all__ = ["TranslationSettings", "TranslationTask"]

Tokens = Annotated[TokenizerConfig, nested(TokenizerConfig, "model_type")]
Printed = Annotated[int, Field(ge=0, le=10**9)]


@settings
class TranslationSettings(TaskSettings):
    """Translation: sentence pairs, source language in the first column, target language in the second.

    Args:
        train_file: TSV, JSON Lines (`source`, `target`) or gzip of these.
        extra_train_file: A further file of pairs, none of which is held out.
        validation_size: Number of pairs held out of `train_file` for evaluation; their sources are not trained on.
        source_lang, target_lang: Languages as ISO 639-1 codes; BLEU's tokenizer depends on the target language.
        script: Script that all Chinese is converted to: "hans", "hant", or none for no conversion.
        src_tokenizer, tgt_tokenizer: The tokenizers; a target in Chinese, Japanese or Korean has characters by default.
        max_length: Tokens of either side, end token included; longer pairs are left out and counted.
        num_completions_to_print: Number of held-out sentences whose translations are printed at each evaluation.
        max_predict_samples: Number of held-out sentences translated for BLEU at each evaluation; all at the end.
    """

    type: ClassVar[str] = "translation"
    sides: ClassVar[tuple[str, ...]] = ("encoder", "decoder")
    train_file: str
    extra_train_file: str | None = None
    validation_size: Rows = 1000
    source_lang: str = "en"
    target_lang: str = "zh"
    script: Literal["hans", "hant"] | None = None
    src_tokenizer: Tokens = TokenizerConfig()
    tgt_tokenizer: Annotated[TokenizerConfig | None, nested(TokenizerConfig, "model_type")] = None
    max_length: Length = 128
    num_completions_to_print: Printed = 3
    max_predict_samples: Printed = 200

    @property
    def target_tokenizer(self) -> TokenizerConfig:
        """The configured target tokenizer, or the default of its language."""
        spaced = self.target_lang not in ("zh", "ja", "ko")
        return self.tgt_tokenizer or (TokenizerConfig() if spaced else TokenizerConfig(model_type="char"))


class TranslationTask(PairsTask):
    """Pairs of sentences from a file; scores are the loss, and BLEU of a sample, of all in the end."""

    settings = TranslationSettings
    metrics = {"loss": False, "bleu": True}  # noqa: RUF012 - read only

    def __init__(self, options: Any, training: Training, model: ModelSettings, folder: Path) -> None:
        super().__init__(options, training, model, folder)
        task = self.options
        corpus = self._corpus(task.train_file)
        trained, held = split(corpus, task.validation_size, seed=training.seed)
        more = None if task.extra_train_file is None else self._corpus(task.extra_train_file)
        files = [corpus] if more is None else [corpus, more]
        self.data = {corpus.name: corpus.sha256}
        if more is not None:  # which may have the same name, in another folder
            self.data[more.name if more.name != corpus.name else f"{more.name} (extra_train_file)"] = more.sha256
        if more is not None:
            trained = without_sources(_joined(trained, more), held)
        self.held_texts, self.references = held, references(corpus, held)
        self.source = self.train_tokenizer("source.json", task.src_tokenizer, trained["source"])
        self.target = self.train_tokenizer("target.json", task.target_tokenizer, trained["target"])
        self.sizes = len(self.source), len(self.target)
        self.tokens = model.generation_tokens(special_tokens(self.target))
        prefix, ends = self.tokens.decoder_prefix, self.tokens.eos_token_ids
        if None in (self.tokens.pad_token_id, self.source.eos_token_id) or not prefix or not ends:
            raise InputError("the checkpoint lacks a padding, start or end token: take another one")
        rows = self._rows(trained)
        kept = [pair for pair in rows if max(map(len, pair)) < task.max_length]
        left = (
            f"; {len(rows) - len(kept):,} pairs are longer than {task.max_length} tokens"
            if len(kept) < len(rows)
            else ""
        )
        if not kept:
            raise InputError(f"no pair is shorter than `task.max_length`, {task.max_length} tokens: raise it")
        self.notes = (*map(str, files), f"{len(kept):,} pairs are trained on, {len(held):,} held out{left}")
        self.take(kept, self._rows(held))
        count = min(task.num_completions_to_print, len(held))
        self.printed = random.Random(1).sample(range(len(held)), count)

    def metric(self, name: str | None) -> tuple[str, bool]:
        """Return the loss, or BLEU where it is computed."""
        if name in ("bleu", "eval_bleu") and not self.options.max_predict_samples:
            raise InputError("`training.metric_for_best_model` is bleu, and `task.max_predict_samples` is 0: raise it")
        return super().metric(name)

    def evaluate(self, model: nn.Module, max_tokens_per_batch: int) -> dict[str, float]:
        """Return the loss, and BLEU of some held-out sentences, always the same, decoded greedily."""
        scores = super().evaluate(model, max_tokens_per_batch)
        if self.options.max_predict_samples:
            order = random.Random(0).sample(
                range(len(self.held)), min(self.options.max_predict_samples, len(self.held))
            )
            with self.optional_score("bleu"):
                scores["bleu"] = self._scores(model, order, num_beams=1).bleu
        return scores

    def final(self, model: nn.Module, max_tokens_per_batch: int) -> dict[str, float]:
        """Return the loss, and BLEU and chrF of all held-out sentences with four beams."""
        scores = PairsTask.evaluate(self, model, max_tokens_per_batch)
        with optional_part("BLEU and chrF of the final model", self.warnings):
            found = self._scores(model, list(range(len(self.held))), num_beams=4)
            self.counted = f"BLEU {found.bleu_signature}", f"chrF {found.chrf_signature}"
            scores |= {"bleu": found.bleu, "chrf": found.chrf}
        return scores

    def samples(self, model: nn.Module) -> tuple[Sample, ...]:
        """Return translations of a few held-out sentences, the same each time."""
        if not self.printed:
            return ()
        sources, expected = ([self.held_texts[name][row] for row in self.printed] for name in ("source", "target"))
        found = self.translator(model).translate(sources, num_beams=1)
        return tuple(Sample(*one) for one in zip(sources, found, expected, strict=True))

    def draw(self, model: nn.Module, folder: Path) -> None:
        """Draw the alignment of the first sample as alignment.svg."""
        from regard.render.alignment_figure import alignment_figure
        from regard.render.mpl_figure import write_figure

        without = getattr(getattr(model, "config", None), "attention", "") is None
        if not self.printed or without or self.training.torch_compile:  # compiled code is not observed
            return
        with optional_part("alignment.svg", self.warnings):
            record = self.translator(model).align(self.held_texts["source"][self.printed[0]], num_beams=1)
            write_figure(alignment_figure(record, rows="written"), folder / "alignment.svg")

    def translator(self, model: nn.Module) -> Translator:
        """Return the model as a translator of texts."""
        task = self.options
        return Translator(model, self.source, self.target, task.source_lang, task.target_lang, script=task.script)

    def save(self, folder: Path) -> None:
        """Save tokenizers, languages and script."""
        self.translator(nn.Module()).save(folder)

    def _scores(self, model: nn.Module, rows: list[int], num_beams: int) -> Any:
        texts = [self.held_texts["source"][row] for row in rows]
        found = self.translator(model).translate(texts, num_beams=num_beams)
        return translation_scores(found, [self.references[row] for row in rows], self.options.target_lang)

    def _corpus(self, path: str) -> Corpus:
        task, corpus = self.options, read_corpus(path, columns=("source", "target"))
        if task.script is not None:
            script = task.script
            for column, language in (("source", task.source_lang), ("target", task.target_lang)):
                if language == "zh":
                    corpus = corpus.map(column, lambda text: to_script(text, script))
        return corpus

    def _rows(self, corpus: Corpus) -> list[tuple[list[int], list[int]]]:
        sources, targets = self.source.encode(corpus["source"], eos=True), self.target.encode(corpus["target"])
        return list(zip(sources, targets, strict=True))


def _joined(one: Corpus, other: Corpus) -> Corpus:
    return replace(one, columns={name: (*one[name], *other[name]) for name in ("source", "target")})
