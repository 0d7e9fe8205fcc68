"""Training over ranks that share the tokens of each row takes the steps of one process, dropout included."""

import json

import pytest
import trained_runs
from processes import TRAINED, marked
from safetensors.torch import load_file

from regard.train import read_log

on_few = pytest.mark.parametrize("computed", marked(TRAINED), indirect=True)
# A key's bias moves all scores of a row alike: its gradient is 0 but for rounding, which Adam makes large.
IGNORED = "k_proj.bias"


def compare(whole, sharded):
    """Each step's loss, norm and tokens, the scores, the first gradient and all parameters, relative to the largest."""
    ours, theirs = (
        [one for one in read_log(folder / "log.jsonl") if one["event"] != "started"] for folder in (whole, sharded)
    )
    for one, other in zip(ours, theirs, strict=True):
        assert one["event"] == other["event"]
        if one["event"] == "stepped":
            assert other["num_tokens"] == one["num_tokens"]
            assert other["loss"] == pytest.approx(one["loss"], rel=2e-6)
            assert other["grad_norm"] == pytest.approx(one["grad_norm"], rel=5e-6)
        assert other.get("scores", {}) == pytest.approx(one.get("scores", {}), rel=2e-6)
    for step in range(1, trained_runs.STEPS + 1):
        compare_tensors(whole, sharded, f"checkpoints/step-{step:08d}/model.safetensors", 2e-5)
    compare_tensors(whole, sharded, "checkpoints/step-00000001/optimizer.safetensors", 5e-6, among="exp_avg:")
    compare_tensors(whole, sharded, "model/model.safetensors", 2e-5)


def compare_tensors(whole, sharded, file, tolerance, among=""):
    ours, theirs = (load_file(one / file) for one in (whole, sharded))
    assert ours.keys() == theirs.keys()
    names = [name for name in ours if not name.endswith(IGNORED) and name.startswith(among)]
    assert names
    for name in names:
        assert (ours[name] - theirs[name]).abs().max() <= tolerance * ours[name].abs().max(), name


@pytest.fixture(scope="session")
def on_one_process(tmp_path_factory):
    """What gives the folder of a run on one process, which no other process resumes."""
    whole = tmp_path_factory.mktemp("whole")
    trained_runs.write_corpus(whole)

    def folder(name, **changes):
        if not (whole / name).exists():
            trained_runs.run(name, whole, **changes)
        return whole / name

    return folder


@on_few
def test_the_steps_are_those_of_one_process_also_after_another_number_of_ranks(computed, on_one_process):
    """A run that one process began is resumed on three ranks."""
    for into, name, changes in trained_runs.runs_on(computed.ranks):
        also = {"gradient_accumulation_steps": 2} if changes["context_parallel_size"] < computed.ranks else {}
        compare(on_one_process(name, **also), computed.folder / "trained" / into)


@on_few
def test_the_first_rank_alone_writes(computed, on_one_process):
    """As many lines and files as one process writes, and its record but for the key that differs."""
    into, name, _ = trained_runs.runs_on(computed.ranks)[0]
    folders = on_one_process(name), computed.folder / "trained" / into
    files = [sorted(str(one.relative_to(folder)) for one in folder.rglob("*")) for folder in folders]
    assert files[0] == files[1]
    records = [json.loads((one / "run.json").read_text("utf-8")) for one in folders]
    assert records[1]["config"]["training"].pop("context_parallel_size") == computed.ranks
    assert records[0]["config"]["training"].pop("context_parallel_size") == 1
    for one in records:
        one["config"]["training"].pop("output_dir")
        one["config"]["task"].pop("train_file")
    assert records[0]["config"] == records[1]["config"]
    assert records[0]["processes"] == records[1]["processes"] == 1
    assert len(records[1]["sessions"]) == 1
