"""Which library of native kernels is loaded, and what is said where none is."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import regard
from regard.backends.native import library
from regard.backends.native.sources import hash_of

if (REASON := library.refuses()) is not None:
    pytest.skip(REASON, allow_module_level=True)
BEST = library.library().name
FILES = sorted(path.name for path in library.FOLDER.iterdir())


@pytest.fixture
def folder(monkeypatch, tmp_path):
    """A copy of the libraries, from which a process begins that has loaded none."""
    copy = Path(shutil.copytree(library.FOLDER, tmp_path / "lib"))
    monkeypatch.setattr(library, "FOLDER", copy)
    for cached in (library._loaded, library.instruction_sets):
        cached.cache_clear()
    yield copy
    for cached in (library._loaded, library.instruction_sets):
        cached.cache_clear()


def file_of(folder, name):
    (path,) = folder.glob(f"{name}.*")
    return path


def test_the_best_that_the_processor_runs_is_loaded(folder):
    assert library.refuses() is None
    assert library.failures() == ()
    assert library.library().name == BEST
    sets = library.instruction_sets()
    assert "v3" in sets or "v4" not in sets
    assert ("bf16" in sets) == library.library().has_bf16


@pytest.mark.parametrize("change", ["damaged", "empty", "of another library"])
def test_a_library_that_cannot_be_loaded_is_named_and_the_next_one_taken(folder, change):
    file = file_of(folder, BEST)
    if change == "damaged":
        file.write_bytes(file.read_bytes()[:300])
    elif change == "empty":
        file.write_bytes(b"")
    else:
        shutil.copy(file_of(folder, "processor"), file)
    others = [name for name in FILES if Path(name).stem not in ("processor", BEST)]
    (failure, *_) = library.failures()
    assert file.name in failure
    if others:
        assert library.refuses() is None
        assert library.library().name != BEST
    else:
        assert failure in library.refuses()


def test_a_library_of_other_sources_is_refused_with_the_way_out(folder, monkeypatch, tmp_path):
    sources = Path(shutil.copytree(library._SOURCES, tmp_path / "native"))
    monkeypatch.setattr(library, "_SOURCES", sources)
    assert library.refuses() is None
    with (sources / "tiles.h").open("a") as file:
        file.write("// changed\n")
    for cached in (library._loaded, library.instruction_sets):
        cached.cache_clear()
    assert "was made of other sources" in library.refuses()
    assert "`make native`" in library.refuses()


def test_without_a_checkout_no_sources_are_looked_for(folder, monkeypatch, tmp_path):
    monkeypatch.setattr(library, "_SOURCES", tmp_path / "nowhere")
    assert library.refuses() is None


def test_where_there_are_none_the_reason_that_the_build_left_is_given(folder):
    for file in folder.iterdir():
        file.unlink()
    assert "`make native`" in library.refuses()
    library._loaded.cache_clear()
    (folder / "absent.txt").write_text("no compiler: do this\n")
    assert library.refuses() == "no compiler: do this"
    x = torch.randn(1, 2, 600, 16)
    assert regard.explain(x, x, x, dropout=0.1).backend == "strips"
    assert "native not taken: no compiler: do this; calls with dropout" in str(regard.explain(x, x, x, dropout=0.1))


def test_a_processor_with_none_of_the_instruction_sets_has_no_kernels(folder, monkeypatch):
    monkeypatch.setattr(library, "_NEEDS", {name: frozenset(("v9",)) for name in library._NEEDS})
    assert "none of the instruction sets" in library.refuses()


def test_the_hash_is_that_of_names_and_contents(tmp_path):
    (tmp_path / "a.h").write_text("x")
    first = hash_of(tmp_path)
    (tmp_path / "notes.txt").write_text("x")
    assert hash_of(tmp_path) == first
    (tmp_path / "a.h").write_text("y")
    second = hash_of(tmp_path)
    (tmp_path / "a.h").rename(tmp_path / "b.h")
    assert len({first, second, hash_of(tmp_path)}) == 3


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="reads what Linux has mapped")
def test_nothing_outside_of_the_package_is_loaded():
    code = """
import torch, regard
x = torch.randn(1, 2, 600, 16)
before = {line.split()[-1] for line in open("/proc/self/maps") if ".so" in line}
regard.attention(x, x, x, dropout=0.1, backend="native")
after = {line.split()[-1] for line in open("/proc/self/maps") if ".so" in line}
print(*sorted(after - before))
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert {Path(path).parent for path in ran.stdout.split()} == {library.FOLDER}
