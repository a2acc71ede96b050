"""Reports appends that take too long: nothing else runs on the event loop meanwhile, so all other requests wait for them.

Requirements: ST-04.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from time import monotonic

log = logging.getLogger(__name__)


def _no_listener(_: int) -> None:
    """Until a broker sets one."""


class AppendWatch:
    """seconds: the duration above which an append is reported (osPageCacheBusyTimeOutMills). listener: receives it in ms.

    The caller measures, so that an append of usual duration costs no call.
    """

    __slots__ = ("listener", "seconds")

    def __init__(self, limit_ms: int) -> None:
        self.seconds = limit_ms / 1000
        self.listener: Callable[[int], object] = _no_listener

    def note(self, began: float) -> None:
        """Report an append that has just ended. began: time.monotonic(), s."""
        took_ms = int((monotonic() - began) * 1000)
        log.warning("slow append elapsed_ms=%s", took_ms)
        self.listener(took_ms)
