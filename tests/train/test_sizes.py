"""What cannot be held is refused with its numbers, before anything is made; nothing that could run is refused."""

import pytest
import torch

from regard.errors import InputError
from regard.train import machine_memory, train
from regard.train.config import task_of
from regard.train.machine_memory import check_size, least_parameters
from regard.train.settings import TokenizerConfig
from sweeps import sweep
from train.runs import tiny

GIB = 2**30
MODELS = {
    "plain": {
        "type": "transformer",
        "hidden_size": 32,
        "num_attention_heads": 4,
        "intermediate_size": 8,
        "num_hidden_layers": 3,
    },
    "one key head": {
        "type": "transformer",
        "hidden_size": 32,
        "num_attention_heads": 4,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_key_value_heads": 1,
    },
    "gated": {
        "type": "transformer",
        "hidden_size": 32,
        "num_attention_heads": 4,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "hidden_act": "silu",
        "is_gated_act": True,
    },
    "gru": {"type": "recurrent", "embedding_dim": 32, "hidden_size": 24},
    "lstm": {
        "type": "recurrent",
        "embedding_dim": 32,
        "hidden_size": 24,
        "cell": "lstm",
        "num_layers": 2,
        "bidirectional": False,
    },
}


def test_a_model_has_at_least_as_many_parameters_as_are_counted(tmp_path_factory):
    for case in sweep(MODELS):
        with case as name:
            tmp_path = tmp_path_factory.mktemp("case")
            config = tiny(tmp_path / "run", model=MODELS[name], task__num_symbols=1000)
            made = sum(one.numel() for one in task_of(config, tmp_path).model(config.model).parameters())
            assert made / 2 < least_parameters(config) <= made


def test_what_memory_cannot_hold_is_refused_before_anything_is_made(tmp_path_factory):
    cases = [
        (
            {"model__hidden_size": 2**19},
            r"at least .* parameters, .* AdamW's moments take .* GiB, and this machine has 4\.0 G",
        ),
        ({"task__num_symbols": 2**20, "model__hidden_size": 1024}, "or `num_symbols` under .task."),
        (
            {"task__num_examples": 10**9},
            r"1,000,000,000 examples .* take about .* lower `num_examples`, `validation_size` or `max_length`",
        ),
        ({"task__max_length": 10**6, "task__num_examples": 10**4}, "of up to 1,000,000 symbols take about"),
        ({"task__task_name": "recall", "task__num_symbols": 10**6, "task__num_examples": 1000}, "lower `num_examples`"),
    ]
    for case in sweep(cases):
        with case as (changes, words), pytest.MonkeyPatch.context() as monkeypatch:
            tmp_path = tmp_path_factory.mktemp("case")
            monkeypatch.setattr(machine_memory, "memory", lambda: 4 * GIB)
            monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
            with pytest.raises(InputError, match=words):
                train(tiny(tmp_path / "run", **changes))
            assert not (tmp_path / "run").exists()


def test_a_gpu_needs_room_for_the_weights_alone_beside_it(tmp_path, monkeypatch):
    config = tiny(tmp_path / "run", model__hidden_size=4096)
    needed = least_parameters(config)
    monkeypatch.setattr(machine_memory, "memory", lambda: 15 * needed)
    check_size(config, on_cpu=False)
    with pytest.raises(InputError, match="lower `hidden_size`, `intermediate_size` or `num_hidden_layers`"):
        check_size(config, on_cpu=True)
    monkeypatch.setattr(machine_memory, "memory", lambda: 3 * needed)
    with pytest.raises(InputError, match="whose weights take"):
        check_size(config, on_cpu=False)
    monkeypatch.setattr(machine_memory, "memory", lambda: None)  # a system that does not tell
    check_size(config, on_cpu=True)


def test_the_memory_of_this_machine_is_what_linux_says():
    with open("/proc/meminfo") as file:
        total = int(next(line for line in file if line.startswith("MemTotal")).split()[1]) * 1024
    assert 2**26 < machine_memory.memory() <= total


HUGE = 99_999_999_999_999_999_999


def test_counts_beyond_all_reason_are_refused_by_the_key_of_the_file(tmp_path_factory):
    cases = [
        ("task__num_symbols", 3_000_000_000, "`task.num_symbols` must be at most 1,048,576, got 3,000,000,000"),
        ("task__max_length", HUGE, "`task.max_length` must be at most 1,048,576, got 99,999"),
        ("task__num_examples", HUGE, "`task.num_examples` must be at most 1,000,000,000, got 99,999"),
        ("task__validation_size", HUGE, "`task.validation_size` must be at most"),
        ("model__hidden_size", HUGE, "`model.hidden_size` must be at most 1,048,576, got 99,999"),
        ("model__intermediate_size", HUGE, "`model.intermediate_size` must be at most"),
        (
            "model__num_hidden_layers",
            100_000_000,
            "`model.num_hidden_layers` must be at most 10,000, got 100,000,000",
        ),
        ("model__num_attention_heads", HUGE, "`model.num_attention_heads` must be at most"),
        ("model__num_key_value_heads", HUGE, "`model.num_key_value_heads` must be at most"),
        ("model__hidden_size", 0, "`model.hidden_size` must be at least 1, got 0"),
        ("model__num_attention_heads", 0, "`model.num_attention_heads` must be at least 1, got 0"),
        ("model__num_hidden_layers", -1, "`model.num_hidden_layers` must be at least 1, got -1"),
        ("model__num_key_value_heads", 0, "`model.num_key_value_heads` must be at least 1, got 0"),
        (
            "model__hidden_size",
            15,
            "[model] `hidden_size` must be a multiple of `num_attention_heads`, got 15 and 2: choose",
        ),
        ("training__max_steps", HUGE, "`training.max_steps` must be at most"),
        ("training__max_tokens_per_batch", HUGE, "`training.max_tokens_per_batch` must be at most"),
        ("training__gradient_accumulation_steps", HUGE, "`training.gradient_accumulation_steps` must be at most"),
        ("training__num_threads", HUGE, "`training.num_threads` must be at most"),
    ]
    for case in sweep(cases):
        with case as (key, value, words):
            tmp_path = tmp_path_factory.mktemp("case")
            with pytest.raises(InputError) as why:
                tiny(tmp_path / "run", **{key: value})
            assert words in str(why.value)


def test_lengths_and_rows_of_every_task_have_a_limit(tmp_path_factory):
    cases = [
        ({"type": "translation"}, "max_length"),
        ({"type": "clm"}, "block_size"),
        ({"type": "mlm"}, "block_size"),
        ({"type": "classification"}, "max_length"),
    ]
    for case in sweep(cases):
        with case as (task, name):
            tmp_path = tmp_path_factory.mktemp("case")
            for key in (name, "validation_size"):
                with pytest.raises(InputError, match=rf"`task.{key}` must be at most"):
                    tiny(tmp_path / "run", task=task | {"train_file": "x.tsv", key: HUGE})


def test_a_vocabulary_that_no_trainer_can_reserve_is_refused_when_the_file_is_read():
    with pytest.raises(InputError, match="`vocab_size` must be at most 1,048,576, got 1,000,000,000"):
        TokenizerConfig(vocab_size=10**9)
