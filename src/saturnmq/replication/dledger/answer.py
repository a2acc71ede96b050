"""The group's results of appends, and the put statuses that they become.

Requirements: DL-A03, DL-A06, DL-A07, DL-B06, DL-B07.
"""

from __future__ import annotations

from time import monotonic
from typing import Final

from saturnmq.metrics import Histogram
from saturnmq.raft.core.messages import AppendResponse, Code, Response
from saturnmq.store import PutStatus
from saturnmq.store.log.log import AppendRefused
from saturnmq.store.results import Confirmed

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
    # As DLedger's broker answers (DL-B07); the message may still be committed.
    Code.WAIT_QUORUM_ACK_TIMEOUT: PutStatus.OS_PAGE_CACHE_BUSY,
    Code.LEADER_PENDING_FULL: PutStatus.OS_PAGE_CACHE_BUSY,
}


class GroupAnswer:
    """The group's answer to one proposal. seconds: counts how long committed proposals took.

    Every proposal completes, at the latest by timeout (DL-A07).
    """

    __slots__ = ("_began", "_callbacks", "_outcome", "_seconds")

    def __init__(self, seconds: Histogram) -> None:
        self._began, self._seconds = monotonic(), seconds
        self._outcome: tuple[PutStatus, str] | None = None
        self._callbacks: list[Confirmed] = []

    def arrived(self, response: Response) -> None:
        # Only committed ones: a timeout would look like a slow group.
        if response.code == Code.SUCCESS:
            self._seconds.observe(monotonic() - self._began)
        self._outcome = outcome(response.code)
        # Emptied first: a callback may add another.
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback(*self._outcome)

    def then(self, callback: Confirmed) -> None:
        """See `log.Answer.then`."""
        if self._outcome is None:
            self._callbacks.append(callback)
        else:
            callback(*self._outcome)


def outcome(code: int) -> tuple[PutStatus, str]:
    """The put status and reason for a code of the group."""
    return _OUTCOMES.get(Code(code), PutStatus.UNKNOWN_ERROR), "" if code == Code.SUCCESS else f"DLedger {code}"


def refused_by(response: AppendResponse) -> AppendRefused:
    """The error of an append that the leader refused: retriable (DL-B06), except a message that is too long (DL-A06).

    Clients take SERVICE_NOT_AVAILABLE as not stored, and look for the new leader.
    """
    # Over the size limit of an entry: no other body from here is refused with this code.
    if response.code == Code.UNEXPECTED_ARGUMENT:
        reason = "the message is longer than an entry of the ledger may be"
        return AppendRefused(PutStatus.UNKNOWN_ERROR, reason, single=True)
    if response.code in _ELSEWHERE:
        return AppendRefused(PutStatus.SERVICE_NOT_AVAILABLE, _ELSEWHERE[Code(response.code)])
    reason = _REFUSALS.get(Code(response.code), f"DLedger {response.code}")
    return AppendRefused(PutStatus.OS_PAGE_CACHE_BUSY, reason)
