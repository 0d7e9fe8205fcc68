"""The cache of converted models: built once and whole, built again when anything about it is off."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from regard.hub import BundledModelError
from regard.hub.converted import cache_folder, converted
from sweeps import sweep

SOURCE = "ab" * 32


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


def large(draft: Path) -> None:
    """A file of so many bytes that it is not hashed at each load, with holes for most of them."""
    with (draft / "a.txt").open("wb") as file:
        file.truncate(33 * 2**20)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "another content": lambda at: (at / "a.txt").write_text("two", encoding="utf-8"),
    "another size": lambda at: (at / "a.txt").write_text("o", encoding="utf-8"),
    "no file": lambda at: (at / "a.txt").unlink(),
    "no list": lambda at: (at / "regard.json").unlink(),
    "an empty list": lambda at: (at / "regard.json").write_text("{}", encoding="utf-8"),
    "a list of names": lambda at: (at / "regard.json").write_text('["a.txt"]', encoding="utf-8"),
}


def test_a_damaged_folder_is_built_again(folder: Path) -> None:
    for case in sweep(DAMAGES):
        with case as damage:
            built = converted(damage, SOURCE, 1, writer())
            os.utime(built / "a.txt", ns=(1, 1))
            DAMAGES[damage](built)
            again = converted(damage, SOURCE, 1, writer("three"))
            assert (again / "a.txt").read_text(encoding="utf-8") == "three"
            assert again == built
    assert len(list(folder.iterdir())) == len(DAMAGES)


def test_a_large_file_that_was_changed_is_built_again(folder: Path) -> None:
    built = converted("m", SOURCE, 1, large)
    assert converted("m", SOURCE, 1, never) == built
    with (built / "a.txt").open("r+b") as file:  # of the same size, with another time stamp
        file.write(b"two")
    assert (converted("m", SOURCE, 1, writer("three")) / "a.txt").read_text(encoding="utf-8") == "three"


def test_a_large_file_that_was_cut_is_seen_even_with_an_old_time_stamp(folder: Path) -> None:
    built = converted("m", SOURCE, 1, large)
    then = (built / "a.txt").stat().st_mtime_ns
    os.truncate(built / "a.txt", 33 * 2**20 - 1)
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
