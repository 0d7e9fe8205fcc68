"""The loop: what stops it, what it keeps, and that no split of a batch changes it."""

import errno
import math
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

from regard.errors import InputError, NonFiniteLossError
from regard.train import loop as looped
from regard.train import train
from regard.train.callbacks import Evaluated, Stepped
from regard.train.checkpoints import Checkpoints, TrainerState, mean_of
from regard.train.tasks.synthetic import SyntheticTask
from train.runs import tiny


def steps(folder):
    return Checkpoints(folder / "checkpoints").steps()


def losses(told):
    return [one.loss for one in told if isinstance(one, Stepped)]


@pytest.mark.slow
def test_a_model_learns_to_copy(tmp_path):
    """Twelve symbols at most four long: far below the log 5 of guessing."""
    told = []
    config = tiny(
        tmp_path / "run",
        training__max_steps=150,
        training__max_tokens_per_batch=400,
        training__save_steps=None,
        training__eval_steps=50,
        model__dropout=0,
    )
    ended = train(config, [told.append])
    assert losses(told)[0] > 1.8
    assert ended.scores["loss"] < 0.9
    assert (tmp_path / "run" / "model" / "model.safetensors").is_file()


def test_parts_of_a_batch_change_nothing(tmp_path):
    """Gradients of parts are divided by all labels of the step, not by those of the part."""
    whole, parts = [], []
    train(tiny(tmp_path / "whole", training__max_tokens_per_batch=120, model__dropout=0), [whole.append])
    train(
        tiny(
            tmp_path / "parts",
            training__max_tokens_per_batch=30,
            training__gradient_accumulation_steps=4,
            model__dropout=0,
        ),
        [parts.append],
    )
    assert losses(whole) == pytest.approx(losses(parts), abs=1e-5)


def test_the_same_seed_gives_the_same_bits_and_another_does_not(tmp_path):
    found = {}
    for name, seed in (("one", 0), ("again", 0), ("other", 1)):
        train(tiny(tmp_path / name, training__seed=seed, training__max_steps=3))
        found[name] = load_file(tmp_path / name / "model" / "model.safetensors")
    assert all(torch.equal(one, found["again"][name]) for name, one in found["one"].items())
    assert not torch.equal(found["one"]["embedding.weight"], found["other"]["embedding.weight"])


def test_a_loss_that_is_no_number_takes_no_step(tmp_path, monkeypatch):
    usual = SyntheticTask.model

    def broken(self, chosen):
        model = usual(self, chosen)
        calls = iter(range(1000))
        model.register_forward_hook(
            lambda module, given, found: (
                replace(found, logits=found.logits * math.nan) if module.training and next(calls) == 4 else found
            )
        )
        return model

    monkeypatch.setattr(SyntheticTask, "model", broken)
    with pytest.raises(
        NonFiniteLossError, match=r"the loss is nan at step 5, and no step was taken; the checkpoint of step 4"
    ):
        train(tiny(tmp_path / "run"))
    assert steps(tmp_path / "run")[-1] == 4
    monkeypatch.setattr(SyntheticTask, "model", usual)
    assert train(tiny(tmp_path / "run")).step == 12


def test_a_full_disk_leaves_the_last_checkpoint(tmp_path, monkeypatch):
    import safetensors.torch

    usual, written = safetensors.torch.save_file, []

    def full(tensors, path, **given):
        written.append(path)
        if len(written) >= 6:  # the optimizer of the third checkpoint
            path.write_bytes(b"half")
            raise OSError(errno.ENOSPC, "No space left on device")
        usual(tensors, path, **given)

    monkeypatch.setattr(safetensors.torch, "save_file", full)
    with pytest.raises(InputError, match=r"No space left on device; the last good checkpoint is that of step 2; make"):
        train(tiny(tmp_path / "run"))
    left = sorted(one.name for one in (tmp_path / "run" / "checkpoints").iterdir())
    assert left == ["config.json", "step-00000001", "step-00000002"]
    monkeypatch.setattr(safetensors.torch, "save_file", usual)
    assert train(tiny(tmp_path / "run")).step == 12


def test_a_checkpoint_that_is_cut_is_named(tmp_path):
    train(tiny(tmp_path / "run", training__max_steps=3))
    broken = tmp_path / "run" / "checkpoints" / "step-00000003" / "optimizer.safetensors"
    broken.write_bytes(broken.read_bytes()[:100])
    with pytest.raises(InputError, match=r"cannot read the checkpoint .*step-00000003: .* remove that folder"):
        train(tiny(tmp_path / "run", training__max_steps=5))


def test_the_last_ones_and_the_best_are_kept(tmp_path, monkeypatch):
    scores = iter([5.0, 3.0, 4.0, 4.0, 4.0, 4.0, 4.0, 4.0])
    monkeypatch.setattr(SyntheticTask, "evaluate", lambda self, model, *_: {"loss": next(scores), "exact": 0.0})
    train(
        tiny(
            tmp_path / "run",
            training__max_steps=7,
            training__eval_steps=1,
            training__save_steps=None,
            training__save_total_limit=2,
        )
    )
    assert steps(tmp_path / "run") == [2, 7]  # as transformers' Trainer: the best one counts


