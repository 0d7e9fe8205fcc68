"""What a run meets that is not as it should be: each of these went wrong once, most of them without a word."""

import json
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from regard.data import Tokenizer
from regard.errors import InputError
from regard.files import write_folder
from regard.train import JsonlLog, Translator, read_log, train
from regard.train.callbacks import Evaluated, Sample, Started
from regard.train.checkpoints import Checkpoints, TrainerState
from regard.train.config import Training, read_config, task_of
from regard.train.loss_and_optimizer import Schedule, SchedulerKwargs
from regard.train.run_dir import Folder
from regard.train.tasks.synthetic import SyntheticTask
from sweeps import sweep
from train.runs import tiny

WHOLE = '[task]\ntype = "synthetic"\ntask_name = "sort"\n[training]\noutput_dir = "run"\nnum_train_epochs = 2\n'


@pytest.fixture
def pairs(tmp_path):
    path = tmp_path / "pairs.tsv"
    path.write_text("".join(f"{a} {b} {a}\t{b} {a}!\n" for a in "abcdefgh" for b in "ijklmnop"), "utf-8")
    return path


def translation(pairs, **more):
    tokenizer = {"model_type": "char", "vocab_size": 40}
    found = {"type": "translation", "train_file": str(pairs), "validation_size": 5, "target_lang": "de"}
    found |= {"max_predict_samples": 0, "num_completions_to_print": 0}
    return found | {"src_tokenizer": tokenizer, "tgt_tokenizer": tokenizer} | more


FEW = {
    "training__max_steps": 2,
    "training__save_steps": None,
    "training__eval_steps": None,
    "training__max_tokens_per_batch": 60,
}


# Starting


def test_a_loss_of_tensors_that_the_model_does_not_have_is_refused_before_a_step(tmp_path, pairs):
    gain = torch.nn.Parameter(torch.ones(1))

    def multiply(module, _, output):
        return output * gain if isinstance(module, torch.nn.Linear) else None

    hook = torch.nn.modules.module.register_module_forward_hook(multiply)
    try:
        with pytest.raises(InputError, match=r"1 tensors .*does not have, of shape \(1,\).*ValueModule"):
            train(tiny(tmp_path / "run", task=translation(pairs), **FEW))
    finally:
        hook.remove()
    assert Checkpoints(tmp_path / "run" / "checkpoints").steps() == []
    train(tiny(tmp_path / "run", task=translation(pairs), **FEW))


def test_what_a_start_that_failed_has_left_binds_nobody(tmp_path, pairs):
    """A vocabulary of 12 tokens lay there, of a run that took no step, and one of 40 was asked for."""
    small = translation(pairs, src_tokenizer={"model_type": "char", "vocab_size": 12})
    with pytest.raises(InputError, match=r"`max_tokens_per_batch` must be at least"):
        train(tiny(tmp_path / "run", task=small, **FEW | {"training__max_tokens_per_batch": 2}))
    train(tiny(tmp_path / "run", task=translation(pairs), **FEW))
    assert len(Tokenizer.load(tmp_path / "run" / "model" / "source.json")) > 12
    assert (
        json.loads((tmp_path / "run" / "run.json").read_text("utf-8"))["config"]["training"]["max_tokens_per_batch"]
        == 60
    )


def test_what_lies_in_the_way_is_refused_before_a_step(tmp_path_factory):
    for case in sweep(["checkpoints", "model", "log.jsonl", "run.json", "curves.svg"]):
        with case as name:
            tmp_path = tmp_path_factory.mktemp("case")
            path, folder = tmp_path / "run" / name, "." not in name
            (path.parent if folder else path).mkdir(parents=True)
            if folder:
                path.write_text("")
            kind = "a folder and is a file" if folder else "a file and is none"
            with pytest.raises(
                InputError, match=rf"run/{name} must be {kind}: move it, or name another folder as `output_dir`"
            ):
                Folder(tmp_path / "run", tiny(tmp_path / "run"))


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    """A run of two steps, of three that are asked for."""
    out = tmp_path_factory.mktemp("begun") / "run"
    stops = iter([False, True]).__next__
    train(tiny(out, training__max_steps=3), [JsonlLog(out / "log.jsonl")], should_stop=stops)
    return out


