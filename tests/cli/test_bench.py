"""`regard bench`, as a person runs it."""

import json

from typer.testing import CliRunner

from regard.cli.app import app


def run(*arguments):
    return CliRunner().invoke(app, ["bench", *arguments], env={"COLUMNS": "80", "TERM": "dumb"})


def test_cases_are_listed_by_name():
    done = run("--list")
    assert done.exit_code == 0
    assert [line.split()[0] for line in done.output.splitlines()][:3] == ["dense", "bf16", "window"]


def test_a_case_is_measured_and_written_with_its_page(tmp_path):
    out = tmp_path / "new.json"
    done = run("small", "--quick", "--out", str(out))
    assert done.exit_code == 0, done.output
    assert all(len(line) <= 80 for line in done.stdout.splitlines())
    found = json.loads(out.read_text())
    assert [one["unit"] for one in found["rows"]] == ["µs", "µs"]
    assert all(one["rounds"] >= 5 for one in found["rows"])
    assert "small calls" in (tmp_path / "new.html").read_text()


def test_a_regression_is_measured_twice_and_then_told_and_the_exit_says_so(tmp_path):
    out = tmp_path / "one.json"
    assert run("decoding", "--quick", "--out", str(out)).exit_code == 0
    found = json.loads(out.read_text())
    assert [one["at"] for one in found["rows"]] == ["4,096 keys"]
    found["rows"][0]["median"] /= 10  # an earlier run was ten times as slow, against SDPA
    earlier = tmp_path / "earlier.json"
    earlier.write_text(json.dumps(found))
    assert run("decoding", "--quick", "--out", str(out), "--against", str(earlier)).exit_code == 0
    found["rows"][0]["median"] *= 100
    earlier.write_text(json.dumps(found))
    done = run("decoding", "--quick", "--out", str(out), "--against", str(earlier))
    assert done.exit_code == 1
    assert "times worse than in" in done.output


def test_an_unknown_case_and_a_file_that_is_no_result_are_refused(tmp_path):
    done = run("fast")
    assert done.exit_code != 0
    assert "there is no case 'fast'; there are dense" in str(done.exception or done.output)
    (tmp_path / "x.json").write_text("{}")
    done = run("small", "--against", str(tmp_path / "x.json"))
    assert "holds no results" in str(done.exception or done.output)
