"""All commands in one place."""

import typer

from regard.cli.bench import bench
from regard.cli.compare import compare
from regard.cli.console import with_version
from regard.cli.doctor import doctor
from regard.cli.downloads import data, models
from regard.cli.generate import generate
from regard.cli.heads import heads
from regard.cli.lab import lab
from regard.cli.look import look
from regard.cli.open import open_atlas
from regard.cli.score import score
from regard.cli.sources import sources
from regard.cli.steps import steps
from regard.cli.train import train
from regard.cli.translate import translate

__all__ = ["app"]

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Attention that you can see: what a real model attends to, and how one output comes about.",
)


@app.callback()
@with_version
def _regard() -> None:
    """Take what comes before a command."""


app.command()(with_version(look))
app.command("open")(with_version(open_atlas))
app.command()(with_version(steps))
app.command()(with_version(heads))
app.command()(with_version(compare))
app.command()(with_version(sources))
app.command()(with_version(generate))
# Every key of a configuration is an option of `train`: which there are, the configuration knows.
app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(with_version(train))
app.command()(with_version(translate))
app.command()(with_version(score))
app.command()(with_version(lab))
app.command()(with_version(bench))
app.command()(with_version(doctor))
app.add_typer(models, name="models")
app.add_typer(data, name="data")