def going_on(begun, tmp_path):
    shutil.copytree(begun, out := tmp_path / "run")
    return out, tiny(out, training__max_steps=3), JsonlLog(out / "log.jsonl")


def test_a_record_of_a_run_with_other_contents_is_refused_by_name(begun, tmp_path_factory):
    cases = [
        ("sessions", 3, '"sessions" must be a list, got 3'),
        ("processes", "one", "\"processes\" must be a whole number, got 'one'"),
        ("data", {"text": 5}, "\"data\" must be the hashes of files, got {'text': 5}"),
        ("data", None, '"data" must be the hashes of files, got None'),
        (
            "version",
            1,
            "it is of format 1, and this release reads format 2",
        ),
        ("version", 2.0, r"it is of format 2\.0, and this release reads format 2"),
        ("version", True, "it is of format True, and this release reads format 2"),
        ("config", [], "it has no configuration"),
        ("config", None, "it has no configuration"),
    ]
    for case in sweep(cases):
        with case as (name, value, words):
            tmp_path = tmp_path_factory.mktemp("case")
            out, config, _ = going_on(begun, tmp_path)
            about = json.loads((out / "run.json").read_text("utf-8"))
            (out / "run.json").write_text(json.dumps(about | {name: value}), "utf-8")
            with pytest.raises(
                InputError, match=rf"cannot read .*run\.json: {words}; name another folder as `output_dir`"
            ):
                Folder(out, config)


def test_a_record_of_a_run_that_is_no_object_is_refused(begun, tmp_path):
    out, config, _ = going_on(begun, tmp_path)
    for text in ("3", "[]", "null", "[" * 100_000):
        (out / "run.json").write_text(text, "utf-8")
        with pytest.raises(InputError, match=r"cannot read .*run\.json: "):
            Folder(out, config)


def test_what_is_missing_of_a_log_is_said_when_a_run_goes_on(begun, tmp_path):
    out, _config, log = going_on(begun, tmp_path)
    shutil.copy(log.path, tmp_path / "whole")
    started = Started(out, 2, 3, 9)
    log(started)
    assert log.note == ""
    lines = (tmp_path / "whole").read_text("utf-8").splitlines(keepends=True)
    gone, cut = "is gone or empty: the curves lack steps 1 to 2", "ends with step 1: the curves lack steps 2 to 2"
    for content, words in (("", gone), (None, gone), (lines[:2], cut)):
        log.path.unlink()
        if content is not None:
            log.path.write_text("".join(content), "utf-8")
        again = JsonlLog(log.path)
        again(started)
        assert again.note == f"{log.path} {words}"
    new = JsonlLog(tmp_path / "new.jsonl")
    new(Started(out, 0, 3, 9))
    assert new.note == ""


@pytest.mark.slow
def test_a_second_process_in_the_same_folder_is_refused(tmp_path):
    told, script = (
        [],
        (
            "import sys; sys.path.insert(0, sys.argv[1]); from train.runs import tiny; from pathlib import Path\n"
            "from regard.train import train; from regard.errors import InputError\n"
            "try: train(tiny(Path(sys.argv[2])))\nexcept InputError as problem: print(problem)"
        ),
    )

    def other(event):
        if isinstance(event, Evaluated) and not told:
            asked = [
                sys.executable,
                "-W",
                "ignore",
                "-c",
                script,
                str(Path(__file__).parents[1]),
                str(tmp_path / "run"),
            ]
            told.append(subprocess.run(asked, capture_output=True, text=True, timeout=60).stdout)

    train(tiny(tmp_path / "run"), [other])
    assert told[0].startswith("another process trains in")
    assert train(tiny(tmp_path / "run", training__max_steps=13)).step == 13  # and is held no longer than that


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU computes in fp16")
def test_fp16_without_a_gpu_is_refused(tmp_path):
    with pytest.raises(InputError, match='"fp16" needs a GPU'):
        train(tiny(tmp_path / "run", training__mixed_precision="fp16"))


