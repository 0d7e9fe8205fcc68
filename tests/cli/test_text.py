"""Whatever stands in an argument or a name is shown as text, and what is no text is one sentence."""

import io
from importlib import util
from pathlib import Path

from rich.table import Table

from regard.backends import kernel_compilers
from regard.backends.numba_loops import object_code
from regard.cli.console import TextConsole
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
    monkeypatch.setattr(util, "find_spec", lambda name, *rest: None if name == "numba" else usual(name, *rest))
    assert "missing numba: pip install 'regard[numba]'" in run("doctor", columns=300)[1]


def test_the_doctor_fits_80_columns_and_cuts_no_path(run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    code, out, _ = run("doctor")
    lines = out.splitlines()
    assert code == 0
    assert max(map(len, lines)) <= 80
    assert "…" not in out
    assert out.count("\n\n") == 7  # seven tables under the versions
    assert out.count("it computes additive scores alone") == 1  # not once a call
    assert any(line.startswith("sdpa ") and "weights" in line for line in lines)


def test_the_doctor_compiles_the_loops_and_says_where_they_cannot_be_kept(run, monkeypatch):
    def compile_and_keep(progress):
        for done in (1, 2, 3):
            progress(done)
        return kept

    kept = None
    monkeypatch.setattr(object_code, "compile_and_keep", compile_and_keep)
    code, _, err = run("doctor", "--compile")
    assert code == 2
    assert "cannot be kept" in err
    assert "REGARD_CACHE" in err
    kept = Path("loops.zip")
    code, out, _ = run("doctor", "--compile")
    assert code == 0
    assert "numba's loops: " in out.splitlines()[2]
    monkeypatch.setattr(kernel_compilers, "refuses_numba", lambda: "it is not there")
    code, _, err = run("doctor", "--compile")
    assert (code, err.strip()) == (2, "regard: it is not there")


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
