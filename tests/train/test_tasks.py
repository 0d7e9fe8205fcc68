"""Each task reads its data, trains a model that fits, and leaves what is needed to use it."""

import gzip
import json
from types import SimpleNamespace

import pytest
import torch

from documents import python_blocks
from regard.data import Tokenizer
from regard.errors import InputError
from regard.models import RecurrentSeq2Seq, Transformer
from regard.train import Translator, train
from regard.train.config import task_of
from regard.train.tasks import TASKS
from train.runs import tiny

WORDS = "red blue green small large old new good bad fast".split()
THINGS = "house cat car tree book river".split()
MEANT = dict(zip(WORDS, "红 蓝 绿 小 大 旧 新 好 坏 快".split(), strict=True))
MEANT |= dict(zip(THINGS, "房子 猫 车 树 书 河".split(), strict=True))


@pytest.fixture
def pairs(tmp_path):
    lines = [f"the {word} {thing}.\t{MEANT[word]}{MEANT[thing]}。\tby nobody" for word in WORDS for thing in THINGS]
    path = tmp_path / "pairs.tsv"
    path.write_text("\n".join([*lines, "no tab here", "half\t"]) + "\n", "utf-8")
    return path


@pytest.fixture
def texts(tmp_path):
    path = tmp_path / "texts.txt.gz"
    lines = [f"the {word} {thing} is {other}" for word in WORDS for thing in THINGS for other in WORDS[:4]]
    path.write_bytes(gzip.compress("\n".join(lines).encode()))
    return path


def translation(pairs, **more):
    tokenizer = {"model_type": "char", "vocab_size": 100}
    found = {"type": "translation", "train_file": str(pairs), "validation_size": 6, "max_predict_samples": 4}
    return found | {"src_tokenizer": tokenizer} | more


RUN = {
    "training__save_steps": None,
    "training__eval_steps": None,
    "training__max_steps": 4,
    "training__max_tokens_per_batch": 300,
}


@pytest.mark.slow
def test_a_translator_learns_words_and_translates_text(tmp_path, pairs):
    task = translation(pairs, src_tokenizer={"model_type": "bpe", "vocab_size": 60})
    options = RUN | {
        "training__max_steps": 260,
        "training__max_tokens_per_batch": 500,
        "model__hidden_size": 32,
        "model__dropout": 0.0,
    }
    ended = train(tiny(tmp_path / "run", task=task, training__learning_rate=1e-2, **options))
    assert ended.scores["bleu"] > 50
    assert ended.scores["chrf"] > 40
    assert "tok:zh" in ended.notes[0]
    translator = Translator.load(tmp_path / "run")
    said = translator.translate(["the red cat.", "", "the new house."])
    assert said == ["红猫。", "", "新房子。"]
    assert said == [translator.translate([one])[0] for one in ("the red cat.", "", "the new house.")]
    record = translator.align("the red cat.")
    assert [one.text for one in record.tokens["target"][0]] == ["<s>", "红", "猫", "。", "</s>"]
    crossing = [layer for layer in record.layers if layer.kind == "cross"]
    assert crossing[0].queries == 5
    assert crossing[0].keys == len(record.tokens["source"][0])


def test_a_recurrent_translator_is_read_back_as_one(tmp_path, pairs):
    config = tiny(
        tmp_path / "run",
        task=translation(pairs),
        model={"type": "recurrent", "embedding_dim": 8, "hidden_size": 8},
        **RUN,
    )
    train(config)
    translator = Translator.load(tmp_path / "run")
    assert isinstance(translator.model, RecurrentSeq2Seq)
    assert translator.model.config.attention == "bahdanau"
    assert len(translator.translate(["the red cat."], num_beams=2)) == 1


def test_bad_lines_are_counted_and_said(tmp_path, pairs):
    told = []
    train(tiny(tmp_path / "run", task=translation(pairs), **RUN), [told.append])
    assert "2 skipped" in told[0].notes[0]
    assert any("54 pairs are trained on, 6 held out" in note for note in told[0].notes)


def test_no_held_out_source_is_trained_on(tmp_path, pairs):
    task = task_of(tiny(tmp_path / "run", task=translation(pairs)), tmp_path / "words")
    trained = {tuple(source) for source, _ in task.trained}
    assert not trained & {tuple(source) for source, _ in task.held.rows}


def test_pairs_that_are_too_long_are_left_out_and_counted(tmp_path, pairs):
    task = task_of(tiny(tmp_path / "run", task=translation(pairs, max_length=15)), tmp_path / "words")
    long = 54 - len(task.trained)
    assert long > 0
    assert any(f"{long} pairs are longer than 15 tokens" in note for note in task.notes)
    with pytest.raises(InputError, match=r"no pair is shorter than `task.max_length`, 3 tokens"):
        task_of(tiny(tmp_path / "run", task=translation(pairs, max_length=3)), tmp_path / "words")


