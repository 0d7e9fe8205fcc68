"""`regard models` and `regard data`: models, a font and corpora, downloaded from the package registry."""

from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.table import Table

from regard.cli.arguments import complete_model
from regard.cli.console import TextConsole, with_version
from regard.errors import RegardError

__all__ = ["data", "models"]

models = typer.Typer(no_args_is_help=True, help="See and get the models and the font that come with regard.")
data = typer.Typer(no_args_is_help=True, help="Download sentences to train on.")


@models.callback()
@with_version
def _models() -> None:
    """Take what comes before a command."""


@models.command("list")
@with_version
def list_models() -> None:
    """Show the models and the font, what they are, whether they are installed, their licence and size."""
    from regard.hub import BUNDLED
    from regard.hub.catalogue import FONT

    table = Table("name", "what it is", "installed", "licence", "size", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for one in (*BUNDLED.values(), FONT):
        installed = "yes" if one.find() else "no"
        table.add_row(one.name, one.description, installed, one.licence, f"{one.wheel_bytes / 1e6:.0f} MB")
    TextConsole().print(table)


def _complete(incomplete: str) -> list[str]:
    return [name for name in (*complete_model(incomplete), "font") if name.startswith(incomplete)]


@models.command("get")
@with_version
def get(
    names: Annotated[
        list[str] | None,
        typer.Argument(help="Models to get, or `font`; all if none is named.", autocompletion=_complete),
    ] = None,
) -> None:
    """Install what is missing of the models and the font: only their files, checked by their SHA-256."""
    from regard.hub import install

    terminal = TextConsole(stderr=True)
    try:
        with terminal.status("looking") as status:

            def report(line: str) -> None:
                terminal.print(line)
                status.update(line.partition(":")[0])

            install(names or (), report)
    except RegardError as error:
        terminal.print(f"regard: {error}", soft_wrap=True)
        raise typer.Exit(2) from error


@data.callback()
@with_version
def _data() -> None:
    """Keep `hsk` a subcommand while it is the only one."""


@data.command("hsk")
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