def test_bleu_is_no_metric_where_it_is_not_counted(tmp_path, pairs):
    with pytest.raises(
        InputError, match=r"`training.metric_for_best_model` is bleu, and `task.max_predict_samples` is 0"
    ):
        train(
            tiny(
                tmp_path / "run", task=translation(pairs), training__metric_for_best_model="bleu", training__max_steps=1
            )
        )


def test_a_translation_of_format_1_is_refused(tmp_path):
    (tmp_path / "translation.json").write_text('{"languages": ["en", "zh"], "script": "hans"}', "utf-8")
    with pytest.raises(InputError, match=r"translation\.json: it is of format 1, and this release reads format 2"):
        Translator.load(tmp_path)
    (tmp_path / "translation.json").write_text('{"version": 2.0, "script": "hans"}', "utf-8")
    with pytest.raises(InputError, match=r"translation\.json: it is of format 2\.0, and this release reads format 2"):
        Translator.load(tmp_path)


def test_two_files_of_one_name_are_both_known(tmp_path, pairs):
    other = tmp_path / "other" / "pairs.tsv"
    other.parent.mkdir()
    other.write_text("something new\tneu\n", "utf-8")
    task = task_of(tiny(tmp_path / "run", task=translation(pairs, extra_train_file=str(other))), tmp_path / "words")
    assert len({one for name, one in task.data.items() if "pairs.tsv" in name and "rows" not in name}) == 2


# Training


def test_held_out_rows_may_be_longer_than_a_batch(tmp_path, monkeypatch):
    usual = SyntheticTask.take
    monkeypatch.setattr(SyntheticTask, "take", lambda self, trained, held: usual(self, trained, [([5] * 90, [6] * 90)]))
    assert math.isfinite(train(tiny(tmp_path / "run", training__max_steps=1)).scores["loss"])


def test_compiled_code_is_not_watched(tmp_path, pairs, monkeypatch):
    """torch.compile is replaced: what is claimed is that nothing watches a model that went through it."""
    monkeypatch.setattr(
        torch.nn.Module, "compile", lambda self, **_: setattr(self, "_compiled_call_impl", self._call_impl)
    )
    train(
        tiny(
            tmp_path / "run",
            task=translation(pairs, num_completions_to_print=1),
            **FEW | {"training__torch_compile": True},
        )
    )


def test_a_score_that_is_no_number_is_never_the_best():
    scores = ({"step": 1, "loss": math.nan}, {"step": 2, "loss": 3.0}, {"step": 3, "loss": math.nan})
    assert TrainerState(scores=scores).best("loss", False)["step"] == 2
    assert TrainerState(scores=scores).best("loss", True)["step"] == 2


def test_a_checkpoint_in_half_precision_is_trained_in_single(tmp_path, pairs):
    data = tmp_path / "labels.tsv"
    data.write_text("".join(f"{a} {b}\t{a > 'd'}\n" for a in "abcdefgh" for b in "ijkl"), "utf-8")
    task = {"type": "classification", "train_file": str(data), "validation_size": 4}
    task |= {"tokenizer": {"model_type": "char", "vocab_size": 40}}
    train(tiny(tmp_path / "run", task=task, **FEW))
    from regard.models import Transformer

    folder = tmp_path / "half"
    Transformer.from_pretrained(tmp_path / "run" / "model").to(torch.bfloat16).save_pretrained(folder)
    (folder / "tokenizer.json").write_bytes((tmp_path / "run" / "model" / "tokenizer.json").read_bytes())
    config = tiny(tmp_path / "on", task=task, model={"type": "checkpoint", "model_name_or_path": str(folder)}, **FEW)
    model = task_of(config, tmp_path / "words").model(config.model)
    assert {one.dtype for one in model.parameters()} == {torch.float32}


