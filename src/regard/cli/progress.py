"""What is shown while a model is watched: the current stage, then how many layers are finished and the time left."""

from pathlib import Path
from types import TracebackType
from typing import Self

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.status import Status

from regard.cli.console import TextConsole

__all__ = ["Watched"]


class Watched:
    """A status line that becomes a bar at the first layer and a status line again; nothing where there is no terminal.

    When interrupted, it prints how to resume the atlas that was being made.

    >>> import io
    >>> with Watched(TextConsole(file=io.StringIO())) as watched:
    ...     watched.say("reading")
    ...     watched.layer(1, 2)
    """

    def __init__(self, console: TextConsole, atlas: Path | None = None) -> None:
        self._console, self._atlas = console, atlas
        self._done = 0
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
        if kind is not None and issubclass(kind, KeyboardInterrupt) and self._atlas is not None and self._done:
            said = (
                f"{self._done} layers are saved in {self._atlas}.part: run the same command with --resume to continue"
            )
            self._console.print(said, markup=False, soft_wrap=True)

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
        self._done = done
        self._bar.update(self._bar.task_ids[0], completed=done, total=count)

    def _stop(self) -> None:
        for shown in (self._status, self._bar):
            if shown is not None:
                shown.stop()
        self._status = self._bar = None
