"""Translation of sentence pairs."""

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from regard.data import Corpus, Vocabulary, read_corpus, references, split, to_script, without_sources
from regard.errors import InputError
from regard.models.config import SpecialTokens
from regard.train import config as chosen
from regard.train.config import Config, Words
from regard.train.events import Sample
from regard.train.metrics import translation_scores
from regard.train.tasks.build_model import vocabulary
from regard.train.tasks.pairs import PairsTask
from regard.train.translator import Translator

__all__ = ["TranslationTask"]


class TranslationTask(PairsTask):
    """Pairs of sentences from a file; scores are the loss, and BLEU of a sample, of all in the end."""

    metrics = {"loss": False, "bleu": True}  # noqa: RUF012 - read only

    def __init__(self, config: Config, folder: Path) -> None:
        super().__init__(config, folder)
        asked = config.task
        assert isinstance(asked, chosen.Translation)
        self.asked = asked
        corpus = self._corpus(asked.data)
        trained, held = split(corpus, asked.held_out, seed=config.seed)
        more = None if asked.also is None else self._corpus(asked.also)
        files = [corpus] if more is None else [corpus, more]
        self.data = {corpus.name: corpus.sha256}
        if more is not None:  # which may have the same name, in another folder
            self.data[more.name if more.name != corpus.name else f"{more.name} (also)"] = more.sha256
        if more is not None:
            trained = without_sources(_joined(trained, more), held)
        self.held_texts, self.references = held, references(corpus, held)
        self.source = self._vocabulary("source", asked.source_words, trained)
        self.target = self._vocabulary("target", asked.written_words, trained)
        self.data |= {"source.json": self.source.sha256, "target.json": self.target.sha256}
        if None in (self.target.pad, self.target.start, self.target.end, self.source.end):
            raise InputError("the checkpoint's tokenizer lacks a padding, start or end token: take another one")
        self.sizes = len(self.source), len(self.target)
        self.tokens = SpecialTokens(
            pad_token_id=self.target.pad, bos_token_id=self.target.start, eos_token_id=self.target.end or 0
        )
        rows = self._rows(trained)
        kept = [pair for pair in rows if max(map(len, pair)) < asked.longest]
        left = (
            f"; {len(rows) - len(kept):,} pairs are longer than {asked.longest} tokens" if len(kept) < len(rows) else ""
        )
        if not kept:
            raise InputError(f"no pair is shorter than `task.longest`, {asked.longest} tokens: raise it")
        self.notes = (*map(str, files), f"{len(kept):,} pairs are trained on, {len(held):,} held out{left}")
        self.take(kept, self._rows(held))
        self.shown = random.Random(1).sample(range(len(held)), min(asked.shown, len(held)))

    def metric(self, name: str | None) -> tuple[str, bool]:
        """The loss, or BLEU where it is counted."""
        if name == "bleu" and not self.asked.scored:
            raise InputError("`run.metric` is bleu, and `task.scored` 0 sentences are translated for it: raise it")
        return super().metric(name)

    def evaluate(self, model: nn.Module, tokens: int) -> dict[str, float]:
        """The loss, and BLEU of some held-out sentences, always the same, decoded greedily through the cache."""
        scores = super().evaluate(model, tokens)
        if self.asked.scored:
            order = random.Random(0).sample(range(len(self.held)), min(self.asked.scored, len(self.held)))
            scores["bleu"] = self._scores(model, order, beams=1).bleu
        return scores

    def final(self, model: nn.Module, tokens: int) -> dict[str, float]:
        """Loss, and BLEU and chrF of all held-out sentences with four beams."""
        found = self._scores(model, list(range(len(self.held))), beams=4)
        self.counted = f"BLEU {found.bleu_signature}", f"chrF {found.chrf_signature}"
        return PairsTask.evaluate(self, model, tokens) | {"bleu": found.bleu, "chrf": found.chrf}

    def samples(self, model: nn.Module) -> tuple[Sample, ...]:
        """The same few held-out sentences each time."""
        if not self.shown:
            return ()
        sources, expected = ([self.held_texts[name][row] for row in self.shown] for name in ("source", "target"))
        said = self.translator(model).translate(sources, beams=1)
        return tuple(Sample(*one) for one in zip(sources, said, expected, strict=True))

    def draw(self, model: nn.Module, folder: Path) -> None:
        """What each word of the first sample looks at, as alignment.svg."""
        from regard.render.alignment import alignment_figure
        from regard.render.mpl_figure import write_figure

        without = getattr(getattr(model, "config", None), "attention", "") is None
        if not self.shown or without or self.config.run.compiled:  # compiled code cannot be watched
            return
        record = self.translator(model).aligned(self.held_texts["source"][self.shown[0]], beams=1)
        write_figure(alignment_figure(record, rows="written"), folder / "alignment.svg")

    def translator(self, model: nn.Module) -> Translator:
        """The model as something that translates texts."""
        return Translator(model, self.source, self.target, (self.asked.source, self.asked.target), self.asked.script)

    def save(self, folder: Path) -> None:
        """Write vocabularies, languages and script."""
        self.translator(nn.Module()).save(folder)

    def _scores(self, model: nn.Module, rows: list[int], beams: int) -> Any:
        texts = [self.held_texts["source"][row] for row in rows]
        said = self.translator(model).translate(texts, beams=beams)
        return translation_scores(said, [self.references[row] for row in rows], self.asked.target)

    def _corpus(self, path: str) -> Corpus:
        asked, corpus = self.asked, read_corpus(path, columns=("source", "target"))
        if asked.script is not None:
            script = asked.script
            for column, language in (("source", asked.source), ("target", asked.target)):
                if language == "zh":
                    corpus = corpus.map(column, lambda text: to_script(text, script))
        return corpus

    def _vocabulary(self, side: str, words: Words, trained: Corpus) -> Vocabulary:
        return vocabulary(self.config.model, self.folder / f"{side}.json", words, trained[side])

    def _rows(self, corpus: Corpus) -> list[tuple[list[int], list[int]]]:
        sources, targets = self.source.encode(corpus["source"], end=True), self.target.encode(corpus["target"])
        return list(zip(sources, targets, strict=True))


def _joined(one: Corpus, other: Corpus) -> Corpus:
    return replace(one, columns={name: (*one[name], *other[name]) for name in ("source", "target")})