def test_another_precision_in_the_same_process_is_one_sentence(tmp_path):
    """accelerate keeps the first for as long as a process lives."""
    train(tiny(tmp_path / "one", training__max_steps=1))
    with pytest.raises(
        InputError, match=r"`training.mixed_precision` bf16 is not available in this process: AcceleratorState has"
    ):
        train(tiny(tmp_path / "other", training__max_steps=1, training__mixed_precision="bf16"))


def test_what_is_held_out_is_hidden_alike_in_every_batch(tmp_path):
    data = tmp_path / "texts.txt"
    data.write_text("".join(f"abc def {i} {i * i}\n" for i in range(80)), "utf-8")
    task = {"type": "mlm", "train_file": str(data), "validation_size": 9}
    task |= {"tokenizer": {"model_type": "char", "vocab_size": 30}}
    made = task_of(tiny(tmp_path / "run", task=task), tmp_path / "words")
    together = made.rows(list(range(9)), held=made.held)
    for row in range(9):
        alone = made.rows([row], held=made.held)
        length = alone.labels.shape[1]
        assert torch.equal(alone.labels[0], together.labels[row, :length])
        assert torch.equal(alone.inputs["input_ids"][0], together.inputs["input_ids"][row, :length])


def test_a_text_that_is_too_long_is_named_before_any_is_translated(tmp_path, pairs):
    train(tiny(tmp_path / "run", task=translation(pairs), model__positions="learned", **FEW))
    translator, done = Translator.load(tmp_path / "run"), []
    with pytest.raises(InputError, match="text 2 has 201 tokens, and this model has positions for 12"):
        translator.translate(["a b", "a" * 200], progress=done.append, batch_size=1)
    assert not done


# Going on


def test_an_average_over_checkpoints_that_are_gone_is_refused(tmp_path, monkeypatch):
    """It took the best one, kept from long ago, for one of the last."""
    scores = iter([1.0] + [2.0] * 20)
    monkeypatch.setattr(SyntheticTask, "evaluate", lambda self, model, *_: {"loss": next(scores), "exact": 0.0})
    options = {"training__eval_steps": 1, "training__save_steps": None}
    train(tiny(tmp_path / "run", training__max_steps=6, training__save_total_limit=1, **options))
    assert Checkpoints(tmp_path / "run" / "checkpoints").steps() == [1, 6]
    with pytest.raises(
        InputError,
        match=r"checkpoints of step 5, 6, and that of step 5 is gone: set `training.num_averaged_checkpoints`",
    ):
        train(
            tiny(
                tmp_path / "run",
                training__max_steps=6,
                training__save_total_limit=2,
                training__num_averaged_checkpoints=2,
                **options,
            )
        )
    assert (
        train(
            tiny(
                tmp_path / "run",
                training__max_steps=7,
                training__save_total_limit=2,
                training__num_averaged_checkpoints=2,
                **options,
            )
        ).step
        == 7
    )


def test_a_metric_that_earlier_evaluations_lack_is_refused(tmp_path, pairs):
    train(tiny(tmp_path / "run", task=translation(pairs), **FEW))
    with pytest.raises(
        InputError,
        match=r"`training.metric_for_best_model` is bleu, which earlier evaluations of this run did not compute",
    ):
        train(
            tiny(
                tmp_path / "run",
                task=translation(pairs, max_predict_samples=2),
                training__metric_for_best_model="bleu",
                **FEW,
            )
        )


