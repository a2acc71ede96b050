"""Batches puts: messages put in one event-loop iteration are appended together and confirmed together.

Requirements: DL-A03, DL-B05..DL-B07.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple, Protocol

from saturnmq.protocol.message import Message
from saturnmq.store.log.log import AppendRefused, Confirmed, Position
from saturnmq.store.queue.consume_queue import ConsumeQueue
from saturnmq.store.replicas import Store
from saturnmq.store.results import PutResult, PutStatus

log = logging.getLogger(__name__)

PROPOSAL_BYTES: Final = 65_536  # of bodies per proposal, so that early puts do not wait for entries of a later push


class ProposalTarget(Store, Protocol):
    """The store that a batch appends to."""

    def target_of(self, message: Message) -> ConsumeQueue | PutResult | None: ...

    def append_all(self, messages: Sequence[Message], queues: Sequence[ConsumeQueue | None]) -> Position: ...


class _Proposed(NamedTuple):
    """A message, its completion callback, and its consume queue, if it has one."""

    message: Message
    callback: Confirmed
    queue: ConsumeQueue | None


class ProposalBatch:
    """The puts of one event-loop iteration; the callback of each put is called exactly once, with a result or an error."""

    def __init__(self, store: ProposalTarget) -> None:
        self._store = store
        self.waiting: list[tuple[Message, Confirmed]] = []

    def add(self, message: Message, callback: Confirmed) -> None:
        """Add a put; it is appended at the end of this event-loop iteration, or before a put through another method."""
        if not self.waiting:
            asyncio.get_running_loop().call_soon(self.propose)
        self.waiting.append((message, callback))

    def propose(self) -> None:
        """Append the collected puts in order."""
        if not self.waiting:
            return
        waiting, self.waiting = self.waiting, []
        ready: list[_Proposed] = []
        for message, callback in waiting:
            target = self._target(message)
            if isinstance(target, PutResult):
                _complete(callback, target.status, target.reason)
            else:
                ready.append(_Proposed(message, callback, target))
        for part in _parts(ready):
            self._propose(part)
        if ready:
            self._store.log.start_flush()

    def _target(self, message: Message) -> ConsumeQueue | PutResult | None:
        try:
            return self._store.target_of(message)
        except Exception as error:
            return _failed(1, error)

    def _propose(self, part: list[_Proposed]) -> None:
        store = self._store
        try:
            position = store.append_all([proposed.message for proposed in part], [proposed.queue for proposed in part])
        except AppendRefused as error:
            refused, single = PutResult(error.status, reason=error.message), error.single
        except Exception as error:  # the senders wait for a result
            refused, single = _failed(len(part), error), True
        else:
            if store.confirms_at_once:
                _complete_all(part, PutStatus.PUT_OK, "")
            else:
                timeout_ms = store.settings.sync_flush_timeout_ms
                store.log.when_confirmed(position, timeout_ms, lambda *outcome: _complete_all(part, *outcome))
            return
        if single and len(part) > 1:
            for proposed in part:
                self._propose([proposed])
        else:
            _complete_all(part, refused.status, refused.reason)


def _parts(ready: list[_Proposed]) -> Iterator[list[_Proposed]]:
    part: list[_Proposed] = []
    size = 0
    for proposed in ready:
        part.append(proposed)
        size += len(proposed.message.body)
        if size >= PROPOSAL_BYTES:
            yield part
            part, size = [], 0
    if part:
        yield part


def _failed(count: int, error: Exception) -> PutResult:
    log.exception("append failed messages=%s", count)
    return PutResult(PutStatus.UNKNOWN_ERROR, reason=str(error))


def _complete_all(part: list[_Proposed], status: PutStatus, reason: str) -> None:
    for proposed in part:
        _complete(proposed.callback, status, reason)


def _complete(callback: Confirmed, status: PutStatus, reason: str) -> None:
    """Call a completion callback; an exception in it does not affect the other puts."""
    try:
        callback(status, reason)
    except Exception:
        log.exception("completion callback failed status=%s", status.value)
