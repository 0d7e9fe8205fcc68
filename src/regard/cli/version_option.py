"""`--version`, which every command and group of commands takes."""

import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer

__all__ = ["with_version"]


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
