"""The build backend: hatchling, with a hook that compiles the kernels of native/ into the wheel.

    pip install .                                   kernels for this machine; the compiler is there for the build alone
    pip install -C native=no .                      a pure wheel; no compiler is asked for
    pip wheel --no-deps -C platform=macos-arm64 .   a wheel for another platform, or an error

hatchling hands its hooks none of these settings (pip's --config-settings), so they are put into the hook's table of
pyproject.toml here. Without kernels the wheel is pure, and holds the reason, which `regard doctor` prints.
"""

import runpy
import tomllib
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

from hatchling.build import *  # noqa: F403 - the functions of a backend that are hatchling's own
from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.builders.wheel import WheelBuilder, WheelBuilderConfig

ROOT = Path(__file__).resolve().parent
native = SimpleNamespace(**runpy.run_path(str(ROOT / "native" / "build.py")))

Settings = dict[str, Any] | None
SETTINGS = {"native": ("yes", "no"), "platform": tuple(native.PLATFORMS)}


def get_requires_for_build_wheel(config_settings: Settings = None) -> list[str]:
    """Return what the build of a wheel needs beside hatchling: the compiler, where there is one and it is wanted."""
    return builder(config_settings).config.dependencies


def get_requires_for_build_editable(config_settings: Settings = None) -> list[str]:
    """Return the same for an editable installation."""
    return get_requires_for_build_wheel(config_settings)


def build_wheel(wheel_directory: str, config_settings: Settings = None, metadata_directory: str | None = None) -> str:
    """Build the wheel, and return its name."""
    return build(wheel_directory, "standard", config_settings)


def build_editable(
    wheel_directory: str, config_settings: Settings = None, metadata_directory: str | None = None
) -> str:
    """Build the wheel of an editable installation, whose libraries are in the source tree, and return its name."""
    return build(wheel_directory, "editable", config_settings)


def build(wheel_directory: str, version: str, config_settings: Settings) -> str:
    """Let hatchling build a version of the wheel, and return its name."""
    (path,) = builder(config_settings).build(directory=wheel_directory, versions=[version])
    return Path(path).name


def builder(config_settings: Settings) -> WheelBuilder:
    """Return hatchling's builder, with the user's settings in the hook's table.

    Raises:
        ValueError: There is no such setting.
    """
    settings = config_settings or {}
    for name, value in settings.items():
        if value not in SETTINGS.get(name, ()):
            known = " or ".join(f"{name}={'|'.join(values)}" for name, values in SETTINGS.items())
            raise ValueError(f"regard is built with the settings {known}, got {name}={value}")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    project["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"]["custom"] |= settings
    return WheelBuilder(str(ROOT), config=project)


class NativeHook(BuildHookInterface[WheelBuilderConfig]):
    """Compiles the kernels: into the source tree for an editable installation, else into the wheel alone."""

    def dependencies(self) -> list[str]:
        """Return the compiler, if it is to be used."""
        try:
            self._platform()
        except native.CannotBuildError:
            return []
        return [f"ziglang=={native.ZIGLANG}"]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile the kernels, or leave the reason why there are none.

        Raises:
            CannotBuildError: The kernels of a platform were asked for by its name, and there are none.
        """
        self._made = TemporaryDirectory(prefix="regard-")
        folder = native.LIB if version == "editable" else Path(self._made.name)
        tag = None
        try:
            platform = self._platform()
            native.build(platform, folder)
            tag = f"py3-none-{native.PLATFORMS[platform].tag}"
        except native.CannotBuildError as error:
            if "platform" in self.config:
                raise
            self.app.display_warning(f"regard's kernels were not compiled: {error}")
            native.leave_reason(folder, str(error))
        if version == "editable":
            return
        for file in folder.iterdir():
            build_data["force_include"][str(file)] = f"regard/backends/native/lib/{file.name}"
        if tag:
            build_data |= {"tag": tag, "pure_python": False}

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove what the wheel holds by now."""
        self._made.cleanup()

    def _platform(self) -> str:
        if self.config.get("native") == "no":
            raise native.CannotBuildError("regard was installed with native=no: install it again without that setting")
        return str(self.config.get("platform") or native.host())
