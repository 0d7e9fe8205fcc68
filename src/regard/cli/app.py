"""All commands in one place."""

from typing import Annotated

import typer

from regard.cli import data, models
from regard.cli.bench import bench
from regard.cli.compare import compare
from regard.cli.doctor import doctor
from regard.cli.generate import generate
from regard.cli.heads import heads
from regard.cli.lab import lab
from regard.cli.look import look
from regard.cli.open import open_atlas
from regard.cli.steps import steps
from regard.cli.train import train
from regard.cli.translate import translate

__all__ = ["app"]

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Attention that you can see: what a real model attends to, and how one output comes about.",
)


def _show_version(asked: bool) -> None:
    if asked:
        import regard

        print(f"regard {regard.__version__}")
        raise typer.Exit


@app.callback()
def _regard(
    version: Annotated[
        bool,
        typer.Option("--version", metavar="", help="Show the version and exit.", callback=_show_version, is_eager=True),
    ] = False,
) -> None:
    """Take what comes before a command."""


app.command()(look)
app.command("open")(open_atlas)
app.command()(steps)
app.command()(heads)
app.command()(compare)
app.command()(generate)
# Every key of a configuration is an option of `train`: which there are, the configuration knows.
app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(train)
app.command()(translate)
app.command()(lab)
app.command()(bench)
app.command()(doctor)
app.add_typer(models.app, name="models")
app.add_typer(data.app, name="data")
