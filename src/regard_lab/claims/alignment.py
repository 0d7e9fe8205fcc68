"""Alignment: test whether a trained translator's words attend to the words that they translate."""

import tempfile
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from regard.train import Translator
from regard_lab.aligned_words import Reading, read, share
from regard_lab.cat_and_mat import ASKED, LEXICON, content_words, pairs
from regard_lab.charts import Bars, Chart, LabeledMatrix, Matrices
from regard_lab.experiment import Claim, Finding, Numbers, Part, Setting, within

__all__ = ["CLAIM", "judge", "run"]

CLAIM = Claim(
    number=16,
    name="alignment",
    title="Alignment",
    statement="The cross-attention of a trained translator aligns words with their translations: in “the cat sat on "
    "the mat” 猫 looks at cat and 坐 at sat.",
    source="Bahdanau et al. 2015, arXiv:1409.0473; Vaswani et al. 2017, arXiv:1706.03762; Kobayashi et al. 2020, "
    "arXiv:2004.10102",
)
MOST = 0.8  # share of content words with the largest weight on their translation, above which the claim holds
NAMED = ("cat", "sat")
SENTENCES = 60  # number of sentences to choose the layer with, and of others to evaluate it with
PAIRS, EPOCHS = 3000, 12
IN_ORDER = "share of words with the same place in both languages"


def judge(numbers: Numbers) -> tuple[Part, ...]:
    """Return the parts for each translator: its share of aligned content words, and the two words named in the
    claim.
    """
    parts = []
    for name, found in numbers["translators"].items():
        share, asked = found["share"], found["content words"]
        parts.append(
            Part(f"{name}: {share:.0%} of {asked} content words look at their translation most", within(share >= MOST))
        )
        for english in NAMED:
            one = found["where its words look"].get(english)
            if one is None:
                text = f"{name}: it says “{found['says']}”, in which there is no {LEXICON[english][0]}"
            else:
                text = f"{name}: {one['says']} looks at {one['most']} most; at {english} with {one['weight']:.2f}"
            parts.append(Part(text, within(one is not None and one["most"] == english)))
    return tuple(parts)


def run(setting: Setting, folder: str | Path | None = None) -> Finding:
    """Train small translators on generated pairs and measure their alignment; also measure the translator of `folder`,
    if given.

    Args:
        setting: The settings of the run.
        folder: The output of `regard train` for a translator from English to Chinese.
    """
    found: dict[str, dict[str, Any]] = {}
    charts: list[Chart] = []
    texts = pairs(2 * SENTENCES, setting.seed + 10_000)
    for seed in range(setting.seed, setting.seed + (1 if setting.quick else 3)):
        setting.progress(f"training a translator, seed {seed}")
        name = f"generated pairs, seed {seed}"
        found[name], drawn = _asked(setting, name, _trained(seed, dict(texts)), texts)
        charts += drawn if seed == setting.seed else []
    if folder is not None:
        found[str(folder)], drawn = _asked(setting, str(folder), Translator.load(folder), texts)
        charts += drawn
    first = next(iter(found.values()))
    named = ", ".join(_told(word, one) for word, one in first["where its words look"].items() if word in NAMED)
    shares = ", ".join(f"{one['share']:.0%}" for one in found.values())
    text = (
        f"In layer {first['layer']} {first['share']:.0%} of content words look at their translation most, and "
        f"{first[IN_ORDER]:.0%} would if they stood in the same order; in the other layers "
        + ", ".join(f"{share_:.0%}" for one, share_ in first["share by layer"].items() if one != str(first["layer"]))
        + f". It says “{first['says']}”."
    )
    numbers = {"pairs trained on": PAIRS, "epochs": EPOCHS, "translators": found}
    return Finding(
        judge(numbers), numbers, f"{shares} of content words; {named}", text,
        "A generated world of some fifty words, in four frames, with one character or two to a word. The layer was "
        "chosen by other sentences of that kind: in another layer the same model looks elsewhere. Where a word looks "
        "is not why it was written.",
        tuple(charts),
    )  # fmt: skip


def _told(english: str, found: Numbers) -> str:
    return f"{found['says']} → {found['most']}" + (f" {found['weight']:.2f}" if found["most"] == english else "")


