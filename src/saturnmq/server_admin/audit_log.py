"""The audit log: one line per administrative request, with its account, target and result, to the logger `saturnmq.audit`.

That logger has a level of its own, so `--quiet` and `logLevel` do not silence it. Rejections of one address are limited to
`REJECTIONS_PER_MINUTE` lines; the others are counted in the next line.

Requirements: SEC-17, SEC-20.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

from saturnmq.escaping import quoted
from saturnmq.protocol.addresses import host_of, network_of
from saturnmq.protocol.codes import RequestCode, request_name
from saturnmq.protocol.frames.command import Command

audit: Final = logging.getLogger("saturnmq.audit")
audit.setLevel(logging.INFO)

REJECTIONS_PER_MINUTE: Final = 10
NO_ACCOUNT: Final = "-"
_ADDRESSES_MAX: Final = 10_000
_TARGET_MAX: Final = 300
_MINUTE: Final = 60.0
_CREDENTIALS: Final = frozenset({"AccessKey", "Signature", "SecurityToken"})
_SECRETS: Final = re.compile("secret|password|token", re.IGNORECASE)
_CONFIGURATIONS: Final = frozenset({RequestCode.UPDATE_BROKER_CONFIG, RequestCode.UPDATE_NAMESRV_CONFIG})


class Refused:
    """Rejections of one address: lines written in the current minute, and rejections without a line since the last one."""

    __slots__ = ("lines", "minute", "suppressed")

    def __init__(self, minute: int) -> None:
        self.minute, self.lines, self.suppressed = minute, 0, 0


class AuditLog:
    """The lines of one server."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._refused: dict[str, Refused] = {}

    def write(self, peer: str, request: Command, account: str | None, result: str, suppressed: int = 0) -> None:
        """Write the line of one request. suppressed: rejections of the address that had no line."""
        audit.info(
            "admin request time=%s account=%s peer=%s code=%s name=%s target=%s result=%s suppressed=%s",
            datetime.now(UTC).isoformat(timespec="milliseconds"),
            quoted(account or NO_ACCOUNT),
            peer,
            request.code,
            request_name(request.code),
            quoted(target_of(request), _TARGET_MAX),
            quoted(result),
            suppressed,
        )

    def refuse(self, peer: str, request: Command, reason: str, account: str | None = None) -> None:
        """Write the audit line of a refused request, unless its address had REJECTIONS_PER_MINUTE lines in this minute."""
        minute = int(self._clock() / _MINUTE)
        address = network_of(host_of(peer))
        if address not in self._refused and len(self._refused) >= _ADDRESSES_MAX:
            self._refused.clear()
        refused = self._refused.setdefault(address, Refused(minute))
        if refused.minute != minute:
            refused.minute, refused.lines = minute, 0
        if refused.lines >= REJECTIONS_PER_MINUTE:
            refused.suppressed += 1
            return
        refused.lines += 1
        suppressed, refused.suppressed = refused.suppressed, 0
        self.write(peer, request, account, f"refused: {reason}", suppressed)


def target_of(request: Command) -> str:
    """The subject of an administrative request: its fields and the beginning of its body, without credentials and secrets.

    Of a configuration, only the keys.
    """
    parts = [f"{name}={value}" for name, value in request.ext.items() if not _is_hidden(name)]
    if request.body:
        text = request.body[:_TARGET_MAX].decode(errors="replace")
        if request.code in _CONFIGURATIONS:
            text = ",".join(line.partition("=")[0] for line in text.splitlines())
        parts.append("body=" + ("(not shown)" if _is_hidden(text) else text))
    return " ".join(parts) or "-"


def _is_hidden(text: str) -> bool:
    return text in _CREDENTIALS or _SECRETS.search(text) is not None
