"""The server: one socket on the loopback address, one process, until Ctrl-C."""

import errno
import socket

import uvicorn
from starlette.applications import Starlette

from regard.errors import InputError

__all__ = ["bind", "make_server", "serve"]

_ADDRESS = "127.0.0.1"
_WAITING = 512  # maximum number of connections waiting to be accepted


def bind(port: int = 0) -> socket.socket:
    """Return a listening socket on the loopback address; port 0 selects a free port.

    Raises:
        InputError: The port is in use, or this user may not use it.
    """
    if not 0 <= port <= 65535:
        raise InputError(f"`--port` must be from 1 to 65535, or 0 for a free one, got {port}")
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((_ADDRESS, port))
        listener.listen(_WAITING)
    except OSError as problem:
        listener.close()
        reason = "is in use by another program" if problem.errno == errno.EADDRINUSE else f"({problem.strerror})"
        raise InputError(
            f"`--port` {port} cannot be taken, it {reason}: choose another, or leave `--port` out for a free one"
        ) from problem
    return listener


def make_server(app: Starlette) -> uvicorn.Server:
    """Return the server, ready to run."""
    config = uvicorn.Config(
        app,
        lifespan="off",
        ws="none",
        http="h11",
        loop="asyncio",
        log_level="error",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=1,
        backlog=_WAITING,
    )
    return uvicorn.Server(config)


def serve(app: Starlette, listener: socket.socket) -> None:
    """Serve requests until the process is interrupted, which is raised again as KeyboardInterrupt."""
    make_server(app).run(sockets=[listener])
