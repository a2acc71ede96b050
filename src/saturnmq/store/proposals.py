"""Batches puts: messages put in one event-loop iteration are appended together and confirmed together.

Requirements: DL-A03, DL-B05..DL-B07.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from typing import Final, Protocol, TypeAlias

from saturnmq.protocol.errors import StoreError
from saturnmq.protocol.message import Entry, Message
from saturnmq.store.log.log import AppendRefused, Group, Log
from saturnmq.store.results import Confirmed, PutResult, PutStatus

log = logging.getLogger(__name__)

_Proposed: TypeAlias = tuple[Message, Confirmed]

PROPOSAL_BYTES: Final = 65_536  # of bodies per proposal, so that early puts do not wait for entries of a later push


class ProposalTarget(Protocol):
    """The store that a batch appends to."""

    log: Log

    def refusal_of(self, message: Message, entries: Sequence[Entry]) -> PutResult | None: ...

    def append_all(self, groups: Sequence[Group]) -> PutResult: ...

    def put_failed(self, error: StoreError) -> PutResult: ...

    def when_confirmed(self, result: PutResult, callback: Confirmed) -> None: ...


class ProposalBatch:
    """The puts of one event-loop iteration; the callback of each put is called exactly once, with a result or an error."""

    def __init__(self, store: ProposalTarget) -> None:
        self._store = store
        self.waiting: list[_Proposed] = []

    def add(self, message: Message, callback: Confirmed) -> None:
        """Add a put; it is appended at the end of this event-loop iteration, or before a put through another method."""
        if not self.waiting:
            # At the end of this iteration: requests that were read together are appended together.
            asyncio.get_running_loop().call_soon(self.propose)
        self.waiting.append((message, callback))

    def propose(self) -> None:
        """Append the collected puts in order."""
        # A new list: callbacks may put more messages.
        waiting, self.waiting = self.waiting, []
        ready: list[_Proposed] = []
        for message, callback in waiting:
            refused = self._store.refusal_of(message, (message.entry,))
            if refused is None:
                ready.append((message, callback))
            else:
                _complete(callback, refused.status, refused.reason)
        for part in _parts(ready):
            self._propose(part)
        if ready:
            # Once for all of them, also for senders that do not wait.
            self._store.log.start_flush()

    def _propose(self, part: list[_Proposed]) -> None:
        store, single = self._store, True
        try:
            result = store.append_all([(message, (message.entry,)) for message, _ in part])
        except StoreError as error:
            result, single = store.put_failed(error), not isinstance(error, AppendRefused) or error.single
        except Exception as error:  # the senders wait for a result
            log.exception("append failed messages=%s", len(part))
            result = PutResult(PutStatus.UNKNOWN_ERROR, reason=str(error))
        # One of them is to blame: each is tried alone, so that the others succeed.
        if result.status is not PutStatus.PUT_OK and single and len(part) > 1:
            for proposed in part:
                self._propose([proposed])
        else:
            store.when_confirmed(result, lambda *outcome: _complete_all(part, *outcome))


def _parts(ready: list[_Proposed]) -> Iterator[list[_Proposed]]:
    part: list[_Proposed] = []
    size = 0
    for message, callback in ready:
        part.append((message, callback))
        size += len(message.body)
        if size >= PROPOSAL_BYTES:
            yield part
            part, size = [], 0
    if part:
        yield part


def _complete_all(part: list[_Proposed], status: PutStatus, reason: str) -> None:
    for _, callback in part:
        _complete(callback, status, reason)


def _complete(callback: Confirmed, status: PutStatus, reason: str) -> None:
    """Call a completion callback; an exception in it does not affect the other puts."""
    try:
        callback(status, reason)
    except Exception:
        log.exception("completion callback failed status=%s", status.value)
