"""Translation of sentence pairs."""

import random
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field
from torch import nn

from regard.data import Corpus, find_language, read_corpus, references, to_script
from regard.errors import InputError
from regard.metrics import translation_scores
from regard.train.callbacks import Sample
from regard.train.model_types import ModelSettings
from regard.train.optional_parts import optional_part
from regard.train.settings import FilePath, Length, Rows, TokenizerConfig, settings
from regard.train.tasks.base import HeldOut, PairsTask, TaskSettings
from regard.train.tasks.data_files import read_files
from regard.train.training import Training
from regard.train.translator import Translator, save_languages

__all__ = ["TranslationSettings", "TranslationTask"]

Printed = Annotated[int, Field(ge=0, le=10**9)]


@settings
class TranslationSettings(TaskSettings):
    """Translation: sentence pairs, source language in the first column, target language in the second.

    Args:
        train_file: TSV, CSV, JSON Lines (`source`, `target`, or `translation` with languages) or gzip of these.
        extra_train_file: A further file of pairs, none of which is held out.
        validation_file: A file to evaluate on; nothing is then held out of `train_file`.
        test_file: A file that is translated and scored at the end only.
        validation_size: Number of pairs held out of `train_file` for evaluation; their sources are not trained on.
        source_lang, target_lang: Languages by a code of ISO 639, BCP 47, FLORES-200 or NLLB ("und" for any other). On
            the target language depend BLEU's tokenizer and the default of `tgt_tokenizer`.
        script: Script that all Chinese is converted to: "hans", "hant", or none for no conversion.
        src_tokenizer, tgt_tokenizer: The tokenizers; a target in a language without spaces has characters by default.
        max_length: Tokens of either side, end token included; longer pairs are left out and counted.
        num_completions_to_print: Number of held-out sentences whose translations are printed at each evaluation.
        max_predict_samples: Number of held-out sentences translated for BLEU at each evaluation; all at the end.
    """

    type: ClassVar[str] = "translation"
    sides: ClassVar[tuple[str, ...]] = ("encoder", "decoder")
    train_file: FilePath
    extra_train_file: FilePath | None = None
    validation_file: FilePath | None = None
    test_file: FilePath | None = None
    validation_size: Rows = 1000
    source_lang: str = "en"
    target_lang: str = "zh"
    script: Literal["hans", "hant"] | None = None
    src_tokenizer: TokenizerConfig = TokenizerConfig()
    tgt_tokenizer: TokenizerConfig | None = None
    max_length: Length = 128
    num_completions_to_print: Printed = 3
    max_predict_samples: Printed = 200

    @property
    def target_tokenizer(self) -> TokenizerConfig:
        """The configured target tokenizer, or the default of its language."""
        return self.tgt_tokenizer or TokenizerConfig(model_type=find_language(self.target_lang).model_type)

    @property
    def languages(self) -> tuple[str, str]:
        """The languages of source and target."""
        return self.source_lang, self.target_lang

    def __post_init__(self) -> None:
        """Refuse what is no language, and a script that contradicts one."""
        for key, code in (("source_lang", self.source_lang), ("target_lang", self.target_lang)):
            try:
                language = find_language(code)
            except InputError as problem:
                raise InputError(f"`{key}`: {problem}") from problem
            if None not in (self.script, language.script) and language.script != self.script:
                raise InputError(
                    f'`{key}` is {code}, {language}, and `script` is "{self.script}": leave one of them out, or let '
                    "them agree"
                )


