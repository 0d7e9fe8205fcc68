"""`regard open`: the atlas in a browser, to pan and zoom as a map."""

import contextlib
import os
import webbrowser
from pathlib import Path
from types import ModuleType
from typing import Annotated

import typer

from regard.cli.arguments import model_option
from regard.cli.console import TextConsole
from regard.errors import InputError, MissingExtraError

__all__ = ["open_atlas"]


def open_atlas(
    atlas: Annotated[
        Path | None,
        typer.Argument(help="The file, from `regard look --out book.atlas` or `seen.save`."),
    ] = None,
    *,
    model: Annotated[
        str | None, model_option("A model for sentences typed in the page: minilm, me5, a folder, an id.")
    ] = None,
    port: Annotated[int, typer.Option(help="The port; by default a free one.", show_default=False)] = 0,
    browser: Annotated[
        bool, typer.Option("--browser/--no-browser", metavar="", help="Open the browser or not.", show_default=False)
    ] = True,
) -> None:
    """Open an atlas in the browser: zoom from the whole matrix to single weights.

    Served to this machine alone (127.0.0.1), until Ctrl-C. Give an ATLAS, a --model, or both.
    """
    if atlas is None and model is None:
        raise InputError(
            "`regard open` needs an atlas or a model: regard open book.atlas, or regard open --model minilm"
        )
    progress = TextConsole(stderr=True)
    with contextlib.ExitStack() as stack:
        status = stack.enter_context(progress.status("loading the libraries"))
        from regard.record.atlas import read_atlas

        web = _web()
        shelf = web.Shelf() if atlas is None else web.Shelf(read_atlas(atlas), atlas.name)
        listener = stack.enter_context(web.bind(port))
        reader = None
        if model is not None:
            status.update(f"loading {model}")
            reader = web.ModelReader(model)
        else:  # tiles are computed side by side, each by one thread, with a torch that the first one loads
            os.environ.setdefault("OMP_NUM_THREADS", "1")
        app = web.make_app(shelf, reader)
        status.stop()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/"
        progress.print(f"{atlas or model}: {url} (Ctrl-C ends it)", soft_wrap=True)
        if browser and not webbrowser.open(url):
            progress.print("no browser could be opened: open that address yourself")
        with contextlib.suppress(KeyboardInterrupt):
            web.serve(app, listener)
    progress.print("closed")


def _web() -> ModuleType:
    """`regard.web`, whose packages an extra installs."""
    try:
        import regard.web as module
    except ImportError as missing:
        package = (missing.name or "").partition(".")[0]
        if package in ("starlette", "uvicorn", "anyio", "h11"):
            raise MissingExtraError(package, "web") from missing
        raise
    return module
