"""The web application: the page's files, the data, and typed sentences, each under a fixed path.

A model runs on a typed sentence in a daemon thread, so that a long text does not delay the end of the process.
"""

import asyncio
import contextlib
import json
import logging
import os
import threading
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

import anyio.to_thread
from anyio import CapacityLimiter
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from regard.errors import InputError, RegardError
from regard.render.page import CLIENT_FILES, client_html, client_text
from regard.web.endpoints import ANSWERS, answer, books
from regard.web.record_store import Shelf
from regard.web.server import Guard
from regard.web.typed_sentences import Reader

__all__ = ["in_background", "make_app"]

T = TypeVar("T")


async def in_background(work: Callable[[], T]) -> T:
    """Return the result of `work`, which runs in a daemon thread."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, problem: BaseException | None) -> None:
        if done.cancelled():
            return
        if problem is not None:
            done.set_exception(problem)
        else:
            done.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        result: T | None = None
        problem: BaseException | None = None
        try:
            result = work()
        except BaseException as raised:  # raised again in the coroutine that waits for the work
            problem = raised
        with contextlib.suppress(RuntimeError):  # the server has ended in the meantime
            loop.call_soon_threadsafe(settle, result, problem)

    threading.Thread(target=run, name="regard reads", daemon=True).start()
    return await done


_AT_ONCE = max(2, min(4, os.cpu_count() or 2))  # number of responses computed concurrently; others wait
Endpoint = Callable[[Request], Awaitable[Response]]


def make_app(shelf: Shelf, reader: Reader | None = None) -> Starlette:
    """Return the application that serves the records of the store, and runs typed sentences if there is a reader."""
    limit = CapacityLimiter(_AT_ONCE)
    routes = [Route("/", _file(client_html(inline=False, title="regard"), "text/html"), methods=["GET"])]
    routes += [Route(f"/{name}", _file(client_text(name), _kind(name)), methods=["GET"]) for name in CLIENT_FILES]
    routes += [Route(path, _numbers(shelf, path, limit), methods=["GET"]) for path in ANSWERS]

    async def records(_: Request) -> Response:
        return JSONResponse(books(shelf, reader.name if reader else None))

    routes += [
        Route("/records", records, methods=["GET"]),
        Route("/read", _read(shelf, reader), methods=["POST"]),
    ]
    app = Starlette(routes=routes, middleware=[Middleware(Guard)], exception_handlers={HTTPException: _unknown})
    app.router.redirect_slashes = False
    return app


def _kind(name: str) -> str:
    return "text/css" if name.endswith(".css") else "text/javascript"


def _file(content: str, kind: str) -> Endpoint:
    """Return a file of the page, loaded once, so that no request path ever reaches the disk."""

    async def send(_: Request) -> Response:
        return Response(content, media_type=kind)

    return send


def _answering(work: Endpoint) -> Endpoint:
    """Return an endpoint that reports errors in one sentence."""

    async def send(request: Request) -> Response:
        try:
            return await work(request)
        except RegardError as refused:
            return JSONResponse({"error": str(refused)}, 400)
        except Exception as problem:
            logging.getLogger("regard.web").error("%s: %s", type(problem).__name__, problem)
            sentence = f"this could not be computed ({type(problem).__name__}): is the file whole?"
            return JSONResponse({"error": sentence}, 500)

    return send


def _numbers(shelf: Shelf, path: str, limit: CapacityLimiter) -> Endpoint:
    async def send(request: Request) -> Response:
        asked = partial(answer, path, shelf, dict(request.query_params))
        found = await anyio.to_thread.run_sync(asked, limiter=limit)
        if isinstance(found, bytes):
            return Response(found, media_type="application/octet-stream")
        return JSONResponse(found)

    return _answering(send)


def _read(shelf: Shelf, reader: Reader | None) -> Endpoint:
    async def send(request: Request) -> Response:
        if reader is None:
            raise InputError("no model is here to read a text: start with `regard open --model minilm`")
        try:
            text = json.loads(await request.body())["text"]
            if not isinstance(text, str):
                raise TypeError
            text.encode()  # an unpaired surrogate, "\ud800", is not valid text
        except (KeyError, RecursionError, TypeError, ValueError):
            raise InputError('a text is sent as {"text": "…"}') from None
        record, warning = await in_background(partial(reader.read, text))
        book = shelf.add(record, " ".join(text.split())[:60])
        return JSONResponse({"number": book.number, "warning": warning})

    return _answering(send)


async def _unknown(_: Request, problem: Exception) -> Response:
    status = problem.status_code if isinstance(problem, HTTPException) else 404
    sentence = "this server answers GET here" if status == 405 else "there is nothing under this path"
    return JSONResponse({"error": sentence}, status)
