"""What a command imports before it has work to do, and what needs none: the version, completion, a mistyped model."""

import re
import subprocess
import sys
from importlib import metadata

import pytest

import regard

COMMANDS = "look open steps heads compare generate train translate lab bench doctor models data".split()
HEAVY = {"torch", "numpy", "transformers", "matplotlib"}

# All in one process, as each takes its time to start: what the first of them imports, the last still finds.
QUICK = f"""
import contextlib, io, os, sys
import regard
from regard.cli import main

os.environ["COLUMNS"] = "80"
TYPERS = {{"--help", "--install-completion", "--show-completion"}}  # which typer shows so

def ended(*arguments):
    sys.argv = ["regard", *arguments]
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), contextlib.suppress(SystemExit):
        main()
    found = {HEAVY} & set(sys.modules)
    assert not found, (arguments, found)
    lines = [line.strip("│╭╮╰╯─ ") for line in out.getvalue().splitlines()]
    assert max(map(len, out.getvalue().splitlines()), default=0) <= 80, out.getvalue()
    assert "[[" not in out.getvalue(), "a name in brackets twice"
    flags = {{line.split()[0] for line in lines if "<bool>" in line}}
    assert flags <= TYPERS, "a flag takes no value"
    return out.getvalue(), err.getvalue()

assert "--model" in ended("look", "--help")[0]
for command in {COMMANDS}:
    assert "Usage: regard " + command in ended(command, "--help")[0], command
for group, command in [("models", "list"), ("models", "get"), ("data", "hsk")]:
    assert "Usage: regard " + group in ended(group, command, "--help")[0]
assert "steps" in ended("--help")[0]
assert ended("--version")[0].startswith("regard ")
assert "--wrd" in ended("look", "The cat sat.", "--wrd", "it")[1]
assert "did you mean" in ended("look", "The cat sat.", "--model", "minlm")[1]
os.environ.update(COMP_WORDS="regard look x --model ", COMP_CWORD="4", _REGARD_COMPLETE="complete_bash")
print(ended()[0].split())
"""


def python(code: str) -> str:
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_no_command_imports_pytorch_before_its_arguments_are_parsed():
    assert python(QUICK) == "['me5', 'minilm', 'smollm2']\n"


def test_the_version_is_that_of_the_package(run):
    assert regard.__version__ == metadata.version("regard")
    assert run("--version") == (0, f"regard {regard.__version__}\n", "")


@pytest.mark.parametrize("command", [(one,) for one in COMMANDS] + [("models", "list"), ("data", "hsk"), ("models",)])
def test_every_command_says_the_version(run, command):
    assert run(*command, "--version") == (0, f"regard {regard.__version__}\n", "")


@pytest.mark.parametrize(
    ("command", "meant"),
    [
        (("look", "The cat sat.", "--model", "minlm"), "minilm"),
        (("heads", "--model", "smolm2"), "smollm2"),
        (("steps", "The cat sat.", "--model", "ME-5"), "me5"),
        (("open", "--model", "minilm "), "minilm"),
        (("compare", "--text", "a b", "--models", "me5", "smollm"), "smollm2"),
        (("generate", "Once", "--model", "smol2"), "smollm2"),
    ],
)
def test_a_mistyped_model_is_not_looked_for_on_the_network(run, command, meant):
    code, out, err = run(*command)
    assert (code, out) == (2, "")
    assert re.fullmatch(rf"regard: .*did you mean '{meant}'\?.*\n", err), err


def test_what_is_no_slip_is_left_to_the_hub_and_to_folders(tmp_path, monkeypatch):
    from regard.interpret.bundled.catalogue import refuse_mistyped

    (tmp_path / "minlm").mkdir()
    monkeypatch.chdir(tmp_path)
    for name in ("me5", "gpt2", "t5-small", "bert-base-uncased", "someone/minlm", "./minlm", "minlm", "runs", ""):
        refuse_mistyped(name)


LOOK = """
import sys
from regard.cli import main

sys.argv = ["regard", "look", "The cat sat on the mat because it was tired"]
try:
    main()
except SystemExit as end:
    assert not end.code
print(sorted({"transformers", "torch._dynamo", "sympy", "matplotlib", "accelerate"} & set(sys.modules)))
"""


def test_a_look_imports_neither_transformers_nor_the_compiler():
    """Each of them would double its time."""
    assert python(LOOK).splitlines()[-1] == "[]"
