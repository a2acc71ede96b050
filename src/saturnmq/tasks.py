"""Background tasks that cannot fail in silence.

asyncio reports an exception of a task that no other task awaits only when the task is garbage-collected, and only in the log. A
server whose maintenance, flush or election task has ended that way goes on answering. `supervised` tasks report at once.
`one_round` is for periodic tasks whose next round may succeed: no exception of one round ends them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from saturnmq.protocol.errors import SaturnError

log = logging.getLogger("saturnmq")
T = TypeVar("T")
OnFailure = Callable[[BaseException], object]


def logged_only(error: BaseException) -> None:
    """The on_failure of a task without which its server is complete, or whose rounds survive every exception."""


def supervised(work: Coroutine[Any, Any, T], name: str, on_failure: OnFailure = logged_only) -> asyncio.Task[T]:
    """Run work as a task of the running event loop and return the task.

    If work ends with an exception, it is logged as critical and on_failure(exception) is called once, in the event loop. A
    cancelled task is not a failure. The caller keeps the task and cancels or awaits it when it stops.

        self._task = supervised(self._run(), "delayed messages", self._broker.fail)
    """

    def ended(task: asyncio.Task[T]) -> None:
        if task.cancelled():
            return
        error = task.exception()
        if error is not None:
            log.critical("background task failed task=%r error=%r", name, error, exc_info=error)
            on_failure(error)

    task = asyncio.get_running_loop().create_task(work, name=name)
    task.add_done_callback(ended)
    return task


async def cancel(*tasks: asyncio.Future[Any] | None) -> None:
    """Cancel tasks and wait until all have ended, with whatever outcome; None is skipped."""
    running = [task for task in tasks if task is not None]
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)


def is_cancelled() -> bool:
    """In a handler of CancelledError: whether the running task was cancelled, and not what it awaited."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


async def one_round(name: str, work: Callable[[], Awaitable[object]]) -> bool:
    """Run one round of a periodic task; returns whether it succeeded.

    An error is logged, with its traceback unless it is a SaturnError, and never raised; cancellation is.
    """
    try:
        await work()
    except SaturnError as error:
        log.warning("periodic task failed task=%r error=%s", name, error)
    except Exception as error:
        log.exception("periodic task failed task=%r error=%r", name, error)
    else:
        return True
    return False
