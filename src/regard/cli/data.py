"""`regard data`: download corpora from the package index."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from regard.cli.console import TextConsole, with_version
from regard.errors import RegardError

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True, help="Download sentences to train on.")


@app.callback()
@with_version
def _group() -> None:
    """Keep `hsk` a subcommand while it is the only one."""


@app.command("hsk")
@with_version
def hsk(
    output_dir: Annotated[Path, typer.Option("--output-dir", help="Folder for hsk.tsv and its licence.")] = Path(
        "data"
    ),
    script: Annotated[
        Literal["hans", "hant"], typer.Option("--script", help="Simplified (hans) or traditional (hant).")
    ] = "hans",
) -> None:
    """Download 4,272 everyday English–Chinese sentences (CC BY-SA 4.0) as hsk.tsv, verified by SHA-256."""
    from regard.data.chinese import fetch_hsk

    terminal = TextConsole(stderr=True)
    try:
        with terminal.status("downloading"):
            fetch_hsk(output_dir, script=script, progress=lambda line: terminal.print(line, soft_wrap=True))
    except RegardError as error:
        terminal.print(f"regard: {error}", soft_wrap=True)
        raise typer.Exit(2) from error
