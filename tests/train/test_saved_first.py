"""Nothing after the last step withholds the model, and nothing beside an evaluation stops a run or loses steps."""

import json
import math
import os
import sys

import pytest
import torch
from safetensors.torch import load_file

from regard.cli import main
from regard.errors import InputError
from regard.models import Transformer
from regard.train import Curves, JsonlLog, Translator, train
from regard.train.callbacks import Ended, Evaluated, Saved, Stepped
from regard.train.checkpoints import Checkpoints
from regard.train.tasks import Task
from regard.train.tasks.synthetic import SyntheticTask
from train.runs import tiny


def failing(*_, **__):
    raise OSError("no ink")


def failing_at(event_type, number=1):
    """A callback that fails at the n-th event of a type, by a name that a warning can have."""
    seen = []

    def drawing_by_hand(event):
        if isinstance(event, event_type):
            seen.append(event)
            if len(seen) >= number:
                failing()

    return drawing_by_hand


def weights_of(folder):
    return load_file(folder / "model.safetensors")


def short(folder, **more):
    """Three steps, an evaluation after the second and the last."""
    return tiny(folder, **{"training__max_steps": 3, "training__eval_steps": 2, "training__save_steps": None} | more)


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


# What fails, where it is, and how the warning names it.
DECORATIONS = {
    "samples": (SyntheticTask, "samples", "the list of samples is left out"),
    "figure": (Task, "draw", "the figure of the model's attention is left out"),
    "final scores": (Task, "final", "scores.json is left out"),
    "generated texts": (Transformer, "search", "the score exact is left out"),
    "old checkpoints": (Checkpoints, "prune", "removing old checkpoints is left out"),
    "evaluation": (SyntheticTask, "evaluate", "the evaluation of step 3 is left out"),
}


@pytest.mark.parametrize("name", DECORATIONS)
def test_the_model_is_saved_whatever_fails_after_the_last_step(tmp_path, monkeypatch, name):
    owner, method, warning = DECORATIONS[name]
    with monkeypatch.context() as patch:
        patch.setattr(owner, method, failing)
        ended = train(short(tmp_path / "run", training__eval_steps=3))
    assert (ended.step, ended.reason, ended.model) == (3, "max_steps", tmp_path / "run" / "model")
    assert any(text.startswith(warning) and text.endswith("OSError: no ink") for text in ended.warnings), ended.warnings
    saved = weights_of(tmp_path / "run" / "model")
    assert same(saved, weights_of(tmp_path / "run" / "checkpoints" / "step-00000003"))
    again = train(short(tmp_path / "run", training__eval_steps=3))  # the same command, where nothing fails
    assert (again.reason, again.warnings) == ("max_steps", ())
    assert {"loss", "exact"} <= again.scores.keys()
    assert json.loads((tmp_path / "run" / "model" / "scores.json").read_text("utf-8"))["scores"] == again.scores
    assert same(saved, weights_of(tmp_path / "run" / "model"))


@pytest.mark.parametrize(("event_type", "number"), [(Stepped, 3), (Evaluated, 2), (Saved, 2), (Ended, 1)])
def test_a_callback_that_fails_after_the_last_step_withholds_nothing(tmp_path, event_type, number):
    others = []
    ended = train(short(tmp_path / "run"), [failing_at(event_type, number), others.append])
    assert (tmp_path / "run" / "model" / "scores.json").is_file()
    (warning,) = ended.warnings
    assert "drawing_by_hand is left out: OSError: no ink" in warning
    assert isinstance(others[-1], Ended)  # the others have every event


def test_curves_that_cannot_be_drawn_are_named(tmp_path):
    log = JsonlLog(tmp_path / "run" / "log.jsonl")
    ended = train(short(tmp_path / "run"), [log, Curves(log.path, tmp_path / "nowhere" / "curves.svg")])
    assert ended.model is not None
    assert [text.split(":")[0] for text in ended.warnings] == ["curves.svg is left out"]
    assert json.loads(log.path.read_text("utf-8").splitlines()[-1])["event"] == "ended"


