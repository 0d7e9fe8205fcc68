"""A run that was killed goes on as if nothing had happened."""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from measured_kernels import take_rules_of
from regard.backends.native import choice, library
from regard.errors import InputError
from regard.train import train
from regard.train.callbacks import Started
from regard.train.checkpoints import Checkpoints
from regard.train.run_dir import Folder
from regard.train.tasks.base import Task
from regard.train.tasks.synthetic import SyntheticTask
from train.runs import tiny


def weights(folder):
    return load_file(folder / "model" / "model.safetensors")


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="one process limits the files of another")
@pytest.mark.parametrize("task", ["translation", "synthetic", "clm", "mlm", "classification"])
def test_deaths_at_random_moments_change_no_bit(tmp_path, task):
    """SIGKILL, SIGTERM, a full disk and folders that turn read-only, in turn; more of them by the same script."""
    script = Path(__file__).parents[2] / "benchmarks" / "random_kills.py"
    asked = [sys.executable, "-W", "ignore", str(script), "--tasks", task, "--moments", "8", "--seed", "3"]
    done = subprocess.run(
        asked, capture_output=True, text=True, timeout=600, env=os.environ | {"TMPDIR": str(tmp_path)}
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.partition(" ")[2])
    assert found["SIGKILL: killed"] == 2
    assert found["full disk: refused in one sentence"] == found["read-only: refused in one sentence"] == 2
    assert sum(count for name, count in found.items() if name.startswith("SIGTERM: stopped")) == 2
    assert found["ended with the same bits"] >= 1


def test_a_run_that_is_stopped_goes_on_with_the_same_bits(tmp_path):
    train(tiny(tmp_path / "whole"))
    asked = iter([False, False, False, True])
    ended = train(tiny(tmp_path / "parts", training__save_steps=None), should_stop=lambda: next(asked))
    assert (ended.step, ended.reason, ended.model) == (4, "should_stop", None)
    train(tiny(tmp_path / "parts", training__save_steps=None))
    assert same(weights(tmp_path / "whole"), weights(tmp_path / "parts"))


def test_a_resumed_run_has_the_rate_and_the_moments_it_would_have_had(tmp_path):
    """OpenNMT-py#617 and #2075, transformers#17157: a rate or an optimizer that began anew."""
    told = []
    train(tiny(tmp_path / "run", training__max_steps=6), [told.append])
    train(tiny(tmp_path / "run", training__max_steps=12), [told.append])
    rates = [one.learning_rate for one in told if type(one).__name__ == "Stepped"]
    assert rates == pytest.approx([3e-3 * (step / 10 if step < 10 else (10 / step) ** 0.5) for step in range(12)])
    state = load_file(tmp_path / "run" / "checkpoints" / "step-00000012" / "optimizer.safetensors")
    assert {int(one) for name, one in state.items() if name.startswith("step:")} == {12}
    assert all(bool(one.any()) for name, one in state.items() if name.startswith("exp_avg_sq:") and "q_proj" in name)


def test_a_run_that_goes_on_past_its_end_saves_what_comes(tmp_path):
    """joeynmt#128: nothing was saved any more."""
    train(tiny(tmp_path / "run", training__max_steps=6))
    before = weights(tmp_path / "run")
    ended = train(tiny(tmp_path / "run", training__max_steps=9))
    assert ended.step == 9
    assert not same(before, weights(tmp_path / "run"))
    assert Checkpoints(tmp_path / "run" / "checkpoints").steps()[-1] == 9


