"""`regard bench`, as a person runs it."""

import itertools
import json
import re
import time
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

import pytest
from typer.testing import CliRunner

import regard
import regard_bench.cases
from regard.cli.app import app
from regard.errors import MissingExtraError
from regard.hub import BundledModelError
from regard_bench.comparing import Pair, compare, compare_all
from regard_bench.machine_peak import PeakMeter
from regard_bench.rows import at_most
from regard_bench.shares import Peaks, Resource, Work
from regard_bench.timing import Ratio
from sweeps import sweep

SHARES = [
    "case          at           what                              measured target",
    "full, float32 4,096 tokens time / SDPA's                       2.00 ×  ≤ 0.8",
    "                                               21 % of peak (21 – 21)",
    "full, float32 4,096 keys   time / SDPA's                       2.00 ×  ≤ 0.8",
    "                                         150 % of memory (142 – 157),",
    "                                                             in cache",
    "float32 peak: 236 GFLOP/s (235 – 237); matrix products 201 (199 – 203)",
    "bfloat16 peak: not measured: the processor has no AVX-512 BF16",
    "memory's speed: 20.0 GB/s (19.0 – 21.0)",
]


def run(*arguments):
    return CliRunner().invoke(app, ["bench", *arguments], env={"COLUMNS": "80", "TERM": "dumb"})


def test_cases_are_listed_by_name():
    done = run("--list")
    assert done.exit_code == 0
    assert [line.split()[0] for line in done.output.splitlines()][:3] == ["dense", "bf16", "window"]
    assert all(line[:10].strip() and line[10] != " " for line in done.output.splitlines() if line[0] != " ")
    assert all(line.startswith(10 * " ") for line in done.output.splitlines() if line[0] == " ")
    assert max(map(len, done.output.splitlines())) <= 80


@pytest.fixture
def ticking(monkeypatch):
    """A clock of which each look takes a millisecond: as many calls are measured on any machine, and few."""
    ticks = itertools.count()
    monkeypatch.setattr(PeakMeter, "sample", lambda _: None)  # seconds; tests/bench has the limits of the machine
    monkeypatch.setattr(time, "perf_counter", lambda: 1e-3 * next(ticks))
    return ticks


def test_a_case_is_measured_and_written_with_its_page(tmp_path, ticking):
    out = tmp_path / "new.json"
    done = run("small", "--quick", "--out", str(out))
    assert done.exit_code == 0, done.output
    assert all(len(line) <= 80 for line in done.stdout.splitlines())
    found = json.loads(out.read_text())
    assert [one["unit"] for one in found["rows"]] == [*4 * ["µs"], "×"]
    assert all(one["rounds"] >= 5 for one in found["rows"])
    assert list(found["took"]) == ["small"]
    assert found["took"]["small"] > 0
    assert "small calls" in (tmp_path / "new.html").read_text()


@pytest.fixture
def clock(monkeypatch):
    """A clock that the tests turn, so that no ratio depends on what else this machine does: [seconds]."""
    seconds = [0.0]
    monkeypatch.setattr(PeakMeter, "sample", lambda _: None)  # it would wait for the clock
    monkeypatch.setattr(time, "perf_counter", lambda: seconds[0])
    return seconds


@dataclass
class Made:
    """A case with a call of 2 ms over one of 1 ms by a clock, and another; `slow` says when it takes 4 ms."""

    clock: list[float]

    slow: Literal["never", "at first", "always"] = "never"
    measured: list[str] = field(default_factory=list)
    name = "made"
    title = "made up"

    def rows(self, effort):
        for at in ("here", "there"):
            sides = {"regard": self.ours if at == "here" else self.theirs, "peer": self.theirs}
            row = compare(effort, "made", at, "time / time", sides, over=("regard", "peer"), target=at_most(9.0))
            self.measured += [at] * (row.ratio is not None)
            yield row

    def ours(self):
        slow = self.slow == "always" or (self.slow == "at first" and not self.measured)
        self.clock[0] += 4e-3 if slow else 2e-3

    def theirs(self):
        self.clock[0] += 1e-3


