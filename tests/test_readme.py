"""The READMEs keep their word: their Python prints what they show, their commands can be typed, their links lead on.

In a block of Python, the lines that begin with `#> ` are what the block prints: all of it, in this order.
"""

import re
import shlex
import struct
import subprocess
from pathlib import Path

import pytest

from documents import ROOT, python_blocks

READMES = ("README.md", "README.zh.md")
PAGES = (*READMES, "docs/start.md", "docs/start.zh.md")


def marks(name: str, code: str):
    """A bundled model is loaded, or a model is trained; `make test` does so for README.md alone (3 s each)."""
    yield pytest.mark.models, "load_model" in code
    yield pytest.mark.slow, ("regard.train" in code or "load_model" in code) and name != "README.md"


BLOCKS = [
    pytest.param(name, number, marks=[mark for mark, applies in marks(name, code) if applies])
    for name in READMES
    for number, code in enumerate(python_blocks(name))
]


def shown_output(code: str) -> list[str]:
    return [line.removeprefix("#> ") for line in code.splitlines() if line.startswith("#> ")]


@pytest.mark.parametrize(("name", "number"), BLOCKS)
def test_python_prints_what_is_shown(name, number, tmp_path, monkeypatch, capsys):
    code = python_blocks(name)[number]
    if model := re.search(r'load_model\("(\w+)"\)', code):
        bundled = pytest.importorskip("regard.hub")
        pytest.importorskip("transformers")
        if not bundled.is_installed(model[1]):
            pytest.skip(f"{model[1]} is not installed: regard models get {model[1]}")
    if "regard.train" in code:
        pytest.importorskip("accelerate")
    monkeypatch.chdir(tmp_path)
    exec(compile(code, name, "exec"), {"__name__": "readme"})
    assert capsys.readouterr().out.splitlines() == shown_output(code)


@pytest.mark.parametrize("name", READMES)
def test_see_build_learn_and_train_each_show_what_they_print(name):
    blocks = python_blocks(name)
    assert len(blocks) == 4
    assert all(shown_output(code) for code in blocks)