def test_a_run_that_is_stopped_after_its_last_step_is_finished(tmp_path, monkeypatch):
    """Its model is in training mode when it is built, and no step and no evaluation is left to change that."""
    modes, finish = [], Folder.finish
    monkeypatch.setattr(Task, "draw", lambda task, model, folder: modes.append(model.training))

    def stopped(*given):
        monkeypatch.setattr(Folder, "finish", finish)
        raise KeyboardInterrupt

    monkeypatch.setattr(Folder, "finish", stopped)
    with pytest.raises(KeyboardInterrupt):
        train(tiny(tmp_path / "parts"))
    ended = train(tiny(tmp_path / "parts"))
    assert (ended.step, ended.reason, modes) == (12, "max_steps", [False])  # the model is saved before it is drawn
    train(tiny(tmp_path / "whole"))
    assert same(weights(tmp_path / "whole"), weights(tmp_path / "parts"))


def test_a_run_that_is_stopped_before_an_evaluation_makes_it_up(tmp_path):
    """An evaluation can take longer than the time between SIGTERM and SIGKILL."""
    told, evaluated = [], "Evaluated"
    train(tiny(tmp_path / "whole"), [told.append])
    whole = [(one.step, one.scores) for one in told if type(one).__name__ == evaluated]
    told.clear()
    requests = iter([False] * 4 + [True])
    ended = train(tiny(tmp_path / "parts"), [told.append], should_stop=lambda: next(requests))
    assert (ended.step, ended.reason) == (5, "should_stop")
    assert evaluated not in [type(one).__name__ for one in told]
    train(tiny(tmp_path / "parts"), [told.append])
    assert [(one.step, one.scores) for one in told if type(one).__name__ == evaluated] == whole
    assert same(weights(tmp_path / "whole"), weights(tmp_path / "parts"))


def test_a_run_that_is_killed_before_its_record_is_written_begins_again(tmp_path, monkeypatch):
    data = tmp_path / "texts.txt"
    data.write_text("".join(f"abc def {i} {i * i}\n" for i in range(80)), "utf-8")
    task = {"type": "clm", "train_file": str(data), "validation_size": 9, "block_size": 8}
    task |= {"tokenizer": {"model_type": "char", "vocab_size": 30}}

    def killed(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Folder, "begin", killed)
        with pytest.raises(KeyboardInterrupt):
            train(tiny(tmp_path / "run", task=task, training__max_steps=2))
    assert train(tiny(tmp_path / "run", task=task, training__max_steps=2)).reason == "max_steps"


def test_every_row_is_trained_on_once_an_epoch_also_by_a_run_that_is_stopped(tmp_path, monkeypatch):
    usual, rows = SyntheticTask.batch, []

    def batch(self, chosen, **options):
        rows.extend(chosen)
        return usual(self, chosen, **options)

    monkeypatch.setattr(SyntheticTask, "batch", batch)
    config = tiny(
        tmp_path / "run", training__num_train_epochs=3, training__max_steps=None, training__max_tokens_per_batch=200
    )
    calls = iter(range(100))
    assert train(config, should_stop=lambda: next(calls) == 5).reason == "should_stop"
    assert train(config).reason == "max_steps"
    counts = Counter(rows)
    assert set(counts.values()) == {3}
    assert sorted(counts) == list(range(len(counts)))


def test_a_run_that_has_ended_is_not_trained_on(tmp_path):
    train(tiny(tmp_path / "run"))
    before, told = weights(tmp_path / "run"), []
    train(tiny(tmp_path / "run"), [told.append])
    assert [type(one).__name__ for one in told] == ["Started", "Ended"]
    assert same(before, weights(tmp_path / "run"))


def test_another_configuration_is_refused_by_the_key_that_changed(tmp_path):
    train(tiny(tmp_path / "run", training__max_steps=3))
    for changed, words in (
        ({"training__learning_rate": 1e-2}, "`training.learning_rate` was 0.003 .* and is 0.01 now"),
        ({"training__seed": 4}, "`training.seed` was 0"),
        ({"model__num_hidden_layers": 2}, "`model.num_hidden_layers` was 1"),
        ({"training__max_tokens_per_batch": 70}, "`training.max_tokens_per_batch` was 60"),
    ):
        with pytest.raises(InputError, match=words):
            train(tiny(tmp_path / "run", training__max_steps=3, **changed))
    assert Checkpoints(tmp_path / "run" / "checkpoints").steps() == [1, 2, 3]


