"""What the command says when it cannot go on: one sentence, an exit code, and never a traceback."""

import io
import itertools
import os
import runpy
import shlex
import sys
from importlib import import_module
from types import SimpleNamespace

import pytest

from regard.cli import main
from regard.cli.arguments import read_text
from regard.cli.steps import quote, steps_command
from regard.errors import InputError
from regard.record.highlight import Focus, Look
from regard.record.tokens import Token, words_of
from sweeps import sweep


def ended(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["regard", *arguments])
    with pytest.raises(SystemExit) as end:
        main()
    return int(end.value.code or 0)


def test_an_interrupt_is_one_sentence_and_exit_code_130(monkeypatch, capsys) -> None:
    pytest.importorskip("transformers")

    def interrupted(*given: object, **named: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(import_module("regard.interpret.look"), "look", interrupted)
    assert ended(monkeypatch, "look", "The cat sat.") == 130
    out, err = capsys.readouterr()
    assert out == ""
    assert err.strip() == "regard: interrupted; no file was left half-written"


def test_the_module_runs_the_command(monkeypatch, capsys) -> None:
    monkeypatch.setattr(sys, "argv", ["regard", "--version"])
    with pytest.raises(SystemExit) as end:
        runpy.run_module("regard", run_name="__main__")
    assert not end.value.code
    assert capsys.readouterr().out.startswith("regard ")


def test_an_unknown_option_is_a_usage_error(monkeypatch, capsys) -> None:
    assert ended(monkeypatch, "look", "The cat sat.", "--wrd", "it") == 2
    assert "--wrd" in capsys.readouterr().err


def test_an_ascii_terminal_gets_question_marks(monkeypatch) -> None:
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", out)
    assert ended(monkeypatch, "steps") == 0
    out.flush()
    assert b"q?" in out.buffer.getvalue()


def test_an_output_on_a_full_disk_is_one_sentence(monkeypatch, capsys) -> None:
    commands = (["steps"], ["models", "list"], ["--help"], ["look", "--help"], ["--version"])
    for case in sweep(itertools.product(commands, (True, False))):
        with case as (command, buffered):
            with open("/dev/full", "w") as full:
                full.reconfigure(write_through=not buffered)
                monkeypatch.setattr(sys, "stdout", full)
                assert ended(monkeypatch, *command) == 2
                assert os.path.samefile(f"/proc/self/fd/{full.fileno()}", os.devnull)  # nothing fails again at the end
            err = capsys.readouterr().err
            assert err.startswith("regard: standard output cannot be written: ")
            assert len(err.splitlines()) == 1


def test_a_reader_that_has_seen_enough_is_told_nothing(monkeypatch, capsys) -> None:
    for case in sweep([["steps"], ["--help"]]):
        with case as command:
            read, write = os.pipe()
            os.close(read)
            with open(write, "w") as pipe:
                monkeypatch.setattr(sys, "stdout", pipe)
                assert ended(monkeypatch, *command) == 1
            assert capsys.readouterr().err == ""


def test_another_error_of_the_system_is_not_taken_for_one_of_the_output(monkeypatch, capsys) -> None:
    def broken() -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(import_module("regard.cli.app"), "app", broken)
    monkeypatch.setattr(sys, "argv", ["regard"])
    with pytest.raises(OSError, match="Input/output error"):
        main()
    assert capsys.readouterr().err == ""


def test_an_output_that_cannot_be_written_is_refused_before_the_model_runs(monkeypatch, capsys) -> None:
    def run(*given: object, **named: object) -> None:
        raise AssertionError("the model ran")

    pytest.importorskip("transformers")
    monkeypatch.setattr(import_module("regard.interpret.look"), "look", run)
    for case in sweep(["x.html", "x.png", "x.atlas"]):
        with case as name:
            assert ended(monkeypatch, "look", "The cat sat.", "--out", f"/proc/{name}") == 2
            err = capsys.readouterr().err
            assert err.startswith(f"regard: cannot write /proc/{name}: ")
            assert len(err.strip().splitlines()) == 1


def test_a_file_that_is_not_there_is_not_the_text(refused) -> None:
    names = ["nonotes.txt", "./gone/nowhere", "tests/nowhere", "~/gone", "/gone", "没有.jsonl"]
    for case in sweep([(name, *way) for name in names for way in (("look",), ("translate", "--model", "."))]):
        with case as (name, *command):
            said = refused(*command, name).strip()
            way = f"echo {shlex.quote(name)} | regard … -"
            assert said == f"regard: there is no file {name}; if that is the text itself: {way}"
    texts = ["See nonotes.txt", "It sat.", "他/她来了。", "and/or", "</s>", "Node.js is", "either / or", "3.5", ""]
    for case in sweep(texts):
        with case as text:
            assert read_text(text) == text


def test_a_folder_is_no_text(refused, tmp_path) -> None:
    for case in sweep([["look"], ["steps"], ["generate"], ["heads", "--text"], ["translate", "--model", "."]]):
        with case as command:
            sentence = refused(*command, str(tmp_path))
            assert sentence.startswith(f"regard: {tmp_path} is a folder: ")
            assert "name a text file" in sentence


def test_a_pipe_or_a_device_is_no_text_and_its_path_is_none(tmp_path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for case in sweep(["pipe", "/dev/null"]):
        with case as name, pytest.raises(InputError, match=r"is a device or a pipe: .* to standard input"):
            read_text(str(tmp_path / name))


def test_a_part_of_a_text_is_two_numbers(refused) -> None:
    for case in sweep(["5", "1:", "a:b", "-1:3", "1:2:3"]):
        with case as tokens:
            assert "`--tokens` must be FIRST:LAST" in refused("look", "The cat sat.", "--tokens", tokens)


QUOTED = {
    "cat": "cat",
    "didn't cross": '"didn\'t cross"',
    "猫追": '"猫追"',
    "costs $5": "'costs $5'",
    "a\tb's\\\x1b\n": r"$'a\tb\'s\\\x1b\n'",
    "a\x85b\u202e": r"$'a\u0085b\u202e'",
    "a\x1b\u200cb": "$'a\\x1b\u200cb'",
}


def test_a_word_is_quoted_for_a_shell() -> None:
    assert {word: quote(word) for word in QUOTED} == QUOTED


def command(text: str, word: int, tokens: tuple[Token, ...], streams: tuple[str, ...] = ("text",)) -> str:
    words = words_of(tokens)
    focus = Focus(words, words, word, (Look(2, 1, 0, 0.5),))
    record = SimpleNamespace(tokens=dict.fromkeys(streams, (tokens,)))
    return " ".join(steps_command(record, focus, "minilm", text))


def test_the_command_names_the_word_or_where_that_is_not_one_token_its_number() -> None:
    tokens = (
        *(Token(text, word=i) for i, text in enumerate(["it", "saw", "It"])),
        Token("un", word=3),
        Token("do", word=3),
    )
    start = "regard steps --model minilm --layer 2 --head 1 --token"
    assert command("it saw It undo", 1, tokens) == f'{start} saw --out lesson.html "it saw It undo"'
    assert command("it saw It undo", 2, tokens) == f'{start} 3 --out lesson.html "it saw It undo"'
    assert command("it saw It undo", 3, tokens) == f'{start} 4 --out lesson.html "it saw It undo"'
    assert command("-", 1, tokens) == f"{start} saw --out lesson.html -"
    assert command("-it saw", 1, tokens) == f'{start} saw --out lesson.html -- "-it saw"'


def test_no_command_where_steps_would_show_another_weight() -> None:
    tokens = tuple(Token(text, word=i) for i, text in enumerate(["it", "saw", "it", "3"]))
    assert command("it saw it 3", 2, tokens) == ""  # 3 is the word
    assert command("it saw it 3", 1, tokens, ("source", "target")) == ""
