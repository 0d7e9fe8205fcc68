"""Whatever stands in an argument or a name is shown as text, and what is no text is one sentence."""

import io
from importlib import util

import pytest
from rich.table import Table

from regard.backends.native import library
from regard.cli.console import TextConsole
from regard.cli.line_stream import refuse_table
from regard.errors import InputError
from sweeps import sweep

HOSTILE = "[/]x[bold] [link=a] :smile: [/bold]"


def test_markup_is_text_in_lines_tables_and_status():
    file = io.StringIO()
    console = TextConsole(file=file)
    console.print(HOSTILE)
    table = Table(HOSTILE)
    table.add_row(HOSTILE)
    console.print(table)
    assert file.getvalue().count(HOSTILE) == 3
    with console.status(HOSTILE) as status:
        status.update(HOSTILE)
        assert status.renderable.text.plain == HOSTILE


def test_the_doctor_names_the_extra_in_brackets(run, monkeypatch):
    usual = util.find_spec
    monkeypatch.setattr(util, "find_spec", lambda name, *rest: None if name == "matplotlib" else usual(name, *rest))
    assert "missing matplotlib: pip install 'regard[figures]'" in run("doctor", columns=300)[1]


def test_the_doctor_fits_80_columns_and_cuts_no_path(run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    code, out, _ = run("doctor")
    lines = out.splitlines()
    assert code == 0
    assert max(map(len, lines)) <= 80
    assert "…" not in out
    assert out.count("\n\n") == 7  # seven tables under the versions
    assert out.count("it is opt-in") == 1  # not once a call
    assert any(line.startswith("sdpa ") and "weights" in line for line in lines)


def test_the_doctor_names_the_kernels_or_why_there_are_none(run, monkeypatch):
    best = library._Loaded(library.load("x86_64_v3") if library.refuses() is None else None, None, ("v4 is broken",))
    monkeypatch.setattr(library, "_loaded", lambda: best)
    if best.best is not None:
        assert run("doctor")[1].splitlines()[2:4] == [
            "native kernels: x86_64_v3",
            "native kernels not loaded: v4 is broken",
        ]
    monkeypatch.setattr(library, "_loaded", lambda: library._Loaded(None, "no compiler: run `make native`"))
    code, out, _ = run("doctor")
    assert (code, out.splitlines()[2]) == (0, "native kernels: none, because no compiler: run `make native`")


def test_the_doctor_no_longer_compiles(run):
    code, _, err = run("doctor", "--compile")
    assert code == 2
    assert "nothing has to be compiled" in err


MARKUP = [
    ["look", "the cat", "--model", "./[/]x"],
    ["generate", "the cat", "--model", "./[/]x"],
    ["heads", "--model", "./[/]x"],
    ["translate", "a", "--model", "./[/]x"],
    ["open", "./[/]x.atlas"],
    ["train", "./[/]x.toml"],
]


def test_a_name_with_markup_is_one_sentence(refused):
    for case in sweep(MARKUP):
        with case as arguments:
            sentence = refused(*arguments)
            assert sentence.startswith("regard: ")
            assert "[/]x" in sentence


def test_an_argument_that_is_no_utf8_is_one_sentence(refused):
    for case in sweep([["look", "caf\udce9"], ["look", "a cat", "--token", "caf\udce9"]]):
        with case as arguments:
            sentence = refused(*arguments)
            assert "the argument caf\\xe9 is no UTF-8 text" in sentence
            assert "iconv" in sentence


def test_a_file_may_have_a_name_that_is_no_text(run, tmp_path):
    (tmp_path / "caf\udce9.toml").write_text("x = 1")
    code, _, err = run("train", str(tmp_path / "caf\udce9.toml"))
    assert code == 2
    assert "the key `x` is unknown" in err


def test_a_table_is_one_by_its_lines_and_not_by_the_ending_of_its_name_alone():
    for case in sweep([("labels.tsv", "yes\nno\n"), ("a.csv", "one\ntwo, three\n"), ("b.csv", "no comma\n" * 12)]):
        with case as (name, text):
            refuse_table(name, text.splitlines())
    for case in sweep([("pairs", "a\tb\n" * 3), ("a.csv", "a,b\nc,d\n"), ("x.txt", '{"a": 1}\n')]):
        with case as (name, text), pytest.raises(InputError, match=f"{name} is a table"):
            refuse_table(name, text.splitlines())
