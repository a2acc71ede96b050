"""Administrative requests: from which addresses they are served without access control, and the audit log of all of them.

Every server passes its requests that need the right ADMIN through `Administration.serve`, which refuses or runs them and writes
one line to the logger `saturnmq.audit` when the result is known. That logger has a level of its own, so `--quiet` and `logLevel`
do not silence it. Rejections of one address are limited to `REJECTIONS_PER_MINUTE` lines; the others are counted in the next line.

Runs on the event loop.

Requirements: SEC-07, SEC-12, SEC-17, SEC-20.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Final, TypeVar, cast

from saturnmq.acl.addresses import network_of, parse_list
from saturnmq.escaping import quoted
from saturnmq.protocol.addresses import host_of
from saturnmq.protocol.codes import RequestCode, ResponseCode, request_name
from saturnmq.protocol.errors import ConfigError, ResponseError, response_error
from saturnmq.protocol.frames.command import Command

audit: Final = logging.getLogger("saturnmq.audit")
audit.setLevel(logging.INFO)

REJECTIONS_PER_MINUTE: Final = 10
LOOPBACK: Final = "127.*.*.*,::1"  # in the form of ACL-07
NO_ACCOUNT: Final = "-"
_ADDRESSES_MAX: Final = 10_000
_TARGET_MAX: Final = 300
_MINUTE: Final = 60.0
_CREDENTIALS: Final = frozenset({"AccessKey", "Signature", "SecurityToken"})
_SECRETS: Final = ("secret", "password", "token")
_CONFIGURATIONS: Final = frozenset({RequestCode.UPDATE_BROKER_CONFIG, RequestCode.UPDATE_NAMESRV_CONFIG})

T = TypeVar("T")


def addresses_problems(addresses: str) -> list[str]:
    """Problems of the text of adminAddresses, for `validate` of settings."""
    try:
        parse_list(addresses)
    except ConfigError as error:
        return [f"adminAddresses={addresses}: {problem}" for problem in error.problems]
    return []


class Refused:
    """Rejections of one address: lines written in the current minute, and rejections without a line since the last one."""

    __slots__ = ("lines", "minute", "suppressed")

    def __init__(self, minute: int) -> None:
        self.minute, self.lines, self.suppressed = minute, 0, 0


class Administration:
    """The administrative requests of one server. addresses: the text of adminAddresses. Raises ConfigError."""

    def __init__(self, addresses: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._addresses = parse_list(addresses)
        self._text = addresses
        self._clock = clock
        self._refused: dict[str, Refused] = {}

    def allows(self, peer: str) -> bool:
        """Whether administrative requests of this peer, `ip:port`, are served without an account."""
        return self._addresses.matches(host_of(peer))

    def serve(
        self,
        peer: str,
        request: Command,
        answer: Callable[[], T],
        *,
        account: str | None = None,
    ) -> T | Awaitable[Command]:
        """Return what `answer` returns, and write the audit line when its result is known.

        account: the account that was authenticated and has the right; None if there is no access control: then peers outside
        adminAddresses are refused. Raises ResponseError for them, and what `answer` raises.
        """
        if account is None and not self.allows(peer):
            text = (
                f"{request_name(request.code)} is an administrative request: this server serves it from adminAddresses="
                f"{self._text} only, not from {peer}"
            )
            self.refuse(peer, request, text)
            raise response_error(ResponseCode.NO_PERMISSION, text)
        who = account or NO_ACCOUNT
        try:
            result = answer()
        except Exception as error:
            self._write(peer, request, who, _failure(error))
            raise
        if isinstance(result, Command):
            self._write(peer, request, who, _result(result))
        elif asyncio.iscoroutine(result) or isinstance(result, asyncio.Future):
            return self._completed(peer, request, who, cast("Awaitable[Command]", result))
        else:
            self._write(peer, request, who, "accepted")
        return result

    async def _completed(self, peer: str, request: Command, who: str, result: Awaitable[Command]) -> Command:
        try:
            reply = await result
        except Exception as error:
            self._write(peer, request, who, _failure(error))
            raise
        self._write(peer, request, who, _result(reply))
        return reply

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
        self._write(peer, request, account or NO_ACCOUNT, f"refused: {reason}", suppressed)

    def _write(self, peer: str, request: Command, account: str, result: str, suppressed: int = 0) -> None:
        audit.info(
            "admin request time=%s account=%s peer=%s code=%s name=%s target=%s result=%s suppressed=%s",
            datetime.now(UTC).isoformat(timespec="milliseconds"),
            quoted(account),
            peer,
            request.code,
            request_name(request.code),
            quoted(target_of(request), _TARGET_MAX),
            quoted(result),
            suppressed,
        )


def _result(reply: Command) -> str:
    return "ok" if reply.code == ResponseCode.SUCCESS else f"code {reply.code}: {reply.remark}"


def _failure(error: Exception) -> str:
    if isinstance(error, ResponseError):
        return f"code {error.code}: {error.remark}"
    return f"{type(error).__name__}: {error}"


def target_of(request: Command) -> str:
    """What an administrative request is about: its fields and the beginning of its body, without credentials and secrets.

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
    return text in _CREDENTIALS or any(word in text.lower() for word in _SECRETS)
