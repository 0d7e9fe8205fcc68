"""`regard lab`: claims about attention, each tested by an experiment with a figure, a number and a verdict."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from regard.cli.arguments import MOST_THREADS
from regard.cli.console import TextConsole

__all__ = ["lab"]

_COLOURS = {"holds": "green", "holds within limits": "yellow", "does not hold": "red", "needs a GPU": "dim"}


def lab(
    *,
    claims: Annotated[
        list[str] | None,
        typer.Argument(metavar="CLAIM", help="Numbers or names of claims; all by default."),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", metavar="", help="Minutes instead of an hour: fewer sizes and steps.")
    ] = False,
    output_dir: Annotated[
        Path, typer.Option(metavar="FOLDER", help="Folder for index.html and lab.json; earlier ones are replaced.")
    ] = Path("lab"),
    seed: Annotated[int, typer.Option(min=0, help="Seed of all random numbers.")] = 0,
    threads: Annotated[int, typer.Option(min=1, max=MOST_THREADS, help="Number of PyTorch threads.")] = 2,
    list_: Annotated[bool, typer.Option("--list", metavar="", help="List the claims, and run none.")] = False,
) -> None:
    """Test claims of tutorials and papers about attention.

    Each claim is run, measured and judged: it holds, holds within limits, or
    does not hold. FOLDER/index.html shows all of them with figures and the
    command to repeat each; FOLDER/lab.json has the numbers. Finished results are
    saved at once, so nothing is lost when you stop it.
    """
    notes = TextConsole(stderr=True)
    with notes.status("loading the libraries"):
        from regard_lab.claims import EXPERIMENTS
        from regard_lab.experiment import Setting
        from regard_lab.report import write
        from regard_lab.running import choose, run_one

        chosen = choose(EXPERIMENTS, claims or ())
    screen = TextConsole()
    if list_:
        for one in chosen:
            screen.print(f"{one.CLAIM.number:>3}  {one.CLAIM.name:<22} {one.CLAIM.title}")
        return
    results: list[Any] = []
    with _progress(notes) as progress:
        task = progress.add_task("", total=len(chosen))
        write(
            output_dir, results, Setting(quick, seed, threads), planned=len(chosen)
        )  # a folder that cannot be written is refused now
        for experiment in chosen:
            title = f"{experiment.CLAIM.number} {experiment.CLAIM.title}"

            def say(doing: str, title: str = title) -> None:
                progress.update(task, description=f"{title}: {doing}"[:60])

            progress.update(task, description=title[:60])
            setting = Setting(quick, seed, threads, say)
            results.append(run_one(experiment, setting))
            write(output_dir, results, setting, planned=len(chosen))
            progress.advance(task)
    screen.print(_table(results))
    for one in results:
        if one.failed:
            notes.print(f"{one.claim.number} {one.claim.name} was not run: {one.problem}", soft_wrap=True)
    notes.print(f"figures → {output_dir / 'index.html'}, numbers → {output_dir / 'lab.json'}", soft_wrap=True)
    if any(one.failed for one in results):
        raise typer.Exit(1)


def _progress(console: TextConsole) -> Progress:
    return Progress(
        SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn(12), MofNCompleteColumn(),
        TimeElapsedColumn(), console=console, transient=True,
    )  # fmt: skip


def _table(results: Sequence[Any]) -> Table:
    """Return claims, verdicts, key numbers and seconds as a table in the width of a terminal."""
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    table.add_column("", justify="right", no_wrap=True)
    table.add_column("claim", ratio=3)
    table.add_column("verdict", no_wrap=True)
    table.add_column("measured", ratio=3)
    table.add_column("s", justify="right", no_wrap=True)
    for one in results:
        verdict = "not run" if one.finding is None else str(one.finding.verdict)
        colour = _COLOURS.get(verdict, "red")
        measured = "" if one.finding is None else one.finding.key
        table.add_row(
            str(one.claim.number),
            _plain(one.claim.title),
            _plain(verdict, colour),
            _plain(measured),
            f"{one.seconds:.0f}",
        )
    return table


def _plain(text: str, style: str = "") -> Any:
    from rich.text import Text

    return Text(text, style)
