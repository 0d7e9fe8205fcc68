"""Configurations: read from files and the command line, checked by name and type."""

import json
import re
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
            r"the key `model.nothing_like_it` is unknown: there are type, hidden_size, num_attention_heads",
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
        (["--fp16"], r'`fp16` of transformers is not a key here: set `training.mixed_precision` = "fp16"'),
        (["--share-all-embeddings"], r"`share_all_embeddings` of fairseq is not a key here: each side has its own"),
        (["--model.tied_embeddings", "true"], r"`model.tied_embeddings` of JoeyNMT is not a key here: each side has"),
        (["-s", "en"], r"there is no option -s: write --task.source_lang en"),
        (["epochs"], r"'epochs' is no key: write --table.key value"),
        (["--training.learning_rat", "none"], r"`training.learning_rat` is unknown: did you mean"),
        (["--report_to", "none"], r"`report_to` of transformers is not a key here"),
        (["--model.num_layers", "none"], r"of `model.type` recurrent, and not of transformer: set `model.num_hidden_"),
        (
            ["--model.num_layers", "2"],
            r"of `model.type` recurrent, and not of transformer: set `model.num_hidden_layers`",
        ),
        (
            ["--num_layers", "2"],
            r"it is `model.num_layers` of `model.type` recurrent, and `model.num_hidden_layers` of transformer$",
        ),
        (
            ["--model", "recurrent", "--model.num_hidden_layers", "2"],
            r"of `model.type` transformer, and not of recurrent: set `model.num_layers`$",
        ),
        (["--d_model", "512"], r"the key `d_model` is not a key here: set `model.hidden_size`$"),
        (["--model.n_head", "8"], r"the key `model.n_head` is not a key here: set `model.num_attention_heads`$"),
        (["--model.d_ff", "8"], r"the key `model.d_ff` is not a key here: set `model.intermediate_size`$"),
        (["--beam", "5"], r"the key `beam` is unknown: there are the tables task, training, model"),
        (["--trainer.max_steps", "5"], r"the key `trainer` is unknown: did you mean `training`\?"),
        (["--output_dir.folder", "x"], r"the key `output_dir` is in the wrong table: it is `training.output_dir`"),
        (["--seed", "-1"], r"`training.seed` must be at least 0, got -1"),
        (["--task.type", "translation"], r"the key `task.train_file` is missing: it must be a text"),
        (["--task", "3"], r"`task` must be a table with `type`, one of 'translation', 'synthetic'"),
    ]
    for case in sweep(cases):
        with case as (said, words), pytest.raises(InputError, match=words):
            read_config(file(), said)


