"""Other packages add parts by entry points: found by name, imported when requested, refused with a reason."""

import os
import re
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

import regard
from documents import ROOT
from regard.errors import InputError
from regard.extensions import GROUPS, extension, extension_names
from sweeps import sweep

MODULE = """
from regard import statistics


class Largest(statistics.PerQuery):
    name = "largest"
    by_head = True

    def of(self, rows):
        return rows.weights.amax(-1)


def render(record, focus):
    return "no bytes"


def render_bytes(record, focus):
    return f"{record} and {focus}".encode()


def load(name, *, attn_implementation=None):
    return name


NUMBER = 3
"""
POINTS = """
[regard.statistics]
largest = one_of_mine:Largest
broken = one_of_mine:Missing
number = one_of_mine:NUMBER
text = builtins:str
entropy = builtins:str

[regard.renderers]
txt = one_of_mine:render
page = one_of_mine:render_bytes

[regard.model_loaders]
mine = one_of_mine:load
"""


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Install a package as pip does: a module, and what its metadata say. Return how to install a second one."""

    def install(name: str, points: str = POINTS) -> None:
        about = tmp_path / f"{name}-1.0.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (about / "entry_points.txt").write_text(points)

    (tmp_path / "one_of_mine.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    install("mine")
    yield install
    sys.modules.pop("one_of_mine", None)


def watched(*statistics):
    model = torch.nn.MultiheadAttention(8, 2, batch_first=True).eval()
    x = torch.randn(1, 5, 8)
    with torch.no_grad(), regard.watch(model, statistics=statistics) as seen:
        _, weights = model(x, x, x, average_attn_weights=False)
    return seen, weights


def test_names_are_listed_and_nothing_is_imported(installed):
    assert extension_names("regard.statistics") == ("broken", "entropy", "largest", "number", "text")
    assert [extension_names(group) for group in GROUPS[1:]] == [("page", "txt"), ("mine",)]
    assert "one_of_mine" not in sys.modules


def test_a_statistic_is_computed_by_the_name_of_its_entry_point(installed):
    seen, weights = watched("largest")
    torch.testing.assert_close(torch.as_tensor(seen.statistic("largest", layer=0)), weights.amax(-1))


def test_an_extension_does_not_replace_a_part_of_regard(installed):
    seen, weights = watched("entropy")
    found = torch.as_tensor(seen.entropy(layer=0, head=0))
    torch.testing.assert_close(found, -(weights * weights.log()).sum(-1)[:, 0], atol=1e-5, rtol=1e-4)


def test_a_part_that_is_none_is_refused_with_its_package(installed):
    cases = [
        (
            "broken",
            r"'broken' of regard.statistics must be importable, got AttributeError .* one_of_mine:Missing of mine",
        ),
        ("number", "'number' of regard.statistics must be callable, got 3 from one_of_mine:NUMBER of mine"),
        ("text", "`statistics` takes names and values with start, fold and finish"),
        ("unknown", "`statistics` knows the names .*, largest, number, text, got 'unknown'"),
    ]
    for case in sweep(cases):
        with case as (name, words), pytest.raises(InputError, match=words):
            watched(name)


def test_a_name_of_two_packages_is_refused_and_a_package_found_twice_is_one(installed):
    installed("again")
    assert extension("regard.renderers", "txt") is not None
    installed("other", "[regard.renderers]\ntxt = builtins:str\n")
    with pytest.raises(InputError, match=r"'txt' of regard.renderers must come from one package, got it from"):
        extension("regard.renderers", "txt")
    assert extension("regard.renderers", "nothing") is None


def test_a_loader_gets_the_name_after_the_colon_and_must_return_a_model(installed):
    with pytest.raises(InputError, match=r"the loader 'mine' must return regard.hub.Loaded, got 'a:b'"):
        regard.load_model("mine:a:b")
    with pytest.raises(
        InputError, match=r"needs the loader 'yours', and no installed package has it: loaders are mine"
    ):
        regard.load_model("yours:a")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--out", "it.xyz"], "must end in .* or .txt, got 'it.xyz'"),
        (["--model", "yours:a"], "no installed package has it"),
    ],
)
def test_the_command_refuses_unknown_files_and_loaders_before_a_model_is_loaded(
    installed, monkeypatch, capsys, options, words
):
    from regard.cli import main

    monkeypatch.setattr(sys, "argv", ["regard", "look", "a b", *options])
    monkeypatch.setenv("COLUMNS", "300")
    with pytest.raises(SystemExit, match="2"):
        main()
    assert re.search(words, capsys.readouterr().err)


def test_a_file_with_the_ending_of_a_renderer_is_what_it_returns(installed, tmp_path):
    from regard.cli.look import _write

    looked = SimpleNamespace(record="the record", highlight="its head")
    _write(looked, tmp_path / "it.page", "a b", whole=True)
    assert (tmp_path / "it.page").read_bytes() == b"the record and its head"
    with pytest.raises(InputError, match=r"the renderer of \.txt must return bytes, got str"):
        _write(looked, tmp_path / "it.txt", "a b", whole=True)
    assert not (tmp_path / "it.txt").exists()


@pytest.mark.slow
def test_the_package_of_the_examples_installs_and_passes_its_own_tests(tmp_path):
    pytest.importorskip("transformers")
    folder, package = tmp_path / "installed", ROOT / "examples/regard_extras"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--target"]
    subprocess.run([*pip, str(folder), str(package)], check=True)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", os.devnull, "--rootdir"]
    environment = os.environ | {"PYTHONPATH": f"{folder}{os.pathsep}{ROOT / 'src'}"}
    done = subprocess.run(
        [*command, str(tmp_path), str(package / "tests")], env=environment, capture_output=True, encoding="utf-8"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 passed" in done.stdout
