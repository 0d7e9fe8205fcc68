"""The cache of converted models: built once and whole, built again when anything about it is off."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from regard.interpret.bundled import BundledModelError
from regard.interpret.bundled.load import cache_folder, converted

SOURCE = "ab" * 32
LOAD = sys.modules[converted.__module__]  # the package exports a function of the same name


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def writer(text: str = "one") -> Callable[[Path], None]:
    def build(draft: Path) -> None:
        (draft / "a.txt").write_text(text, encoding="utf-8")

    return build


def never(draft: Path) -> None:
    raise AssertionError("it was built already")


def test_the_cache_builds_once(folder: Path) -> None:
    built = converted("m", SOURCE, 1, writer())
    assert built.parent == folder == cache_folder()
    assert converted("m", SOURCE, 1, never) == built


def test_another_source_or_version_is_another_folder(folder: Path) -> None:
    names = {
        converted("m", source, version, writer()) for source, version in ((SOURCE, 1), (SOURCE, 2), ("cd" * 32, 1))
    }
    assert len(names) == 3


def test_an_interrupted_build_leaves_nothing_behind(folder: Path) -> None:
    def interrupted(draft: Path) -> None:
        writer("half")(draft)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        converted("m", SOURCE, 1, interrupted)
    assert list(folder.iterdir()) == []
    assert (converted("m", SOURCE, 1, writer()) / "a.txt").read_text(encoding="utf-8") == "one"


@pytest.mark.parametrize(
    "damage",
    [
        lambda at: (at / "a.txt").write_text("two", encoding="utf-8"),
        lambda at: (at / "a.txt").write_text("o", encoding="utf-8"),
        lambda at: (at / "a.txt").unlink(),
        lambda at: (at / "regard.json").unlink(),
        lambda at: (at / "regard.json").write_text("{}", encoding="utf-8"),
        lambda at: (at / "regard.json").write_text('["a.txt"]', encoding="utf-8"),
    ],
)
@pytest.mark.parametrize("small", [0, 1000])
def test_a_damaged_folder_is_built_again(folder: Path, monkeypatch, damage, small: int) -> None:
    monkeypatch.setattr(LOAD, "_SMALL", small)
    built = converted("m", SOURCE, 1, writer())
    os.utime(built / "a.txt", ns=(1, 1))
    damage(built)
    assert (converted("m", SOURCE, 1, writer("three")) / "a.txt").read_text(encoding="utf-8") == "three"
    assert [path.name for path in folder.iterdir()] == [built.name]


def test_a_large_file_that_was_cut_is_seen_even_with_an_old_time_stamp(folder: Path, monkeypatch) -> None:
    monkeypatch.setattr(LOAD, "_SMALL", 0)
    built = converted("m", SOURCE, 1, writer())
    then = (built / "a.txt").stat().st_mtime_ns
    (built / "a.txt").write_text("on", encoding="utf-8")
    os.utime(built / "a.txt", ns=(then, then))
    assert (converted("m", SOURCE, 1, writer("three")) / "a.txt").read_text(encoding="utf-8") == "three"


def test_a_folder_that_another_process_built_meanwhile_is_taken(folder: Path) -> None:
    def slow(draft: Path) -> None:
        converted("m", SOURCE, 1, writer("theirs"))
        writer("ours")(draft)

    assert (converted("m", SOURCE, 1, slow) / "a.txt").read_text(encoding="utf-8") == "theirs"


def test_a_cache_that_cannot_be_written_names_the_way_out(tmp_path, monkeypatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "file"))
    with pytest.raises(BundledModelError, match=r"cannot be written .* name another folder with REGARD_CACHE"):
        converted("m", SOURCE, 1, writer())