def shell_lines(name: str) -> list[str]:
    """Lines of the blocks fenced as sh, without comments."""
    text = (ROOT / name).read_text(encoding="utf-8")
    blocks = re.findall(r"^```sh\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)
    return [line.partition("  #")[0].strip() for block in blocks for line in block.splitlines()]


def spans(name: str) -> list[list[str]]:
    """Words of what a sentence has as code and begins with regard, make or pip: a command line, or a command's name."""
    text = (ROOT / name).read_text(encoding="utf-8")
    sentences = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    return [shlex.split(span) for span in re.findall(r"`((?:regard|make|pip)\s[^`]+)`", sentences)]


def check_regard(words: list[str], *, only_named: bool = False) -> None:
    """Parse the words of a line `regard …` as the command line does, and run nothing."""
    import typer

    from regard.cli.app import app

    command = typer.main.get_command(app)
    while hasattr(command, "commands"):  # a group: the next word names one of its commands
        words = words[1:]
        command = command.commands[words[0]]
    if only_named and len(words) == 1:
        return
    if words[0] == "train":  # every key of a configuration is an option
        from regard.train import read_config

        read_config(ROOT / words[1], words[2:])
    command.make_context(words[0], words[1:])


def check_make(words: list[str]) -> None:
    """Let make print what it would do; a target that does not exist is an error."""
    arguments = [word if "=" not in word else word.partition("=")[0] + "=it's $HOME" for word in words[1:]]
    dry_run = ["make", "-n", "-C", str(ROOT), *arguments]
    assert subprocess.run(dry_run, capture_output=True, check=False).returncode == 0, words


def check_pip(words: list[str]) -> None:
    """An extra is of pyproject.toml."""
    import tomllib

    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    assert words[1] in ("install", "wheel"), words
    assert set(re.findall(r"\[(\w+)\]", " ".join(words))) <= set(extras), words
    assert {word for word in words[2:] if word.isalpha()} <= {"dist"}, words


def parts(line: str) -> list[list[str]]:
    return [shlex.split(part) for part in line.split(" && ")]


@pytest.mark.parametrize("name", PAGES)
def test_commands_parse_and_their_files_exist(name, monkeypatch):
    monkeypatch.chdir(ROOT)
    check = {"regard": check_regard, "make": check_make, "pip": check_pip, ".": lambda words: None}
    lines = [words for line in shell_lines(name) for words in parts(line)]
    for words in lines:
        check[words[0]](words)
    for words in spans(name):
        check[words[0]](words, **{"only_named": True} if words[0] == "regard" else {})
    for words in (*lines, *spans(name)):
        files = [word for word in words[1:] if re.fullmatch(r"(examples|docs)/\S+", word)]
        assert [file for file in files if not Path(file).exists()] == [], words


@pytest.mark.parametrize(
    "line", ["regard look text --no-such-option", "regard heads --top many", "regard look", "regard nothing"]
)
def test_a_command_that_cannot_be_typed_is_noticed(line):
    import typer

    with pytest.raises((KeyError, typer.BadParameter.__base__)):  # click's UsageError
        check_regard(shlex.split(line))


@pytest.mark.parametrize("name", READMES)
def test_the_first_two_commands_are_make_look_and_make_test(name):
    look, test = (shlex.split(line) for line in shell_lines(name)[:2])  # .ci/bare runs them
    assert look[:2] == ["make", "look"]
    assert look[2].startswith("TEXT=")
    assert test == ["make", "test"]


@pytest.mark.parametrize("name", PAGES)
def test_links_to_headings_lead_to_headings(name):
    text = (ROOT / name).read_text(encoding="utf-8")
    for target, heading in re.findall(r"\]\(([^)#\s]*)#([^)\s]+)\)", text):
        page = (ROOT / name).parent / target if target else ROOT / name
        headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
        slugs = [re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in headings]
        assert heading in slugs, f"{target}#{heading}"


@pytest.mark.parametrize("name", READMES)
def test_figures_of_speed_are_among_those_of_the_page_of_speed(name):
    text = (ROOT / name).read_text(encoding="utf-8")
    section = re.search(r"^## (?:Speed|速度)\n(.+?)^## ", text, flags=re.MULTILINE | re.DOTALL)[1]
    figures = re.findall(r"(?<![\d.])\d+\.\d+(?![\d.])", section)
    assert len(figures) == 6  # three with native kernels, three without
    page = (ROOT / "docs/performance.md").read_text(encoding="utf-8")
    assert [figure for figure in figures if f"{figure} ×" not in page] == []


@pytest.mark.models
@pytest.mark.parametrize("name", READMES)
def test_a_long_text_to_look_at_fits_the_model(name):
    bundled = pytest.importorskip("regard.hub")
    if not bundled.is_installed("smollm2"):
        pytest.skip("smollm2 is not installed: regard models get smollm2")
    from tokenizers import Tokenizer

    lines = [*map(shlex.split, shell_lines(name)), *spans(name)]
    (file,) = [words[2] for words in lines if words[:2] == ["regard", "look"] and "smollm2" in words]
    tokenizer = Tokenizer.from_file(str(bundled.folder("smollm2") / "tokenizer.json"))
    assert 2000 < len(tokenizer.encode((ROOT / file).read_text(encoding="utf-8")).ids) <= 8192  # its positions


@pytest.mark.parametrize("name", READMES)
def test_pictures_are_png_files_of_a_readable_size(name):
    pictures = re.findall(r"!\[.+\]\((docs/images/.+\.png)\)", (ROOT / name).read_text(encoding="utf-8"))
    assert pictures
    for picture in pictures:
        head = (ROOT / picture).read_bytes()[:24]
        assert head[:8] == b"\x89PNG\r\n\x1a\n"
        assert min(struct.unpack(">II", head[16:])) > 500
