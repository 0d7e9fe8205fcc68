"""The files of a task: what is trained on, what is held out for evaluation, and what is scored only at the end.

Rows are held out of `train_file` by the seed, or come from a `validation_file` of their own; then nothing is taken from
`train_file`, and texts that are in both are counted and stay.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from regard.data import Corpus, find_language, split, without_sources
from regard.data.corpus_notes import corpus_notes, first_rows
from regard.errors import InputError

__all__ = ["GUARDED_FILES", "DataFiles", "guarded", "read_files", "read_otherwise", "recorded_by_0_2"]

GUARDED_FILES = ("train_file", "extra_train_file", "validation_file")  # with other contents, a run has other steps
_ROWS, _ROWS_UNLIKE_0_2 = " (rows)", " (rows by a header or quotes)"  # of a file: what run.json has its rows under
# 0.2 recorded no rows, and took each column by its place: it read a header as a row, and kept the quotes of CSV.


@dataclass(frozen=True)
class DataFiles:
    """The rows of a task.

    Args:
        training, validation: What is trained on, and what is held out.
        test: What is scored at the end; None without a `test_file`.
        every: The rows of the file that `validation` is from, which may have further references.
        hashes: The SHA-256 of each file, by its name.
        notes: How the files were read.
    """

    training: Corpus
    validation: Corpus
    test: Corpus | None
    every: Corpus
    hashes: dict[str, str]
    notes: tuple[str, ...]


def read_files(options: Any, read: Callable[[str], Corpus], *, column: str, seed: int) -> DataFiles:
    """Read the files that a table [task] names.

    Args:
        options: The table: `train_file`, `validation_file`, `test_file`, `validation_size`, and `extra_train_file`
            where the task has that key.
        read: Reads one of them.
        column: The column whose texts are in one of training and validation only.
        seed: It determines what is held out.

    Raises:
        InputError: A file cannot be read, or has too few rows.
    """
    corpus, languages = read(options.train_file), getattr(options, "languages", ())
    extra = getattr(options, "extra_train_file", None)
    files = {key: name for key in ("validation_file", "test_file") if (name := getattr(options, key)) is not None}
    more = None if extra is None else read(extra)
    others = {key: read(name) for key, name in files.items()}
    named = {corpus.name: corpus}
    if more is not None:  # which may have the same name, in another folder
        named[more.name if more.name != corpus.name else f"{more.name} (extra_train_file)"] = more
    named |= {f"{one.name} ({key})": one for key, one in others.items()}
    hashes = {name: one.sha256 for name, one in named.items()}
    hashes |= {
        f"{name}{_ROWS if one.is_by_place else _ROWS_UNLIKE_0_2}": _rows_sha256(one) for name, one in named.items()
    }
    validation = others.get("validation_file")
    if validation is not None:
        training = corpus if more is None else _joined(corpus, more)
    elif corpus.is_running_text:
        training, validation = _last_lines(corpus, options.validation_size)
        _check_letters(validation, training)
    else:
        training, validation = split(corpus, options.validation_size, column=column, seed=seed)
        training = training if more is None else without_sources(_joined(training, more), validation)
    notes: list[str] = []
    for one in (corpus, *([] if more is None else [more]), *others.values()):
        notes += [str(one), *(f"{one.name}: {note}" for note in corpus_notes(one, languages))]
    notes += first_rows(corpus)
    for key, one in others.items():
        notes += _shared_lines(one, training) if corpus.is_running_text else _shared_rows(one, training, column)
        if corpus.is_running_text and key == "validation_file":
            _check_letters(one, training)
    every = others.get("validation_file", corpus)
    return DataFiles(training, validation, others.get("test_file"), every, hashes, tuple(notes))


def recorded_by_0_2(task: Mapping[str, Any], data: Mapping[str, str]) -> dict[str, Any]:
    """Return the table [task] that a run has recorded; what 0.2 recorded with what its keys meant.

    0.2 read each line of a plain text as a document, took any text for a language, and converted the script of "zh"
    alone.
    """
    table = dict(task)
    if table.get("type") == "clm":
        table.setdefault("keep_linebreaks", False)
    if table.get("type") != "translation" or any(name.endswith((_ROWS, _ROWS_UNLIKE_0_2)) for name in data):
        return table
    for key in ("source_lang", "target_lang"):
        try:
            is_chinese = find_language(code := str(table.get(key, "zh"))).is_chinese
        except InputError:
            table[key], is_chinese, code = "und", False, "und"
        if is_chinese and code != "zh":
            table.pop("script", None)
    return table


def guarded(task: Mapping[str, Any], data: Mapping[str, str]) -> dict[str, str]:
    """Return the hashes on which the steps of a run depend: a file's by its key, wherever it lies, and no test file's.

    Args:
        task: The table [task] of the run.
        data: Its hashes, by the names of the files, as `DataFiles` has them.
    """
    found = dict(data)
    for key in (*GUARDED_FILES, "test_file"):
        name = Path(task.get(key) or "").name
        for suffix in ("", _ROWS, _ROWS_UNLIKE_0_2):
            known = [one for one in (f"{name} ({key}){suffix}", f"{name}{suffix}") if one in found]
            if known:
                found[f"{key}{suffix}"] = found.pop(known[0])
    return {name: one for name, one in found.items() if not name.startswith("test_file")}


def read_otherwise(data: Mapping[str, str], before: Mapping[str, str]) -> str | None:
    """Return the key of a file whose bytes are those of a run that is resumed, and whose rows are not.

    Args:
        data, before: The hashes of `guarded`, of now and of then. 0.2 recorded none of rows.
    """
    for name, rows in data.items():
        file = name.removesuffix(_ROWS).removesuffix(_ROWS_UNLIKE_0_2)
        if file == name or data[file] != before.get(file):
            continue
        is_unlike = name.endswith(_ROWS_UNLIKE_0_2) and name not in before
        if is_unlike or before.get(name, rows) != rows:
            return file
    return None


def _rows_sha256(corpus: Corpus) -> str:
    found = hashlib.sha256()
    for name, texts in corpus.columns.items():
        found.update(json.dumps([name, *texts]).encode())
    return found.hexdigest()


def _last_lines(corpus: Corpus, count: int) -> tuple[Corpus, Corpus]:
    """Running text without its last lines, and these: a part in one piece, not torn within a line."""
    if count >= len(corpus):
        raise InputError(
            f"`validation_size` must be a number of lines that leaves something to train on: {corpus.name} has "
            f"{len(corpus):,}, got {count:,}; lower it, or name a `validation_file`"
        )
    return corpus.select(range(len(corpus) - count)), corpus.select(range(len(corpus) - count, len(corpus)))


def _shared_rows(one: Corpus, training: Corpus, column: str) -> list[str]:
    shared = len(one) - len(without_sources(one, training, column=column))
    return [f"{one.name}: {shared:,} of {len(one):,} rows have a {column} that is trained on, too"] if shared else []


def _shared_lines(one: Corpus, training: Corpus) -> list[str]:
    """A note where half of the lines of running text are trained on: fewer are by chance, as brackets of code are."""
    known, lines = set(map(str.strip, training["text"])), [text for line in one["text"] if (text := line.strip())]
    shared = sum(line in known for line in lines)
    note = f"{one.name}: {shared:,} of {len(lines):,} lines that are not empty are trained on, too"
    return [note] if lines and 2 * shared >= len(lines) else []


def _check_letters(held: Corpus, training: Corpus) -> None:
    """Refuse held-out running text without a letter or digit, unless that is what the model is to learn."""
    if _has_letters(training) and not _has_letters(held):
        raise InputError(
            f"the {len(held):,} lines of {held.name} that are held out have no letter and no digit: remove such lines "
            "at its end, or set another `validation_size` or `validation_file`"
        )


def _has_letters(corpus: Corpus) -> bool:
    return any(sign.isalnum() for line in corpus["text"] for sign in line)


def _joined(one: Corpus, other: Corpus) -> Corpus:
    return replace(one, columns={name: (*values, *other[name]) for name, values in one.columns.items()})
