"""The wheel on every Python and PyTorch that it promises, with kernels and without, with each extra and all (`nox`).

`nox -s extras` runs one kind of session; `nox -s wheels` makes the files of a release. `nox` skips Pythons that are not
installed here, and says so. Each session makes an environment of its own from the package index; with PyTorch for CUDA,
as the index has it for most versions, that is 3 GB or more.
"""

import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import nox

PYTHONS = ("3.11", "3.12", "3.13", "3.14")
TORCHES = ("2.11.0", "2.12.1", "2.13.0")
OLDEST_TRANSFORMERS = "5.17.0"  # tested with the oldest PyTorch
ROOT = Path(__file__).resolve().parent
OUT = ROOT / "out" / "wheel"
DIST = ROOT / "dist"
nox.options.sessions = ["alone", "kernels", "pure", "extras", "tests"]
nox.options.error_on_missing_interpreters = False

ALONE = """
import sys, torch, regard
q = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
output, weights = regard.attention(q, q, q, mask=regard.masks.Causal(), scale=1.0, return_weights=True)
assert weights[0].tolist() == [1.0, 0.0] and abs(weights[1, 1].item() - 0.7311) < 1e-4  # e / (1 + e)
model = torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(16, 2, batch_first=True), 2).eval()
x = torch.randn(1, 3, 16)
with torch.no_grad():
    expected = model(x)
    with regard.watch(model, tokens=["a", "b", "c"]) as seen:
        assert torch.equal(model(x), expected)
assert seen.weights(layer=1, head=1).shape == (1, 3, 3)
seen.save(sys.argv[1] + "/it.atlas")
"""
KERNELS = """
q = torch.randn(1, 2, 70, 16)
output = regard.attention(q, q, q, mask=regard.masks.Causal(), backend="native")
torch.testing.assert_close(output, regard.attention(q, q, q, mask=regard.masks.Causal(), backend="reference"))
"""
NO_KERNELS = """
try:
    regard.attention(q, q, q, backend="native")
except regard.InputError as error:
    assert "ziglang" in str(error), error
else:
    raise AssertionError("a pure wheel has kernels")
"""
# What each extra is for, in a line or two: the names of ALONE are there.
EXTRAS = {
    "models": """
from transformers import BertConfig, BertModel
sizes = dict(vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
bert = BertModel(BertConfig(**sizes)).eval()
with torch.no_grad(), regard.watch(bert) as seen_bert:
    bert(torch.tensor([[1, 2, 3]]))
assert seen_bert.weights(layer=0, head=1).shape == (1, 3, 3)
sizes = dict(vocab_size=9, hidden_size=8, num_attention_heads=2, intermediate_size=8, encoder_layers=1)
regard.models.Transformer(regard.models.TransformerConfig(**sizes)).save_pretrained(sys.argv[1] + "/model")
regard.models.Transformer.from_pretrained(sys.argv[1] + "/model")
""",
    "figures": "seen.export(sys.argv[1] + '/heads.png', 'heads')",
    "cli": "sys.argv[1:] = ['doctor']\nfrom regard.cli import main\nmain()",
    "web": "from regard.web import Shelf, make_app\nmake_app(Shelf(seen.records))",
    "train": "from regard.train import read_config\nimport accelerate, sacrebleu, opencc, pydantic_settings",
}


def built(session: nox.Session) -> str:
    """Build the wheel once, and return its path."""
    if not (found := sorted(OUT.glob("*.whl"))):
        command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(OUT), "."]
        session.run(*command, external=True)
        found = sorted(OUT.glob("*.whl"))
    (wheel,) = found
    session.log(f"{wheel.name}: {wheel.stat().st_size / 1e6:.2f} MB")
    return str(wheel.resolve())


