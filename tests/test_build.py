"""The build: which libraries a wheel holds, for which a compiler is asked, and what is left where nothing is compiled.

But for the slow tests a stand-in takes the compiler's place: a module `ziglang` that writes empty libraries, or fails.
"""

import os
import platform as machine
import re
import runpy
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from documents import ROOT
from regard.backends.native.sources import hash_of

pytest.importorskip("hatchling", reason="hatchling is not installed (the extra `dev`)")

build = SimpleNamespace(**runpy.run_path(str(ROOT / "native" / "build.py")))
LIB = "regard/backends/native/lib/"

WRITES = "open(sys.argv[sys.argv.index('-o') + 1], 'w').close()"
CANNOT_START = "raise PermissionError(13, 'Permission denied', 'zig')"
REFUSES = "print('loops.cpp:1:1: error: no such thing', file=sys.stderr); sys.exit(1)"
INTERRUPTS = f"{WRITES}; import os, signal, time; os.kill(os.getppid(), signal.SIGINT); time.sleep(1)"


@pytest.fixture
def compiler(tmp_path, monkeypatch):
    """Put a stand-in in the compiler's place, in the processes that a test starts."""

    def replace(does: str, version: str = build.ZIGLANG, starts: bool = True) -> None:
        package = tmp_path / "site" / "ziglang"
        about = tmp_path / "site" / f"ziglang-{version}.dist-info"
        for folder in package, about:
            folder.mkdir(parents=True)
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: ziglang\nVersion: {version}\n", "utf-8")
        (package / "__init__.py").touch()
        starting = "if sys.argv[1] == 'version': sys.exit()\n" if starts else ""
        (package / "__main__.py").write_text(f"import sys\n{starting}{does}\n", "utf-8")
        monkeypatch.setenv("PYTHONPATH", str(package.parent))

    return replace


@pytest.fixture
def folder(tmp_path) -> Path:
    """A folder of libraries, with one of an earlier build."""
    libraries = tmp_path / "lib"
    libraries.mkdir()
    (libraries / "x86_64_v3.so").write_text("earlier", "utf-8")
    return libraries


def compile_into(folder: Path, platform: str = "linux-x86_64") -> int:
    """Call native/build.py, and return its exit status."""
    command = [sys.executable, str(ROOT / "native" / "build.py"), "--platform", platform, "--folder", str(folder)]
    return subprocess.run(command, check=False).returncode


def call_backend(call: str, root: Path = ROOT) -> None:
    """Call the build backend as a frontend does, in a process of its own, in the folder of a project."""
    command = [sys.executable, "-c", f"import hatch_build; hatch_build.{call}"]
    subprocess.run(command, cwd=root, check=True)


def only(folder: Path, pattern: str) -> Path:
    """The one file of a folder with a name like that."""
    (path,) = folder.glob(pattern)
    return path


def libraries_in(wheel: Path) -> dict[str, bytes]:
    """The files in a wheel's folder of libraries."""
    with zipfile.ZipFile(wheel) as archive:
        return {name.removeprefix(LIB): archive.read(name) for name in archive.namelist() if name.startswith(LIB)}


def reason_in(folder: Path) -> str:
    """What is in a folder without libraries."""
    assert [path.name for path in folder.iterdir()] == ["absent.txt"]
    return (folder / "absent.txt").read_text("utf-8")


@pytest.mark.parametrize(
    "changed",
    [
        {"a.cpp": "one;", "b.h": "two"},
        {"a.cpp": "one", "c.h": "two"},
        {"a.cpp": "onet", "b.h": "wo"},
        {"a.cpp": "one", "b.h": "two", "c.h": ""},
        {"a.cpp": "one"},
    ],
    ids=["content", "name", "moved between files", "added", "removed"],
)
def test_hash_of_the_sources_changes_with_them(tmp_path, changed):
    def hash_with(files: dict[str, str], name: str) -> str:
        (tmp_path / name).mkdir()
        for file, text in files.items():
            (tmp_path / name / file).write_text(text, "utf-8")
        return hash_of(tmp_path / name)

    sources = {"a.cpp": "one", "b.h": "two"}
    before = hash_with(sources, "before")
    assert hash_with(changed, "changed") != before
    assert hash_with({**sources, "build.py": "", "a.cpp~": "", "note.txt": ""}, "the same") == before


