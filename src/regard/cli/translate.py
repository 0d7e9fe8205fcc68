"""`regard translate`: translate text with a model of `regard train`, a sentence on each line."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from regard.cli.arguments import check_output, check_threads, read_text
from regard.cli.console import TextConsole
from regard.errors import InputError

if TYPE_CHECKING:
    from regard.record.records import Record

__all__ = ["translate"]


def translate(
    text: Annotated[str, typer.Argument(help="A text, the name of a text file, or - for standard input.")],
    *,
    model: Annotated[str, typer.Option(help="The folder of a run of `regard train`, or a checkpoint.")],
    num_beams: Annotated[int, typer.Option(help="Width of the beam search; 1 for greedy search.")] = 4,
    length_penalty: Annotated[float, typer.Option(help="Above 1 favours longer translations.")] = 1.0,
    align: Annotated[
        str | None,
        typer.Option(help="Show which source words each word attends to: - in the terminal, or FILE.png or .svg."),
    ] = None,
    script: Annotated[str | None, typer.Option(help="Convert Chinese output to hans or hant.")] = None,
    threads: Annotated[int | None, typer.Option(help="Number of processor threads.")] = None,
) -> None:
    """Translate: one line in, one line out, in the same order; empty lines stay empty."""
    _check(num_beams, script, threads, align)
    lines = _lines(read_text(text))
    if align is not None and len([line for line in lines if line.strip()]) != 1:
        raise InputError("`--align` shows one sentence: give a text of one line")
    console = TextConsole(stderr=True)
    with console.status("loading the libraries and the model"):
        import torch

        from regard.data import to_script
        from regard.train.translator import Translator

        if threads is not None:
            torch.set_num_threads(threads)
        translator = Translator.load(model)
    with console.status(f"translating {len(lines):,} lines") as status:
        found = translator.translate(
            lines,
            num_beams=num_beams,
            length_penalty=length_penalty,
            progress=lambda done: status.update(f"translating: {done:,} of {len(lines):,} lines"),
        )
    if script is not None:
        found = [to_script(line, "hans" if script == "hans" else "hant") for line in found]
    for line in found:
        sys.stdout.write(line.replace("\n", " ") + "\n")  # a vocabulary may have line ends
    if align is not None:
        sentence = next(line for line in lines if line.strip())
        _show(translator.align(sentence, num_beams=num_beams, length_penalty=length_penalty), align, console)


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


def _check(num_beams: int, script: str | None, threads: int | None, align: str | None) -> None:
    """Refuse wrong options before anything is loaded."""
    if num_beams < 1:
        raise InputError(f"`--num-beams` must be at least 1, got {num_beams}")
    if script not in (None, "hans", "hant"):
        raise InputError(f"`--script` must be hans or hant, got {script!r}")
    check_threads(threads)
    if align not in (None, "-"):
        check_output("--align", Path(align), ".png", ".svg")


def _lines(text: str) -> list[str]:
    """Not splitlines(), which also ends a line where a text has a form feed or a line separator of Unicode's."""
    text = text.replace("\r\n", "\n") if "\n" in text else text.replace("\r", "\n")
    return text.removesuffix("\n").split("\n") if text else []
