"""Wait for work in a thread that never keeps the process from ending, as a model at a long text would."""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import TypeVar

__all__ = ["in_background"]

T = TypeVar("T")


async def in_background(work: Callable[[], T]) -> T:
    """The result of `work`, done in a daemon thread of its own."""
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
        except BaseException as raised:  # it is raised again where the work is waited for
            problem = raised
        with contextlib.suppress(RuntimeError):  # the server has ended meanwhile
            loop.call_soon_threadsafe(settle, result, problem)

    threading.Thread(target=run, name="regard reads", daemon=True).start()
    return await done
