"""`regard translate`: translate text with a model of `regard train`, a sentence on each line."""

import os
import re
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.cli.arguments import check_output, check_threads, named_file
from regard.cli.console import TextConsole, rules_not_obeyed
from regard.cli.line_stream import LineStream, refuse_table, table_format
from regard.cli.termination import Terminable
from regard.errors import InputError

if TYPE_CHECKING:
    from regard.cli.resumable_output import ResumableOutput
    from regard.record.records import Record
    from regard.train.translator import Translation

__all__ = ["translate"]

_LINE_ENDS = re.compile("[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]")  # where some program or other ends a line
_SHOWN = 10  # sentences about single lines


def translate(
    text: Annotated[str, typer.Argument(help="A text, the name of a text file, or - for standard input.")],
    *,
    model: Annotated[str, typer.Option(help="The folder of a run of `regard train`, or a checkpoint.")],
    output: Annotated[
        Path | None,
        typer.Option(help="Write to this file; the same command continues it if it was interrupted."),
    ] = None,
    num_beams: Annotated[int, typer.Option(help="Width of the beam search; 1 for greedy search.")] = 4,
    length_penalty: Annotated[float, typer.Option(help="Above 1 favours longer translations.")] = 1.0,
    n_best: Annotated[
        int | None,
        typer.Option(help="Write so many translations of each line, as `line ||| translation ||| score`."),
    ] = None,
    replace_unk: Annotated[
        bool,
        typer.Option(
            "--replace-unk", metavar="", help="Replace unknown characters by the source word attended to most."
        ),
    ] = False,
    batch_size: Annotated[int, typer.Option(help="Lines translated at a time; it changes no translation.")] = 64,
    align: Annotated[
        str | None,
        typer.Option(help="Show which source words each word attends to: - in the terminal, or FILE.png or .svg."),
    ] = None,
    script: Annotated[str | None, typer.Option(help="Convert Chinese output to hans or hant.")] = None,
    threads: Annotated[int | None, typer.Option(help="Number of processor threads.")] = None,
) -> None:
    """Translate: one line in, one line out, in the same order; empty lines stay empty.

    Each line is written as soon as it and those before it are done, as UTF-8.
    """
    align = align if align in (None, "-") else os.path.expanduser(align)
    output = None if output is None else output.expanduser()
    _check(num_beams, n_best, batch_size, script, threads, align, output, text)
    stream = LineStream.open(text)
    if is_file := text != "-" and named_file(text) is not None:
        refuse_table(text, LineStream.open(text))
    lines = list(stream) if align is not None else stream
    if align is not None and sum(bool(line.strip()) for line in lines) != 1:
        raise InputError("`--align` shows one sentence: give a text of one line")
    console = TextConsole(stderr=True)
    with console.status("loading the libraries and the model"):
        import torch

        from regard.train.translator import Translator

        if threads is not None:
            torch.set_num_threads(threads)
        translator = Translator.load(model)
    options: dict[str, Any] = {"num_beams": num_beams, "length_penalty": length_penalty}
    with (
        Terminable() as ending,
        rules_not_obeyed(partial(console.print, soft_wrap=True)),
        _opened(output, model, {**options, "n-best": n_best, "replace-unk": replace_unk}, script) as file,
    ):
        source, pending = iter(lines) if is_file else _warned(lines, stream.name), deque[str]()
        file.skip(source)
        translations = translator.stream(
            _remembered(source, pending), n_best=n_best or 1, replace_unk=replace_unk, batch_size=batch_size,
            ready=stream.ready, **options,
        )  # fmt: skip
        with _reported(console, file, output) as report:
            for translation in translations:
                report(translation)
                block = _block(file.count, translation, n_best, script)
                with ending.whole():
                    file.write(pending.popleft(), block)
        file.finish()
    if align is not None:
        sentence = next(line for line in lines if line.strip())
        _show(translator.align(sentence, **options), align, console)


class _StandardOutput:
    """Standard output as a place of results: whole lines at once, as UTF-8 whatever the terminal's encoding is."""

    count = 0

    def skip(self, lines: Iterator[str]) -> None:
        """Nothing is done before."""

    def write(self, line: str, result: str) -> None:
        """Write the result of a line."""
        del line
        sys.stdout.buffer.write(result.encode())
        sys.stdout.buffer.flush()
        self.count += 1

    def finish(self) -> None:
        """Everything is written."""


@contextmanager
def _opened(
    output: Path | None, model: str, options: dict[str, Any], script: str | None
) -> Iterator["_StandardOutput | ResumableOutput"]:
    """Open what is written to."""
    if output is None:
        yield _StandardOutput()
        return
    from regard.cli.resumable_output import ResumableOutput

    with ResumableOutput(output, _identity(model, {**options, "script": script})) as file:
        yield file


