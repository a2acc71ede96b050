"""The group's results of appends, and the put statuses that they become.

Requirements: DL-A03, DL-A06, DL-A07, DL-B06, DL-B07.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import Final

from saturnmq.metrics import Histogram
from saturnmq.raft.core.messages import AppendResponse, Code, Response
from saturnmq.store import PutStatus
from saturnmq.store.log.log import AppendRefused

_REFUSALS: Final = {
    Code.DISK_FULL: "the disk is full",
    Code.LEADER_PENDING_FULL: "too many messages wait for the group",
}
_ELSEWHERE: Final = {  # certainly not stored; another member can store it
    Code.LEADER_TRANSFERRING: "the leadership is being handed over",
    Code.LEADER_NOT_READY: "the leadership is changing",
    Code.NOT_LEADER: "this broker does not lead its group any more",
}
_OUTCOMES: Final = {  # put status by DLedger code (DL-B07)
    Code.SUCCESS: PutStatus.PUT_OK,
    Code.INCONSISTENT_LEADER: PutStatus.SERVICE_NOT_AVAILABLE,
    Code.NOT_LEADER: PutStatus.SERVICE_NOT_AVAILABLE,
    Code.LEADER_NOT_READY: PutStatus.SERVICE_NOT_AVAILABLE,
    Code.DISK_FULL: PutStatus.SERVICE_NOT_AVAILABLE,
    Code.WAIT_QUORUM_ACK_TIMEOUT: PutStatus.OS_PAGE_CACHE_BUSY,
    Code.LEADER_PENDING_FULL: PutStatus.OS_PAGE_CACHE_BUSY,
}


class Answer:
    """The group's result of a proposal; `code` is None until it arrives. seconds: counts how long committed proposals took.

    Every proposal completes, at the latest by timeout (DL-A07).
    """

    __slots__ = ("_began", "_callbacks", "_seconds", "code")

    def __init__(self, seconds: Histogram) -> None:
        self._began, self._seconds = monotonic(), seconds
        self.code: int | None = None
        self._callbacks: list[Callable[[int], object]] = []

    def arrived(self, response: Response) -> None:
        self.code = response.code
        if response.code == Code.SUCCESS:
            self._seconds.observe(monotonic() - self._began)
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback(response.code)

    def then(self, callback: Callable[[int], object]) -> None:
        """Call back with the code, at once if it has already arrived."""
        if self.code is None:
            self._callbacks.append(callback)
        else:
            callback(self.code)


class ProposedPosition(int):
    """The position of an append by this leader, with the group's answer to its proposal."""

    answer: Answer


def outcome(code: int) -> tuple[PutStatus, str]:
    """The put status and reason for a code of the group."""
    return _OUTCOMES.get(Code(code), PutStatus.UNKNOWN_ERROR), "" if code == Code.SUCCESS else f"DLedger {code}"


def refused_by(response: AppendResponse) -> AppendRefused:
    """The error of an append that the leader refused: retriable (DL-B06), except a message that is too long (DL-A06).

    Clients take SERVICE_NOT_AVAILABLE as not stored, and look for the new leader.
    """
    if response.code == Code.UNEXPECTED_ARGUMENT:
        reason = "the message is longer than an entry of the ledger may be"
        return AppendRefused(PutStatus.UNKNOWN_ERROR, reason, single=True)
    if response.code in _ELSEWHERE:
        return AppendRefused(PutStatus.SERVICE_NOT_AVAILABLE, _ELSEWHERE[Code(response.code)])
    reason = _REFUSALS.get(Code(response.code), f"DLedger {response.code}")
    return AppendRefused(PutStatus.OS_PAGE_CACHE_BUSY, reason)