def test_the_end_may_move_unless_the_schedule_depends_on_it(tmp_path):
    cosine = {"training__lr_scheduler_type": "cosine", "training__warmup_steps": 2}
    train(tiny(tmp_path / "run", training__max_steps=3, **cosine))
    with pytest.raises(InputError, match=r"`training.max_steps` was 3 .* depends on the end"):
        train(tiny(tmp_path / "run", training__max_steps=5, **cosine))


def test_data_that_changed_is_refused_and_the_checkpoints_stay(tmp_path):
    data = tmp_path / "pairs.tsv"
    lines = [f"{word} {other}.\t{other} {word}!" for word in "abcdefgh" for other in "ijklmnop"]
    data.write_text("\n".join(lines), "utf-8")
    task = {
        "type": "translation",
        "train_file": str(data),
        "validation_size": 5,
        "source_lang": "en",
        "target_lang": "de",
        "max_predict_samples": 0,
    }
    task |= {
        "src_tokenizer": {"model_type": "char", "vocab_size": 40},
        "tgt_tokenizer": {"model_type": "char", "vocab_size": 40},
    }
    train(tiny(tmp_path / "run", task=task, training__max_steps=2))
    data.write_text("\n".join(reversed(lines)), "utf-8")
    with pytest.raises(InputError, match=r"the data of 'pairs.tsv' has changed since this run was started"):
        train(tiny(tmp_path / "run", task=task, training__max_steps=4))
    assert Checkpoints(tmp_path / "run" / "checkpoints").steps() == [1, 2]


def test_another_number_of_processes_is_refused(tmp_path):
    config = tiny(tmp_path / "run", training__max_steps=2)
    train(config)
    with pytest.raises(InputError, match="was started on 1 processes and has 2 now"):
        Folder(tmp_path / "run", config, processes=2)


def test_a_run_remembers_what_it_was_made_of(tmp_path):
    train(tiny(tmp_path / "run", training__max_steps=1))
    train(tiny(tmp_path / "run", training__max_steps=2))
    found = json.loads((tmp_path / "run" / "run.json").read_text("utf-8"))
    assert found["version"] == 2
    assert found["config"]["training"]["seed"] == 0
    assert found["config"]["training"]["warmup_steps"] == 10
    assert len(found["sessions"]) == 2
    assert found["sessions"][0]["versions"].keys() >= {"torch", "accelerate", "safetensors"}


def test_a_resumed_run_says_when_attention_is_computed_otherwise(tmp_path, monkeypatch):
    notes = []

    def listen(event):
        if isinstance(event, Started):
            notes.append([note for note in event.notes if note.startswith("attention")])

    monkeypatch.setattr(choice, "_loaded", lambda: "")
    train(tiny(tmp_path / "run", training__max_steps=1), [listen])
    train(tiny(tmp_path / "run", training__max_steps=2), [listen])
    take_rules_of(monkeypatch)
    kernels = f"regard's kernels for {library.library().name} and PyTorch's"
    train(tiny(tmp_path / "run", training__max_steps=3), [listen])
    before = "attention was computed by PyTorch's kernels before"
    said = f"{before} and is computed by {kernels} now: results differ by rounding"
    assert notes == [[], [], [said]]
    found = json.loads((tmp_path / "run" / "run.json").read_text("utf-8"))
    assert [one["attention"] for one in found["sessions"]] == ["PyTorch's kernels"] * 2 + [kernels]


def test_training_leaves_the_callers_generator_alone(tmp_path):
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    train(tiny(tmp_path / "run", training__max_steps=2))
    assert torch.equal(torch.rand(3), expected)


def test_training_leaves_the_callers_number_of_threads_alone(tmp_path):
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        train(tiny(tmp_path / "run", training__max_steps=1, training__num_threads=1))
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