@pytest.mark.parametrize(
    ("platform", "libraries"),
    [
        ("linux-x86_64", {"processor.so", "x86_64_v3.so", "x86_64_v4.so", "x86_64_v4_bf16.so"}),
        ("linux-aarch64", {"processor.so", "aarch64.so"}),
        ("macos-arm64", {"processor.dylib", "arm64.dylib"}),
        ("windows-x86_64", {"processor.dll", "x86_64_v3.dll", "x86_64_v4.dll", "x86_64_v4_bf16.dll"}),
    ],
)
def test_build_leaves_the_libraries_of_a_platform_and_no_others(compiler, folder, platform, libraries):
    compiler(WRITES)
    (folder / "absent.txt").touch()
    (folder / "aarch64.dll").touch()
    assert compile_into(folder, platform) == 0
    assert {path.name for path in folder.iterdir()} == libraries


@pytest.mark.parametrize(
    ("stand_in", "status", "words"),
    [
        ({"does": CANNOT_START, "starts": False}, 0, ("Permission denied", "TMPDIR")),
        ({"does": WRITES, "version": "0.1.0"}, 0, ("0.1.0", f"pip install ziglang=={build.ZIGLANG}")),
        ({"does": "sys.exit('FileTooBig')"}, 0, ("FileTooBig", "native/build.py")),
        ({"does": REFUSES}, 1, ("loops.cpp:1:1: error: no such thing", "native/build.py")),
    ],
    ids=["cannot be started", "another version", "fails", "refuses the sources"],
)
def test_where_nothing_is_compiled_the_reason_and_a_way_out_are_left(compiler, folder, stand_in, status, words):
    compiler(**stand_in)
    assert compile_into(folder) == status  # `make` stops only where somebody must mend the sources
    reason = reason_in(folder)
    assert all(word in reason for word in words), reason
    assert reason.count("\n") == 1


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGINT for one process")
def test_interrupted_build_leaves_the_libraries_as_they_were(compiler, folder):
    compiler(INTERRUPTS)
    assert compile_into(folder) == 130
    assert {path.name: path.read_text("utf-8") for path in folder.iterdir()} == {"x86_64_v3.so": "earlier"}


@pytest.mark.parametrize("name", build.PLATFORMS)
def test_wheel_of_a_platform_holds_its_libraries_alone_and_its_tag(compiler, tmp_path, name):
    compiler(WRITES)
    tree = sorted(build.LIB.glob("*"))
    call_backend(f"build_wheel({str(tmp_path)!r}, {{'platform': {name!r}}})")
    assert sorted(build.LIB.glob("*")) == tree
    platform = build.PLATFORMS[name]
    wheel = only(tmp_path, f"*-py3-none-{platform.tag}.whl")
    assert set(libraries_in(wheel)) == {f"{library}{platform.suffix}" for library in ("processor", *platform.sets)}
    with zipfile.ZipFile(wheel) as archive:
        (about,) = (name for name in archive.namelist() if name.endswith("dist-info/WHEEL"))
        assert f"Root-Is-Purelib: false\nTag: py3-none-{platform.tag}\n" in archive.read(about).decode()


def test_wheel_without_kernels_is_pure_and_holds_the_reason(compiler, tmp_path):
    compiler(WRITES)  # there is one, and it is not used
    call_backend(f"build_wheel({str(tmp_path)!r}, {{'native': 'no'}})")
    ((file, reason),) = libraries_in(only(tmp_path, "*-py3-none-any.whl")).items()
    assert file == "absent.txt"
    assert b"native=no" in reason


def test_wheel_of_a_platform_by_name_is_never_pure(compiler, tmp_path):
    compiler(REFUSES)
    with pytest.raises(subprocess.CalledProcessError):
        call_backend(f"build_wheel({str(tmp_path)!r}, {{'platform': 'linux-x86_64'}})")
    assert not list(tmp_path.glob("*.whl"))


@pytest.mark.parametrize("settings", [{"nativ": "no"}, {"native": "off"}, {"platform": "linux"}])
def test_unknown_setting_is_refused_with_those_that_there_are(settings):
    backend = runpy.run_path(str(ROOT / "hatch_build.py"))
    with pytest.raises(ValueError, match=re.escape("native=yes|no or platform=linux-x86_64|")):
        backend["get_requires_for_build_wheel"](settings)


def test_editable_installation_has_its_libraries_in_the_source_tree(compiler, tmp_path):
    project = tmp_path / "project"
    for name in ("native", "src/regard/backends/native"):
        (project / name).mkdir(parents=True)
    copied = ("pyproject.toml", "hatch_build.py", "README.md", "LICENSE", "native/build.py")
    for name in (*copied, "src/regard/backends/native/sources.py"):
        (project / name).write_bytes((ROOT / name).read_bytes())
    for package in ("regard", "regard_bench", "regard_lab"):
        (project / "src" / package).mkdir(exist_ok=True)
        (project / "src" / package / "__init__.py").touch()
    compiler(WRITES)
    call_backend(f"build_editable({str(tmp_path)!r}, {{'platform': 'macos-arm64'}})", project)
    assert {path.name for path in (project / "src" / LIB).iterdir()} == {"arm64.dylib", "processor.dylib"}
    assert not libraries_in(only(tmp_path, "*-any.whl"))
    call_backend(f"build_wheel({str(tmp_path)!r}, {{'platform': 'linux-aarch64'}})", project)
    assert set(libraries_in(only(tmp_path, "*_aarch64.whl"))) == {"aarch64.so", "processor.so"}