def borrow(session: nox.Session) -> None:
    """Show this environment what regard itself requires, installed once for each Python: PyTorch is a gigabyte."""
    shared = OUT.parent / f"required-{session.python or 'here'}"
    if not (shared / "torch").is_dir():
        session.install("-c", "constraints.txt", "--target", str(shared), "torch", "numpy", "jaxtyping")
    (own,) = Path(session.virtualenv.location).resolve().glob("lib*/**/site-packages")
    (own / "shared.pth").write_text(f"{shared}\n")


def without_network() -> list[str]:
    """Return the beginning of a command line that cuts the rest of it off from the network, where this user may."""
    cut = ["unshare", "--map-root-user", "--net"]
    works = shutil.which(cut[0]) and subprocess.run([*cut, "true"], capture_output=True, check=False).returncode == 0
    return cut if works else []


def call(session: nox.Session, code: str) -> None:
    """Run code outside the checkout, so that only the wheel can be imported."""
    folder = Path(session.virtualenv.location).resolve() / "call"
    folder.mkdir(exist_ok=True)
    python = shutil.which("python", path=session.bin)
    session.chdir(folder)
    session.run(str(python), "-I", "-W", "error", "-c", code, str(folder))


@nox.session(python=PYTHONS, tags=["wheel"])
@nox.parametrize("torch", TORCHES)
def alone(session: nox.Session, torch: str) -> None:
    """The wheel with torch, numpy and jaxtyping only."""
    session.install(f"torch=={torch}", built(session))
    call(session, ALONE)


@nox.session(python=PYTHONS, tags=["wheel"])
def kernels(session: nox.Session) -> None:
    """`pip install .` on a machine without a compiler: the kernels are there, and compute."""
    borrow(session)
    session.install(".", env={"PATH": session.bin})
    call(session, ALONE + KERNELS)


@nox.session(python=PYTHONS, tags=["wheel"])
def pure(session: nox.Session) -> None:
    """Without isolation, compiler and network: the wheel is pure, works, and says why it has no kernels."""
    borrow(session)
    session.install("hatchling")
    command = "python -m pip install --no-index --no-build-isolation .".split()
    session.run(*without_network(), *command, external=True)
    call(session, ALONE + NO_KERNELS)


@nox.session(python=PYTHONS, tags=["wheel"])
@nox.parametrize("extra", [*EXTRAS, "all"])
def extras(session: nox.Session, extra: str) -> None:
    """The wheel with one extra, or with all of them."""
    borrow(session)
    session.install("-c", "constraints.txt", f"{built(session)}[{extra}]")
    for code in EXTRAS.values() if extra == "all" else [EXTRAS[extra]]:
        call(session, ALONE + code)


@nox.session(python=PYTHONS)
@nox.parametrize("torch", TORCHES)
def tests(session: nox.Session, torch: str) -> None:
    """The quick tests on the wheel; those of the bundled models and of the browser need more than the index has."""
    tools = ("pytest", "pytest-xdist", "hypothesis", "nbformat", "nbclient", "playwright", "hatchling", "packaging")
    oldest = [f"transformers=={OLDEST_TRANSFORMERS}"] if torch == TORCHES[0] else []
    session.install(f"torch=={torch}", *oldest, f"{built(session)}[all]", *tools)
    quick = "not slow and not models and not browser"
    session.run("pytest", "tests", "-q", "-p", "no:cacheprovider", "-m", quick, *session.posargs)


@nox.session
def wheels(session: nox.Session) -> None:
    """The wheels of all platforms and the sdist, in dist: what a release uploads."""
    session.install("-c", "constraints.txt", "auditwheel", "hatchling", "lief", "ziglang")
    shutil.rmtree(DIST, ignore_errors=True)
    wheel = "python -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir dist .".split()
    for platform in runpy.run_path(str(ROOT / "native" / "build.py"))["PLATFORMS"]:
        session.run(*wheel, "--config-settings", f"platform={platform}")
    session.run("python", "-m", "hatchling", "build", "-t", "sdist", "-d", "dist")
    session.run("python", "tools/check_wheels.py", *map(str, sorted(DIST.glob("*.whl"))))