def test_a_further_file_is_trained_on_but_for_what_is_held_out(tmp_path, pairs):
    before = task_of(tiny(tmp_path / "run", task=translation(pairs)), tmp_path / "words")
    held = before.held.texts["source"][0]
    more = tmp_path / "more.tsv"
    more.write_text(f"a whole new thing\t新东西\n{held.upper()}!\t不\n", "utf-8")
    task = task_of(tiny(tmp_path / "run", task=translation(pairs, extra_train_file=str(more))), tmp_path / "more words")
    assert len(task.trained) == len(before.trained) + 1
    assert len(task.held.rows) == len(before.held.rows)
    assert {"pairs.tsv", "more.tsv", "source.json", "target.json"} <= task.data.keys()


def test_chinese_is_written_in_one_script(tmp_path):
    data = tmp_path / "pairs.tsv"
    data.write_text("".join(f"{word}\t{word}圖書館\n" for word in "abcdefgh"), "utf-8")
    task = task_of(tiny(tmp_path / "run", task=translation(data, validation_size=1, script="hans")), tmp_path / "words")
    assert all(task.target.decode(target).endswith("图书馆") for _, target in task.trained)


@pytest.mark.parametrize("packed", [False, True])
def test_a_causal_language_model(tmp_path, texts, packed):
    task = {"type": "clm", "train_file": str(texts), "validation_size": 20, "block_size": 16, "packing": packed}
    task["keep_linebreaks"] = False  # a line is a document
    task["tokenizer"] = {"model_type": "bpe", "vocab_size": 80}
    options = RUN | {
        "training__max_steps": 60,
        "training__max_tokens_per_batch": 400,
        "training__learning_rate": 1e-2,
        "model__dropout": 0.0,
    }
    ended = train(tiny(tmp_path / "run", task=task, **options))
    assert ended.scores["perplexity"] == pytest.approx(float(torch.tensor(ended.scores["loss"]).exp()))
    assert ended.scores["perplexity"] < 12  # of 80 tokens
    model = Transformer.from_pretrained(tmp_path / "run" / "model")
    assert model.config.kind == "decoder"
    assert len(Tokenizer.load(tmp_path / "run" / "model")) <= 80


def test_packed_documents_are_read_as_if_each_stood_alone(tmp_path, texts):
    task = {"type": "clm", "train_file": str(texts), "validation_size": 20, "block_size": 32, "packing": True}
    task["keep_linebreaks"] = False  # a line is a document
    made = task_of(tiny(tmp_path / "run", task=task, model__dropout=0.0), tmp_path / "words")
    model = made.model(tiny(tmp_path / "x").model).eval()
    batch = made.rows([0])
    documents = batch.inputs["documents"][0]
    assert documents.max() >= 2
    with torch.no_grad():
        whole = model(**batch.inputs).logits[0]
        for number in range(int(documents.max()) + 1):
            here = documents == number
            alone = model(batch.inputs["input_ids"][:, here]).logits[0]
            assert torch.allclose(whole[here], alone, atol=1e-5)


def test_a_masked_language_model(tmp_path, texts):
    task = {
        "type": "mlm",
        "train_file": str(texts),
        "validation_size": 20,
        "tokenizer": {"model_type": "bpe", "vocab_size": 80},
    }
    first = train(tiny(tmp_path / "run", task=task, **RUN))
    assert Transformer.from_pretrained(tmp_path / "run" / "model").config.kind == "encoder"
    again = train(tiny(tmp_path / "again", task=task, **RUN))
    assert first.scores == again.scores  # what is held out is always masked alike


def test_a_classifier_learns_its_labels(tmp_path, monkeypatch):
    data = tmp_path / "labels.jsonl"
    rows = [{"text": f"a {word} {thing}", "label": int(word in WORDS[:5])} for word in WORDS for thing in THINGS]
    data.write_text("\n".join(map(json.dumps, rows)), "utf-8")
    task = {
        "type": "classification",
        "train_file": str(data),
        "validation_size": 12,
        "tokenizer": {"model_type": "bpe", "vocab_size": 60},
    }
    ended = train(
        tiny(
            tmp_path / "run",
            task=task,
            model__dropout=0.0,
            training__learning_rate=1e-2,
            **RUN | {"training__max_steps": 60},
        )
    )
    assert ended.scores["accuracy"] > 0.9
    assert (tmp_path / "run" / "model" / "labels.txt").read_text("utf-8") == "0\n1\n"
    monkeypatch.chdir(tmp_path)
    (tmp_path / "texts.txt").write_text("".join(f"{row['text']}\n" for row in rows), "utf-8")
    (code,) = (block for block in python_blocks("docs/training.md") if "predicted.txt" in block)
    exec(compile(code.replace("runs/classify", "run"), "docs/training.md", "exec"), {})
    predicted = (tmp_path / "predicted.txt").read_text("utf-8").splitlines()
    right = sum(label == str(row["label"]) for label, row in zip(predicted, rows, strict=True))
    assert right > 0.9 * len(rows)


