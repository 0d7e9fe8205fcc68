"""What `regard train` made can be looked at by its folder: with its own tokenizer, and with the weights that it has."""

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import regard
from regard.cli import main
from regard.data import Tokenizer
from regard.errors import InputError
from regard.models import Transformer
from regard.train import train
from regard.train.config import Config
from regard.train.translator import Translator

pytest.importorskip("transformers", reason="transformers is not installed (the extra `models`)")

TEXT = "red cat"
WORDS = ("red blue big old new".split(), "cat car book tree".split())
WORDS_KIND = {"model_type": "char", "vocab_size": 60}
TASKS = {
    "masked": {"type": "mlm", "train_file": "texts.txt", "block_size": 80, "tokenizer": WORDS_KIND},
    "causal": {"type": "clm", "train_file": "texts.txt", "block_size": 80, "tokenizer": WORDS_KIND},
    "translation": {
        "type": "translation",
        "train_file": "pairs.tsv",
        "num_completions_to_print": 0,
        "max_predict_samples": 1,
        "src_tokenizer": WORDS_KIND,
    },
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    lines = [f"{one} {other}" for one in WORDS[0] for other in WORDS[1]]
    lines += ["abcdefghijkl", "mnopqrstuvw", "xyz1234567890"] * 2  # for `regard heads`, which draws 32 different tokens
    (folder / "texts.txt").write_text("\n".join(lines) + "\n", "utf-8")
    (folder / "pairs.tsv").write_text("".join(f"{line}\t{line[::-1]}\n" for line in lines), "utf-8")
    for name, task in TASKS.items():
        found = {
            "task": task | {"train_file": str(folder / str(task["train_file"])), "validation_size": 3},
            "model": {
                "type": "transformer",
                "hidden_size": 16,
                "num_attention_heads": 2,
                "intermediate_size": 16,
                "num_hidden_layers": 2,
            },
            "training": {"output_dir": str(folder / name), "max_steps": 2, "max_tokens_per_batch": 100}
            | {"eval_steps": 2, "save_steps": 1, "num_threads": 1},
        }
        train(Config.from_dict(found))
    return folder


@pytest.mark.parametrize(("name", "before", "behind"), [("masked", "<s>", "</s>"), ("causal", "", "")])
def test_a_model_of_one_text_is_seen_with_the_tokens_that_it_was_trained_on(runs, name, before, behind):
    model = Transformer.from_pretrained(runs / name / "model")
    vocabulary = Tokenizer.load(runs / name / "model" / "tokenizer.json")
    ids = vocabulary.encode([TEXT], bos=bool(before), eos=bool(behind))
    with regard.watch(model, keep="weights") as seen, torch.no_grad():
        model(torch.tensor(ids))
    looked = regard.look(TEXT, model=str(runs / name), keep="weights", token="3", layer=0, head=1)
    tokens = [token.text for token in looked.record.tokens["text"][0]]
    assert tokens == [one for one in (before, *TEXT.replace(" ", "␣"), behind) if one]
    for layer in range(2):
        expected = seen.weights(layer=layer, head=1)
        np.testing.assert_array_equal(looked.record.weights(layer=layer, head=1), expected)


def test_a_translator_has_a_vocabulary_for_each_side(runs):
    looked = regard.look(TEXT, model=str(runs / "translation"), target="tac der")
    source, target = ([one.text for one in looked.record.tokens[side][0]] for side in ("source", "target"))
    assert source[-1] == "</s>"
    assert target[0] == "<s>"
    assert "".join(source[:-1]).replace("␣", " ") == TEXT
    assert "".join(target[1:]).replace("␣", " ") == "tac der"
    assert len(looked.record) == 6  # 2 of the encoder, 2 × 2 of the decoder
    assert len(regard.look(TEXT, model=str(runs / "translation")).record) == 6  # what it writes itself


def test_a_checkpoint_is_opened_with_its_own_weights(runs):
    first, last = (
        regard.load_model(str(runs / "masked" / "checkpoints" / f"step-{step:08d}")).model.state_dict()
        for step in (1, 2)
    )
    done = regard.load_model(str(runs / "masked" / "model")).model.state_dict()
    assert all(torch.equal(last[name], done[name]) for name in done)
    assert any(not torch.equal(first[name], done[name]) for name in done)


@pytest.mark.parametrize("name", TASKS)
def test_a_checkpoint_opens_before_its_run_ends_without_the_data_and_the_configuration_of_training(
    runs, tmp_path, name
):
    out = tmp_path / "moved"
    opened = []

    def at(event):
        if type(event).__name__ == "Saved" and event.step == 2:
            shutil.copytree(tmp_path / "run", out)
            opened.append(regard.load_model(str(out)))  # the last checkpoint, as there is no model yet

    tables = json.loads((runs / name / "run.json").read_text("utf-8"))["config"]
    tables["training"]["output_dir"] = str(tmp_path / "run")
    data = Path(tables["task"]["train_file"])
    tables["task"]["train_file"] = str(shutil.copy(data, tmp_path))
    train(Config.from_dict(tables), [at])
    (tmp_path / data.name).unlink()
    (out / "run.json").write_text("{}")
    step = out / "checkpoints" / "step-00000002"
    opened += [regard.load_model(str(folder)) for folder in (out, step.parent, step)]
    saved = load_file(step / "model.safetensors")
    for loaded in opened:
        weights = loaded.model.model.state_dict()
        assert weights.keys() == saved.keys()
        assert all(torch.equal(weights[key], one) for key, one in saved.items())
    done = regard.load_model(str(tmp_path / "run"))
    assert opened[0].model.model.config == done.model.model.config
    if name == "translation":
        assert Translator.load(step).translate([TEXT]) == Translator.load(tmp_path / "run").translate([TEXT])
    assert opened[0].tokenizer(TEXT)["input_ids"] == done.tokenizer(TEXT)["input_ids"]


@pytest.mark.parametrize("name", ["masked", "translation"])
def test_a_run_that_0_2_left_opens_once_it_goes_on_with_the_tokenizers_that_it_had(runs, tmp_path, name, monkeypatch):
    """0.2 saved tokenizers in `vocabulary`, and nothing beside the checkpoints."""
    run, out = runs / name, tmp_path / "run"
    shutil.copytree(run, out, ignore=shutil.ignore_patterns("model"))
    (out / "vocabulary").mkdir()
    for file in [one for one in (out / "checkpoints").iterdir() if one.is_file()]:
        if file.name in ("source.json", "target.json", "tokenizer.json"):
            shutil.copy(file, out / "vocabulary")
        file.unlink()
    step = out / "checkpoints" / "step-00000001"
    for folder in (out, step):
        with pytest.raises(regard.InputError, match=rf"has no config.json .*`regard train FILE --output-dir {out}`"):
            regard.load_model(str(folder))
    tables = json.loads((out / "run.json").read_text("utf-8"))["config"]
    tables["training"] |= {"output_dir": str(out), "max_steps": 3}
    monkeypatch.delattr(Tokenizer, "train")  # none is trained again
    train(Config.from_dict(tables))
    expected = regard.load_model(str(run / "checkpoints" / "step-00000001"))
    loaded = regard.load_model(str(step))
    assert loaded.tokenizer(TEXT)["input_ids"] == expected.tokenizer(TEXT)["input_ids"]
    weights = loaded.model.state_dict()
    assert all(torch.equal(weights[key], one) for key, one in expected.model.state_dict().items())


def test_a_checkpoint_with_a_flipped_bit_or_without_its_run_is_refused(runs, tmp_path):
    out = tmp_path / "run"
    shutil.copytree(runs / "masked", out)
    step = out / "checkpoints" / "step-00000001"
    shutil.copytree(step, tmp_path / "alone" / step.name)
    with pytest.raises(regard.InputError, match=r"has no config.json beside it: open it in the folder of its run"):
        regard.load_model(str(tmp_path / "alone" / step.name))
    for name in ("model.safetensors", "place.json"):
        content = (step / name).read_bytes()
        at = len(content) - 1 if name == "model.safetensors" else content.index(b'"model.safetensors": ') + 22
        (step / name).write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
        with pytest.raises(regard.InputError, match=r"cannot read .*model.safetensors: .* open another checkpoint"):
            regard.load_model(str(step))
        (step / name).write_bytes(content)
    regard.load_model(str(step))


@pytest.mark.parametrize(
    "command",
    [
        ("heads", "--text", TEXT, "--model"),
        ("steps", TEXT, "--layer", "0", "--head", "1", "--model"),
        ("compare", TEXT, "red car", "--model"),
        ("look", TEXT, "--token", "2", "--model"),
    ],
)
def test_commands_open_a_run(runs, command, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["regard", *command, str(runs / "masked")])
    with pytest.raises(SystemExit) as ended:
        main()
    out, err = capsys.readouterr()
    assert ended.value.code == 0, err
    assert out


@pytest.mark.parametrize("at", ["", "model", "checkpoints/*1"])
def test_generate_continues_what_training_has_read(runs, at, monkeypatch, capsys):
    """After the <s> that training puts before each text."""
    folder = next((runs / "causal").glob(at)) if at else runs / "causal"
    vocabulary = Tokenizer.load(runs / "causal" / "model" / "tokenizer.json")
    prompt = vocabulary.encode([TEXT], bos=True)
    ids = regard.load_model(str(folder)).model.model.generate(prompt, max_new_tokens=9)[0][len(prompt[0]) :]
    code, out, err = generated(folder, monkeypatch, capsys)
    assert (code, out.rstrip("\n")) == (0, vocabulary.decode([ids])[0].rstrip("\n")), err


def test_generate_names_the_command_for_a_translator_and_refuses_an_encoder(runs, monkeypatch, capsys):
    code, out, err = generated(runs / "translation", monkeypatch, capsys)
    assert (code, out) == (2, "")
    assert f"regard translate TEXT --model {runs / 'translation'}" in err.replace("\n", " ")
    code, out, err = generated(runs / "masked", monkeypatch, capsys)
    assert (code, out) == (2, "")
    assert "is an encoder" in err.replace("\n", " ")


def generated(run: Path, monkeypatch, capsys) -> tuple[object, str, str]:
    monkeypatch.setattr(sys, "argv", ["regard", "generate", TEXT, "--max-new-tokens", "9", "--model", str(run)])
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code, *capsys.readouterr()


def test_what_has_no_text_is_refused(runs, tmp_path):
    Transformer.from_pretrained(runs / "masked" / "model").save_pretrained(tmp_path)
    with pytest.raises(regard.InputError, match=r"has no tokenizer\.json"):
        regard.load_model(str(tmp_path))
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_text("{}")
    with pytest.raises(regard.InputError, match="no model and no checkpoint yet"):
        regard.load_model(str(tmp_path / "run"))


SAVED = [
    ("masked", "model/tokenizer.json"),
    ("causal", "model/tokenizer.json"),
    *[("translation", f"model/{name}.json") for name in ("source", "target", "translation")],
    ("masked", "checkpoints/tokenizer.json"),
    *[("translation", f"checkpoints/{name}.json") for name in ("source", "target", "translation")],
]


@pytest.mark.parametrize(("name", "file"), SAVED)
def test_a_flipped_bit_of_a_tokenizer_is_refused_by_the_name_of_its_file(runs, tmp_path, name, file):
    """Another letter in the vocabulary would give other words, and nothing else would show it."""
    shutil.copytree(runs / name, tmp_path / name)
    damaged = tmp_path / name / file
    content = damaged.read_bytes()
    at = content.index(b'"en"' if file.endswith("translation.json") else b'"r"') + 1
    damaged.write_bytes(content[:at] + bytes([content[at] ^ 0x20]) + content[at + 1 :])
    opened = damaged.parent if damaged.parent.name == "model" else tmp_path / name / "checkpoints" / "step-00000002"
    words = rf"cannot read .*{damaged.name}: its .* damaged or changed"
    with pytest.raises(regard.InputError, match=words) as refused:
        regard.load_model(str(opened))
    assert "\n" not in str(refused.value)
    if name == "translation":
        with pytest.raises(regard.InputError, match=words):
            Translator.load(opened)
    if opened.name != "model":  # the way out that is named
        assert "remove it, and the same `regard train` command saves it again" in str(refused.value)
        damaged.unlink()
        tables = json.loads((tmp_path / name / "run.json").read_text("utf-8"))["config"]
        tables["training"]["output_dir"] = str(tmp_path / name)
        train(Config.from_dict(tables))
        assert damaged.read_bytes() == content
        regard.load_model(str(opened))


def test_a_file_of_others_beside_checkpoints_is_neither_read_nor_removed(runs, tmp_path):
    """It was deleted as what a run that failed had left."""
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    theirs = tmp_path / "run" / "checkpoints" / "tokenizer.json"
    theirs.write_text("theirs")
    tables = json.loads((runs / "causal" / "run.json").read_text("utf-8"))["config"]
    tables["training"]["output_dir"] = str(tmp_path / "run")
    with pytest.raises(InputError, match=r"tokenizer\.json is there, and was saved by no run: move it"):
        train(Config.from_dict(tables))
    assert theirs.read_text() == "theirs"
