"""`regard bench`: how fast regard is on this machine, as ratios against peers and the machine's limit."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from regard_bench.rows import Case, Row

from regard.cli.arguments import MOST_THREADS, check_output
from regard.cli.console import TextConsole

__all__ = ["bench"]

_COLOURS = {"reached": "green", "missed": "red", "inconclusive": "yellow"}


def bench(
    *,
    cases: Annotated[list[str] | None, typer.Argument(metavar="CASE", help="Names of cases; all by default.")] = None,
    quick: Annotated[
        bool, typer.Option("--quick", metavar="", help="Up to 4,096 tokens and one second for each figure: minutes.")
    ] = False,
    out: Annotated[
        Path,
        typer.Option(
            metavar="FILE", help="JSON file for the numbers; a page with figures is saved next to it as .html."
        ),
    ] = Path("bench.json"),
    compare: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="An earlier run: exit with 1 where a ratio is worse by a quarter. Given several times, the first"
            " from this processor and number of threads counts; of other processors, none.",
        ),
    ] = None,
    threads: Annotated[
        int | None,
        typer.Option(min=1, max=MOST_THREADS, help="Number of PyTorch threads; PyTorch's default if not given."),
    ] = None,
    list_: Annotated[bool, typer.Option("--list", metavar="", help="List the cases, and measure none.")] = False,
) -> None:
    """Measure how fast regard is on this machine.

    Each figure is a ratio of calls timed in turn in one process, against
    PyTorch's own attention, transformers, or matrix products of as many
    operations, with a confidence interval of its median in brackets; where the
    target is within it, the result is inconclusive. Where the operations or
    bytes of a call are known, its speed follows as a share of the machine's
    limit: the peak of fused multiply-adds in registers, or of reading memory.
    Keep the machine idle meanwhile. Finished results are saved at once, so
    nothing is lost when you stop it.
    """
    if not list_:
        check_output("--out", out, ".json")
    notes = TextConsole(stderr=True)
    with notes.status("loading the libraries"):
        import torch

        from regard_bench.cases import CASES
        from regard_bench.machine_peak import PeakMeter
        from regard_bench.report import as_json, read, regressions
        from regard_bench.rows import Effort
        from regard_bench.running import chosen, confirmed, measure
        from regard_lab.machine import here

        picked = chosen(CASES, cases or ())
        earlier = [(path, read(path)) for path in compare or ()]
    screen = TextConsole()
    if list_:
        screen.print(_list(picked))
        return
    if threads is not None:
        torch.set_num_threads(threads)
    about = {**here(torch.get_num_threads()), "quick": quick}
    path, before = _comparable(earlier, about, notes)
    rows: list["Row"] = []
    meter = PeakMeter()
    with _progress(notes, rows) as say:
        effort = Effort(max_seconds=1.0, max_tokens=4096, progress=say) if quick else Effort(progress=say)
        for row in measure(picked, effort, out, about, meter):
            rows.append(row)  # noqa: PERF402  # what `say` counts grows as it is measured
        worse = [] if before is None else confirmed(regressions(rows, before), picked, effort, before)
    _show(screen, as_json(rows, about, meter.peaks()))
    notes.print(f"numbers → {out}, figures → {out.with_suffix('.html')}", soft_wrap=True)
    for row, times in worse:
        notes.print(f"{times:.2f} times worse than in {path}: {row.key}", soft_wrap=True)
    if worse:
        raise typer.Exit(1)


@contextmanager
def _progress(console: TextConsole, rows: "Sequence[Row]") -> "Iterator[Callable[[str], None]]":
    """Show the current case and the number of rows so far, until it is done."""
    columns = SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn()
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("")
        yield lambda doing: progress.update(task, description=f"{doing}, {len(rows)} figures so far"[:68])


def _comparable(
    earlier: Sequence[tuple[Path, dict[str, Any]]], about: Mapping[str, Any], notes: TextConsole
) -> tuple[Path, dict[str, Any]] | tuple[None, None]:
    """Return the first run of this processor and number of threads; say so where there are others alone."""
    alike = [(path, run) for path, run in earlier if _kind(run) == _kind(about)]
    if earlier and not alike:
        others = "; ".join(f"{path} was measured on {_kind(run)}" for path, run in earlier)
        notes.print(f"nothing is compared: this is {_kind(about)}. {others}", soft_wrap=True)
    return alike[0] if alike else (None, None)


def _kind(about: Mapping[str, Any]) -> str:
    """Return the machine and its threads, on which ratios depend."""
    return f"{about.get('machine', {}).get('cpu', 'an unknown machine')} with {about.get('threads')} threads"


def _list(cases: "Sequence[Case]") -> Table:
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 1, 0, 0))
    for one in cases:
        table.add_row(f"{one.name:<9}", one.title)
    return table


def _show(screen: TextConsole, results: Mapping[str, Any]) -> None:
    """Print the rows, and the machine's limits below them."""
    from regard_bench.shares import shown_peaks

    screen.print(_table(results["rows"]))
    screen.print()
    for name, measured in shown_peaks(results["peaks"]).items():
        screen.print(f"{name}: {measured}")


def _table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Return the rows of the JSON as a table in the width of a terminal; below a figure is the share of the limit."""
    from regard_bench.report import shown
    from regard_bench.shares import shown_share

    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    table.add_column("case", ratio=3)
    table.add_column("at", ratio=2)
    table.add_column("what", ratio=2)
    table.add_column("measured", no_wrap=True, justify="right")
    table.add_column("target", no_wrap=True, justify="right")
    for row in rows:
        why = row["why"] or "not measured"
        measured = Text(why if row["median"] is None else shown(row), style=_COLOURS.get(row["outcome"] or "", ""))
        if row["share"]:
            measured.append("\n" + shown_share(row["share"], between=",\n"), style="default")
        table.add_row(Text(row["case"]), Text(row["at"]), Text(row["what"]), measured, Text(row["target"] or ""))
    return table