@pytest.fixture
def held_against(monkeypatch, tmp_path, clock):
    """Run a case of the tests against what it gave before."""

    def held(case, *, before=None, processors=(None,)):
        monkeypatch.setattr(regard_bench.cases, "CASES", (before or Made(clock),))
        earlier = tmp_path / "earlier.json"
        assert run("--quick", "--out", str(earlier)).exit_code == 0
        options = []
        for at, processor in enumerate(processors):
            results = json.loads(earlier.read_text())
            if processor is not None:
                results["machine"]["cpu"] = processor
            (one := tmp_path / f"earlier-{at}.json").write_text(json.dumps(results))
            options += ["--compare", str(one)]
        monkeypatch.setattr(regard_bench.cases, "CASES", (case,))
        return run("--quick", "--out", str(tmp_path / "new.json"), *options)

    return held


def test_what_has_become_slower_is_measured_twice_and_told_and_the_exit_says_so(held_against, clock):
    case = Made(clock, "always")
    done = held_against(case)
    assert done.exit_code == 1
    assert case.measured == ["here", "there", "here"]
    (told,) = (line for line in done.stderr.splitlines() if "times worse than in" in line)
    assert told.endswith("made | here | time / time")


def test_a_slow_spell_that_has_passed_when_it_is_measured_again_is_no_regression(held_against, clock):
    case = Made(clock, "at first")
    done = held_against(case)
    assert case.measured == ["here", "there", "here"]  # it was suspected
    assert done.exit_code == 0, done.stderr
    assert "times worse" not in done.stderr


@dataclass
class Limited(Made):
    """Two calls of 2 ms whose work is known."""

    def rows(self, effort):
        for at, work in (("4,096 tokens", Work(Resource.FLOAT32, 1e8)), ("4,096 keys", Work(Resource.MEMORY, 6e7))):
            pairs = {"time / SDPA's": Pair(("regard", "peer"), at_most(0.8))}
            sides = {"regard": self.ours, "peer": self.theirs}
            yield from compare_all(effort, "full, float32", at, pairs, sides, work=work)


def test_shares_of_the_machines_limits_are_shown_below_figures(monkeypatch, tmp_path, clock):
    samples = []
    peaks = Peaks(
        {Resource.FLOAT32: Ratio(236e9, 235e9, 237e9, 10), Resource.MEMORY: Ratio(20e9, 19e9, 21e9, 10)},
        {Resource.FLOAT32: Ratio(201e9, 199e9, 203e9, 10)},
        {Resource.BFLOAT16: "the processor has no AVX-512 BF16"},
        cache_bytes=64 << 20,
    )
    monkeypatch.setattr(PeakMeter, "sample", lambda _: samples.append(clock[0]))
    monkeypatch.setattr(PeakMeter, "peaks", lambda _: peaks)
    monkeypatch.setattr(regard_bench.cases, "CASES", (Limited(clock), Limited(clock)))
    done = run("--quick", "--out", str(tmp_path / "new.json"))
    lines = [line.rstrip() for line in done.stdout.splitlines()]
    assert lines[:6] + lines[-3:] == SHARES
    assert len(samples) == len(set(samples)) == 3  # before, between and after the cases
    found = json.loads((tmp_path / "new.json").read_text())
    assert [one["share"]["of"] for one in found["rows"]] == ["float32", "memory"] * 2
    assert found["peaks"]["float32"]["rate"]["median"] == 236e9


def test_ratios_of_another_processor_are_not_compared(held_against, clock):
    done = held_against(Made(clock, "always"), processors=("Another", "A third"))
    assert done.exit_code == 0, done.stderr
    assert "times worse" not in done.stderr
    assert "nothing is compared" in done.stderr
    assert "Another with" in done.stderr
    assert "A third with" in done.stderr