def test_files_that_are_none_are_refused(file):
    cases = [
        ("task = ", "it.toml", "cannot read the configuration"),
        ("task: {type: clm}", "it.yaml", "cannot read the configuration .*: YAML is read no more, write its keys as T"),
        ("[task]\ntype = 'a'\ntype = 'b'\n", "it.toml", "cannot read the configuration .*line 3"),
        ("it = 3\n", "it.toml", "the key `it` is unknown"),
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


def test_a_key_of_another_library_is_refused_with_what_to_do(file):
    cases = [
        ("per_device_train_batch_size", "transformers", "set `training.max_tokens_per_batch`"),
        ("fp16", "transformers", 'set `training.mixed_precision` = "fp16"'),
        ("label_smoothing_factor", "transformers", "set `training.label_smoothing`"),
        ("eval_strategy", "transformers", "set `training.eval_steps`"),
        ("logging_steps", "transformers", "each step is logged in log.jsonl"),
        ("optim", "transformers and OpenNMT", "AdamW is the only optimizer"),
        ("batch_multiplier", "JoeyNMT", "set `training.gradient_accumulation_steps`"),
        ("learning_rate_warmup", "JoeyNMT", "set `training.warmup_steps`"),
        ("train_steps", "OpenNMT", "set `training.max_steps`"),
        ("max_tokens", "fairseq", "set `training.max_tokens_per_batch`"),
        ("update_freq", "fairseq", "set `training.gradient_accumulation_steps`"),
        ("lr", "fairseq", "set `training.learning_rate`"),
    ]
    for case in sweep(cases):
        with case as (key, library, words):
            for table in ("", "training.", "task.", "model."):  # wherever it is written
                for name in (key, key.replace("_", "-")):
                    with pytest.raises(InputError, match=f"`{table}{key}` of {library}.* is not a key here: .*{words}"):
                        read_config(file(), [f"--{table}{name}", "8"])


def test_what_to_do_instead_names_keys_that_exist():
    from dataclasses import fields

    from regard.train import key_names
    from regard.train.config import Training

    known = {f"training.{one.name}" for one in fields(Training)} | {"task.tokenizer", "model.type", "model", "task"}
    known |= {f"model.{one.name}" for model in MODEL_TYPES for one in fields(model)}
    known |= {f"task.{one.name}" for task in TASKS for one in fields(task.settings)}
    known |= {"training.lr_scheduler_kwargs.min_lr_rate"}
    for library, words in key_names.INSTEAD.items():
        for name, way in words.items():
            for key in re.findall(r"`((?:training|task|model)\b[\w.]*)`", way):
                assert key in known, f"{name} of {library}: {key}"


def test_a_key_is_found_wherever_it_was_written(file):
    inline = "max_tokens_per_batch = 9"
    cases = [
        (
            WHOLE + "learning_rte = 1",
            [],
            r"`training.learning_rte` is unknown: did you mean `training.learning_rate`\?",
        ),
        ("learning_rate = 1\n" + WHOLE, [], "`learning_rate` is in the wrong table: it is `training.learning_rate`"),
        (
            WHOLE.replace("[training]", f"{inline}\n[training]"),
            [],
            f"`task.{inline[:20]}` is in the wrong table: it is `tr",
        ),
        (WHOLE + "hidden_size = 8", [], "`training.hidden_size` is in the wrong table: it is `model.hidden_size`"),
        (WHOLE + "[model]\nhiden_size = 8", [], r"`model.hiden_size` is unknown: did you mean `model.hidden_size`\?"),
        (
            WHOLE + "lr_scheduler_kwargs = {min_rate = 0.1}",
            [],
            r"s.min_rate` is .*: did you mean `[\w.]*s.min_lr_rate`\?",
        ),
        (WHOLE, ["--learning_rte", "1"], r"`learning_rte` is unknown: did you mean `training.learning_rate`\?"),
        (WHOLE, ["--learning-rte=1"], r"`learning_rte` is unknown: did you mean `training.learning_rate`\?"),
        (WHOLE, ["--num_symbols", "5"], "`num_symbols` is in the wrong table: it is `task.num_symbols`"),
        (WHOLE, ["--task.block_size", "5"], "`task.block_size` is of `task.type` clm or mlm, and not of synthetic"),
        (WHOLE, ["--task", "clm", "--task.tokenizer.vocab-siz", "9"], r"did you mean `task.tokenizer.vocab_size`\?"),
        (WHOLE, ["--training.seed.a", "1"], r"`training.seed` must be a whole number, got {'a': 1}"),
    ]
    for case in sweep(cases):
        with case as (text, said, words), pytest.raises(InputError, match=words):
            read_config(file(text), said)


def test_a_type_of_the_command_line_clears_the_keys_of_another_one(file):
    text = WHOLE + "[model]\nhidden_size = 8\nnum_attention_heads = 2\n"
    assert read_config(file(text), ["--model.type", "recurrent"]).model == RecurrentSettings()
    assert read_config(file(text), ["--model.type", "transformer"]).model.num_attention_heads == 2
    assert read_config(file(text), ["--model.hidden_size", "none"]).model.hidden_size == 256


def test_no_variable_of_the_environment_and_no_env_file_changes_a_configuration(file, monkeypatch):
    before = read_config(file())
    (file().parent / ".env").write_text('training={"seed": 7}\nmodel={"type": "recurrent"}\n', "utf-8")
    monkeypatch.chdir(file().parent)
    monkeypatch.setenv("TRAINING", '{"seed": 7}')
    monkeypatch.setenv("model", '{"type": "recurrent"}')
    monkeypatch.setenv("training__seed", "7")
    assert read_config(file()) == before
    assert Config.from_dict(before.to_dict()) == before


def test_the_home_folder_is_written_as_a_tilde(file, monkeypatch):
    monkeypatch.setenv("HOME", "/home/ana")
    monkeypatch.setenv("USERPROFILE", "/home/ana")
    found = read_config(file(WHOLE.replace('"run"', '"~/läufe/ein lauf"')))
    assert found.training.output_dir == "/home/ana/läufe/ein lauf"
    for said, path in (
        ("~/runs/../b", "/home/ana/runs/../b"),
        ("a/~/b", "a/~/b"),
        ("./~", "./~"),
        ("运行 1", "运行 1"),
    ):
        assert read_config(file(), ["--output-dir", said]).training.output_dir == path
    pairs = read_config(
        file(), ["--task", "translation", "--task.train_file", "~/a.tsv", "--task.extra-train-file=~/b"]
    )
    assert (pairs.task.train_file, pairs.task.extra_train_file) == ("/home/ana/a.tsv", "/home/ana/b")
    model = read_config(file(), ["--model", "checkpoint", "--model.model_name_or_path", "~/m"]).model
    assert model.model_name_or_path == "/home/ana/m"
    for task in ("clm", "mlm", "classification"):
        assert read_config(file(), ["--task", task, "--task.train_file", "~/x"]).task.train_file == "/home/ana/x"


def test_no_key_is_both_ours_and_refused():
    from dataclasses import fields

    from transformers import TrainingArguments

    from regard.train import key_names
    from regard.train.config import Training

    ours = {one.name for one in fields(Training)}
    assert not ours & {name for words in key_names.INSTEAD.values() for name in words}
    theirs = {one.name for one in fields(TrainingArguments)}
    own = {"label_smoothing", "max_tokens_per_batch", "mixed_precision", "num_averaged_checkpoints", "num_threads"}
    own |= {"context_parallel_size"}  # transformers has accelerate's parallelism_config
    assert ours - theirs == own | {"early_stopping_patience"}  # of transformers' EarlyStoppingCallback
