"""Runs many broker queries at once, with a limit. Does not import pyspark.

Requirements: SCL-05.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, TypeVar

ASKED_AT_ONCE: Final = 256  # a request's timeout starts when it is sent: thousands at once would queue and time out
T = TypeVar("T")
R = TypeVar("R")


async def gathered(ask: Callable[[T], Awaitable[R]], items: Iterable[T]) -> list[R]:
    """Return the result for each item, in order, with at most ASKED_AT_ONCE requests in flight.

    Raises the first error (SCL-05).
    """
    listed = list(items)
    results: dict[int, R] = {}
    waiting = iter(enumerate(listed))

    async def work() -> None:
        for n, item in waiting:
            results[n] = await ask(item)

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(min(ASKED_AT_ONCE, len(listed))):
                group.create_task(work())
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return [results[n] for n in range(len(listed))]
