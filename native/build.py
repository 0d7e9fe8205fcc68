"""Compile the kernels of attention: a library for each instruction set, by the compiler in the wheel `ziglang`.

    python native/build.py                                            for this machine, where regard loads them
    python native/build.py --platform macos-arm64 --folder out/macos  for another one

`make` and the hook of the wheel (hatch_build.py) call it. No compiler of the system is used: the kernels that g++ 12
makes of the same sources take 2.7 times as long. Where there can be no libraries, `absent.txt` in their place gives the
reason and the way out, which `regard doctor` prints. The exit status is 1 only where the sources do not compile.
"""

import argparse
import os
import platform as machine
import runpy
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from importlib import metadata
from pathlib import Path

ZIGLANG = "0.17.1"

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "regard" / "backends" / "native"
LIB = PACKAGE / "lib"  # whence regard loads them
ABSENT = "absent.txt"
hash_of = runpy.run_path(str(PACKAGE / "sources.py"))["hash_of"]  # regard itself cannot be imported without PyTorch

COMPILE = (
    "-std=c++20 -O3 -ffp-contract=off -fno-exceptions -fno-rtti -fvisibility=hidden -fno-sanitize=undefined -g0"
    " -Wall -Wextra"
).split()
LINK = "-shared -s -nostdlib".split()  # the C runtime is named below; zig would compile its own for every build


@dataclass(frozen=True)
class Platform:
    """What a wheel is made for.

    Args:
        target: Zig's name of it, with the oldest system.
        tag: The same in the name of a wheel.
        baseline: The processor that every machine of the platform has.
        sets: The processor that each library of kernels is compiled for.
    """

    target: str
    tag: str
    suffix: str
    sets: Mapping[str, str]
    baseline: str = "baseline"
    compile_flags: tuple[str, ...] = ()
    link_flags: tuple[str, ...] = ()


X86_64_SETS = {
    "x86_64_v4_bf16": "x86_64_v4-prefer_256_bit+avx512bf16",
    "x86_64_v4": "x86_64_v4-prefer_256_bit",
    "x86_64_v3": "x86_64_v3",
}
LINUX = partial(Platform, suffix=".so", compile_flags=("-fPIC",), link_flags=("-lm", "-lc"))
MACOS = partial(Platform, suffix=".dylib", baseline="apple_m1", link_flags=("-lSystem",))
WINDOWS = partial(  # without start-up code, which these libraries do not need and which takes a minute to compile
    Platform,
    suffix=".dll",
    link_flags=("-Wl,--no-entry", *(f"-lapi-ms-win-crt-{part}-l1-1-0" for part in ("math", "string", "private"))),
)
PLATFORMS = {
    "linux-x86_64": LINUX("x86_64-linux-gnu.2.17", "manylinux_2_17_x86_64", sets=X86_64_SETS),
    "linux-aarch64": LINUX("aarch64-linux-gnu.2.17", "manylinux_2_17_aarch64", sets={"aarch64": "baseline"}),
    "macos-arm64": MACOS("aarch64-macos.11.0", "macosx_11_0_arm64", sets={"arm64": "apple_m1"}),
    "windows-x86_64": WINDOWS("x86_64-windows-gnu", "win_amd64", sets=X86_64_SETS),
}


class CannotBuildError(Exception):
    """Why there are no libraries, and the way out, in a sentence."""


class RefusedSourcesError(CannotBuildError):
    """The sources do not compile."""


def main() -> int:
    """Build the libraries by hand."""
    parser = argparse.ArgumentParser(description="Compile the kernels of attention.")
    parser.add_argument("--platform", choices=PLATFORMS, help="the platform to compile for; default: this machine")
    parser.add_argument("--folder", type=Path, default=LIB, help="the folder of the libraries; default: regard's")
    args = parser.parse_args()
    began = time.monotonic()
    try:
        build(args.platform or host(), args.folder)
    except CannotBuildError as error:
        leave_reason(args.folder, str(error))
        sys.stderr.writelines(getattr(error, "__notes__", ()))
        print(f"regard's kernels were not compiled: {error}", file=sys.stderr)
        return int(isinstance(error, RefusedSourcesError))
    except KeyboardInterrupt:
        return 130
    built = ", ".join(sorted(path.name for path in args.folder.iterdir()))
    print(f"{args.folder}: {built} ({time.monotonic() - began:.1f} s)")
    return 0


def build(platform: str, folder: Path) -> None:
    """Put the libraries for a platform into a folder, and take every other file out of it.

    Raises:
        CannotBuildError: The compiler is missing, cannot be started, or refuses the sources; the folder is read-only.
    """
    check_compiler()
    folder = folder.resolve()  # zig is started elsewhere
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".new-", dir=folder) as made, zig_cache() as cache:
            work = Work(PLATFORMS[platform], Path(made), cache)
            with ThreadPoolExecutor(processors()) as pool:
                libraries = list(pool.map(work.library, ("processor", *work.platform.sets)))
            for library in libraries:
                library.replace(folder / library.name)
        remove_files(folder, but={library.name for library in libraries})
    except OSError as error:
        raise CannotBuildError(f"they cannot be written to {folder} ({error.strerror}): make it writable") from error


def leave_reason(folder: Path, reason: str) -> None:
    """Leave no library in a folder, and the reason in their place, if it can be written."""
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / ABSENT).write_text(f"{reason}\n", encoding="utf-8")
        remove_files(folder, but={ABSENT})


