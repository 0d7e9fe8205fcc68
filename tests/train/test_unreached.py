"""Settings that a run will not reach are named before it starts."""

import json
import sys

import pytest

from regard.cli import main
from regard.train import Config, train
from regard.train.callbacks import Started
from regard.train.training import Training
from regard.train.unreached import unreached_settings
from sweeps import sweep
from train.runs import tiny


def test_a_learning_rate_is_named_only_where_no_step_has_it():
    """The oracle is transformers' own schedule, step by step."""
    import torch
    from transformers import get_scheduler

    cases = [
        (kind, warmup, total)
        for kind in ("linear", "cosine", "inverse_sqrt", "constant_with_warmup", "constant")
        for warmup, total in ((10, 9), (10, 10), (10, 11), (0, 5), (1000, 100))
    ]
    for case in sweep(cases):
        with case as (kind, warmup, total):
            optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1.0)
            schedule = get_scheduler(kind, optimizer, num_warmup_steps=warmup, num_training_steps=total)
            rates = []
            for _ in range(total):
                rates.append(optimizer.param_groups[0]["lr"])
                optimizer.step()
                schedule.step()
            training = Training(output_dir="a", max_steps=total, warmup_steps=warmup, lr_scheduler_type=kind)
            found = [text for text in unreached_settings(training, total) if "learning rate never reaches" in text]
            assert bool(found) == (max(rates) < 1)
            if found:
                assert f"is {max(rates) * training.learning_rate:.3g} at its end" in found[0]


def test_a_decay_that_begins_before_the_warm_up_ends_is_named():
    for total, named in ((9, "warmup_steps` is 10"), (15, "`training.warmup_steps`, 10, and"), (16, ""), (30, "")):
        kind, options = "warmup_stable_decay", {"num_decay_steps": 6}
        training = Training(
            output_dir="a", max_steps=total, warmup_steps=10, lr_scheduler_type=kind, lr_scheduler_kwargs=options
        )
        found = unreached_settings(training, total)
        assert (len(found), named in "".join(found)) == (bool(named), True)


def test_each_setting_that_has_no_effect_is_named_with_both_numbers():
    cases = [
        ({"warmup_steps": 200}, ["`training.warmup_steps` is 200 and the run has 100 steps", "below 1"]),
        ({"warmup_steps": 0.1}, []),
        ({"eval_steps": 101}, ["`training.eval_steps` is 101 and the run has 100 steps"]),
        ({"eval_steps": 100}, []),
        ({"save_steps": 200}, ["`training.save_steps` is 200 and the run has 100 steps"]),
        (
            {"eval_steps": 30, "early_stopping_patience": 4},
            ["`training.early_stopping_patience` is 4", "4 evaluations"],
        ),
        ({"eval_steps": 30, "early_stopping_patience": 3}, []),
        (
            {"eval_steps": 50, "num_averaged_checkpoints": 3},
            ["`training.num_averaged_checkpoints` is 3", "2 evaluations"],
        ),
        ({"eval_steps": 50, "num_averaged_checkpoints": 2}, []),
    ]
    for case in sweep(cases):
        with case as (options, words):
            training = Training(output_dir="a", max_steps=100, **{"warmup_steps": 10} | options)
            found = unreached_settings(training, 100)
            assert len(found) == bool(words)
            assert all(word in found[0] for word in words)


def started_notes(config: Config) -> tuple[str, ...]:
    notes = []
    train(config, [lambda event: notes.append(event.notes) if isinstance(event, Started) else None])
    return notes[0]


def test_a_run_says_so_when_it_starts_and_when_it_resumes(tmp_path):
    config = {"training__warmup_steps": 5, "training__save_steps": None, "training__eval_steps": 1}
    for steps in (3, 4):
        (note,) = started_notes(tiny(tmp_path / "run", training__max_steps=steps, **config))
        assert f"`training.warmup_steps` is 5 and the run has {steps} steps" in note
    assert started_notes(tiny(tmp_path / "run", training__max_steps=6, **config)) == ()


def test_a_step_that_takes_more_batches_than_an_epoch_has_is_named(tmp_path):
    config = {"training__warmup_steps": 0, "training__eval_steps": 1, "training__save_steps": None}
    config |= {"training__max_steps": 1, "training__max_tokens_per_batch": 1000}
    (note,) = started_notes(tiny(tmp_path / "run", training__gradient_accumulation_steps=5, **config))
    assert "is 5, and an epoch has" in note
    assert note.endswith("each step is a whole epoch")
    assert started_notes(tiny(tmp_path / "other", **config)) == ()


@pytest.mark.parametrize("warmup", [50, 500])
def test_check_says_so_without_reading_the_data(tmp_path, monkeypatch, capsys, warmup):
    config = tiny(tmp_path / "run", training__max_steps=100, training__warmup_steps=warmup, training__eval_steps=10)
    tables = config.to_dict()
    lines = [
        f"[{table}]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in keys.items() if value != {})
        for table, keys in tables.items()
    ]
    (tmp_path / "run.toml").write_text("\n".join(lines), "utf-8")
    monkeypatch.setattr(sys, "argv", ["regard", "train", str(tmp_path / "run.toml"), "--check"])
    with pytest.raises(SystemExit) as ended:
        main()
    printed = capsys.readouterr()
    assert ended.value.code == 0, printed.err
    assert json.loads(printed.out) == tables
    assert "not set: training.num_train_epochs, training.early_stopping_patience" in printed.err
    assert ("never reaches 0.003, and is 0.000594 at its end" in printed.err) == (warmup == 500)
    assert not (tmp_path / "run").exists()
