"""Batches puts on the leader: messages put in one event-loop iteration are appended as one proposal and completed together.

Requirements: DL-A03, DL-B05..DL-B07.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from saturnmq.protocol.message import Message
from saturnmq.raft.core.messages import AppendResponse, Code, Response
from saturnmq.store import PutResult, PutStatus
from saturnmq.store.queue.consume_queue import ConsumeQueue

if TYPE_CHECKING:
    from saturnmq.replication.dledger.store import LedgerStore

log = logging.getLogger(__name__)

Told = Callable[[PutStatus, str], object]
PROPOSAL_BYTES: Final = 65_536  # of bodies per proposal, so that early puts do not wait for entries of a later push
_REFUSALS: Final = {
    Code.DISK_FULL: "the disk is full",
    Code.LEADER_PENDING_FULL: "too many messages wait for the group",
    Code.LEADER_TRANSFERRING: "the leadership is being handed over",
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
    """The group's result of a put; `code` is None until it arrives. Every put completes, at the latest by timeout (DL-A07)."""

    __slots__ = ("_told", "code")

    def __init__(self) -> None:
        self.code: int | None = None
        self._told: list[Callable[[int], object]] = []

    def came(self, response: Response) -> None:
        self.code = response.code
        told, self._told = self._told, []
        for tell in told:
            tell(response.code)

    def then(self, tell: Callable[[int], object]) -> None:
        """Call `tell` with the code, at once if it has already arrived."""
        if self.code is None:
            self._told.append(tell)
        else:
            tell(self.code)


def outcome(code: int) -> tuple[PutStatus, str]:
    """The put status and reason for a code of the group."""
    return _OUTCOMES.get(Code(code), PutStatus.UNKNOWN_ERROR), "" if code == Code.SUCCESS else f"DLedger {code}"


def refused_by(taken: AppendResponse) -> PutResult:
    """The result of a put that was not appended: retriable (DL-B06), except a message that is too long (DL-A06)."""
    if taken.code == Code.UNEXPECTED_ARGUMENT:
        return PutResult(PutStatus.UNKNOWN_ERROR, reason="the message is longer than an entry of the ledger may be")
    reason = _REFUSALS.get(Code(taken.code), f"DLedger {taken.code}")
    return PutResult(PutStatus.OS_PAGE_CACHE_BUSY, reason=reason)


class _Given(NamedTuple):
    """A message, its completion callback, and its consume queue, if it has one."""

    message: Message
    told: Told
    queue: ConsumeQueue | None


class Turn:
    """The puts of one event-loop iteration; the callback of each put is called exactly once, with a result or an error."""

    def __init__(self, store: LedgerStore) -> None:
        self._store = store
        self._given: list[tuple[Message, Told]] = []

    def give(self, message: Message, told: Told) -> None:
        """Add a put; it is appended at the end of this event-loop iteration, or before a put through another method."""
        if not self._given:
            asyncio.get_running_loop().call_soon(self.take)
        self._given.append((message, told))

    def take(self) -> None:
        """Append the collected puts in order."""
        if not self._given:
            return
        given, self._given = self._given, []
        ready: list[_Given] = []
        for message, told in given:
            target = self._target(message)
            if isinstance(target, PutResult):
                _tell(told, target.status, target.reason)
            else:
                ready.append(_Given(message, told, target))
        for part in _parts(ready):
            self._propose(part)
        if ready and self._store.member is not None:
            self._store.member.push()

    def _target(self, message: Message) -> ConsumeQueue | PutResult | None:
        try:
            return self._store.target_of(message)
        except Exception as error:
            return _failed(1, error)

    def _propose(self, part: list[_Given]) -> None:
        answer = Answer()
        try:
            messages, queues = [one.message for one in part], [one.queue for one in part]
            taken = self._store.offer(messages, queues, [None] * len(part), answer.came)
        except Exception as error:  # the senders wait for a result
            refused, alone = _failed(len(part), error), True
        else:
            if taken.code == Code.SUCCESS:
                answer.then(lambda code: _tell_all(part, *outcome(code)))
                return
            refused, alone = refused_by(taken), taken.code == Code.UNEXPECTED_ARGUMENT  # one message is too long
        if alone and len(part) > 1:
            for one in part:
                self._propose([one])
        else:
            _tell_all(part, refused.status, refused.reason)


def _parts(ready: list[_Given]) -> Iterator[list[_Given]]:
    part: list[_Given] = []
    size = 0
    for one in ready:
        part.append(one)
        size += len(one.message.body)
        if size >= PROPOSAL_BYTES:
            yield part
            part, size = [], 0
    if part:
        yield part


def _failed(count: int, error: Exception) -> PutResult:
    log.exception("%s messages cannot be appended", count)
    return PutResult(PutStatus.UNKNOWN_ERROR, reason=str(error))


def _tell_all(part: list[_Given], status: PutStatus, reason: str) -> None:
    for one in part:
        _tell(one.told, status, reason)


def _tell(told: Told, status: PutStatus, reason: str) -> None:
    """Call a completion callback; an exception in it does not affect the other puts."""
    try:
        told(status, reason)
    except Exception:
        log.exception("a sender cannot be told %s", status)
