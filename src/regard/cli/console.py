"""What the terminal shows: a console for text, the progress of a watched model, and the option `--version`."""

import functools
import inspect
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import IO, Annotated, Any, Self

import typer
from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.status import Status
from rich.text import Text

__all__ = ["TextConsole", "Watched", "rules_not_obeyed", "with_version"]


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


@contextmanager
def rules_not_obeyed(show: Callable[[str], object]) -> Iterator[None]:
    """Hand over, as one line, what a checkpoint asks of generation and regard does not do, in place of a warning."""
    from regard.models.generation_config import UnsupportedGenerationWarning

    with warnings.catch_warnings():
        warnings.simplefilter("default", UnsupportedGenerationWarning)
        others = warnings.showwarning

        def receive(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
            if issubclass(category, UnsupportedGenerationWarning):
                show(f"warning: {message}")
            else:
                others(message, category, *where, **more)

        warnings.showwarning = receive
        yield


def _plain(text: RenderableType) -> RenderableType:
    return Text(text) if isinstance(text, str) else text


class Watched:
    """A status line that becomes a bar at the first layer and a status line again; nothing where there is no terminal.

    >>> import io
    >>> with Watched(TextConsole(file=io.StringIO())) as watched:
    ...     watched.say("reading")
    ...     watched.layer(1, 2)
    """

    def __init__(self, console: TextConsole) -> None:
        self._console = console
        self._status: Status | None = None
        self._bar: Progress | None = None

    def __enter__(self) -> Self:
        """Begin with the libraries."""
        self.say("loading the libraries")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Take away what is shown."""
        self._stop()

    def say(self, text: str) -> None:
        """Show the current stage."""
        if self._status is None:
            self._stop()
            self._status = self._console.status(text)
            self._status.start()
        else:
            self._status.update(text)

    def layer(self, done: int, count: int | None) -> None:
        """So many layers are finished, of so many."""
        if self._bar is None:
            self._stop()
            columns = TextColumn("layer"), MofNCompleteColumn(), BarColumn(), TimeRemainingColumn()
            live = self._console.is_terminal
            self._bar = Progress(*columns, console=self._console, transient=True, disable=not live)
            self._bar.start()
            self._bar.add_task("layers", total=count)
        self._bar.update(self._bar.task_ids[0], completed=done, total=count)

    def _stop(self) -> None:
        for shown in (self._status, self._bar):
            if shown is not None:
                shown.stop()
        self._status = self._bar = None


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