def host() -> str:
    """Return this machine's platform.

    Raises:
        CannotBuildError: There are no kernels for it.
    """
    system = {"darwin": "macos", "win32": "windows"}.get(sys.platform, sys.platform)
    # On Windows the processor is that of Python, which may be emulated.
    processor = sysconfig.get_platform() if system == "windows" else machine.machine()
    name = f"{system}-{processor}".replace("windows-win-amd64", "windows-x86_64")
    if name not in PLATFORMS or sys.maxsize < 2**32:
        bits = " with a Python of 32 bits" if sys.maxsize < 2**32 else ""
        raise CannotBuildError(
            f"there are none for {name}{bits}, only for {', '.join(PLATFORMS)}: the other backends compute the same"
        )
    if system == "linux" and not has_glibc():
        raise CannotBuildError(
            "on Linux they need glibc, and this system has another C library (musl, as in Alpine): install regard on a "
            "system with glibc, such as Debian"
        )
    if system == "macos" and int(machine.mac_ver()[0].partition(".")[0] or 0) < 13:
        raise CannotBuildError(
            "their compiler needs macOS 13: install a wheel of regard that was made elsewhere (`make wheels`)"
        )
    return name


def has_glibc() -> bool:
    """Whether Linux has the C library that the kernels are linked with."""
    try:
        return (os.confstr("CS_GNU_LIBC_VERSION") or "").startswith("glibc")
    except (ValueError, OSError):
        return False


def check_compiler() -> None:
    """Check that the pinned compiler is installed, and that it can be started.

    Raises:
        CannotBuildError: It is not, or it cannot.
    """
    try:
        installed = metadata.version("ziglang")
    except metadata.PackageNotFoundError:
        installed = None
    if installed != ZIGLANG:
        raise CannotBuildError(
            f"their compiler is ziglang {ZIGLANG}, and {installed or 'none'} is installed: install it "
            f"(`pip install ziglang=={ZIGLANG}`) and then regard again, or install regard without --no-build-isolation"
        )
    started = run(["version"])
    if started.returncode != 0:
        raise CannotBuildError(
            f"their compiler cannot be started ({last_line(started.stderr)}): install regard again with TMPDIR set to "
            "a folder that has room for 500 MB and from which programs may be started"
        )


@dataclass(frozen=True)
class Work:
    """The libraries of one build, each compiled and linked in a folder of its own making."""

    platform: Platform
    folder: Path
    cache: Path
    sources: str = field(default_factory=lambda: hash_of(ROOT / "native"))

    def library(self, name: str) -> Path:
        """Compile a library, and return its file."""
        source = ROOT / "native" / ("processor.cpp" if name == "processor" else "loops.cpp")
        compiled, library = f"{name}.o", f"{name}{self.platform.suffix}"  # relative: a library for macOS names itself
        hashed = f'-DREGARD_SOURCES="{self.sources}"'
        cpu = self.platform.sets.get(name, self.platform.baseline)
        self._zig(cpu, *COMPILE, *self.platform.compile_flags, hashed, "-c", str(source), "-o", compiled)
        self._zig(cpu, *LINK, compiled, "-o", library, *self.platform.link_flags)
        return self.folder / library

    def _zig(self, cpu: str, *args: str) -> None:
        done = run(["c++", "-target", self.platform.target, f"-mcpu={cpu}", *args], self.cache, self.folder)
        errors = [line for line in done.stderr.splitlines() if ": error: " in line]
        shown = "`python native/build.py` shows more"
        error: CannotBuildError | None = None
        if errors:
            error = RefusedSourcesError(f"their sources do not compile ({errors[0]}): report it; {shown}")
        elif done.returncode != 0:
            error = CannotBuildError(f"their compiler fails ({last_line(done.stderr)}): {shown}")
        if error is not None:
            error.add_note(done.stderr)
            raise error
        sys.stderr.write(done.stderr)  # warnings


def run(args: list[str], cache: Path | None = None, folder: Path | None = None) -> "subprocess.CompletedProcess[str]":
    """Run zig, whose caches are in a folder and not in HOME."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ZIG_")}
    if cache is not None:
        environment |= {"ZIG_GLOBAL_CACHE_DIR": str(cache), "ZIG_LOCAL_CACHE_DIR": str(cache)}
    command = [sys.executable, "-P", "-m", "ziglang", *args]  # -P: no module of the folder it is called from
    return subprocess.run(
        command, env=environment, cwd=folder, capture_output=True, encoding="utf-8", errors="replace", check=False
    )


@contextmanager
def zig_cache() -> Iterator[Path]:
    """Yield a folder for zig's cache: out/zig, which makes the next build quick, or a temporary one."""
    folder = ROOT / "out" / "zig"
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
    if os.access(folder, os.W_OK):
        yield folder
    else:
        with tempfile.TemporaryDirectory(prefix="regard-zig-") as temporary:
            yield Path(temporary)


def processors() -> int:
    """Return how many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def remove_files(folder: Path, but: set[str]) -> None:
    """Remove the files of a folder, but those with these names."""
    for path in folder.iterdir():
        if path.is_file() and path.name not in but:
            path.unlink()


def last_line(text: str) -> str:
    """Return the last line of an error message, or a word in its place."""
    return ([line.strip() for line in text.splitlines() if line.strip()] or ["it says nothing"])[-1]


if __name__ == "__main__":
    sys.exit(main())
