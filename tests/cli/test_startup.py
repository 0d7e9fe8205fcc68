"""What a command imports before it has work to do, and what needs none: the version, completion, a mistyped model."""

import subprocess
import sys
from importlib import metadata

import pytest

import regard
from sweeps import sweep

COMMANDS = "look open steps heads compare generate train translate score lab bench doctor models data".split()
HEAVY = {"torch", "numpy", "transformers", "matplotlib"}

# All in one process, as each takes its time to start: what the first of them imports, the last still finds. The look,
# which needs PyTorch, comes after the others, and figures last.
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
    heavy = {HEAVY} & set(sys.modules)
    assert not heavy, (arguments, heavy)
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

del os.environ["_REGARD_COMPLETE"]
sys.argv = ["regard", "look", "The cat sat on the mat because it was tired"]
try:
    main()
except SystemExit as end:
    print("the look ended with", end.code or 0)
print(sorted({{"transformers", "torch._dynamo", "sympy", "matplotlib", "accelerate"}} & set(sys.modules)))

import numpy as np
from regard.record.records import Layer, Record
from regard.render.figure import heads_figure, heatmap_figure

full, none = np.ones((1, 1, 2, 2), np.float32) / 2, np.ones((1, 1, 2), np.float32)
record = Record((Layer("a", "self", "text", "text", 1, 1, full, full, full.astype(np.int32), full, none, none),))
heads_figure(record), heatmap_figure(record, layer=0, head=0)
print("pyplot:", "matplotlib.pyplot" in sys.modules)
"""


def python(code: str) -> str:
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def printed() -> list[str]:
    return python(QUICK).splitlines()


def test_no_command_imports_pytorch_before_its_arguments_are_parsed(printed):
    assert printed[0] == "['me5', 'minilm', 'smollm2']"


def test_the_version_is_that_of_the_package(run):
    assert regard.__version__ == metadata.version("regard")
    assert run("--version") == (0, f"regard {regard.__version__}\n", "")


def test_every_command_says_the_version(run):
    for case in sweep([(name,) for name in COMMANDS] + [("models", "list"), ("data", "hsk")]):
        with case as command:
            assert run(*command, "--version") == (0, f"regard {regard.__version__}\n", "")


MISTYPED = [
    (("look", "The cat sat.", "--model", "minlm"), "minilm"),
    (("heads", "--model", "smolm2"), "smollm2"),
    (("steps", "The cat sat.", "--model", "ME-5"), "me5"),
    (("open", "--model", "minilm "), "minilm"),
    (("compare", "--text", "a b", "--models", "me5", "smollm"), "smollm2"),
    (("generate", "Once", "--model", "smol2"), "smollm2"),
]


def test_a_mistyped_model_is_not_looked_for_on_the_network(refused):
    for case in sweep(MISTYPED):
        with case as (command, meant):
            assert f"did you mean '{meant}'?" in refused(*command)


def test_what_is_no_slip_is_left_to_the_hub_and_to_folders(tmp_path, monkeypatch):
    from regard.hub.names import resolve

    (tmp_path / "minlm").mkdir()
    monkeypatch.chdir(tmp_path)
    for name in ("me5", "gpt2", "t5-small", "bert-base-uncased", "someone/minlm", "./minlm", "minlm", "runs"):
        assert resolve(name).text == name


def test_a_look_imports_neither_transformers_nor_the_compiler(printed):
    """Each of them would double its time."""
    assert printed[-3:-1] == ["the look ended with 0", "[]"]


def test_figures_are_drawn_without_pyplot(printed):
    """It would open windows and keep every figure."""
    assert printed[-1] == "pyplot: False"
