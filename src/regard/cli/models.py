"""`regard models`: which small real models, and which font, come with regard through the package registry."""

from typing import Annotated

import typer
from rich.table import Table

from regard.cli.console import TextConsole, with_version
from regard.cli.model_option import complete_model
from regard.errors import RegardError

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True, help="See and get the models and the font that come with regard.")


@app.callback()
@with_version
def _group() -> None:
    """Take what comes before a command."""


@app.command("list")
@with_version
def list_models() -> None:
    """Show the models and the font, what they are, whether they are installed, their licence and size."""
    from regard.interpret.bundled import BUNDLED
    from regard.render.fonts import FONT

    table = Table("name", "what it is", "installed", "licence", "size", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for one in (*BUNDLED.values(), FONT):
        installed = "yes" if one.find() else "no"
        table.add_row(one.name, one.description, installed, one.licence, f"{one.wheel_bytes / 1e6:.0f} MB")
    TextConsole().print(table)


def _complete(incomplete: str) -> list[str]:
    return [name for name in (*complete_model(incomplete), "font") if name.startswith(incomplete)]


@app.command("get")
@with_version
def get(
    names: Annotated[
        list[str] | None,
        typer.Argument(help="Models to get, or `font`; all if none is named.", autocompletion=_complete),
    ] = None,
) -> None:
    """Install what is missing of the models and the font: only their files, checked by their SHA-256."""
    from regard.interpret.bundled import install

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
