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
_TARGET_CHARS_MAX: Final = 300
_MINUTE_SECONDS: Final = 60.0
_CREDENTIAL_FIELDS: Final = frozenset({"AccessKey", "Signature", "SecurityToken"})
_SECRET_NAMES: Final = re.compile("secret|password|token", re.IGNORECASE)
_CONFIGURATION_CODES: Final = frozenset({RequestCode.UPDATE_BROKER_CONFIG, RequestCode.UPDATE_NAMESRV_CONFIG})


class AddressRejections:
    """Rejections of one address: lines written in `minute`, and rejections since the last line that had none.

    minute: number of the minute of the clock.
    """

    __slots__ = ("line_count", "minute", "suppressed_count")

    def __init__(self, minute: int) -> None:
        self.minute, self.line_count, self.suppressed_count = minute, 0, 0


class AuditLog:
    """Writes the audit lines of one server."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._rejections: dict[str, AddressRejections] = {}

    def write(self, peer: str, request: Command, account: str | None, result: str, suppressed: int = 0) -> None:
        """Write the line of one request. suppressed: rejections of the address that had no line."""
        audit.info(
            "admin request time=%s account=%s peer=%s code=%s name=%s target=%s result=%s suppressed=%s",
            datetime.now(UTC).isoformat(timespec="milliseconds"),
            quoted(account or NO_ACCOUNT),
            peer,
            request.code,
            request_name(request.code),
            quoted(target_of(request), _TARGET_CHARS_MAX),
            quoted(result),
            suppressed,
        )

    def write_refusal(self, peer: str, request: Command, reason: str, account: str | None = None) -> None:
        """Write the audit line of a refused request, unless its address had REJECTIONS_PER_MINUTE lines in this minute."""
        minute = int(self._clock() / _MINUTE_SECONDS)
        address = network_of(host_of(peer))
        if address not in self._rejections and len(self._rejections) >= _ADDRESSES_MAX:
            self._rejections.clear()
        rejections = self._rejections.setdefault(address, AddressRejections(minute))
        if rejections.minute != minute:
            rejections.minute, rejections.line_count = minute, 0
        if rejections.line_count >= REJECTIONS_PER_MINUTE:
            rejections.suppressed_count += 1
            return
        rejections.line_count += 1
        suppressed, rejections.suppressed_count = rejections.suppressed_count, 0
        self.write(peer, request, account, f"refused: {reason}", suppressed)


def target_of(request: Command) -> str:
    """The target of an administrative request: its fields and the beginning of its body, without credentials and secrets.

    Of the body of a configuration change, only the keys.
    """
    parts = [f"{name}={value}" for name, value in request.ext.items() if not _is_hidden(name)]
    if request.body:
        text = request.body[:_TARGET_CHARS_MAX].decode(errors="replace")
        if request.code in _CONFIGURATION_CODES:
            text = ",".join(line.partition("=")[0] for line in text.splitlines())
        parts.append("body=" + ("(not shown)" if _is_hidden(text) else text))
    return " ".join(parts) or "-"


def _is_hidden(text: str) -> bool:
    return text in _CREDENTIAL_FIELDS or _SECRET_NAMES.search(text) is not None
