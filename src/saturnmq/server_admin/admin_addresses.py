"""Administrative requests: from which addresses they are served without access control.

Every server passes its requests that need the right ADMIN through `Administration.serve`, which refuses or runs them and writes
one line to the audit log when the result is known.

Runs on the event loop.

Requirements: SEC-07, SEC-12, SEC-17.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar, cast

from saturnmq.acl.addresses import parse_list
from saturnmq.protocol.addresses import host_of
from saturnmq.protocol.codes import ResponseCode, request_name
from saturnmq.protocol.errors import ConfigError, ResponseError, response_error
from saturnmq.protocol.frames.command import Command
from saturnmq.server_admin.audit_log import AuditLog

LOOPBACK: Final = "127.*.*.*,::1"  # in the form of ACL-07

T = TypeVar("T")


def addresses_problems(addresses: str, name: str = "adminAddresses") -> list[str]:
    """Problems of the text of a key with addresses, for `validate` of settings."""
    try:
        parse_list(addresses)
    except ConfigError as error:
        return [f"{name}={addresses}: {problem}" for problem in error.problems]
    return []


class Administration:
    """The administrative requests of one server. addresses: the text of adminAddresses. Raises ConfigError."""

    def __init__(self, addresses: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._addresses = parse_list(addresses)
        self._text = addresses
        self._log = AuditLog(clock)

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
            self.write_refusal(peer, request, text)
            raise response_error(ResponseCode.NO_PERMISSION, text)
        try:
            result = answer()
        except Exception as error:
            self._log.write(peer, request, account, _failure(error))
            raise
        if isinstance(result, Command):
            self._log.write(peer, request, account, _result(result))
        elif asyncio.iscoroutine(result) or isinstance(result, asyncio.Future):
            return self._completed(peer, request, account, cast("Awaitable[Command]", result))
        else:
            self._log.write(peer, request, account, "accepted")
        return result

    async def _completed(self, peer: str, request: Command, account: str | None, result: Awaitable[Command]) -> Command:
        try:
            reply = await result
        except Exception as error:
            self._log.write(peer, request, account, _failure(error))
            raise
        self._log.write(peer, request, account, _result(reply))
        return reply

    def write_refusal(self, peer: str, request: Command, reason: str, account: str | None = None) -> None:
        """Write the audit line of a refused request; their number is limited."""
        self._log.write_refusal(peer, request, reason, account)


def _result(reply: Command) -> str:
    return "ok" if reply.code == ResponseCode.SUCCESS else f"code {reply.code}: {reply.remark}"


def _failure(error: Exception) -> str:
    if isinstance(error, ResponseError):
        return f"code {error.code}: {error.remark}"
    return f"{type(error).__name__}: {error}"
