"""Consoles on which text is text: no name of a model or a file is taken for rich's markup, and none changes colour."""

from typing import IO, Any

from rich.console import Console, RenderableType
from rich.status import Status
from rich.text import Text

__all__ = ["TextConsole"]


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
