"""The example that compares translators by the length of sentences."""

import importlib.util
import json
import re
from pathlib import Path

import pytest
import torch

from regard.models import SpecialTokens
from regard.models.output_heads import LanguageModel
from regard.train import JsonlLog, read_config, train, translation_scores
from regard.train.model_types import ModelRequest
from sweeps import sweep
from train.runs import tiny

PATH = Path(__file__).parents[2] / "examples" / "data" / "by_length.py"
SPEC = importlib.util.spec_from_file_location("by_length", PATH)
by_length = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(by_length)


def test_the_two_models_of_the_example_have_as_many_parameters_within_a_hundredth():
    path = PATH.parents[1] / "gru.toml"
    said = re.search(r"--model\.attention none --model\.hidden_size \d+", path.read_text("utf-8")).group().split()
    tokens = SpecialTokens(pad_token_id=0, bos_token_id=1, eos_token_id=2)
    with torch.device("meta"):
        request = ModelRequest(("encoder", "decoder"), 4000, tokens, LanguageModel(), 100, decoder_vocab_size=2750)
        models = [read_config(path, more).model.build(request) for more in ([], said)]
    assert [one.config.attention for one in models] == ["bahdanau", None]
    with_it, without = (sum(one.numel() for one in model.parameters()) for model in models)
    assert abs(without / with_it - 1) < 0.01


def test_a_sentence_is_in_the_bucket_of_its_words():
    for case in sweep(
        [(1, "1 to 3"), (3, "1 to 3"), (4, "4 to 5"), (11, "10 to 11"), (12, "12 and more"), (40, "12 and more")]
    ):
        with case as (words, name):
            assert by_length.bucket_of("word " * words) == name


class Fake:
    """A translator that is right about short sentences alone."""

    target_lang = "zh"

    def translate(self, texts, *, num_beams):
        assert num_beams == 3
        return ["我喜欢这本书。" if len(text.split()) < 4 else "不知道。" for text in texts]


def test_each_bucket_is_scored_by_itself():
    sources = ["I like it.", "I like this very long book of yours."] * 2
    found = by_length.scores_by_length(Fake(), sources, [["我喜欢这本书。"]] * 4, num_beams=3)
    assert {name: one.sentences for name, one in found.items()} == {"1 to 3": 2, "8 to 9": 2, "all": 4}
    assert found["1 to 3"].score.bleu == pytest.approx(100)
    assert found["8 to 9"].score.bleu < 10
    assert found["all"].words == pytest.approx((3 + 8) / 2)
    whole = translation_scores(Fake().translate(sources, num_beams=3), [["我喜欢这本书。"]] * 4, "zh")
    assert found["all"].score == whole


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A GRU with attention, with two seeds, and one without."""
    folder = tmp_path_factory.mktemp("runs")
    data = folder / "pairs.tsv"
    nouns, more = "猫狗鸟鱼马牛", "大小红蓝"
    lines = [
        f"{'the ' * (1 + row + column)}{chr(97 + row)}{chr(97 + column)}\t{'那' * (1 + row)}{size}{noun}。"
        for row, noun in enumerate(nouns)
        for column, size in enumerate(more)
    ]
    data.write_text("\n".join(lines) + "\n", "utf-8")
    task = {
        "type": "translation",
        "train_file": str(data),
        "validation_size": 8,
        "max_predict_samples": 0,
        "num_completions_to_print": 0,
    }
    task |= {"src_tokenizer": {"model_type": "char", "vocab_size": 60}}
    for seed, attention, hidden in ((0, "bahdanau", 8), (1, "bahdanau", 8), (0, "none", 9)):
        model = {"type": "recurrent", "embedding_dim": 8, "hidden_size": hidden, "attention": attention}
        options = {
            "training__save_steps": None,
            "training__eval_steps": None,
            "training__max_steps": 3,
            "training__max_tokens_per_batch": 300,
        }
        out = folder / f"{attention}-{seed}"
        train(tiny(out, task=task, model=model, training__seed=seed, **options), [JsonlLog(out / "log.jsonl")])
    return folder


@pytest.mark.slow
def test_runs_are_compared_in_a_table_a_figure_and_json(runs, capsys):
    folders = [runs / name for name in ("bahdanau-1", "bahdanau-0", "none-0")]
    out, figure = runs / "found.json", runs / "found.svg"
    by_length.main([*map(str, folders), "--out", str(out), "--figure", str(figure)])
    found = json.loads(out.read_text("utf-8"))
    assert list(found["models"]) == ["GRU 8, Bahdanau's attention", "GRU 9, no attention"]
    seen = found["models"]["GRU 8, Bahdanau's attention"]
    assert seen["seeds"] == [0, 1]
    for seed, bleu, chrf in zip((0, 1), seen["BLEU"]["all"], seen["chrF"]["all"], strict=True):
        kept = json.loads((runs / f"bahdanau-{seed}" / "model" / "scores.json").read_text("utf-8"))["scores"]
        assert bleu == pytest.approx(kept["bleu"], abs=0.006)  # counted behind training, with four beams too
        assert chrf == pytest.approx(kept["chrf"], abs=0.006)
    assert seen["sentences"]["all"] == [8, 8]
    printed = capsys.readouterr().out
    assert printed.startswith("| words | sentences | GRU 8, Bahdanau's attention: BLEU |")
    assert "tok:zh" in printed
    assert figure.read_text("utf-8").count("<svg") == 1


@pytest.mark.slow
def test_what_cannot_be_compared_is_refused(runs):
    with pytest.raises(SystemExit, match="have the same seed"):
        by_length.main([str(runs / "none-0"), str(runs / "none-0")])
    with pytest.raises(SystemExit, match="there is no folder"):
        by_length.main([str(runs / "nowhere")])


@pytest.mark.slow
def test_changed_data_is_refused(runs):
    data = runs / "pairs.tsv"
    before = data.read_bytes()
    data.write_bytes(before + "a new one\t新的\n".encode())
    with pytest.raises(SystemExit, match="has changed since it was trained"):
        by_length.main([str(runs / "none-0")])
    data.write_bytes(before)
