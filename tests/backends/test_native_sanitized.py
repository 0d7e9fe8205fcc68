"""The kernels in a C program over records of calls: under two sanitizers, and on aarch64.

tests/native/records.py makes the records, and tests/native/driver.cpp runs them. Each sanitizer is first shown a fault
that it must find.
"""

import runpy
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import NamedTuple

import pytest

from native.records import record_calls, save
from regard.backends.native import library

pytestmark = [
    pytest.mark.slow,  # compilers, and another processor's instructions one by one
    pytest.mark.skipif(sys.platform != "linux", reason="the driver is a program for Linux"),
]

ROOT = Path(__file__).resolve().parents[2]
DRIVER = ROOT / "tests" / "native" / "driver.cpp"
native = SimpleNamespace(**runpy.run_path(str(ROOT / "native" / "build.py")))

CHECKED = "-std=c++20 -O1 -g -ffp-contract=off -fno-exceptions -fno-rtti".split()
GCC = {  # the processors of the libraries, as g++ names them
    "x86_64_v4_bf16": ["-march=x86-64-v4", "-mavx512bf16"],
    "x86_64_v4": ["-march=x86-64-v4"],
    "x86_64_v3": ["-march=x86-64-v3"],
}
# zig links its own expf and logf into programs, whose last bits are others than those of glibc.
TOLERANCE = "4e-6"


class Recorded(NamedTuple):
    """A file of records, with their number, and that of those with pairs of bfloat16."""

    path: Path
    count: int
    pairs: int


@pytest.fixture(scope="module")
def recorded() -> Iterator[Recorded]:
    if (reason := library.refuses()) is not None:
        pytest.skip(reason)
    records = record_calls()
    with TemporaryDirectory(prefix="regard-records-") as folder:
        path = Path(folder) / "records"
        save(records, path)
        yield Recorded(path, len(records), sum(record.has_pairs for record in records))


def zig(folder, *options):
    """Compile the driver with clang; skip where it is missing."""
    try:
        native.check_compiler()
    except native.CannotBuildError as error:
        pytest.skip(str(error))
    program = folder / "driver"
    with native.zig_cache() as cache:
        done = native.run(["c++", *options, "-nostdlib++", str(DRIVER), "-o", str(program), "-lm"], cache, folder)
    assert done.returncode == 0, done.stderr
    return program


def run(*command):
    return subprocess.run([*map(str, command)], capture_output=True, text=True, check=False, timeout=600)


def check(done, count, skipped=0):
    """Check that a driver has found no difference, in as many records as there are."""
    sys.stdout.write(done.stdout)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    equal = f"{count - skipped} records, each in turn and at once: 0 differ"
    assert done.stdout == f"{equal}; {skipped} of pairs of bfloat16 skipped\n"


def test_the_sanitizer_of_undefined_behaviour_finds_nothing(recorded, tmp_path):
    """By clang, for the library's own instruction set."""
    cpu = native.X86_64_SETS.get(library.library().name, "native")
    driver = zig(tmp_path, *CHECKED, f"-mcpu={cpu}", "-fsanitize=undefined", "-fno-sanitize-recover=all")
    fault = run(driver, recorded.path, "huge")
    assert fault.returncode != 0
    assert "signed integer overflow" in fault.stderr
    check(run(driver, recorded.path, TOLERANCE), recorded.count)


def test_the_sanitizer_of_addresses_finds_nothing_and_g_plus_plus_computes_the_same_bits(recorded, tmp_path):
    """By g++, because zig has no library for clang's."""
    if (compiler := shutil.which("g++")) is None:
        pytest.skip("there is no g++")
    driver, options = tmp_path / "driver", GCC.get(library.library().name, [])
    options += ["-fsanitize=address", "-Wno-psabi", "-include", str(DRIVER.with_name("gcc.h"))]
    done = run(compiler, *CHECKED, *options, DRIVER, "-o", driver, "-lm", "-pthread")
    assert done.returncode == 0, done.stderr[-4000:]
    fault = run(driver, recorded.path, "short")
    assert fault.returncode != 0
    assert "heap-buffer-overflow" in fault.stderr
    check(run(driver, recorded.path), recorded.count)


def test_aarch64_computes_the_same_to_the_last_bits(recorded, tmp_path):
    """Compiled as for the wheel, but with a C library of its own, and run by qemu."""
    if (emulator := shutil.which("qemu-aarch64")) is None:
        pytest.skip("there is no qemu-aarch64 (Debian: qemu-user)")
    target = ["-target", "aarch64-linux-musl", "-static", "-mcpu=baseline"]
    driver = zig(tmp_path, *native.COMPILE, *target)
    check(run(emulator, driver, recorded.path, TOLERANCE), recorded.count, recorded.pairs)
