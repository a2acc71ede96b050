"""Background tasks that cannot fail in silence.

asyncio reports an exception of a task that no other task awaits only when the task is garbage-collected, and only in the log. A
server whose maintenance, flush or election task has ended that way goes on answering. `supervised` tasks report at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

log = logging.getLogger("saturnmq")
T = TypeVar("T")
OnFailure = Callable[[BaseException], object]


def supervised(work: Coroutine[Any, Any, T], name: str, on_failure: OnFailure) -> asyncio.Task[T]:
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
