"""Calls to consumers that wait for their answers, so that consumers that do not answer leave permits for calls to others.

A consumer that let a call time out gets one call at a time until it answers one. Consumers of other hosts share the permits by
address, as the peers of a limited table do (`Shares`).

Requirements: REM-20, LIM-13, CA-15.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Protocol

from saturnmq.errors import NoPermit
from saturnmq.net import CallTimeout
from saturnmq.net.shares import Shares
from saturnmq.protocol.addresses import host_of
from saturnmq.protocol.codes import ResponseCode
from saturnmq.protocol.errors import response_error

CALLS_MAX: Final = 8  # to one consumer at a time
_SILENT: Final = "relay_silent"


class RelayPeer(Protocol):
    """The part of a consumer's connection that relaying uses."""

    remote_address: str
    attributes: dict[str, object]


class Relays:
    """The calls in progress of one broker. permits: how many calls its server has in progress at most."""

    def __init__(self, permits: int) -> None:
        self._permits = permits
        self._calls: dict[RelayPeer, int] = {}
        self._shares = Shares()

    @contextmanager
    def call(self, member: RelayPeer) -> Iterator[None]:
        """Count a call while it is in progress. Raises ResponseError 1 if the consumer or its address has too many."""
        calls, silent = self._calls.get(member, 0), bool(member.attributes.get(_SILENT))
        if calls >= (1 if silent else CALLS_MAX):
            why = "and has not answered the last one" if silent else f"at most {CALLS_MAX} are allowed"
            self._refuse(member, f"{calls} calls wait for its answer, {why}")
        host = host_of(member.remote_address)
        problem = self._shares.exceeded(host, 1, max(self._permits, self._shares.total + 1))
        if problem is not None:
            self._refuse(member, f"calls wait for consumers of its address: {problem}")
        self._calls[member] = calls + 1
        self._shares.add(host, 1)
        try:
            yield
            member.attributes.pop(_SILENT, None)
        except CallTimeout as error:
            if not isinstance(error, NoPermit):  # it was not asked
                member.attributes[_SILENT] = True
            raise
        finally:
            self._shares.add(host, -1)
            remaining_calls = self._calls[member] - 1
            if remaining_calls:
                self._calls[member] = remaining_calls
            else:
                del self._calls[member]

    def _refuse(self, member: RelayPeer, why: str) -> None:
        text = f"[OVERLOAD]the consumer at {member.remote_address} is not asked: {why}; try again later"
        raise response_error(ResponseCode.SYSTEM_ERROR, text)
