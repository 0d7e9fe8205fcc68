"""The lab's machinery: verdicts, failures, files, the command."""

import io
import json
import os
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from rich.console import Console
from typer import Typer
from typer.testing import CliRunner

from regard.cli import lab as command
from regard.errors import InputError
from regard_lab.charts import Line, Lines
from regard_lab.claims import EXPERIMENTS
from regard_lab.experiment import Claim, Finding, Part, Setting, Verdict, overall
from regard_lab.report import plain, write
from regard_lab.running import choose, run_all, run_one
from sweeps import sweep


@dataclass(frozen=True)
class Made:
    """An experiment of the tests."""

    CLAIM: Claim
    fails: BaseException | None = None
    verdict: Verdict = Verdict.HOLDS

    def judge(self, numbers):
        return (Part("one", self.verdict),)

    def run(self, setting):
        setting.progress("working")
        if self.fails is not None:
            raise self.fails
        numbers = {"drawn": float(torch.rand(())), "threads": torch.get_num_threads(), "odd": [np.float32(1), np.inf]}
        chart = Lines("a title <b>", "a caption & more", "x", "y", (Line("線", (1.0, 2.0), (1.0, 4.0)),))
        return Finding(self.judge(numbers), numbers, "a key", "A text.", "A limit.", (chart,))


def made(number, **options):
    claim = Claim(number, f"claim-{number}", f"Claim <{number}>", "It is <i>said</i>.", "Somebody, arXiv:1706.03762")
    return Made(claim, **options)


WHOLES = [
    (["holds", "holds"], "holds"),
    (["does not hold", "does not hold"], "does not hold"),
    (["holds", "does not hold"], "holds within limits"),
    (["holds within limits"], "holds within limits"),
    (["needs a GPU"], "needs a GPU"),
    (["needs a GPU", "holds"], "holds"),
    ([], "needs a GPU"),
]


def test_a_whole_has_the_verdict_that_its_parts_agree_on():
    for case in sweep(WHOLES):
        with case as (verdicts, whole):
            assert overall([Part("", Verdict(one)) for one in verdicts]) == whole


def test_an_experiment_that_raises_is_told_of_and_the_others_go_on():
    first, second, third = run_all(
        [made(1, fails=ValueError("boom")), made(2, fails=InputError("a sentence")), made(3)], Setting()
    )
    assert (first.failed, first.problem) == (True, "ValueError: boom")
    assert "raise self.fails" in first.trace
    assert (second.problem, second.trace) == ("a sentence", "")
    assert third.finding.verdict == Verdict.HOLDS


def test_an_interruption_goes_through():
    with pytest.raises(KeyboardInterrupt):
        run_one(made(1, fails=KeyboardInterrupt()), Setting())


def test_random_numbers_depend_on_the_seed_alone_and_the_callers_are_left_as_they_were():
    torch.manual_seed(5)
    before = torch.get_rng_state()
    threads = torch.get_num_threads()
    alone = run_one(made(2), Setting(seed=3, threads=1)).finding.numbers
    _, after = run_all([made(1), made(2)], Setting(seed=3, threads=1))
    other = run_one(made(2), Setting(seed=4, threads=1)).finding.numbers
    assert alone["drawn"] == after.finding.numbers["drawn"] != other["drawn"]
    assert alone["threads"] == 1
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.get_num_threads() == threads


def test_claims_are_chosen_by_number_or_name_in_the_order_of_the_list():
    three = [made(1), made(2), made(7)]
    assert choose(three, ["7", "claim-1"]) == [three[0], three[2]]
    assert choose(three, []) == three
    with pytest.raises(InputError, match="there is no claim '3'; there are 1 claim-1, 2 claim-2, 7 claim-7"):
        choose(three, ["3"])


def test_the_claims_have_numbers_of_the_list_and_names_of_their_own():
    numbers = [one.CLAIM.number for one in EXPERIMENTS]
    assert numbers == sorted(set(numbers))
    assert set(numbers) <= set(range(1, 18))
    assert len({one.CLAIM.name for one in EXPERIMENTS}) == len(numbers)
    for one in EXPERIMENTS:
        assert isinstance(one, ModuleType)
        assert set(one.__all__) >= {"CLAIM", "judge", "run"}
        assert one.CLAIM.name.replace("-", "_") == one.__name__.rpartition(".")[2]


