"""`regard data`: corpora that the package index carries, fetched on request."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from regard.cli.console import TextConsole
from regard.cli.version_option import with_version
from regard.errors import RegardError

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True, help="Get sentences to train on.")


@app.callback()
@with_version
def _group() -> None:
    """Keep `hsk` a command of its own while it is the only one."""


@app.command("hsk")
@with_version
def hsk(
    out: Annotated[Path, typer.Option("--out", help="The folder for hsk.tsv and its licence.")] = Path("data"),
    script: Annotated[
        Literal["hans", "hant"], typer.Option("--script", help="Simplified (hans) or traditional (hant).")
    ] = "hans",
) -> None:
    """Fetch 4,272 everyday English–Chinese sentences (CC BY-SA 4.0), checked by their SHA-256, as hsk.tsv."""
    from regard.data.hsk import fetch_hsk

    terminal = TextConsole(stderr=True)
    try:
        with terminal.status("looking"):
            fetch_hsk(out, script=script, progress=lambda line: terminal.print(line, soft_wrap=True))
    except RegardError as error:
        terminal.print(str(error), soft_wrap=True)
        raise typer.Exit(2) from error
