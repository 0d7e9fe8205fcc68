"""The hash of the kernels' sources, which each library carries: the build and the package compute it alike."""

import hashlib
from pathlib import Path

__all__ = ["hash_of"]


def hash_of(folder: Path) -> str:
    """Return the SHA-256 of the names and contents of the sources in a folder, in hexadecimal digits."""
    digest = hashlib.sha256()
    for file in sorted((*folder.glob("*.cpp"), *folder.glob("*.h"))):
        content = file.read_bytes()
        digest.update(f"{file.name} {len(content)}\n".encode() + content)
    return digest.hexdigest()