@contextmanager
def _reported(
    console: TextConsole, file: "_StandardOutput | ResumableOutput", output: Path | None
) -> Iterator[Callable[["Translation"], None]]:
    """Show how many lines are done while it lasts and when it is interrupted, and name those that are left empty."""
    left = 0
    # In a terminal, the lines themselves show it.
    quiet = output is None and sys.stdout.isatty()
    with nullcontext() if quiet else console.status("translating") as status:

        def report(translation: "Translation") -> None:
            nonlocal left
            if status is not None:
                status.update(f"translating: {file.count:,} lines")
            if translation.problem is not None:
                left += 1
                if left <= _SHOWN:
                    note = f"line {file.count + 1:,} is left empty: it {translation.problem}"
                    console.print(note, soft_wrap=True)

        try:
            yield report
        except (KeyboardInterrupt, SystemExit, InputError):
            lines = "1 line is" if file.count == 1 else f"{file.count:,} lines are"
            kept = f", and kept in {output}: the same command continues" if output else ""
            console.print(f"{lines} translated{kept}", soft_wrap=True)
            raise
    if left > _SHOWN:
        console.print(f"{left:,} lines are left empty", soft_wrap=True)


def _block(index: int, translation: "Translation", n_best: int | None, script: str | None) -> str:
    """The line of a translation, or the lines of several, whose number is counted from 0 (as Moses has it)."""
    texts = [_as_line(text, script) for text in translation.texts]
    if n_best is None:
        return f"{texts[0]}\n"
    pairs = zip(texts, translation.scores, strict=True)
    return "".join(f"{index} ||| {text} ||| {score:.4f}\n" for text, score in pairs)


def _as_line(text: str, script: str | None) -> str:
    """A translation as one line, in the script that is requested; a vocabulary may have line ends."""
    if script is not None:
        from regard.data import to_script

        text = to_script(text, "hans" if script == "hans" else "hant")
    return _LINE_ENDS.sub(" ", text)


def _warned(lines: Iterable[str], name: str) -> Iterator[str]:
    """Yield lines, and warn at the first one if it seems to be a row of a table."""
    for number, line in enumerate(lines):
        if not number and (found := table_format(line)):
            print(
                f"warning: {name} seems to be {found}, and all columns are translated: cut -f1 takes one",
                file=sys.stderr,
            )
        yield line


def _remembered(lines: Iterator[str], sources: deque[str]) -> Iterator[str]:
    """Yield lines, and append each to `sources`."""
    for line in lines:
        sources.append(line)
        yield line


def _identity(model: str, options: dict[str, Any]) -> dict[str, Any]:
    """What translations depend on: the release, the options, and the checksums of the model's files in use."""
    import regard
    from regard.files import checksum_of_file
    from regard.hub.file_faults import files_in_use
    from regard.hub.model_files import ModelFiles

    files = ModelFiles(os.path.expanduser(model))
    folders = {Path(files.chosen), files.folder or Path(files.chosen)}
    checksums = {path.name: checksum_of_file(path) for folder in sorted(folders) for path in files_in_use(folder)}
    return {"version of regard": regard.__version__, "model": checksums, **options}


def _show(record: "Record", align: str, console: TextConsole) -> None:
    """Show an alignment in the terminal or as a figure."""
    if align == "-":
        from regard.render.word_alignment import alignment_table

        TextConsole().print(alignment_table(record))
        return
    from regard.render.alignment_figure import alignment_figure
    from regard.render.mpl_figure import write_figure

    write_figure(alignment_figure(record, rows="written"), align)
    console.print(f"saved {align}")


def _check(
    num_beams: int,
    n_best: int | None,
    batch_size: int,
    script: str | None,
    threads: int | None,
    align: str | None,
    output: Path | None,
    text: str,
) -> None:
    """Refuse wrong options before anything is loaded."""
    for option, value in (("--num-beams", num_beams), ("--batch-size", batch_size), ("--n-best", n_best)):
        if value is not None and value < 1:
            raise InputError(f"`{option}` must be at least 1, got {value}")
    if n_best is not None and n_best > num_beams:
        raise InputError(f"`--n-best` {n_best} needs as many beams: give --num-beams {n_best} too")
    if script not in (None, "hans", "hant"):
        raise InputError(f"`--script` must be hans or hant, got {script!r}")
    check_threads(threads)
    if align not in (None, "-"):
        check_output("--align", Path(align), ".png", ".svg")
    if output is not None:
        _check_place(output, text)


def _check_place(output: Path, text: str) -> None:
    """Refuse what cannot be written to, and the source itself."""
    if output.is_dir():
        raise InputError(f"`--output` must name a file, and {output} is a folder")
    if not output.parent.is_dir():
        raise InputError(f"`--output` must name a file in a folder that exists, got {output}")
    if output.exists() and not output.is_file():
        raise InputError(f"`--output` {output} is a device or a pipe: redirect the output to it, > {output}")
    source = os.path.expanduser(text)
    if text != "-" and output.exists() and os.path.exists(source) and os.path.samefile(source, output):
        raise InputError(f"`--output` {output} is the source: name another file")
