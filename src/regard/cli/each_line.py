"""`--each-line` of `regard look` and `regard heads`: each line of a file is a text, and worker processes of this
machine share them.
"""

import hashlib
import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from regard.cli.console import TextConsole
from regard.cli.termination import Terminable
from regard.errors import InputError
from regard.files import cache_folder, read_bytes

__all__ = ["NumWorkers", "TextLines", "atlas_of_each_line", "read_lines", "scores_of_lines"]

NumWorkers = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="With --each-line, processes of this machine that share the lines, one thread each (OMP_NUM_THREADS).",
    ),
]

_SHOWN = 10  # sentences about single lines
_SAMPLE = 100_000  # characters, of which the model is chosen


@dataclass(frozen=True)
class TextLines:
    """The lines of a file that are texts, by their numbers from 1, why the others are none, and the file's SHA-256."""

    name: str
    texts: Mapping[int, str]
    bad: Mapping[int, str]
    sha256: str


def read_lines(name: str) -> TextLines:
    """Read a file, or standard input for "-", line by line.

    Raises:
        InputError: It cannot be read, or no line of it is a text.
    """
    try:
        data = sys.stdin.buffer.read() if name == "-" else read_bytes(name)
    except OSError as problem:
        raise InputError(
            f"`--each-line` takes a text file with a text in each line, and {_short(name)} cannot be read: "
            f"{problem.strerror or problem}"
        ) from problem
    lines = data.removeprefix(b"\xef\xbb\xbf").removesuffix(b"\n").split(b"\n")
    texts, bad = {}, {}
    for number, line in enumerate(lines, 1):
        try:
            text = line.removesuffix(b"\r").decode()
        except UnicodeDecodeError as problem:
            bad[number] = f"it is no UTF-8 text (byte {problem.start:,})"
            continue
        if not text.strip():
            bad[number] = "it is empty"
        elif "\0" in text:
            bad[number] = "it holds a NUL byte"
        else:
            texts[number] = text
    if not texts:
        first = next(iter(bad.items()))
        raise InputError(f"no line of {_short(name)} is a text: line {first[0]}: {first[1]}")
    return TextLines(name, texts, bad, hashlib.sha256(data).hexdigest())


def _short(name: str) -> str:
    return repr(name if len(name) <= 200 else name[:199] + "…")


def atlas_of_each_line(text: str, *, model: str | None, out: Path, num_workers: int | None, **options: Any) -> None:
    """Save an atlas of each line of a file in the folder `out`, by its number; `options` are those of `look`."""
    lines, screen = _begin(text)
    with screen.status("loading the libraries"):
        from regard.interpret.each_line import LookLines

        chosen = model or _model_for(lines)
    identity = {**_identity(lines, chosen), **options}
    with _shared(
        lines, lines.texts, out, ".atlas", identity, screen, num_workers, LookLines, chosen, options
    ) as folder:
        count = len(lines.texts) - len(folder.reasons())
    screen.print(f"{chosen}: {_texts(count)} → {out}", soft_wrap=True)


@contextmanager
def scores_of_lines(text: str, *, model: str | None, folder: Path | None, num_workers: int | None) -> Iterator[Any]:
    """Give the scores of every head over all lines of a file.

    What is finished is kept in `folder`, or in the cache, until the block has ended well.
    """
    lines, screen = _begin(text)
    with screen.status("loading the libraries"):
        from regard.interpret.each_line import ScoreLines, join_scores

        chosen = model or _model_for(lines)
    identity = _identity(lines, chosen)
    path, texts = folder or _kept(identity), {0: None, **lines.texts}
    with _shared(lines, texts, path, ".npz", identity, screen, num_workers, ScoreLines, chosen) as results:
        yield join_scores(results, chosen)
        results.remove()