@pytest.mark.parametrize(
    ("system", "processor", "version", "expected"),
    [
        ("linux", "x86_64", "glibc 2.17", "linux-x86_64"),
        ("linux", "aarch64", "glibc 2.36", "linux-aarch64"),
        ("darwin", "arm64", "13.0", "macos-arm64"),
        ("win32", "win-amd64", "", "windows-x86_64"),
        ("linux", "x86_64", None, "glibc"),
        ("linux", "riscv64", "glibc 2.36", "linux-riscv64"),
        ("darwin", "x86_64", "14.1", "macos-x86_64"),
        ("darwin", "arm64", "12.7", "macOS 13"),
        ("win32", "win-arm64", "", "windows-win-arm64"),
        ("freebsd14", "amd64", "", "freebsd14-amd64"),
    ],
)
def test_compiler_is_asked_for_only_where_there_are_kernels(monkeypatch, system, processor, version, expected):
    backend = runpy.run_path(str(ROOT / "hatch_build.py"))
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setattr(machine, "machine", lambda: processor)
    monkeypatch.setattr(machine, "mac_ver", lambda: (version, ("", "", ""), ""))
    monkeypatch.setattr(sysconfig, "get_platform", lambda: processor)
    monkeypatch.setattr(os, "confstr", lambda name: version, raising=False)
    native = backend["native"]
    is_known = expected in native.PLATFORMS
    if is_known:
        assert native.host() == expected
    else:
        with pytest.raises(native.CannotBuildError, match=expected):
            native.host()
    for kind in ("wheel", "editable"):
        requires = backend[f"get_requires_for_build_{kind}"]
        assert (f"ziglang=={native.ZIGLANG}" in requires({})) == is_known
        assert not any("ziglang" in requirement for requirement in requires({"native": "no"}))


def test_the_pinned_compiler_is_the_one_that_is_installed_for_tests():
    constraints = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    assert f"ziglang=={build.ZIGLANG}" in constraints


@pytest.mark.slow
@pytest.mark.parametrize("name", build.PLATFORMS)
def test_compiled_wheel_needs_the_c_runtime_alone(tmp_path, name):
    pytest.importorskip("ziglang", reason="ziglang is not installed (the extra `dev`)")
    pytest.importorskip("lief", reason="lief is not installed (the extra `dev`)")
    from tools.check_wheels import problems

    call_backend(f"build_wheel({str(tmp_path)!r}, {{'platform': {name!r}}})")
    wheel = only(tmp_path, "*.whl")
    assert problems(wheel) == []
    for platform in {"any", *(platform.tag for platform in build.PLATFORMS.values())} - {build.PLATFORMS[name].tag}:
        (mistaken := tmp_path / f"regard-0-py3-none-{platform}.whl").write_bytes(wheel.read_bytes())
        assert problems(mistaken)


@pytest.mark.slow
def test_wheel_from_the_sdist_is_the_one_from_the_checkout(tmp_path):
    pytest.importorskip("ziglang", reason="ziglang is not installed (the extra `dev`)")
    call_backend(f"build_sdist({str(tmp_path)!r})")
    with tarfile.open(only(tmp_path, "*.tar.gz")) as archive:
        archive.extractall(tmp_path, filter="data")
    for name, root in {"checkout": ROOT, "sdist": only(tmp_path, "regard-*[0-9]")}.items():
        call_backend(f"build_wheel({str(tmp_path / name)!r}, {{'platform': 'linux-aarch64'}})", root)
    wheels = [only(tmp_path / name, "*.whl") for name in ("checkout", "sdist")]
    assert wheels[0].read_bytes() == wheels[1].read_bytes()


@pytest.mark.slow
def test_pip_needs_neither_network_nor_compiler_for_a_pure_wheel(tmp_path):
    settings = "--no-index --no-deps --no-build-isolation --config-settings native=no".split()
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", *settings, "--wheel-dir", str(tmp_path), str(ROOT)]
    subprocess.run(command, check=True)
    assert list(libraries_in(only(tmp_path, "*-py3-none-any.whl"))) == ["absent.txt"]
