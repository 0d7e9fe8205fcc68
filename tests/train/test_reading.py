"""Configurations: read from files and the command line, checked by name and type."""

import json
from itertools import product

import pytest

from regard.errors import InputError
from regard.train.config import Config, read_config
from regard.train.loss_and_optimizer import Schedule
from regard.train.model_types import MODEL_TYPES, RecurrentSettings, TransformerSettings
from regard.train.tasks import TASKS, CausalLMSettings, SyntheticSettings
from sweeps import sweep

WHOLE = """
[task]
type = "synthetic"
task_name = "sort"
[training]
output_dir = "run"
adam_beta2 = 0.95
lr_scheduler_type = "cosine"
num_train_epochs = 2
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
    assert found.task == SyntheticSettings(task_name="sort")
    assert found.model == TransformerSettings()
    assert (found.training.adam_beta1, found.training.adam_beta2) == (0.9, 0.95)
    assert found.training.schedule == Schedule("cosine", 1000)
    assert (found.training.num_train_epochs, found.training.max_steps) == (2, None)


def test_yaml_says_the_same(file):
    training = "output_dir: run, adam_beta2: 0.95, lr_scheduler_type: cosine, num_train_epochs: 2"
    text = f"task: {{type: synthetic, task_name: sort}}\ntraining: {{{training}}}\n"
    assert read_config(file(text, "it.yaml")) == read_config(file())


def test_a_value_and_its_mapping_say_the_same(file):
    found = read_config(file(), ["--model.type", "recurrent", "--model.attention", "none"])
    assert found.model == RecurrentSettings(attention="none")
    assert Config.from_dict(json.loads(json.dumps(found.to_dict()))) == found


def test_every_key_can_be_said_on_the_command_line(file):
    cases = [
        (["--training.num_train_epochs", "7"], lambda it: it.training.num_train_epochs, 7),
        (["--training.num_train_epochs=7"], lambda it: it.training.num_train_epochs, 7),
        (["--learning_rate", "1e-3"], lambda it: it.training.learning_rate, 1e-3),
        (["--training.learning-rate", "1"], lambda it: it.training.learning_rate, 1.0),
        (["--output-dir", "other folder"], lambda it: it.training.output_dir, "other folder"),
        (["--training.torch_compile", "true"], lambda it: it.training.torch_compile, True),
        (["--warmup_steps", "5"], lambda it: it.training.schedule, Schedule("cosine", 5)),
        (["--num_train_epochs", "none", "--max_steps", "9"], lambda it: it.training.max_steps, 9),
        (
            ["--task.type", "clm", "--task.train_file", "it.txt"],
            lambda it: it.task,
            CausalLMSettings(train_file="it.txt"),
        ),
    ]
    for case in sweep(cases):
        with case as (said, of, expected):
            assert of(read_config(file(), said)) == expected


def test_what_is_wrong_is_said_with_the_way_out(file):
    cases = [
        (["--model.hiden_size", "3"], r"the key `model.hiden_size` is unknown: did you mean `model.hidden_size`\?"),
        (["--trainin.learning_rate", "3"], r"the key `trainin` is unknown: did you mean `training`\?"),
        (
            ["--model.nothing_like_it", "3"],
            r"the key `model.nothing_like_it` is unknown: there are hidden_size, num_attention_heads",
        ),
        (["--model.type", "transfomer"], r"got 'transfomer': did you mean 'transformer'\?"),
        (["--model.dropout", "1.0"], r"`model.dropout` must be below 1, got 1.0"),
        (
            ["--model.num_attention_heads", "4", "--model.num_key_value_heads", "3"],
            r"a multiple of `num_key_value_heads`",
        ),
        (["--model.hidden_size", "wide"], r"`model.hidden_size` must be a whole number, got 'wide'"),
        (["--model.hidden_size", "2.5"], r"`model.hidden_size` must be a whole number, got 2.5"),
        (["--model.hidden_size", "true"], r"`model.hidden_size` must be a whole number, got True"),
        (["--mixed_precision", "fp8"], r"`training.mixed_precision` must be 'no', 'bf16' or 'fp16', got 'fp8'"),
        (["--training.adam_beta1", "[0.9]"], r"`training.adam_beta1` must be a number, got \[0.9\]"),
        (["--learning_rate", "-1"], r"`training.learning_rate` must be above 0, got -1"),
        (["--max_steps", "5"], r"\[training\] training ends after `max_steps` or after `num_train_epochs`: give one"),
        (["--num_averaged_checkpoints", "9"], r"`num_averaged_checkpoints` is 9, more than `save_total_limit`, 3"),
        (["--training.max_steps"], r"`--training.max_steps` has no value: write --training.max_steps value"),
        (["epochs"], r"'epochs' is no key: write --table.key value"),
        (["--output_dir.folder", "x"], r"the key `output_dir` is in the wrong table: it is `training.output_dir`"),
        (["--seed", "-1"], r"`training.seed` must be at least 0, got -1"),
        (["--task.type", "translation"], r"the key `task.train_file` is missing: it must be a text"),
        (["--task.type", "causal language"], r"got 'causal language': did you mean 'clm'\?"),
        (["--task", "3"], r"`task` must be a table with `type`, one of 'translation', 'synthetic'"),
    ]
    for case in sweep(cases):
        with case as (said, words), pytest.raises(InputError, match=words):
            read_config(file(), said)


def test_files_that_are_none_are_refused(file):
    cases = [
        ("task = ", "it.toml", "cannot read the configuration"),
        ("task: [", "it.yaml", "cannot read the configuration"),
        ("model: 1\ntask: a\nmodel: 2\n", "it.yaml", "it names the key 'model' twice, again in line 3"),
        ("- a\n- b\n", "it.yaml", "must be a table of keys and values, got list"),
        ("!!python/object/apply:os.system ['true']", "it.yaml", "cannot read the configuration"),
        ("[task]\ntype = 'synthetic'\n", "it.toml", "the key `training` is missing: it must be a table"),
    ]
    for case in sweep(cases):
        with case as (text, name, words), pytest.raises(InputError, match=words):
            read_config(file(text, name))


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(InputError, match=r"cannot read the configuration .*nowhere.toml: No such file"):
        read_config(tmp_path / "nowhere.toml")


def test_a_text_with_a_nul_is_one_sentence(tmp_path_factory):
    for case in sweep(product(['"\\u0000"', '"a\\u0000b"'], ["training.output_dir", "task.task_name", "model.type"])):
        with case as (text, key):
            tmp_path = tmp_path_factory.mktemp("case")
            path = tmp_path / "it.toml"
            path.write_text(WHOLE, "utf-8")
            with pytest.raises(InputError, match=f"`{key}` must be .*got '.*x00"):
                read_config(path, [f"--{key}={text}"])


def test_a_value_of_an_option_that_is_no_number_is_one_sentence(tmp_path_factory):
    for case in sweep(["9" * 5000, "[" * 5000, "nan", "inf", "9" * 400, "caf\udce9"]):
        with case as value:
            tmp_path = tmp_path_factory.mktemp("case")
            path = tmp_path / "it.toml"
            path.write_text(WHOLE, "utf-8")
            with pytest.raises(InputError, match=r"`training\.learning_rate` must be"):
                read_config(path, ["--learning_rate", value])


OLD = """
out = "run"
seed = 3
[task]
kind = "causal language"
data = "it.txt"
words = {kind = "bpe", size = 100}
length = 8
[optimizer]
rate = 1e-3
schedule = {kind = "cosine", warmup = 10}
betas = [0.9, 0.98]
[run]
steps = 5
tokens = 64
"""


def test_a_file_of_format_1_is_refused_with_each_new_name(file):
    with pytest.raises(InputError) as caught:
        read_config(file(OLD))
    text = str(caught.value)
    assert text.startswith(f"{file(OLD)} has keys of configuration format 1, and this release reads format 2: ")
    for old, new in (
        ("out", "training.output_dir"),
        ("seed", "training.seed"),
        ("task.kind", "task.type"),
        ("task.words.kind", "task.tokenizer.model_type"),
        ("task.data", "task.train_file"),
        ("task.words", "task.tokenizer"),
        ("task.words.size", "task.tokenizer.vocab_size"),
        ("task.length", "task.block_size"),
        ("optimizer.rate", "training.learning_rate"),
        ("optimizer.schedule.kind", "training.lr_scheduler_type"),
        ("optimizer.schedule.warmup", "training.warmup_steps"),
        ("optimizer.betas", "training.adam_beta1 and training.adam_beta2"),
        ("run.steps", "training.max_steps"),
        ("run.tokens", "training.max_tokens_per_batch"),
    ):
        assert f"`{old}` is now `{new}`" in text
    with pytest.raises(InputError, match=r"the command line has keys of .* 1, .*: `run.steps` is now `training.max_st"):
        read_config(file(), ["--run.steps", "5"])


def test_every_new_name_of_a_key_is_a_key():
    from dataclasses import fields

    from regard.train import config, key_names

    known = {"training": {one.name for one in fields(config.Training)}}
    known["model"] = {one.name for model in MODEL_TYPES for one in fields(model)}
    known["task"] = {one.name for task in TASKS for one in fields(task.settings)}
    known["model"].add("type")
    known["task"].add("type")
    for names in key_names.RENAMED.values():
        for name in names.split(" and "):
            table, key = name.split(" (")[0].split(".")[:2]
            assert key in known[table], name


def test_a_key_of_transformers_without_a_counterpart_is_refused_with_the_way_out(file):
    cases = [
        ("per_device_train_batch_size", "set `training.max_tokens_per_batch`"),
        ("fp16", 'set `training.mixed_precision` = "fp16"'),
        ("label_smoothing_factor", "set `training.label_smoothing`"),
        ("eval_strategy", "set `training.eval_steps`"),
        ("logging_steps", "each step is logged in log.jsonl"),
        ("optim", "AdamW is the only optimizer"),
    ]
    for case in sweep(cases):
        with case as (key, words):
            for said in ([f"--{key}", "8"], [f"--training.{key}", "8"]):
                with pytest.raises(InputError, match=f"{key}` of transformers is not a key here: .*{words}"):
                    read_config(file(), said)


def test_no_key_is_both_ours_and_refused():
    from dataclasses import fields

    from transformers import TrainingArguments

    from regard.train import key_names
    from regard.train.config import Training

    ours = {one.name for one in fields(Training)}
    assert not ours & set(key_names.INSTEAD)
    theirs = {one.name for one in fields(TrainingArguments)}
    own = {"label_smoothing", "max_tokens_per_batch", "mixed_precision", "num_averaged_checkpoints", "num_threads"}
    own |= {"context_parallel_size"}  # transformers has accelerate's parallelism_config
    assert ours - theirs == own | {"early_stopping_patience"}  # of transformers' EarlyStoppingCallback
