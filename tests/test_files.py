"""Files and folders appear whole or not at all, and what a killed process has left goes with the next write."""

import os
import resource
import signal
from contextlib import contextmanager
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from torch import nn

import regard
from regard.data import Tokenizer, read_corpus
from regard.errors import InputError, RegardError
from regard.files import check_writable, lock, replace_files, whole_file, write_atomically, write_folder
from regard.heads import HeadSet, Sources
from regard.hub.converted import converted
from regard.interpret.head_examples import json_lines
from regard.interpret.model_loading import load_model
from regard.models import Transformer, TransformerConfig
from regard.train import JsonlLog, read_config, read_log
from regard.train.callbacks import Started
from regard.train.checkpoints import Checkpoints, TrainerState
from sweeps import sweep


def file(path):
    write_atomically(path, b"new")


def folder(path):
    write_folder(path, lambda draft: (draft / "a").write_bytes(b"new"))


def inside(path):
    replace_files(path, lambda draft: (draft / "a").write_bytes(b"new"))


WRITERS = {"file": file, "folder": folder, "inside": inside, "check": check_writable}


def test_a_symbolic_link_is_followed(tmp_path_factory):
    for case in sweep(product([True, False], WRITERS)):
        with case as (there, kind):
            tmp_path = tmp_path_factory.mktemp("case")
            (tmp_path / "elsewhere").mkdir()
            link, target = tmp_path / "link", tmp_path / "elsewhere" / "target"
            if there and kind not in ("file", "check"):
                target.mkdir()
            if there and kind in ("file", "check"):
                target.write_bytes(b"old")
            if kind != "inside" or there:  # a folder to write in is made, a link to nothing is none
                link.symlink_to(target)
                WRITERS[kind](link)
                assert link.is_symlink()
                written = {"file": target, "folder": target / "a", "inside": target / "a"}
                assert kind == "check" or written[kind].read_bytes() == b"new"
                assert not list(tmp_path.glob(".*"))


def test_a_name_that_no_file_can_have_is_one_sentence(tmp_path_factory):
    for case in sweep(product(["n" * 300, "a\0b", "\ud800"], WRITERS)):
        with case as (name, kind):
            tmp_path = tmp_path_factory.mktemp("case")
            with pytest.raises(InputError, match="cannot write") as refused:
                WRITERS[kind](tmp_path / name)
            assert str(refused.value).isprintable()
            assert not list(tmp_path.iterdir())


def test_a_name_too_long_for_a_file_is_none():
    for case in sweep([Tokenizer.load, load_model, Transformer.from_pretrained]):
        with case as load, pytest.raises(RegardError):
            load("n" * 300)


READERS = {
    "atlas": regard.load_atlas,
    "head set": HeadSet.load,
    "AT2": HeadSet.load_at2,
    "sources": Sources.load,
    "tokenizer": Tokenizer.load,
    "corpus": read_corpus,
    "log": read_log,
    "configuration": lambda path: read_config(Path(path)),
    "examples": lambda path: list(json_lines(Path(path))),
}


def test_a_reader_refuses_what_is_no_file_instead_of_waiting_for_its_end(tmp_path_factory):
    for case in sweep(
        product(
            READERS,
            [
                ("pipe", "a device or a pipe"),
                ("/dev/full", "a device or a pipe"),
                ("a\0b", "no file can have this name"),
            ],
        )
    ):
        with case as (kind, (name, reason)):
            tmp_path = tmp_path_factory.mktemp("case")
            os.mkfifo(tmp_path / "pipe")
            with pytest.raises(RegardError, match=reason) as refused:
                READERS[kind](str(tmp_path / name))  # of which an absolute name is all that is left
            assert str(refused.value).isprintable()


@pytest.mark.parametrize("kind", ["file", "check"])
def test_a_pipe_or_a_device_is_refused_and_stays(tmp_path, kind):
    """Root may rename over /dev/null, which would then be a file for everyone."""
    pipe, link = tmp_path / "pipe", tmp_path / "link"
    os.mkfifo(pipe)
    link.symlink_to(pipe)
    for path in (pipe, link):
        with pytest.raises(InputError, match="the device or pipe"):
            WRITERS[kind](path)
    assert pipe.is_fifo()
    assert link.is_symlink()
    assert len(list(tmp_path.iterdir())) == 2


def test_a_folder_is_no_file_to_write_and_that_is_known_before(tmp_path):
    for kind in ("file", "check"):
        with pytest.raises(InputError, match=r"`path` must be a file to write, got the folder"):
            WRITERS[kind](tmp_path)