def test_the_json_has_every_number_and_what_they_were_made_with(tmp_path):
    setting = Setting(quick=True, seed=3, threads=1)
    results = list(run_all([made(1), made(2, fails=ValueError("boom"))], setting))
    write(tmp_path / "new", results, setting, planned=3)
    found = json.loads((tmp_path / "new" / "lab.json").read_text(encoding="utf-8"))
    assert (found["quick"], found["seed"], found["threads"], found["planned"]) == (True, 3, 1, 3)
    assert found["versions"]["torch"] == torch.__version__.partition("+")[0] or found["versions"]["torch"]
    assert found["machine"]["cores"] == os.cpu_count()
    one, two = found["claims"]
    assert (one["number"], one["verdict"], one["key"]) == (1, "holds", "a key")
    assert one["numbers"]["odd"] == [1.0, "inf"]
    assert one["parts"] == [{"text": "one", "verdict": "holds"}]
    assert (two["verdict"], two["problem"]) == (None, "ValueError: boom")


def test_plain_values_stay_and_others_become_plain():
    assert plain({"a": (1, 2.5, None, True, "x"), 2: np.arange(2)}) == {"a": [1, 2.5, None, True, "x"], "2": [0, 1]}


def test_files_are_whole_or_the_old_ones(tmp_path, monkeypatch):
    setting = Setting()
    write(tmp_path, [run_one(made(1), setting)], setting, planned=1)
    before = {name: (tmp_path / name).read_bytes() for name in ("index.html", "lab.json")}

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(InputError, match="No space left"):
        write(tmp_path, [run_one(made(2), setting)], setting, planned=1)
    assert {one.name: one.read_bytes() for one in tmp_path.iterdir()} == before


# --- the command


@pytest.fixture
def lab(monkeypatch, tmp_path):
    """Run `regard lab` over made-up claims, in a terminal of 80 columns."""
    app = Typer()
    app.command()(command.lab)
    claims = sys.modules["regard_lab.claims"]

    def run(*arguments, experiments=None, out=tmp_path / "out"):
        monkeypatch.setattr(claims, "EXPERIMENTS", experiments or (made(1), made(2)))
        options = ("--output-dir", str(out)) if out else ()
        return CliRunner().invoke(app, [*arguments, *options], env={"COLUMNS": "80", "TERMINAL_WIDTH": "80"})

    return run


def test_the_table_fits_eighty_columns_and_has_claim_verdict_number_and_seconds(lab, tmp_path):
    done = lab()
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert all(len(line) <= 80 for line in lines)
    assert lines[0].split() == ["claim", "verdict", "measured", "s"]
    assert "Claim <1>" in lines[1]
    assert "holds" in lines[1]
    assert "[" not in lines[1], "the verdict's colour is no text"
    assert "a key" in lines[1]
    assert (tmp_path / "out" / "index.html").exists()


def test_a_failure_is_told_and_ends_with_one(lab, tmp_path):
    done = lab(experiments=(made(1, fails=ValueError("boom [x]")), made(2)))
    assert done.exit_code == 1
    assert "1 claim-1 was not run: ValueError: boom [x]" in done.stderr
    assert [one["verdict"] for one in written(tmp_path)] == [None, "holds"]


def test_what_is_finished_is_there_after_ctrl_c(lab, tmp_path):
    done = lab(experiments=(made(1), made(2, fails=KeyboardInterrupt()), made(3)))
    assert done.exit_code == 130
    found = json.loads((tmp_path / "out" / "lab.json").read_text(encoding="utf-8"))
    assert [one["number"] for one in found["claims"]] == [1]
    assert found["planned"] == 3
    assert "2 more were to be run" in (tmp_path / "out" / "index.html").read_text(encoding="utf-8")


def test_one_claim_alone(lab, tmp_path):
    assert lab("claim-2").exit_code == 0
    assert [one["number"] for one in written(tmp_path)] == [2]


def test_the_list_runs_nothing(lab, tmp_path):
    done = lab("--list", experiments=(made(1, fails=ValueError("boom")),))
    assert done.exit_code == 0
    assert done.stdout == "  1  claim-1                Claim <1>\n"
    assert not (tmp_path / "out").exists()


def test_a_folder_that_is_a_file_is_refused_before_anything_runs(lab, tmp_path):
    (tmp_path / "file").write_text("")
    done = lab(experiments=(made(1, fails=AssertionError("it ran")),), out=tmp_path / "file")
    assert isinstance(done.exception, InputError)
    assert "must be a folder" in str(done.exception)


def written(tmp_path: Path):
    return json.loads((tmp_path / "out" / "lab.json").read_text(encoding="utf-8"))["claims"]


def test_titles_are_no_markup():
    console = Console(width=80, record=True, file=io.StringIO())
    claim = replace(made(1).CLAIM, title="[red]A title")
    console.print(command._table([run_one(Made(claim), Setting())]))
    assert "[red]A title" in console.export_text()
