"""`regard look`: see a real model attend to a text."""

import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from regard.errors import InputError

__all__ = ["look"]

_SUFFIXES = (".html", ".png", ".svg", ".atlas")
_LARGEST = 50_000_000  # bytes of a text file


def look(
    text: Annotated[str, typer.Argument(help="A text, the name of a text file, or - for standard input.")],
    *,
    model: Annotated[
        str | None,
        typer.Option(help="me5, minilm, smollm2, or a Hugging Face folder or id; by default the text chooses."),
    ] = None,
    token: Annotated[str | None, typer.Option(help="The word to look from.")] = None,
    layer: Annotated[int | None, typer.Option(help="The layer of the first head, counted from 0.")] = None,
    head: Annotated[int | None, typer.Option(help="The first head, counted from 0 within its layer.")] = None,
    target: Annotated[
        str | None, typer.Option(help="For an encoder–decoder: what it writes; by default what it would write.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Write page.html, figure.png, figure.svg or it.atlas instead of printing.")
    ] = None,
) -> None:
    """See what a real model attends to: one word, two heads that look from it, a heat map, and the rest in a line."""
    words = _read(text)
    if out is not None:
        _check_out(out)
    screen = Console(highlight=False)
    progress = Console(stderr=True, highlight=False)
    with progress.status("reading the libraries") as status:
        from regard.seeing.look import look as look_at  # here, because torch and transformers take seconds to load

        status.update(f"{model or 'the model'} reads the text")
        looked = look_at(words, model=model, token=token, layer=layer, head=head, target=target)
        if out is not None:
            status.update(f"drawing {out}")
            _write(looked, out, words)
    if looked.warning:
        progress.print(f"warning: {looked.warning}", markup=False, soft_wrap=True)
    if out is not None:
        progress.print(f"{looked.model}: {len(looked.record)} layers → {out}", markup=False, soft_wrap=True)
        return
    from regard.render.terminal import picture

    command = " \\\n  ".join(_command(looked, words, text))
    screen.print(picture(looked.record, looked.focus, command=command, width=screen.width))


def _read(text: str) -> str:
    """The text itself, of a file, or of standard input."""
    if text == "-":
        data = sys.stdin.buffer.read(_LARGEST + 1)
        return _decode(data, "standard input")
    try:
        path = Path(text)
        is_file = path.is_file()
    except (OSError, ValueError):  # longer than a path may be, or with a NUL
        return text
    if not is_file:
        return text
    try:
        with path.open("rb") as file:
            return _decode(file.read(_LARGEST + 1), str(path))
    except OSError as problem:
        raise InputError(f"cannot read {path}: {problem.strerror or problem}") from problem


def _decode(data: bytes, name: str) -> str:
    if len(data) > _LARGEST:
        raise InputError(f"{name} is larger than {_LARGEST:,} bytes: no model here reads so much, cut a part out")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as problem:
        raise InputError(f"{name} is no UTF-8 text (byte {problem.start:,}): convert it, or is it binary?") from problem
    if "\0" in text:
        raise InputError(f"{name} holds NUL bytes, so it is no text: is it a binary file?")
    return text


def _check_out(out: Path) -> None:
    """Say at once what could only be said after minutes."""
    if out.suffix.lower() not in _SUFFIXES:
        raise InputError(f"`--out` must end in {', '.join(_SUFFIXES)}, got {str(out)!r}")
    if out.is_dir():
        raise InputError(f"`--out` must name a file, and {out} is a folder")
    if not out.parent.is_dir():
        raise InputError(f"`--out` {out} cannot be written: there is no folder {out.parent}")


def _write(looked: Any, out: Path, text: str) -> None:
    suffix = out.suffix.lower()
    if suffix == ".atlas":
        from regard.observe.atlas import save_atlas

        save_atlas((looked.record,), out)
    elif suffix == ".html":
        from regard.render.page import write_page

        title = " ".join(text.split())
        write_page(
            looked.record,
            looked.focus,
            out,
            title=title if len(title) <= 80 else title[:79] + "…",
            command=" ".join(_command(looked, text, text)),
        )
    else:
        from regard.render.figure import save_figure

        save_figure(looked.record, looked.focus, out)


def _command(looked: Any, words: str, text: str) -> list[str]:
    """The command that shows the first look's weight step by step: its options, and its text."""
    first, chosen = looked.focus.looks[0], looked.focus.queries[looked.focus.word].text
    shown = text if text == "-" or words != text else words
    options = ["regard", "steps", "--model", looked.model, "--layer", str(first.layer), "--head", str(first.head)]
    return [" ".join(_quote(one) for one in (*options, "--token", chosen)), _quote(shown)]


def _quote(word: str) -> str:
    """A word as a shell takes it, in double quotes where it has an apostrophe, which people can read."""
    plain = not set(word) & set('"$`\\!\n')
    return f'"{word}"' if plain and ("'" in word or " " in word or not word.isascii()) else shlex.quote(word)
