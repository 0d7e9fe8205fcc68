"""`--each-line` of `regard look` and `regard heads`: each line of a file is a text, and worker processes share them."""

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
from regard.errors import InputError
from regard.files import cache_folder, read_bytes

__all__ = ["NumWorkers", "TextLines", "atlas_of_each_line", "read_lines", "scores_of_lines"]

NumWorkers = Annotated[
    int | None,
    typer.Option(min=1, help="With --each-line, processes that share the lines; one thread each, or OMP_NUM_THREADS."),
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
    rank, count = _processes(num_workers)
    lines = read_lines(text)
    screen = TextConsole(stderr=True)
    with screen.status("loading the libraries"):
        from regard.interpret.text_queue import TextFolder

        chosen = _model(model, lines)
    texts = TextFolder(out, ".atlas", lines.texts)
    texts.create()
    texts.hold("run.json", {**_identity(lines, chosen), **options})
    if not _share(texts, screen, rank, count, lines, "LookLines", lines.texts, chosen, options):
        return
    reasons = texts.reasons()
    none = len(reasons) == len(lines.texts)
    texts.remove(results=none)
    _name(screen, {**lines.bad, **reasons})
    if none:
        raise InputError(f"{_short(text)} has no atlas: each line is left out")
    screen.print(f"{chosen}: {_texts(len(lines.texts) - len(reasons))} → {out}", soft_wrap=True)


def scores_of_lines(text: str, *, model: str | None, folder: Path | None, num_workers: int | None) -> Any:
    """Return the scores of every head over all lines of a file, or None in a process that has shared in the work alone.

    What is finished of an interrupted run is kept in `folder`, or in the cache.
    """
    rank, count = _processes(num_workers)
    lines = read_lines(text)
    screen = TextConsole(stderr=True)
    with screen.status("loading the libraries"):
        from regard.interpret.each_line import join_scores
        from regard.interpret.text_queue import TextFolder

        chosen = _model(model, lines)
    identity = _identity(lines, chosen)
    texts = TextFolder(folder or _kept(identity), ".npz", (0, *lines.texts))
    texts.create()
    texts.hold("run.json", identity)
    if not _share(texts, screen, rank, count, lines, "ScoreLines", lines.texts, chosen):
        return None
    with _there(texts):
        reasons = texts.reasons()
        scores = None if 0 in reasons or len(reasons) == len(lines.texts) else join_scores(texts, chosen)
        texts.remove(results=True)
    _name(screen, {**lines.bad, **reasons})
    if scores is None:
        raise InputError(f"{_short(text)} has no scores: {reasons.get(0, 'each line is left out')}")
    return scores


@contextmanager
def _there(texts: Any) -> Iterator[None]:
    """Say so where the folder of the texts goes inside.

    Raises:
        InputError: It is gone.
    """
    try:
        yield
    except FileNotFoundError as gone:
        raise InputError(
            f"{texts.folder} is gone: it was removed, or the same command has finished in another process"
        ) from gone


def _processes(num_workers: int | None) -> tuple[int, int]:
    """Return this process's number of those that a launcher has started, and how many workers it starts itself."""
    try:
        rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    except ValueError:
        rank, world = 0, 1
    if world > 1 and num_workers is not None:
        raise InputError(
            f"`--num-workers` starts processes on this machine, and {world} were started already (WORLD_SIZE): leave "
            "it out"
        )
    return (rank if world > 1 else 0), num_workers or 1


def _model(model: str | None, lines: TextLines) -> str:
    from regard.interpret.model_loading import name_for

    return model or name_for("\n".join(lines.texts.values())[:_SAMPLE])


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


def _share(texts: Any, screen: TextConsole, rank: int, count: int, lines: TextLines, job: str, *arguments: Any) -> bool:
    """Have the workers do all texts; return whether this process is the one that shows the result."""
    from regard.interpret.text_workers import share_texts

    with _bar(screen, len(lines.texts), live=rank == 0) as show:
        try:
            with _there(texts):
                share_texts(
                    texts, f"regard.interpret.each_line:{job}", *arguments, num_workers=count, progress=show,
                    warn=lambda said: screen.print(said, soft_wrap=True),
                )  # fmt: skip
        except KeyboardInterrupt:
            done = len(texts.finished() - {0})
            screen.print(
                f"{done} of {_texts(len(lines.texts))} are done and kept in {texts.folder}: run the same command again "
                "to do the rest",
                soft_wrap=True,
            )
            raise
        except InputError as problem:
            if rank == 0 or not isinstance(problem.__cause__, FileNotFoundError):  # the first process has finished
                raise
    return rank == 0


@contextmanager
def _bar(screen: TextConsole, total: int, *, live: bool) -> Iterator[Any]:
    """Show texts that are done, of how many, their rate, and the time left; nothing where there is no terminal."""
    rate = TextColumn("{task.fields[rate]}")
    columns = TextColumn("text"), MofNCompleteColumn(), BarColumn(), rate, TimeRemainingColumn()
    shown = Progress(*columns, console=screen, transient=True, disable=not (live and screen.is_terminal))
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
    numbers = sorted({*reasons} - {0})
    for number in numbers[:_SHOWN]:
        screen.print(f"line {number} is left out: {reasons[number]}", soft_wrap=True)
    if more := numbers[_SHOWN:]:
        screen.print(f"{len(more)} more lines are left out, the first of them line {more[0]}", soft_wrap=True)


def _texts(count: int) -> str:
    return f"{count:,} text{'' if count == 1 else 's'}"
