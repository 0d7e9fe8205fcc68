"""Run work in a daemon thread, so that a model on a long text does not delay the end of the process."""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import TypeVar

__all__ = ["in_background"]

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
