"""The READMEs keep their word: their Python runs, and their commands exist."""

import os
import re
import shlex
import struct
import subprocess
import sys

import pytest

from documents import ROOT, python_blocks

READMES = ("README.md", "README.zh.md")
BLOCKS = [
    pytest.param(name, number, marks=[pytest.mark.models, pytest.mark.slow] if "load_model" in code else [])
    for name in READMES
    for number, code in enumerate(python_blocks(name))
]


def shell_lines(name: str) -> list[str]:
    text = (ROOT / name).read_text(encoding="utf-8")
    blocks = re.findall(r"^```sh\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)
    return [line.partition("  #")[0].strip() for block in blocks for line in block.splitlines()]


@pytest.mark.parametrize(("name", "number"), BLOCKS)
def test_python_of_the_readme_runs(name, number, tmp_path, monkeypatch, capsys):
    code = python_blocks(name)[number]
    if model := re.search(r'load_model\("(\w+)"\)', code):
        bundled = pytest.importorskip("regard.interpret.bundled")
        pytest.importorskip("transformers")
        if not bundled.is_installed(model[1]):
            pytest.skip(f"{model[1]} is not installed: regard models get {model[1]}")
    monkeypatch.chdir(tmp_path)
    exec(compile(code, name, "exec"), {"__name__": "readme"})
    promised = re.findall(r"(0\.\d\d+)…", code)
    printed = capsys.readouterr().out
    assert [number for number in promised if number not in printed] == []


@pytest.mark.parametrize("name", READMES)
def test_the_first_two_commands_are_targets_of_the_makefile(name):
    look, test = (shlex.split(line) for line in shell_lines(name)[:2])
    assert look[:2][0] == "make"
    assert look[1] == "look"
    assert look[2].startswith("TEXT=")
    assert test == ["make", "test"]
    for target in ("look", "test"):
        # -n says what would be done, and does nothing; a target that does not exist is an error
        asked = ["make", "-n", "-C", str(ROOT), target, "TEXT=it's $HOME"]
        assert subprocess.run(asked, capture_output=True, check=False).returncode == 0


@pytest.mark.parametrize("name", READMES)
def test_options_shown_are_options_there_are(name):
    from regard.cli.app import app

    known = {command.callback.__name__: command.callback.__annotations__ for command in app.registered_commands}
    for line in shell_lines(name):
        words = shlex.split(line)
        if words[0] == "regard" and words[1] in known:
            options = {"--" + option.rstrip("_").replace("_", "-") for option in known[words[1]]}  # `for_` is --for
            shown = {word for word in words if word.startswith("--")}
            if words[1] == "train":  # every key of a configuration is an option
                from regard.train import read_config

                read_config(ROOT / words[2], words[3:])
                shown = {word for word in shown if "." not in word}
            assert shown <= options, line


def test_both_languages_show_the_same_sections_and_code():
    english, chinese = ((ROOT / name).read_text(encoding="utf-8") for name in READMES)
    for pattern in (r"^## ", r"^```", r"^- ", r"^\*\*|^A \*\*"):
        assert len(re.findall(pattern, english, re.MULTILINE)) == len(re.findall(pattern, chinese, re.MULTILINE))


@pytest.mark.slow
@pytest.mark.models
@pytest.mark.parametrize(("name", "model"), [("README.md", "minilm"), ("README.zh.md", "me5")])
def test_the_picture_in_text_is_what_the_first_command_prints(name, model):
    bundled = pytest.importorskip("regard.interpret.bundled")
    if not bundled.is_installed(model):
        pytest.skip(f"{model} is not installed: regard models get {model}")
    text = shlex.split(shell_lines(name)[0])[2].removeprefix("TEXT=")
    command = [sys.executable, "-c", "from regard.cli import main; main()", "look", text]
    printed = subprocess.run(
        command, env=os.environ | {"COLUMNS": "80", "NO_COLOR": "1"}, capture_output=True, encoding="utf-8", check=True
    ).stdout.splitlines()
    shown = (ROOT / name).read_text(encoding="utf-8").partition("```text\n")[2].partition("```")[0].splitlines()
    assert [line for line in shown if line not in printed] == []  # the heat map is shortened


@pytest.mark.models
@pytest.mark.parametrize("name", READMES)
def test_the_long_text_to_look_at_is_there_and_no_longer_than_the_model_has_positions(name):
    bundled = pytest.importorskip("regard.interpret.bundled")
    if not bundled.is_installed("smollm2"):
        pytest.skip("smollm2 is not installed: regard models get smollm2")
    from tokenizers import Tokenizer

    file = re.search(r"`regard look (\S+) --model smollm2", (ROOT / name).read_text(encoding="utf-8"))[1]
    tokenizer = Tokenizer.from_file(str(bundled.folder("smollm2") / "tokenizer.json"))
    assert 2000 < len(tokenizer.encode((ROOT / file).read_text(encoding="utf-8")).ids) <= 8192


@pytest.mark.parametrize("name", READMES)
def test_the_pictures_are_there(name):
    pictures = re.findall(r"!\[.+\]\((docs/images/.+\.png)\)", (ROOT / name).read_text(encoding="utf-8"))
    assert pictures
    for picture in pictures:
        head = (ROOT / picture).read_bytes()[:24]
        assert head[:8] == b"\x89PNG\r\n\x1a\n"
        assert min(struct.unpack(">II", head[16:])) > 500
