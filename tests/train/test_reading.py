"""Configurations: read from files and the command line, checked by name and type."""

import json

import pytest

from regard.errors import InputError
from regard.train.config import CausalLanguage, Config, Recurrent, Synthetic, Transformer
from regard.train.config_file import from_mapping, read_config, to_mapping
from regard.train.schedules import Cosine

WHOLE = """
out = "run"
[task]
kind = "synthetic"
task = "sort"
[optimizer]
betas = [0.9, 0.95]
schedule = "cosine"
[run]
epochs = 2
"""


@pytest.fixture
def file(tmp_path):
    def write(text=WHOLE, name="it.toml"):
        path = tmp_path / name
        path.write_text(text, "utf-8")
        return path

    return write


def test_a_file_is_a_value(file):
    found = read_config(file())
    assert found.task == Synthetic(task="sort")
    assert found.model == Transformer()
    assert found.optimizer.betas == (0.9, 0.95)
    assert found.optimizer.schedule == Cosine()
    assert (found.run.epochs, found.run.steps) == (2, None)


def test_yaml_says_the_same(file):
    text = "out: run\ntask: {kind: synthetic, task: sort}\noptimizer: {betas: [0.9, 0.95], schedule: cosine}\n"
    assert read_config(file(text + "run: {epochs: 2}\n", "it.yaml")) == read_config(file())


def test_a_value_and_its_mapping_say_the_same(file):
    found = read_config(file(), ["--model.kind", "recurrent", "--model.attention", "none"])
    assert found.model == Recurrent(attention="none")
    assert from_mapping(Config, json.loads(json.dumps(to_mapping(found)))) == found


@pytest.mark.parametrize(
    ("said", "of", "expected"),
    [
        (["--run.epochs", "7"], lambda it: it.run.epochs, 7),
        (["--run.epochs=7"], lambda it: it.run.epochs, 7),
        (["--optimizer.rate", "1e-3"], lambda it: it.optimizer.rate, 1e-3),
        (["--optimizer.rate", "1"], lambda it: it.optimizer.rate, 1.0),
        (["--out", "other folder"], lambda it: it.out, "other folder"),
        (["--run.compiled", "true"], lambda it: it.run.compiled, True),
        (["--optimizer.schedule.warmup", "5"], lambda it: it.optimizer.schedule, Cosine(warmup=5)),
        (["--optimizer.schedule", "{kind = 'cosine', floor = 0.5}"], lambda it: it.optimizer.schedule.floor, 0.5),
        (["--run.epochs", "none", "--run.steps", "9"], lambda it: (it.run.epochs, it.run.steps), (None, 9)),
        (
            ["--task.kind", "causal language", "--task.data", "it.txt"],
            lambda it: it.task,
            CausalLanguage(data="it.txt"),
        ),
    ],
)
def test_every_key_can_be_said_on_the_command_line(file, said, of, expected):
    text = WHOLE.replace('schedule = "cosine"', '[optimizer.schedule]\nkind = "cosine"')
    assert of(read_config(file(text), said)) == expected


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (["--model.widht", "3"], r"the key `model.widht` is unknown: did you mean `model.width`\?"),
        (["--optimiser.rate", "3"], r"the key `optimiser` is unknown: did you mean `optimizer`\?"),
        (["--model.nothing_like_it", "3"], r"the key `model.nothing_like_it` is unknown: there are width, heads"),
        (["--model.kind", "transfomer"], r"got 'transfomer': did you mean 'transformer'\?"),
        (["--model.width", "wide"], r"`model.width` must be a whole number, got 'wide'"),
        (["--model.width", "2.5"], r"`model.width` must be a whole number, got 2.5"),
        (["--model.width", "true"], r"`model.width` must be a whole number, got True"),
        (["--run.precision", "fp8"], r'`run.precision` must be "fp32" or "bf16" or "fp16", got \'fp8\''),
        (["--optimizer.betas", "[0.9]"], r"`optimizer.betas` must be a list of 2 numbers, got \[0.9\]"),
        (["--optimizer.rate", "-1"], r"\[optimizer\] `rate` must be above 0"),
        (["--run.steps", "5"], r"\[run\] training ends after `steps` or after `epochs`: give one"),
        (["--run.average", "9"], r"\[run\] `average` takes the last 9 checkpoints, and `keep` is 3"),
        (["--run.epochs"], r"`--run.epochs` has no value: write --run.epochs value"),
        (["epochs"], r"'epochs' is no key: write --section.key value"),
        (["--out.folder", "x"], r"`--out.folder` names a key of `out`, which is no table"),
        (["--seed", "-1"], r"`seed` must be from 0"),
        (["--task.kind", "translation"], r"the key `task.data` is missing: a text"),
        (["--task", "3"], r'`task` must be a table with kind = "translation"'),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_is_wrong_is_said_with_the_way_out(file, said, words):
    with pytest.raises(InputError, match=words):
        read_config(file(), said)


@pytest.mark.parametrize(
    ("text", "name", "words"),
    [
        ("out = ", "it.toml", "cannot read the configuration"),
        ("out: [", "it.yaml", "cannot read the configuration"),
        ("seed: 1\nout: a\nseed: 2\n", "it.yaml", "it names the key 'seed' twice, again in line 3"),
        ("- a\n- b\n", "it.yaml", "must be a table of keys and values, got list"),
        ("!!python/object/apply:os.system ['true']", "it.yaml", "cannot read the configuration"),
        ("[task]\nkind = 'synthetic'\n", "it.toml", "the key `out` is missing: a text"),
    ],
)
def test_files_that_are_none_are_refused(file, text, name, words):
    with pytest.raises(InputError, match=words):
        read_config(file(text, name))


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(InputError, match=r"cannot read the configuration .*nowhere.toml: No such file"):
        read_config(tmp_path / "nowhere.toml")


@pytest.mark.parametrize("text", ['"\\u0000"', '"a\\u0000b"'])
@pytest.mark.parametrize("key", ["out", "task.task", "model.kind"])
def test_a_text_with_a_nul_is_one_sentence(tmp_path, key, text):
    path = tmp_path / "it.toml"
    path.write_text('out = "run"\n[task]\nkind = "synthetic"\ntask = "sort"\n[run]\nepochs = 2\n', "utf-8")
    with pytest.raises(InputError, match=f"`{key}` must be .*got '.*x00"):
        read_config(path, [f"--{key}={text}"])


@pytest.mark.parametrize("value", ["9" * 5000, "[" * 5000, "nan", "inf", "9" * 400, "caf\udce9"])
def test_a_value_of_an_option_that_is_no_number_is_one_sentence(tmp_path, value):
    path = tmp_path / "it.toml"
    path.write_text('out = "run"\n[task]\nkind = "synthetic"\ntask = "sort"\n[run]\nepochs = 2\n', "utf-8")
    with pytest.raises(InputError, match=r"`optimizer\.rate` must be"):
        read_config(path, ["--optimizer.rate", value])