def test_what_a_killed_process_has_left_goes_and_what_a_living_one_writes_stays(tmp_path_factory):
    for case in sweep(product(WRITERS, ["it.atlas", "[a]*?.x", "貓" * 80, "a" * 250])):
        with case as (kind, name):
            tmp_path = tmp_path_factory.mktemp("case")
            target = tmp_path / name
            where = target if kind == "inside" else tmp_path
            where.mkdir(exist_ok=True)
            short = os.fsencode(name)[:100].decode(errors="ignore")
            dead, alive = where / f".{short}.abcdefg1.part", where / f".{short}.abcdefg2.part"
            gone = where / f".{short}.abcdefg3.part"
            dead.write_bytes(b"half")
            alive.write_bytes(b"half")
            (gone / "more").mkdir(parents=True)
            others = [where / ".other.abcdefg1.part", where / f".{short}.mine.part", where / f"{short}.abcdefg1.part"]
            for one in others:
                one.write_bytes(b"")
            held = lock(alive)
            assert held is not None
            WRITERS[kind](target)
            assert alive.exists()
            assert not dead.exists()
            assert not gone.exists()
            assert all(one.exists() for one in others)
            os.close(held)
            WRITERS[kind](target)
            assert not alive.exists()
            left = {one.name for one in where.iterdir()} - {one.name for one in others}
            assert left == ({"a"} if kind == "inside" else set() if kind == "check" else {name})


def test_what_is_being_written_is_locked(tmp_path):
    with whole_file(tmp_path / "it") as draft:
        (path,) = tmp_path.iterdir()
        with pytest.raises(BlockingIOError):
            lock(path)
        file(tmp_path / "it")  # another writer of the same target leaves it alone
        draft.write(b"last")
    assert (tmp_path / "it").read_bytes() == b"last"
    assert [one.name for one in tmp_path.iterdir()] == ["it"]


def test_a_folder_that_cannot_be_moved_leaves_the_old_one(tmp_path, monkeypatch):
    target = tmp_path / "it"
    folder(target)
    (target / "a").write_bytes(b"old")
    usual, calls = os.replace, []

    def third(*paths):
        calls.append(paths)
        if len(calls) == 2:
            raise OSError(5, "Input/output error")
        usual(*paths)

    monkeypatch.setattr(os, "replace", third)
    with pytest.raises(InputError, match=r"cannot write .*it: Input/output error"):
        folder(target)
    assert (target / "a").read_bytes() == b"old"
    assert [one.name for one in tmp_path.iterdir()] == ["it"]


@contextmanager
def full_disk(most):
    """No file may grow beyond so many bytes, whoever writes it."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, limits[1]))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)


def saves(path):
    Transformer(
        TransformerConfig(vocab_size=9, hidden_size=4, num_attention_heads=1, intermediate_size=4, decoder_layers=1)
    ).save_pretrained(path)


def checkpoints(path):
    model = nn.Linear(30, 30)
    Checkpoints(path).save(model, torch.optim.AdamW(model.parameters()), TrainerState(1))


def vocabulary(path):
    write_folder(path, Tokenizer.train(["abc"], model_type="char", vocab_size=20).save)


FULL = {"save_pretrained": saves, "a checkpoint": checkpoints, "a file": file, "a vocabulary in a folder": vocabulary}


def test_a_full_disk_is_one_sentence_and_leaves_what_was_there(tmp_path_factory):
    for case in sweep(product(FULL, [0, 2, 700])):
        with case as (kind, most):
            tmp_path = tmp_path_factory.mktemp("case")
            if kind == "a file" and most > 2:
                most = 1
            target = tmp_path / "it"
            with (
                full_disk(most),
                pytest.raises(InputError, match=rf"cannot write {tmp_path}/it[^.]*: .*[Ff]ile too large") as why,
            ):
                FULL[kind](target)
            assert "\n" not in str(why.value)
            assert ".part" not in str(why.value)
            assert not [one for one in tmp_path.rglob("*") if one.is_file() or one.name.endswith(".part")]
            FULL[kind](target)
            before = {one: one.read_bytes() for one in tmp_path.rglob("*") if one.is_file()}
            with full_disk(most), pytest.raises(InputError, match="cannot write"):
                FULL[kind](target)
            assert {one: one.read_bytes() for one in tmp_path.rglob("*") if one.is_file()} == before


def test_all_files_are_as_readable_as_the_umask_says(tmp_path_factory):
    for case in sweep(product([0o022, 0o077, 0o002], FULL)):
        with case as (mask, kind):
            tmp_path = tmp_path_factory.mktemp("case")
            old = os.umask(mask)
            try:
                FULL[kind](tmp_path / "it")
            finally:
                os.umask(old)
            files = [one for one in tmp_path.rglob("*") if one.is_file()]
            assert files
            assert {oct(one.stat().st_mode & 0o777) for one in files} == {oct(0o666 & ~mask)}


def test_a_converted_model_is_as_readable_as_the_umask_says(tmp_path, monkeypatch):
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    old = os.umask(0o022)
    try:
        folder = converted("it", "0" * 64, 1, lambda draft: save_file({"a": np.zeros(2)}, draft / "a.safetensors"))
    finally:
        os.umask(old)
    assert oct(folder.stat().st_mode & 0o777) == oct(0o755)
    assert {oct(one.stat().st_mode & 0o777) for one in folder.iterdir()} == {oct(0o644)}


def test_a_log_on_a_full_disk_is_one_sentence(tmp_path):
    with full_disk(3), pytest.raises(InputError, match=r"cannot write .*log\.jsonl: File too large; the checkpoints"):
        JsonlLog(tmp_path / "log.jsonl")(Started(tmp_path, 0, 2, 5))
