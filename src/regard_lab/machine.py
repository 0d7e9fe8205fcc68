"""The machine, the versions and the date of a measurement."""

import os
import platform
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

__all__ = ["here"]

_PACKAGES = ("regard", "torch", "numpy", "transformers", "tokenizers", "matplotlib")


def here(threads: int) -> dict[str, Any]:
    """Return the date, the versions and the machine, for this number of PyTorch's threads."""
    return {
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
        "threads": threads,
        "versions": {"python": platform.python_version(), **_versions()},
        "machine": {"cpu": _cpu(), "cores": os.cpu_count(), "system": platform.system(), "machine": platform.machine()},
    }


def _versions() -> dict[str, str]:
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")