class TranslationTask(PairsTask):
    """Pairs of sentences from a file; scores are the loss, and BLEU of a sample, of all in the end."""

    settings = TranslationSettings
    metrics = {"loss": False, "bleu": True}  # noqa: RUF012 - read only

    def __init__(self, options: Any, training: Training, model: ModelSettings, folder: Path) -> None:
        super().__init__(options, training, model, folder)
        task = self.options
        files = read_files(task, self._corpus, column="source", seed=training.seed)
        self.data, trained, held = dict(files.hashes), files.training, files.validation
        self.source = self.train_tokenizer("source.json", task.src_tokenizer, trained["source"], eos=True)
        self.target = self.train_tokenizer("target.json", task.target_tokenizer, trained["target"], eos=True)
        self.sizes = len(self.source), len(self.target)
        self.tokens = model.generation_tokens(self.target, self.options.sides)
        if self.tokens.pad_token_id is None:
            self.needed_token(self.target, "pad")
        rows = self._rows(trained)
        # An end token that follows a target is not counted.
        kept = [row for row in rows if row[0] and max(len(row[0]), len(row[1]) - 1) < task.max_length]
        left = (
            f"; {len(rows) - len(kept):,} pairs are longer than {task.max_length} tokens"
            if len(kept) < len(rows)
            else ""
        )
        if not kept:
            raise InputError(f"no pair is shorter than `task.max_length`, {task.max_length} tokens: raise it")
        sides = " → ".join(str(find_language(code)) for code in task.languages)
        self.notes = (
            *files.notes,
            *self.unknown("source", trained, held, self.source, "src_tokenizer"),
            *self.unknown("target", trained, held, self.target, "tgt_tokenizer"),
            f"{len(kept):,} pairs are trained on, {len(held):,} held out{left}: {sides}",
        )
        self.take(kept, self._rows(held))
        self.held = replace(self.held, texts=held, references=references(files.every, held))
        if (test := files.test) is not None:
            self.test = replace(HeldOut.of_pairs(self._rows(test)), texts=test, references=references(test, test))

    def metric(self, name: str | None) -> tuple[str, bool]:
        """Return the loss, or BLEU where it is computed."""
        if name in ("bleu", "eval_bleu") and not self.options.max_predict_samples:
            raise InputError("`training.metric_for_best_model` is bleu, and `task.max_predict_samples` is 0: raise it")
        return super().metric(name)

    def evaluate(self, model: nn.Module, max_tokens_per_batch: int, held: HeldOut | None = None) -> dict[str, float]:
        """Return the loss, and BLEU of some held-out sentences, always the same, decoded greedily."""
        held = held or self.held
        scores = super().evaluate(model, max_tokens_per_batch, held)
        if count := min(self.options.max_predict_samples, len(held.rows)):
            order = random.Random(0).sample(range(len(held.rows)), count)
            with self.optional_score("bleu"):
                scores["bleu"] = self._scores(model, held, order, num_beams=1).bleu
        return scores

    def final_scores(self, model: nn.Module, max_tokens_per_batch: int, held: HeldOut) -> dict[str, float]:
        """Return the loss, and BLEU and chrF of all sentences with four beams."""
        scores = PairsTask.evaluate(self, model, max_tokens_per_batch, held)
        prefix = "test " if held is self.test else ""
        with optional_part(f"{prefix}BLEU and chrF of the final model", self.warnings):
            found = self._scores(model, held, list(range(len(held.rows))), num_beams=4)
            self.counted += f"{prefix}BLEU {found.bleu_signature}", f"{prefix}chrF {found.chrf_signature}"
            scores |= {"bleu": found.bleu, "chrf": found.chrf}
        return scores

    @property
    def printed(self) -> list[int]:
        """The held-out sentences whose translations are shown, always the same."""
        count = min(self.options.num_completions_to_print, len(self.held.rows))
        return random.Random(1).sample(range(len(self.held.rows)), count)

    def samples(self, model: nn.Module) -> tuple[Sample, ...]:
        """Return translations of a few held-out sentences, the same each time."""
        if not (printed := self.printed):
            return ()
        sources, expected = ([self.held.texts[name][row] for row in printed] for name in ("source", "target"))
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
            record = self.translator(model).align(self.held.texts["source"][self.printed[0]], num_beams=1)
            write_figure(alignment_figure(record, rows="written"), folder / "alignment.svg")

    def translator(self, model: nn.Module) -> Translator:
        """Return the model as a translator of texts."""
        task = self.options
        return Translator(model, self.source, self.target, task.source_lang, task.target_lang, script=task.script)

    def save(self, folder: Path) -> None:
        """Save tokenizers, languages and script."""
        super().save(folder)
        save_languages(folder, self.options.source_lang, self.options.target_lang, self.options.script)

    def _scores(self, model: nn.Module, held: HeldOut, rows: list[int], num_beams: int) -> Any:
        texts = [held.texts["source"][row] for row in rows]
        found = self.translator(model).translate(texts, num_beams=num_beams)
        return translation_scores(found, [held.references[row] for row in rows], self.options.target_lang)

    def _corpus(self, path: str) -> Corpus:
        task = self.options
        corpus = read_corpus(path, columns=("source", "target"), languages=task.languages)
        if task.script is not None:
            script = task.script
            for column, language in zip(("source", "target"), task.languages, strict=True):
                if find_language(language).is_chinese:
                    corpus = corpus.map(column, lambda text: to_script(text, script))
        return corpus

    def _rows(self, corpus: Corpus) -> list[tuple[list[int], list[int]]]:
        before, after = self.tokens.around_target(self.target.template, self.target.eos_token_id)
        labels = [[*before, *ids, *after] for ids in self.target.encode(corpus["target"])]
        return list(zip(self.source(corpus["source"])["input_ids"], labels, strict=True))