@pytest.mark.slow
@pytest.mark.parametrize(
    ("metric", "values", "ends"),
    [("loss", [5, 4, 4.5, 4.1, 3], 4), ("exact", [0.1, 0.3, 0.2, 0.3, 0.9], 4), ("exact", [0.1, 0.2, 0.3, 0.4], 12)],
)
@pytest.mark.parametrize("schedule", ["inverse_sqrt", "cosine", "linear", "constant"])
def test_patience_ends_with_every_schedule_in_the_metrics_direction(
    tmp_path, monkeypatch, metric, values, ends, schedule
):
    """joeynmt#215 and PR#111: no early stopping with some schedules, and the wrong direction."""
    found = iter([*values, *[values[-1] + 0.01 * step for step in range(1, 20)]])
    monkeypatch.setattr(SyntheticTask, "evaluate", lambda self, model, *_: {metric: next(found), "loss": 0.0} | {})
    if metric == "loss":
        monkeypatch.setattr(SyntheticTask, "evaluate", lambda self, model, *_: {"loss": next(found)})
    options = {
        "training__early_stopping_patience": 2,
        "training__metric_for_best_model": metric,
        "training__eval_steps": 1,
        "training__save_steps": None,
    }
    config = tiny(tmp_path / "run", training__lr_scheduler_type=schedule, training__warmup_steps=2, **options)
    ended = train(config)
    assert ended.step == ends
    assert ended.reason == ("early_stopping" if ends < 12 else "max_steps")


def test_the_mean_of_checkpoints_is_the_mean_of_their_numbers():
    one = {"a": torch.tensor([1.0, 2.0]), "n": torch.tensor(3)}
    other = {"a": torch.tensor([2.0, 6.0]), "n": torch.tensor(5)}
    found = mean_of([one, other])
    assert found["a"].tolist() == [1.5, 4.0]
    assert found["n"] == 5


def test_an_average_is_of_the_last_evaluated_checkpoints(tmp_path):
    train(
        tiny(
            tmp_path / "run",
            training__max_steps=9,
            training__eval_steps=3,
            training__save_steps=None,
            training__save_total_limit=3,
            training__num_averaged_checkpoints=2,
        )
    )
    weights = [
        load_file(tmp_path / "run" / "checkpoints" / f"step-0000000{step}" / "model.safetensors") for step in (6, 9)
    ]
    found = load_file(tmp_path / "run" / "model" / "model.safetensors")
    name = "embedding.weight"
    assert torch.allclose(found[name], (weights[0][name] + weights[1][name]) / 2, atol=1e-7)
    assert not torch.equal(found[name], weights[1][name])


def test_nothing_is_trained_by_evaluating(tmp_path):
    """Evaluations draw from no generator that training draws from."""
    train(tiny(tmp_path / "often", training__eval_steps=1))
    train(tiny(tmp_path / "once", training__eval_steps=12))
    one, other = (load_file(tmp_path / name / "model" / "model.safetensors") for name in ("often", "once"))
    best = TrainerState(scores=({"step": 1, "loss": 2.0}, {"step": 2, "loss": 2.0})).best("loss", False)
    assert best == {"step": 1, "loss": 2.0}
    last = [
        load_file(tmp_path / name / "checkpoints" / "step-00000012" / "model.safetensors") for name in ("often", "once")
    ]
    assert all(torch.equal(last[0][name], last[1][name]) for name in last[0])
    assert one.keys() == other.keys()


def test_an_epoch_is_every_row_once_and_ends_with_an_evaluation(tmp_path, monkeypatch):
    read, told = [], []
    usual = SyntheticTask.batch
    monkeypatch.setattr(
        SyntheticTask,
        "batch",
        lambda self, rows, labelled=True: read.extend(rows) or usual(self, rows, labelled=labelled),
    )
    config = tiny(
        tmp_path / "run",
        training__max_steps=None,
        training__num_train_epochs=2,
        training__eval_steps=None,
        training__save_steps=None,
    )
    train(config, [told.append])
    half = len(read) // 2
    assert sorted(read[:half]) == sorted(read[half:]) == sorted(set(read))
    assert read[:half] != read[half:]
    assert [one.epoch for one in told if isinstance(one, Evaluated)] == [0, 1]


def test_an_epoch_that_is_not_whole_has_so_many_of_its_steps(tmp_path):
    """As in transformers, where num_train_epochs is a float and steps are rounded up."""
    whole, part = [], []
    given = {"training__max_steps": None, "training__save_steps": None, "training__eval_steps": None}
    train(tiny(tmp_path / "whole", training__num_train_epochs=2.0, **given), [whole.append])
    train(tiny(tmp_path / "part", training__num_train_epochs=1.3, **given), [part.append])
    sizes = [sum(one.epoch == epoch for one in whole if isinstance(one, Stepped)) for epoch in (0, 1)]
    assert len(losses(part)) == sizes[0] + math.ceil(0.3 * sizes[1])
    assert losses(part) == losses(whole)[: len(losses(part))]


def test_accelerate_that_is_not_there_is_named(tmp_path, monkeypatch):
    import builtins

    usual = builtins.__import__

    def without(name, *given):
        if name.startswith("accelerate"):
            raise ModuleNotFoundError("No module named 'accelerate'", name="accelerate")
        return usual(name, *given)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(looped.MissingExtraError, match=r"pip install 'regard\[train\]'"):
        train(tiny(tmp_path / "run"))