def test_of_several_runs_that_of_this_processor_is_compared(held_against, clock):
    done = held_against(Made(clock, "always"), processors=("Another", None))
    assert done.exit_code == 1
    assert "times worse than in" in done.stderr
    assert "earlier-1.json" in done.stderr
    assert "nothing is compared" not in done.stderr


def test_nothing_is_measured_again_where_nothing_is_worse(held_against, clock):
    case = Made(clock)
    assert held_against(case).exit_code == 0
    assert case.measured == ["here", "there"]
    faster = Made(clock)
    assert held_against(faster, before=Made(clock, "always")).exit_code == 0
    assert faster.measured == ["here", "there"]


@pytest.mark.parametrize("missing", [BundledModelError("smollm2 is not there"), MissingExtraError("rotor", "models")])
def test_a_case_without_its_model_or_package_says_so_and_the_others_go_on(monkeypatch, tmp_path, missing, clock):
    class Broken(Made):
        name = "broken"

        def rows(self, effort):
            raise missing
            yield

    monkeypatch.setattr(regard_bench.cases, "CASES", (Broken(clock), Made(clock)))
    assert run("--quick", "--out", str(tmp_path / "new.json")).exit_code == 0
    first, *others = json.loads((tmp_path / "new.json").read_text())["rows"]
    assert first["why"] == str(missing)
    assert [one["at"] for one in others] == ["here", "there"]


@pytest.mark.slow
def test_a_slowed_attention_is_a_regression_of_decoding(tmp_path, monkeypatch, ticking):
    earlier, attention = tmp_path / "earlier.json", regard.attention

    def timed(*some, calls, **more):
        for _ in range(calls):  # each call of ours takes some ticks more
            next(ticking)
        return attention(*some, **more)

    monkeypatch.setattr(regard, "attention", partial(timed, calls=1))
    assert run("decoding", "--quick", "--out", str(earlier)).exit_code == 0
    rows = [(one["at"], one["what"]) for one in json.loads(earlier.read_text())["rows"]]
    assert rows == [("4,096 keys", "SDPA's time / time")]
    monkeypatch.setattr(regard, "attention", partial(timed, calls=8))
    done = run("decoding", "--quick", "--out", str(tmp_path / "new.json"), "--compare", str(earlier))
    assert done.exit_code == 1
    assert "times worse than in" in done.stderr


def test_a_run_on_other_threads_is_not_compared_and_said(tmp_path, monkeypatch, clock):
    monkeypatch.setattr(regard_bench.cases, "CASES", (Made(clock),))
    earlier = tmp_path / "earlier.json"
    assert run("--quick", "--out", str(earlier)).exit_code == 0
    again = "--quick", "--out", str(tmp_path / "new.json"), "--compare", str(earlier)
    assert "nothing is compared" not in run(*again).stderr
    earlier.write_text(json.dumps({**json.loads(earlier.read_text()), "threads": 99}))
    done = run(*again)
    assert done.exit_code == 0
    assert "nothing is compared" in done.stderr
    assert "with 99 threads" in done.stderr


def test_an_unknown_case_and_a_file_that_is_no_result_are_refused(tmp_path):
    done = run("fast")
    assert done.exit_code != 0
    assert "there is no case 'fast'; there are dense" in str(done.exception or done.output)
    (tmp_path / "x.json").write_text("{}")
    done = run("small", "--compare", str(tmp_path / "x.json"))
    assert "has no results" in str(done.exception or done.output)


def test_an_output_that_cannot_be_is_refused_by_the_name_of_its_option(tmp_path, monkeypatch):
    (tmp_path / "folder.json").mkdir()
    monkeypatch.chdir(tmp_path)
    refusals = {
        "nodir/x.json": r"`--out` .* there is no folder nodir",
        "folder.json": r"`--out` must name a file",
        "x.html": r"`--out` must end in \.json",
    }
    for case in sweep(refusals):
        with case as out:
            done = run("small", "--quick", "--out", out)
            assert re.search(refusals[out], str(done.exception or done.output))
