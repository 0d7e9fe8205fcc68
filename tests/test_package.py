"""The wheel as a stranger gets it: with torch, numpy and jaxtyping alone, in an environment of its own."""

import re
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

from documents import ROOT

packaging = pytest.importorskip("packaging.requirements")
pytestmark = pytest.mark.slow

BARE = """
import sys
from importlib import util
from pathlib import Path

import torch
from torch import nn

import regard

assert regard.__file__.startswith(sys.prefix), regard.__file__
for extra in ("transformers", "tokenizers", "safetensors", "matplotlib", "rich", "typer", "gguf", "huggingface_hub"):
    assert util.find_spec(extra) is None, f"{extra} is here, so this proves nothing"
assert "regard.models" not in sys.modules  # it is loaded when it is asked for

q = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
output, weights = regard.attention(q, q, q, return_weights=True, mask=regard.masks.Causal(), scale=1.0)
assert weights[0].tolist() == [1.0, 0.0]
assert abs(weights[1, 1].item() - 0.7311) < 1e-4  # e / (1 + e)

model = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, batch_first=True), 2).eval()
with torch.no_grad(), regard.watch(model, tokens=["a", "b", "c"]) as seen:
    model(torch.randn(1, 3, 16))
assert seen.weights(layer=1, head=1).shape == (1, 3, 3)
assert len(seen.rank_heads("a", "c")) == 4


def names(extra, call, *args, **kwargs):
    try:
        call(*args, **kwargs)
    except regard.MissingExtraError as error:
        assert f"pip install 'regard[{extra}]'" in str(error), error
    else:
        raise AssertionError(f"{call.__qualname__} works without the extra {extra}")


from regard.record.highlight import choose_focus
from regard.render.figure import save_figure
from regard.interpret.model_loading import load_model

config = regard.models.TransformerConfig(
    vocab_size=9, hidden_size=8, num_attention_heads=2, intermediate_size=8, decoder_layers=1,
    output_head=regard.models.output_heads.LanguageModel()
)
model = regard.models.Transformer(config).eval()
assert model.generate([[1, 2], [3]], max_new_tokens=4, eos_token_id=[]).shape == (2, 6)
names("models", model.save_pretrained, "mine")
names("models", regard.models.Transformer.from_pretrained, "someone/something")

seen.save("it.atlas")
assert (regard.load_atlas("it.atlas").weights(layer=1, head=1) == seen.weights(layer=1, head=1)).all()
Path("it.atlas").unlink()
names("models", load_model, "minilm")
names("models", load_model, "someone/something")
names("models", regard.register_with_transformers)
names("figures", save_figure, seen.record, choose_focus(seen.record, token="a"), "figure.png")
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """The wheel, built from this checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder)]
    done = subprocess.run([*command, str(ROOT)], capture_output=True, encoding="utf-8", check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = folder.glob("*.whl")
    return built


def requirements(lines: list[str]) -> set[str]:
    """Names required here without any extra."""
    parsed = [packaging.Requirement(line) for line in lines]
    return {one.name for one in parsed if one.marker is None or one.marker.evaluate({"extra": ""})}


def with_their_own(names: set[str]) -> set[str]:
    """These distributions and what they require in turn."""
    found: dict[str, str] = {}
    todo = list(names)
    while todo:
        name = todo.pop()
        if re.sub(r"[-_.]+", "-", name).lower() not in found:
            found[re.sub(r"[-_.]+", "-", name).lower()] = name
            todo += requirements(metadata.requires(name) or [])
    return set(found)


@pytest.fixture(scope="module")
def bare(wheel, tmp_path_factory) -> Path:
    """An environment with the wheel, installed by pip, and with links to what the wheel itself requires."""
    folder = tmp_path_factory.mktemp("bare") / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    pip = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        str(folder / "bin" / "python"),
        "install",
        "--no-deps",
        "--no-index",
    ]
    subprocess.run([*pip, "--quiet", str(wheel)], check=True)
    (site,) = (folder / "lib").glob("python*/site-packages")
    with zipfile.ZipFile(wheel) as archive:
        (about,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        required = re.findall(r"^Requires-Dist: (.+)$", archive.read(about).decode(), flags=re.MULTILINE)
    assert requirements(required) == {"torch", "numpy", "jaxtyping"}
    for name in with_their_own(requirements(required)):
        distribution = metadata.distribution(name)
        tops = {file.parts[0] for file in distribution.files or ()} - {"..", "__pycache__"}
        for top in tops:
            if not (site / top).exists():
                (site / top).symlink_to(Path(str(distribution.locate_file(top))))
    return folder


def test_wheel_alone_attends_and_watches_and_names_the_extra_of_the_rest(bare, tmp_path):
    done = subprocess.run(
        [bare / "bin" / "python", "-I", "-W", "error", "-c", BARE], cwd=tmp_path, capture_output=True, encoding="utf-8"
    )
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.iterdir()) == []


def test_command_without_its_extra_says_so_in_one_line(bare, tmp_path):
    done = subprocess.run([bare / "bin" / "regard", "doctor"], cwd=tmp_path, capture_output=True, encoding="utf-8")
    assert done.returncode == 2
    assert re.fullmatch(r"regard: this needs the package `\w+`: pip install 'regard\[cli\]'\n", done.stderr)


def test_wheel_holds_types_assets_and_licence_and_nothing_else(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    package = {path.relative_to(ROOT / "src").as_posix() for path in (ROOT / "src").rglob("*") if path.is_file()}
    assert {name for name in names if ".dist-info/" not in name} == {
        name for name in package if "__pycache__" not in name
    }
    assert {
        "regard/py.typed",
        "regard/render/page/page.html",
        "regard/render/page/theme.css",
        "regard/render/page/main.js",
    } <= names
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)


def test_the_size_of_the_wheel_is_the_one_stated(wheel):
    for name in ("README.md", "README.zh.md", "docs/start.md", "docs/start.zh.md"):
        stated = re.search(
            r"([\d.]+) MB(?: 的 wheel|;)|wheel of ([\d.]+) MB", (ROOT / name).read_text(encoding="utf-8")
        )
        assert abs(wheel.stat().st_size / 1e6 - float(stated[1] or stated[2])) < 0.15, name


def test_the_private_names_of_pytorch_are_in_one_module() -> None:
    private = re.compile(r"torch\._(C|ops|native|transformer)\b(?!\.__file__)")
    users = [path.name for path in (ROOT / "src").rglob("*.py") if private.search(path.read_text(encoding="utf-8"))]
    assert users == ["torch_private.py"]
