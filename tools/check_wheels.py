"""Is a wheel what its name says? (`nox -s wheels`)

    python tools/check_wheels.py dist/*.whl

A wheel for a platform holds that platform's libraries and no others, compiled from the sources of this checkout, which
need the C runtime alone. A pure wheel holds no library, but the reason.
"""

import re
import runpy
import subprocess
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace

import lief

ROOT = Path(__file__).resolve().parent.parent
build = SimpleNamespace(**runpy.run_path(str(ROOT / "native" / "build.py")))
FOLDER = "regard/backends/native/lib/"

FORMATS = {"linux": lief.Binary.FORMATS.ELF, "macos": lief.Binary.FORMATS.MACHO, "windows": lief.Binary.FORMATS.PE}
ARCHITECTURES = {
    "x86_64": lief.Header.ARCHITECTURES.X86_64,
    "aarch64": lief.Header.ARCHITECTURES.ARM64,
    "arm64": lief.Header.ARCHITECTURES.ARM64,
}
# The C runtime of each system; a library for macOS names itself among them.
LIBRARIES = re.compile(r"lib[cm]\.so\.6|/usr/lib/libSystem\.B\.dylib|\w+\.dylib|api-ms-win-crt-.*\.dll")
FUNCTIONS = {"expf", "memcpy", "memmove", "memset", "bzero", "memset_pattern16", "dyld_stub_binder"}


def main() -> None:
    """Check the wheels that are named, and end with an error if one is wrong."""
    lief.logging.disable()
    wrong = {name: problems(Path(name)) for name in sys.argv[1:]}
    for name, found in wrong.items():
        print(f"{name}: {'; '.join(found) or 'right'}")
    sys.exit(any(wrong.values()))


def problems(wheel: Path) -> list[str]:
    """Return what is wrong with a wheel."""
    tag = wheel.stem.split("-")[-1]
    with zipfile.ZipFile(wheel) as archive:
        files = {name.removeprefix(FOLDER): archive.read(name) for name in archive.namelist() if FOLDER in name}
    if tag == "any":
        return [] if set(files) == {build.ABSENT} else [f"a pure wheel with {sorted(files)}"]
    ((name, platform),) = ((name, platform) for name, platform in build.PLATFORMS.items() if platform.tag == tag)
    expected = {f"{library}{platform.suffix}" for library in ("processor", *platform.sets)}
    found = [] if set(files) == expected else [f"it holds {sorted(files)}, not {sorted(expected)}"]
    for file, content in files.items():
        found += [f"{file} {problem}" for problem in problems_of_library(content, *name.split("-"))]
    return found + (problems_of_tag(wheel, tag) if name.startswith("linux") else [])


def problems_of_library(content: bytes, system: str, processor: str) -> list[str]:
    """Return what is wrong with a library."""
    library = lief.parse(content)
    if library is None or library.format != FORMATS[system]:
        return [f"is no library of {system}"]
    found = []
    if library.abstract.header.architecture != ARCHITECTURES[processor]:
        found.append(f"is not for {processor}")
    if build.hash_of(ROOT / "native").encode() not in content:
        found.append("was made of other sources")
    needed = {used if isinstance(used, str) else used.name for used in library.libraries}
    if foreign := {used for used in needed if not LIBRARIES.fullmatch(used)}:
        found.append(f"needs {sorted(foreign)}")
    functions = {
        function.name.removeprefix("_" if system == "macos" else "") for function in library.imported_functions
    }
    if foreign := functions - FUNCTIONS:
        found.append(f"calls {sorted(foreign)}")
    return found


def problems_of_tag(wheel: Path, tag: str) -> list[str]:
    """Return what auditwheel says against the tag of a wheel for Linux."""
    command = [sys.executable, "-m", "auditwheel", "show", str(wheel)]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", check=False)
    shown = " ".join((done.stdout + done.stderr).split())
    return [] if f'following platform tag: "{tag}"' in shown else [shown]


if __name__ == "__main__":
    main()