def test_another_vocabulary_is_refused(tmp_path, pairs):
    """As many tokens, and each means something else: no shape tells."""
    train(tiny(tmp_path / "run", task=translation(pairs), **FEW))
    path = tmp_path / "run" / "checkpoints" / "source.json"
    path.write_text(path.read_text("utf-8").replace('"a"', '"?"').replace('"b"', '"a"').replace('"?"', '"b"'), "utf-8")
    with pytest.raises(InputError, match=r"the data of 'source.json' has changed since this run was started"):
        train(tiny(tmp_path / "run", task=translation(pairs), **FEW | {"training__max_steps": 3}))


def test_a_copy_of_a_checkpoint_is_none(tmp_path):
    train(tiny(tmp_path / "run", training__max_steps=2))
    folder = tmp_path / "run" / "checkpoints"
    (folder / "step-00000002").rename(folder / "step-00000002 copy")
    assert Checkpoints(folder).steps() == [1]


def test_a_folder_is_replaced_without_waiting_for_the_old_ones_end(tmp_path, monkeypatch):
    """Killed while the old folder is removed, the new one is there."""
    import shutil

    target, seen = tmp_path / "it", []
    write_folder(target, lambda folder: (folder / "a").write_text("old", "utf-8"))
    usual = shutil.rmtree
    monkeypatch.setattr(shutil, "rmtree", lambda path, **given: seen.append(target.exists()) or usual(path, **given))
    write_folder(target, lambda folder: (folder / "a").write_text("new", "utf-8"))
    assert seen == [True]
    assert (target / "a").read_text("utf-8") == "new"


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"model": {"type": "recurrent", "embedding_dim": 8, "hidden_size": 8, "attention": kind}}
        for kind in ("bahdanau", "none", "concat", "local-p")
    ]
    + [
        {
            "model": {
                "type": "transformer",
                "hidden_size": 16,
                "num_attention_heads": 2,
                "intermediate_size": 16,
                "num_hidden_layers": 1,
                "positions": kind,
            }
        }
        for kind in ("learned", "t5", "alibi", "shaw", "rope", "none")
    ],
    ids=lambda one: "-".join(map(str, one["model"].values())),
)
def test_every_model_goes_on_from_its_checkpoint(tmp_path, options):
    train(tiny(tmp_path / "whole", training__max_steps=4, **options))
    train(tiny(tmp_path / "run", training__max_steps=2, **options))
    assert train(tiny(tmp_path / "run", training__max_steps=4, **options)).step == 4
    one, other = (Checkpoints(tmp_path / name / "checkpoints").weights(4) for name in ("whole", "run"))
    assert all(torch.equal(one[name], other[name]) for name in one)


# The log


def told(path, said):
    journal = JsonlLog(path)
    journal(Started(path.parent, 0, 2, 5))
    journal(Evaluated(1, 0, {"loss": 1.0}, True, 0.1, (Sample("a", said, "b"),)))
    return journal


def test_a_sample_may_hold_line_separators_of_unicode(tmp_path):
    path = tmp_path / "log.jsonl"
    journal = told(path, "one\u2028two\x85three")
    journal(Started(tmp_path, 1, 2, 5))
    assert read_log(path)[1]["samples"][0]["prediction"] == "one\u2028two\x85three"


def test_a_log_that_is_cut_within_a_character_goes_on(tmp_path):
    path = tmp_path / "log.jsonl"
    journal = told(path, "图书馆")
    with path.open("ab") as file:
        file.write('{"event": "evaluated", "prediction": "图'.encode()[:-1])
    journal(Started(tmp_path, 1, 2, 5))
    assert [one["event"] for one in read_log(path)] == ["started", "evaluated", "started"]


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no limits of this kind")
def test_a_line_of_the_log_that_does_not_fit_on_the_disk_is_taken_back(tmp_path):
    """Half of it would stand before the next event."""
    import resource

    path = tmp_path / "log.jsonl"
    journal = told(path, "it")
    whole, before = path.read_bytes(), resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(whole) + 10, before[1]))
        with pytest.raises(InputError, match=r"cannot write .*log.jsonl: "):
            journal(Evaluated(2, 0, {"loss": 1.0}, True, 0.1))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert path.read_bytes() == whole
    journal(Evaluated(3, 0, {"loss": 1.0}, True, 0.1))
    assert [event["step"] for event in read_log(path)] == [0, 1, 3]