def test_the_macro_f1_of_a_classifier_is_the_mean_of_its_labels(tmp_path):
    """A model that says "a" alone: of 9 a and 3 b, the F1 are 18 / 21 and 0."""
    data = tmp_path / "labels.tsv"
    data.write_text("".join(f"a {WORDS[row % 9]} thing\t{'ab'[row % 4 == 3]}\n" for row in range(12)), "utf-8")
    task = {"type": "classification", "train_file": str(data), "validation_file": str(data)}
    task |= {"tokenizer": {"model_type": "char", "vocab_size": 60}}
    made = task_of(tiny(tmp_path / "run", task=task), tmp_path / "tokenizers")

    class First(torch.nn.Linear):
        def forward(self, input_ids, **_):
            return SimpleNamespace(logits=torch.tensor([[1.0, 0.0]]).expand(len(input_ids), 2))

    scores = made.evaluate(First(1, 1), 100)
    assert scores["accuracy"] == 9 / 12
    assert scores["f1_macro"] == pytest.approx((18 / 21 + 0) / 2)


@pytest.mark.slow
@pytest.mark.models
def test_minilm_becomes_a_classifier(tmp_path):
    data = tmp_path / "labels.tsv"
    rows = [f"I see a {word} {thing}\t{'animal' if thing == 'cat' else 'thing'}" for word in WORDS for thing in THINGS]
    data.write_text("\n".join(rows), "utf-8")
    task = {"type": "classification", "train_file": str(data), "validation_size": 12}
    config = tiny(
        tmp_path / "run",
        task=task,
        model={"type": "checkpoint", "model_name_or_path": "minilm"},
        training__learning_rate=1e-4,
        training__lr_scheduler_type="constant_with_warmup",
        training__warmup_steps=5,
        **RUN | {"training__max_steps": 16, "training__max_tokens_per_batch": 200},
    )
    assert train(config).scores["accuracy"] == 1.0


@pytest.mark.slow
@pytest.mark.models
def test_smollm2_goes_on_with_a_text_of_ones_own(tmp_path, texts):
    """It has never seen this text, and after a few steps finds it likelier."""
    task = {"type": "clm", "train_file": str(texts), "validation_size": 5, "block_size": 32}
    told = []
    config = tiny(
        tmp_path / "run",
        task=task,
        model={"type": "checkpoint", "model_name_or_path": "smollm2"},
        training={"output_dir": str(tmp_path / "run"), "learning_rate": 5e-5, "lr_scheduler_type": "constant"}
        | {"max_steps": 3, "max_tokens_per_batch": 128, "eval_steps": 3, "save_total_limit": 1},
    )
    train(config, [told.append])
    losses = [one.loss for one in told if type(one).__name__ == "Stepped"]
    assert losses[-1] < losses[0] - 0.3


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"task__kind": "classification", "task__train_file": "{labels}"}, "have one label, 'x'"),
        (
            {"model__kind": "checkpoint", "model__model_name_or_path": "minilm"},
            "a synthetic task has symbols of its own",
        ),
        (
            {"training__metric_for_best_model": "bleu"},
            r"`training.metric_for_best_model` must be one of loss, exact for this task, got 'bleu'",
        ),
    ],
)
def test_what_does_not_fit_is_said(tmp_path, changes, words):
    labels = tmp_path / "labels.tsv"
    labels.write_text("".join(f"text {number}\tx\n" for number in range(9)), "utf-8")
    found = {"task": {"type": "synthetic", "task_name": "copy", "num_examples": 20}, "model": {"type": "transformer"}}
    if "task__kind" in changes:
        found["task"] = {"type": "classification", "train_file": str(labels), "validation_size": 2}
    if "model__kind" in changes:
        found["model"] = {"type": "checkpoint", "model_name_or_path": "minilm"}
    metric = {"training__metric_for_best_model": "bleu"} if "training__metric_for_best_model" in changes else {}
    with pytest.raises(InputError, match=words):
        train(tiny(tmp_path / "run", **found, training__max_steps=1, **metric))


def test_a_folder_that_is_no_translator_is_refused(tmp_path):
    with pytest.raises(InputError, match="there is no folder"):
        Translator.load(tmp_path / "nowhere")
    with pytest.raises(InputError, match=r"is no translation, as it has no translation\.json"):
        Translator.load(tmp_path)
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(InputError, match="has no model and no checkpoint yet: train on"):
        Translator.load(tmp_path)
    (tmp_path / "model").mkdir()
    with pytest.raises(InputError, match=r"name a run whose task is translation"):
        Translator.load(tmp_path)


def test_the_best_checkpoint_has_the_least_loss_and_the_most_that_is_right():
    greater = {"loss": False, "perplexity": False, "accuracy": True, "f1_macro": True, "bleu": True, "exact": True}
    for task in TASKS:
        assert task.metrics == {name: greater[name] for name in task.metrics}
        assert next(iter(task.metrics)) == "loss"
