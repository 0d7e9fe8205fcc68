"""What the terminal shows: a console for text, and the option `--version` of every command and group of commands."""

import functools
import inspect
from collections.abc import Callable
from typing import IO, Annotated, Any

import typer
from rich.console import Console, RenderableType
from rich.status import Status
from rich.text import Text

__all__ = ["TextConsole", "with_version"]


class TextConsole(Console):
    """Standard output, or standard error, where `[/]` is shown as it is, also in tables and beside a spinner."""

    def __init__(self, *, stderr: bool = False, file: IO[str] | None = None) -> None:
        super().__init__(stderr=stderr, file=file, markup=False, highlight=False, emoji=False)

    def status(self, status: RenderableType, **options: Any) -> Status:
        """Show a text beside a spinner for as long as the `with` lasts."""
        return _TextStatus(status, console=self, **options)


class _TextStatus(Status):
    def __init__(self, status: RenderableType, **options: Any) -> None:
        super().__init__(_plain(status), **options)

    def update(self, status: RenderableType | None = None, **options: Any) -> None:
        super().update(None if status is None else _plain(status), **options)


def _plain(text: RenderableType) -> RenderableType:
    return Text(text) if isinstance(text, str) else text


def _show_version(wanted: bool) -> None:
    if wanted:
        import regard

        print(f"regard {regard.__version__}")
        raise typer.Exit


_OPTION = Annotated[
    bool,
    typer.Option("--version", metavar="", help="Show the version and exit.", callback=_show_version, is_eager=True),
]


def with_version(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the option `--version`, which is listed last."""

    @functools.wraps(command)
    def versioned(*, version: bool = False, **options: Any) -> Any:  # noqa: ARG001
        return command(**options)

    own = inspect.signature(command)
    option = inspect.Parameter("version", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=_OPTION)
    versioned.__signature__ = own.replace(parameters=[*own.parameters.values(), option])  # type: ignore[attr-defined]
    versioned.__annotations__ = {**command.__annotations__, "version": _OPTION}
    return versioned