def test_a_log_that_cannot_be_written_again_is_one_sentence(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    path = tmp_path / "log.jsonl"
    journal = told(path, "it")
    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(
        InputError, match=r"cannot write .*log.jsonl: No space left on device; the checkpoints are whole"
    ):
        journal(Started(tmp_path, 1, 2, 5))


# Configurations


def test_an_optimizers_numbers_are_checked():
    cases = [
        ({"adam_beta2": 1.5}, "`adam_beta2` must be below 1, got 1.5"),
        ({"adam_epsilon": -1.0}, "`adam_epsilon` must be above 0"),
        ({"adam_epsilon": 0.0}, "`adam_epsilon` must be above 0"),
        ({"weight_decay": -0.1}, "`weight_decay` must be at least 0"),
        ({"weight_decay": math.nan}, "`weight_decay` must be a finite number, got nan"),
        ({"max_grad_norm": math.nan}, "`max_grad_norm` must be a finite number, got nan"),
    ]
    for case in sweep(cases):
        with case as (given, words), pytest.raises(InputError, match=words):
            Training(output_dir="run", max_steps=1, **given)


def test_a_floor_that_is_no_share_is_refused():
    for case in sweep(
        [(-1.0, "at least 0, got -1"), (2.0, "at most 1, got 2"), (math.nan, "a finite number, got nan")]
    ):
        with case as (floor, rule), pytest.raises(InputError, match=f"`min_lr_rate` must be {rule}"):
            SchedulerKwargs(min_lr_rate=floor)


def test_a_folder_without_a_name_is_refused(tmp_path):
    path = tmp_path / "it.toml"
    path.write_text(WHOLE.replace('"run"', '" "'), "utf-8")
    with pytest.raises(InputError, match="`output_dir` must name the folder of the run"):
        read_config(path)


def test_what_is_said_before_the_kind_is_said_too(tmp_path):
    path = tmp_path / "it.toml"
    path.write_text(WHOLE + '[model]\ntype = "transformer"\nnum_attention_heads = 2\n', "utf-8")
    found = read_config(path, ["--model.hidden_size", "96", "--model.type", "recurrent"])
    assert found.model.hidden_size == 96


def test_a_table_that_was_a_word_may_be_given_in_keys(tmp_path):
    path = tmp_path / "it.toml"
    path.write_text(WHOLE.replace('type = "synthetic"\ntask_name = "sort"', 'type = "clm"\ntrain_file = "a"'), "utf-8")
    found = read_config(path, ["--task.tokenizer", "unigram", "--task.tokenizer.vocab_size", "50"])
    assert (found.task.tokenizer.model_type, found.task.tokenizer.vocab_size) == ("unigram", 50)
    given = ["--lr_scheduler_type", "cosine_with_min_lr", "--training.lr_scheduler_kwargs.min_lr_rate", "0.5"]
    found = read_config(path, given)
    assert found.training.schedule == Schedule("cosine_with_min_lr", 1000, SchedulerKwargs(min_lr_rate=0.5))


@pytest.mark.slow
def test_mixed_precision_trains_in_a_process_of_its_own(tmp_path):
    """accelerate converts what the model returns, and keeps the first precision for as long as a process lives."""
    code = (
        "from pathlib import Path; from regard.train import train; from train.runs import tiny;"
        f"train(tiny(Path({str(tmp_path / 'run')!r}), training__max_steps=2, training__mixed_precision='bf16'))"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])}
    ran = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr[-2000:]
    assert (tmp_path / "run" / "model" / "model.safetensors").exists()