def _trained(seed: int, asked: Collection[str]) -> Translator:
    """Train as `regard train` does, without the test sentences, in a temporary folder."""
    from regard.train import train
    from regard.train.config import Config, Training
    from regard.train.model_types import TransformerSettings
    from regard.train.settings import TokenizerConfig
    from regard.train.tasks import TranslationSettings

    with tempfile.TemporaryDirectory(prefix="regard-") as scratch:
        data = Path(scratch) / "pairs.tsv"
        lines = (f"{english}\t{chinese}\n" for english, chinese in pairs(PAIRS, seed) if english not in asked)
        data.write_text("".join(lines), "utf-8")
        tokenizer = TokenizerConfig(model_type="bpe", vocab_size=400, lowercase=True)
        config = Config(
            task=TranslationSettings(
                train_file=str(data),
                validation_size=20,
                src_tokenizer=tokenizer,
                num_completions_to_print=0,
                max_predict_samples=0,
            ),
            model=TransformerSettings(
                hidden_size=64, num_attention_heads=4, intermediate_size=128, num_hidden_layers=2, dropout=0.1
            ),
            training=Training(
                output_dir=str(Path(scratch) / "run"),
                num_train_epochs=EPOCHS,
                learning_rate=3e-3,
                lr_scheduler_type="cosine",
                warmup_steps=50,
                label_smoothing=0.1,
                max_tokens_per_batch=1024,
                eval_steps=10**6,
                num_threads=1,
                seed=seed,
            ),
        )
        train(config)
        return Translator.load(config.training.output_dir)


def _asked(
    setting: Setting, name: str, translator: Translator, texts: Sequence[tuple[str, str]]
) -> tuple[dict[str, Any], list[Chart]]:
    """Choose a layer with some sentences, count with others, and measure the sentence of the cat and the mat."""
    setting.progress(f"where {name} looks")
    readings = [read(translator, english) for english, _ in texts]
    choosing, judged = readings[:SENTENCES], readings[SENTENCES:]
    layers = list(judged[0].looks)
    layer = max(layers, key=lambda one: share(choosing, one))
    behind = [read(translator, one.text, rows="read") for one in judged]
    cat = read(translator, ASKED[0])
    said = sum(len(one.looks[layer]) for one in judged)
    numbers = {
        "layer": layer,
        "share": share(judged, layer),
        "content words": said,
        "content words that the translations lack": sum(len(content_words(one.text)) for one in judged) - said,
        "translations as written": sum(one.said == chinese for one, (_, chinese) in zip(readings, texts, strict=True)),
        "share by layer": {str(one): share(judged, one) for one in layers},
        "share by layer, rows of the word read": {str(one): share(behind, one) for one in layers},
        "share by layer, where it was chosen": {str(one): share(choosing, one) for one in layers},
        IN_ORDER: float(np.mean([same for one in judged for same in one.in_order] or [False])),
        "says": cat.said,
        "where its words look": {
            one.english: {"says": one.chinese, "most": one.most, "weight": one.weight} for one in cat.looks[layer]
        },
    }
    return numbers, [_picture(name, cat, layer), _bars(name, numbers)]


def _picture(name: str, cat: Reading, layer: int) -> Matrices:
    """Return a chart of the layer's weights in the claim's sentence; words that translate one another are framed."""
    found = cat.weights[layer]
    rows, columns = (tuple(word.text for word in words) for words in (found.target, found.source))
    known = len(rows) - (rows[-1] == "?")  # the last row's prediction is unknown if the text has not ended
    values = tuple(tuple(row) for row in found.weights[:known].tolist())
    marked = tuple(
        (row, column)
        for one in cat.looks[layer]
        for row in one.rows
        for column, text in enumerate(columns)
        if text.casefold() == one.english
    )
    return Matrices(
        f"“{ASKED[0]}”, {name}",
        f"Rows: the character that is written next. Columns: the source. The mean of the heads of layer {layer}; words "
        "that translate one another are framed.",
        (LabeledMatrix("", rows[:known], columns, values, marked=marked),),
    )  # fmt: skip


def _bars(name: str, numbers: Numbers) -> Bars:
    rows = {"word written": "share by layer", "word read": "share by layer, rows of the word read"}
    layers = tuple(f"layer {one}" for one in numbers["share by layer"])
    return Bars(
        f"Content words that look at their translation most, {name}",
        f"In {SENTENCES} sentences by which no layer was chosen; a row belongs to the word that is written next, or to "
        "the one that was read last. Dots: words that have the same place in both languages.",
        "share of content words", layers, tuple(rows),
        tuple(tuple(numbers[key].values()) for key in rows.values()), level=numbers[IN_ORDER],
    )  # fmt: skip