def _begin(text: str) -> tuple[TextLines, TextConsole]:
    """Read the lines.

    Raises:
        InputError: A launcher has started several processes, or there is no text.
    """
    world = os.environ.get("WORLD_SIZE", "1")
    if world.isdecimal() and int(world) > 1:
        raise InputError(
            f"`--each-line` shares the lines among processes of this one machine, and a launcher has started {world} "
            "(WORLD_SIZE): start the command once, without torchrun, and name --num-workers"
        )
    return read_lines(text), TextConsole(stderr=True)


def _model_for(lines: TextLines) -> str:
    from regard.interpret.model_loading import name_for

    return name_for("\n".join(lines.texts.values())[:_SAMPLE])


def _identity(lines: TextLines, model: str) -> dict[str, Any]:
    import regard

    return {"file": lines.sha256, "model": model, "version of regard": regard.__version__}


def _kept(identity: Mapping[str, Any]) -> Path:
    """Return the folder of a run that has no file to be beside."""
    folder = cache_folder() / "heads"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise InputError(f"cannot write {folder}: {problem.strerror or problem}; set REGARD_CACHE") from problem
    return folder / hashlib.sha256(repr(sorted(identity.items())).encode()).hexdigest()[:16]


@contextmanager
def _shared(
    lines: TextLines,
    texts: Mapping[int, str | None],
    path: Path,
    suffix: str,
    identity: Mapping[str, Any],
    screen: TextConsole,
    num_workers: int | None,
    job: type,
    *arguments: Any,
) -> Iterator[Any]:
    """Have the workers do all texts, name those that are left out, and give the folder of the results."""
    from regard.interpret.text_folder import open_text_folder
    from regard.interpret.text_workers import share_texts

    with open_text_folder(path, suffix, texts, identity) as folder:
        with _bar(screen, len(lines.texts)) as show, Terminable():
            try:
                share_texts(
                    texts, folder, job, *arguments, num_workers=num_workers or 1, progress=show,
                    warn=lambda sentence: screen.print(sentence, soft_wrap=True),
                )  # fmt: skip
            except (KeyboardInterrupt, SystemExit):
                if done := len(folder.finished() - {0}):
                    screen.print(
                        f"{done} of {_texts(len(lines.texts))} are finished and kept in {path}: the same command does "
                        "the rest",
                        soft_wrap=True,
                    )
                raise
        reasons = folder.reasons()
        _name(screen, {**lines.bad, **reasons})
        if len(reasons) == len(lines.texts):
            folder.remove()
            raise InputError(f"no line of {_short(lines.name)} has a result: each is left out")
        yield folder


@contextmanager
def _bar(screen: TextConsole, total: int) -> Iterator[Any]:
    """Show texts that are done, of how many, their rate, and the time left; nothing where there is no terminal."""
    rate = TextColumn("{task.fields[rate]}")
    columns = TextColumn("text"), MofNCompleteColumn(), BarColumn(), rate, TimeRemainingColumn()
    shown = Progress(*columns, console=screen, transient=True, disable=not screen.is_terminal)
    with shown:
        begun: list[tuple[float, int]] = []

        def show(done: int) -> None:
            if not begun:  # those of an earlier run took no time of this one
                begun.append((time.monotonic(), done))
                shown.add_task("texts", total=total, completed=done, rate="")
            since, before = begun[0]
            seconds = time.monotonic() - since
            rate = f"{(done - before) / seconds:.1f}/s" if done > before else ""
            shown.update(shown.task_ids[0], completed=done, rate=rate)

        yield show


def _name(screen: TextConsole, reasons: Mapping[int, str]) -> None:
    """Say which lines are left out, and why."""
    numbers = sorted(reasons)
    for number in numbers[:_SHOWN]:
        screen.print(f"line {number} is left out: {reasons[number]}", soft_wrap=True)
    if more := numbers[_SHOWN:]:
        screen.print(f"{len(more)} more lines are left out, the first of them line {more[0]}", soft_wrap=True)


def _texts(count: int) -> str:
    return f"{count:,} text{'' if count == 1 else 's'}"