def test_a_run_that_is_stopped_ends_well_without_its_figure(tmp_path, monkeypatch):
    monkeypatch.setattr(Task, "draw", failing)
    ended = train(short(tmp_path / "run"), should_stop=lambda: True)
    assert (ended.step, ended.reason) == (1, "should_stop")
    assert len(ended.warnings) == 1


def test_ctrl_c_in_a_figure_stops_and_the_model_is_there(tmp_path, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(Task, "draw", interrupted)
    with pytest.raises(KeyboardInterrupt):
        train(short(tmp_path / "run"))
    assert (tmp_path / "run" / "model" / "model.safetensors").is_file()


def test_the_model_is_there_while_its_final_scores_are_computed(tmp_path, monkeypatch):
    usual, there = Task.final, []

    def final(self, *given):
        there.append((tmp_path / "run" / "model" / "model.safetensors").is_file())
        return usual(self, *given)

    monkeypatch.setattr(Task, "final", final)
    train(short(tmp_path / "run"))
    assert there == [True]


def test_scores_of_the_same_model_stay_where_they_cannot_be_computed_again(tmp_path, monkeypatch):
    train(short(tmp_path / "run"))
    before = (tmp_path / "run" / "model" / "scores.json").read_bytes()
    monkeypatch.setattr(Task, "final", failing)
    assert len(train(short(tmp_path / "run")).warnings) == 1
    assert (tmp_path / "run" / "model" / "scores.json").read_bytes() == before


@pytest.mark.parametrize(("owner", "method"), [(SyntheticTask, "samples"), (Transformer, "search")])
def test_what_decorates_an_evaluation_stops_no_run(tmp_path, monkeypatch, owner, method):
    undisturbed = train(short(tmp_path / "undisturbed"))
    events = []
    with monkeypatch.context() as patch:
        patch.setattr(owner, method, failing)
        train(short(tmp_path / "run"), [events.append])
    evaluated = [event for event in events if isinstance(event, Evaluated)]
    assert [event.step for event in evaluated] == [2, 3]
    assert all(event.warnings and not event.samples for event in evaluated)
    assert same(*(weights_of(tmp_path / run / "model") for run in ("undisturbed", "run")))
    assert undisturbed.scores["loss"] == evaluated[-1].scores["loss"]


def test_a_score_that_chooses_the_best_model_is_no_decoration(tmp_path, monkeypatch):
    config = {"training__metric_for_best_model": "exact"}
    with monkeypatch.context() as patch:
        patch.setattr(Transformer, "search", failing)
        with pytest.raises(OSError, match="no ink"):
            train(short(tmp_path / "run", **config))
    assert Checkpoints(tmp_path / "run" / "checkpoints").steps() == [2]  # no step is lost
    resumed, undisturbed = train(short(tmp_path / "run", **config)), train(short(tmp_path / "undisturbed", **config))
    assert (resumed.scores, resumed.warnings) == (undisturbed.scores, ())
    assert same(*(weights_of(tmp_path / run / "model") for run in ("undisturbed", "run")))


@pytest.mark.parametrize("fails", ["evaluation", "callback"])
def test_an_error_at_an_evaluation_loses_no_step_and_the_run_resumes_with_the_same_bits(tmp_path, monkeypatch, fails):
    events = []
    with monkeypatch.context() as patch:
        if fails == "evaluation":
            patch.setattr(SyntheticTask, "evaluate", failing)
        with pytest.raises(OSError, match="no ink"):
            train(short(tmp_path / "run"), [failing_at(Evaluated)] if fails == "callback" else [])
    assert Checkpoints(tmp_path / "run" / "checkpoints").steps() == [2]
    train(short(tmp_path / "run"), [events.append])
    steps = [event.step for event in events if isinstance(event, Evaluated)]
    assert steps == ([2, 3] if fails == "evaluation" else [3])
    train(short(tmp_path / "undisturbed"))
    assert same(*(weights_of(tmp_path / run / "model") for run in ("undisturbed", "run")))
    assert same(*(weights_of(tmp_path / run / "checkpoints" / "step-00000003") for run in ("undisturbed", "run")))


def test_a_step_is_saved_before_the_error_of_a_callback_ends_the_run(tmp_path):
    """No checkpoint is due at step 4: without it, three steps would have been taken for nothing."""
    config = {"training__max_steps": 9, "training__eval_steps": 9}
    with pytest.raises(OSError, match="no ink"):
        train(short(tmp_path / "run", **config), [failing_at(Stepped, 4)])
    assert Checkpoints(tmp_path / "run" / "checkpoints").steps() == [4]
    steps = []
    train(
        short(tmp_path / "run", **config), [lambda event: steps.append(event) if isinstance(event, Stepped) else None]
    )
    assert [event.step for event in steps] == [5, 6, 7, 8, 9]
    train(short(tmp_path / "undisturbed", **config))
    assert same(*(weights_of(tmp_path / run / "model") for run in ("undisturbed", "run")))


def test_a_full_disk_names_the_last_checkpoint_whatever_met_it_first(tmp_path, monkeypatch):
    """The log meets it first; the checkpoint of that step cannot be written either."""

    def full(*_):
        raise OSError(28, "No space left on device")

    def fill(event):
        if isinstance(event, Stepped) and event.step == 4:
            monkeypatch.setattr(os, "replace", full)
            full()

    with monkeypatch.context() as monkeypatch, pytest.raises(InputError) as caught:
        train(tiny(tmp_path / "run", training__save_steps=2), [fill])
    assert "No space left on device; the last good checkpoint is that of step 2; make room and start" in str(
        caught.value
    )
    assert Checkpoints(tmp_path / "run" / "checkpoints").steps() == [2]
    assert train(tiny(tmp_path / "run", training__save_steps=2)).step == 12


def test_whatever_cannot_be_written_the_last_checkpoint_is_named(tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    states = ["there is no checkpoint yet", "the last good checkpoint is that of step 2"]
    for state in states:
        config = tiny(tmp_path / "run", training__max_steps=2 if state == states[0] else 3, training__save_steps=None)
        for name in ("replace", "fsync"):  # of run.json, or of the files beside the checkpoints
            with monkeypatch.context() as patch:
                patch.setattr(os, name, full)
                with pytest.raises(InputError) as caught:
                    train(config)
            assert str(caught.value).count(state) == 1
            assert "No space left on device" in str(caught.value)
        with monkeypatch.context() as patch:
            patch.setattr(os, "access", lambda path, _: not str(path).endswith("run"))
            with pytest.raises(InputError, match=rf"cannot be written in: .*; {state}; "):
                train(config)
        train(config, [JsonlLog(tmp_path / "run" / "log.jsonl")])
    with monkeypatch.context() as patch:  # the log is written anew where a run resumes
        usual = os.replace
        patch.setattr(os, "replace", lambda a, b: full() if str(b).endswith("log.jsonl") else usual(a, b))
        with pytest.raises(InputError, match=r"cannot write .*log.jsonl: No space .*checkpoint is that of step 3; "):
            train(tiny(tmp_path / "run", training__max_steps=4), [JsonlLog(tmp_path / "run" / "log.jsonl")])
    with pytest.raises(InputError) as caught:  # which has nothing to do with the disk
        train(tiny(tmp_path / "run", training__max_steps=3, training__seed=5))
    assert "the last good checkpoint" not in str(caught.value)


def test_a_run_whose_evaluation_failed_stops_early_where_an_undisturbed_one_does(tmp_path, monkeypatch):
    config = {"training__max_steps": 8, "training__eval_steps": 2, "training__early_stopping_patience": 1}
    config |= {"training__learning_rate": 1e-9}  # no evaluation is better than the first by a bit that counts
    evaluate, events = SyntheticTask.evaluate, []
    monkeypatch.setattr(SyntheticTask, "evaluate", lambda *given: evaluate(*given) | {"loss": 1.0})
    undisturbed = train(short(tmp_path / "undisturbed", **config))
    assert (undisturbed.reason, undisturbed.step) == ("early_stopping", 4)

    def second_fails(*given):
        return failing() if events else evaluate(*given) | {"loss": 1.0}

    def count(event):
        if isinstance(event, Evaluated):
            events.append(event)

    with monkeypatch.context() as patch:
        patch.setattr(SyntheticTask, "evaluate", second_fails)
        with pytest.raises(OSError, match="no ink"):
            train(short(tmp_path / "run", **config), [count])
    assert Checkpoints(tmp_path / "run" / "checkpoints").steps()[-1] == 4
    resumed = train(short(tmp_path / "run", **config))
    assert (resumed.reason, resumed.step) == ("early_stopping", 4)


def test_without_a_number_in_any_evaluation_the_model_is_that_of_the_last_step(tmp_path, monkeypatch):
    monkeypatch.setattr(SyntheticTask, "evaluate", lambda self, model, *_: {"loss": math.nan, "exact": 0.0})
    train(short(tmp_path / "run"))
    last = weights_of(tmp_path / "run" / "checkpoints" / "step-00000003")
    assert same(weights_of(tmp_path / "run" / "model"), last)


@pytest.fixture
def news(tmp_path):
    """Pairs of more words than an alignment has room for."""
    source, target = (
        ", ".join(["the economy grew faster than expected"] * 12),
        "，".join(["经济增长速度超过了预期"] * 12),
    )
    path = tmp_path / "news.tsv"
    path.write_text("".join(f"{source} ({n}).\t{target}（{n}）。\n" for n in range(20)), "utf-8")
    config = tmp_path / "run.toml"
    config.write_text(
        f'[task]\ntype = "translation"\ntrain_file = "{path}"\nvalidation_size = 3\nmax_length = 300\n'
        "max_predict_samples = 1\n"
        "[model]\nhidden_size = 16\nnum_attention_heads = 2\nintermediate_size = 16\nnum_hidden_layers = 1\n"
        f'[training]\noutput_dir = "{tmp_path / "run"}"\nmax_steps = 3\nmax_tokens_per_batch = 400\n',
        "utf-8",
    )
    return config


def test_a_translator_whose_alignment_is_too_long_is_saved_by_the_first_call_and_by_a_second(
    tmp_path, news, monkeypatch, capsys
):
    for _ in range(2):
        monkeypatch.setattr(sys, "argv", ["regard", "train", str(news)])
        with pytest.raises(SystemExit) as ended:
            main()
        printed = capsys.readouterr().err
        assert ended.value.code == 0, printed
        assert printed.count("warning: alignment.svg is left out: an alignment names up to 60 words") == 1
        assert "the model is in" in printed
        Translator.load(tmp_path / "run")
        assert not (tmp_path / "run" / "alignment.svg").exists()
        (tmp_path / "run" / "model" / "translation.json").unlink()  # so that the second call must write it


def test_bleu_that_cannot_be_computed_is_left_out_and_the_loss_is_not(tmp_path, news, monkeypatch):
    from regard.train import read_config

    monkeypatch.setattr(Translator, "translate", failing)
    ended = train(read_config(news))
    assert set(ended.scores) == {"loss"}
    assert {text.split(" is left out")[0] for text in ended.warnings} == {
        "the score bleu",
        "the list of samples",
        "BLEU and chrF of the final model",
        "alignment.svg",
    }
    assert (tmp_path / "run" / "model" / "scores.json").is_file()


def test_a_damaged_checkpoint_is_still_refused(tmp_path):
    train(short(tmp_path / "run"))
    (tmp_path / "run" / "checkpoints" / "step-00000003" / "model.safetensors").write_bytes(b"")
    with pytest.raises(InputError, match="cannot read the checkpoint"):
        train(short(tmp_path / "run"))
