"""Runs `saturnmq` and writes what only the process itself knows: tasks, pending calls, parked pulls.

Arguments: the file to write, then those of `saturnmq`. A thread replaces the file twice a second.

Requirements: SOK-02.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
import weakref
from pathlib import Path
from typing import Any, Final

from saturnmq.broker.services.long_polling import LongPolling
from saturnmq.cli import main
from saturnmq.net.endpoint import Endpoint

EVERY_SECONDS: Final = 0.5


class Registered:
    """The live instances of a class that were created from now on."""

    def __init__(self, cls: type[Any]) -> None:
        self._all: weakref.WeakSet[Any] = weakref.WeakSet()
        created = cls.__init__

        def init(one: Any, *args: Any, **kwargs: Any) -> None:
            created(one, *args, **kwargs)
            self._all.add(one)

        cls.__init__ = init

    def __call__(self) -> list[Any]:
        return list(self._all)


def count(endpoints: Registered, polling: Registered) -> dict[str, int]:
    """The figures now. Raises RuntimeError if a table changes meanwhile."""
    tasks: Any = asyncio.tasks
    known = list(tasks._all_tasks if hasattr(tasks, "_all_tasks") else tasks._scheduled_tasks)
    return {
        "tasks": sum(not task.done() for task in known),
        "calls": sum(len(connection.calls) for endpoint in endpoints() for connection in list(endpoint.connections)),
        "parked": sum(one.count for one in polling()),
    }


def write_regularly(path: Path, endpoints: Registered, polling: Registered) -> None:
    written = path.with_suffix(".tmp")
    while True:
        try:
            written.write_text(json.dumps(count(endpoints, polling)))
            os.replace(written, path)
        except (RuntimeError, OSError):
            pass  # the next round succeeds
        threading.Event().wait(EVERY_SECONDS)


if __name__ == "__main__":
    found = Registered(Endpoint), Registered(LongPolling)
    threading.Thread(target=write_regularly, args=(Path(sys.argv[1]), *found), name="probe", daemon=True).start()
    sys.exit(main(sys.argv[2:]))
