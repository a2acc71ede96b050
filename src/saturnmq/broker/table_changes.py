"""Changes of topics and subscription groups in a DLedger group, as entries of its log.

A leader appends a change to the log and makes it at once, so that a send that creates a topic need not wait: its message
follows the change in the log, and is committed no earlier. Requests without a message are answered once the change is committed.
All other members make it when they dispatch the entry. When the leadership changes the former leader undoes what is not
committed: it dispatches the entries that the group keeps as any other member does.

`covered`: every change before this position of the log is in the tables. A member is complete once it has a whole table of its
group: the log alone does not have what was changed before it begins. A position is saved after both tables, and the
store's checkpoint never passes a change that is not saved, so a start finds in the log what the files do not have.

Requirements: DL-X18, DL-C07. Decision: docs/decisions/0023-changes-in-the-log.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections import deque
from collections.abc import Callable
from typing import Final

from saturnmq.broker.state.groups import Groups
from saturnmq.broker.state.offsets import Offsets
from saturnmq.broker.state.state_writer import StateWriter
from saturnmq.broker.state.topics import Topics
from saturnmq.protocol.bodies import SubscriptionGroupConfig, SubscriptionGroupTable, TopicConfig, TopicConfigTable
from saturnmq.protocol.codes import ResponseCode
from saturnmq.protocol.errors import BodyError, ResponseError, StoreError, response_error
from saturnmq.protocol.message import Message
from saturnmq.replication.dledger.change_entries import Change, Kind, change_message
from saturnmq.replication.dledger.member import GroupMember
from saturnmq.store import PutStatus, StateFile
from saturnmq.tasks import cancel, supervised

log = logging.getLogger(__name__)

SAVE_RETRY_SECONDS: Final = 1.0


class _Undecided:
    """A change that this leader has appended. status: the group's answer, None before it."""

    def __init__(self, change: Change, message: Message, undo: Callable[[], None]) -> None:
        self.change, self.message, self.undo = change, message, undo
        self.status: PutStatus | None = None
        self.answered = asyncio.Event()

    def answer(self, status: PutStatus) -> None:
        self.status = self.status or status
        self.answered.set()


class TableChanges:
    """The `Journal` of the topics and groups of one member; makes the changes of other leaders. file: how far the tables are."""

    def __init__(
        self,
        group: GroupMember,
        topics: Topics,
        groups: Groups,
        offsets: Offsets,
        file: StateFile,
        clock_ms: Callable[[], int],
    ) -> None:
        self._group = group
        self._topics, self._groups, self._offsets = topics, groups, offsets
        self._file = file
        self._clock_ms = clock_ms
        self._undecided: deque[_Undecided] = deque()
        self._last: dict[tuple[Kind, str], _Undecided] = {}  # of those in _undecided, the last one of each name
        self._replayed: list[Message] = []  # changes made while this member is not complete
        self._writer = StateWriter(file, lambda: iter((_encode(*self._saved),)))
        self._saved = 0, False
        self._loaded = False
        self._saving: asyncio.Task[None] | None = None
        self._complete = False
        self._beyond_logged = False  # that a member reported a position beyond the own log
        self.covered = 0
        self.deleted: Callable[[str], None] = lambda topic: None  # called for each topic that a leader has deleted
        topics.journal = groups.journal = self

    # ---- lifecycle

    def start(self) -> None:
        """Load how far the loaded tables are, then make the changes that recovery has found in the log.

        A file of topics without one of ours is a whole table, of an older version or of a Java broker. Raises CorruptRecord,
        StoreError.
        """
        saved_progress = self._file.read(_decode)
        self.covered, self._complete = saved_progress if saved_progress is not None else (0, self._topics.had_file)
        if saved_progress is None:
            self._file.write(_encode(self.covered, self._complete))
        self._saved, self._loaded = (self.covered, self._complete), True
        dispatch = self._group.dispatch
        dispatch.on_change = self._dispatched
        for message in dispatch.deferred_changes:
            self._dispatched(message)
        dispatch.deferred_changes.clear()

    async def stop(self) -> None:
        """Save what is not saved yet. Later changes are saved by the next start, which finds them in the log."""
        loaded, self._loaded = self._loaded, False
        task, self._saving = self._saving, None
        await cancel(task)
        if loaded:
            with contextlib.suppress(StoreError):  # logged by the state writers
                await self._save_once()

    @property
    def complete(self) -> bool:
        """Whether the tables hold all that the group has decided before `covered`."""
        return self._complete and not self._group.dispatch.gap

    def _set_complete(self) -> None:
        self._complete, self._group.dispatch.gap = True, False
        self._replayed.clear()
        self._save_soon()

    # ---- leader

    @property
    def leads(self) -> bool:
        """See `Journal.leads`."""
        return self._group.serving

    def serving(self) -> None:
        """This member begins to serve as leader: its tables are those of the group."""
        self._set_complete()

    def record(self, change: Change, undo: Callable[[], None]) -> None:
        """See `Journal.record`. A member that does not serve changes its tables only: its leader's replace them."""
        if not self._group.serving:
            return
        store, message = self._group.store, change_message(change, self._clock_ms())
        result = store.put(message)
        if result.status is not PutStatus.PUT_OK:
            raise _refused(change, result.status, result.reason)
        entry = _Undecided(change, message, undo)
        self._undecided.append(entry)
        self._last[change.kind, change.name] = entry
        store.when_confirmed(result, lambda status, _: entry.answer(status))

    @property
    def any_undecided(self) -> bool:
        """Whether the tables have changes that the group has not decided."""
        return bool(self._undecided)

    def undecided(self, kind: Kind, name: str) -> bool:
        """See `Journal.undecided`."""
        entry = self._last.get((kind, name))
        return entry is not None and entry.status is not PutStatus.PUT_OK

    async def decided(self, kind: Kind, name: str) -> None:
        """See `Journal.decided`."""
        entry = self._last.get((kind, name))
        if entry is None:
            return
        await entry.answered.wait()
        if entry.status is not PutStatus.PUT_OK:
            text = (
                f"{kind.value}[{name}] was changed here, but the group has not confirmed it in time "
                f"({entry.status.value if entry.status else ''}): whether the change survives this leader is unknown, repeat it"
            )
            log.warning("change not confirmed kind=%s name=%s", kind.value, name)
            raise response_error(ResponseCode.SYSTEM_ERROR, text)

    def undo(self) -> None:
        """The role has changed: undo what is not committed, the last change first."""
        undecided, self._undecided = self._undecided, deque()
        self._last.clear()
        for entry in reversed(undecided):
            entry.undo()
            entry.answer(PutStatus.SERVICE_NOT_AVAILABLE)
        if undecided:
            log.info("changes undone count=%s", len(undecided))

    # ---- dispatch

    def _dispatched(self, message: Message) -> None:
        """An entry of a change was dispatched: make the change, unless it is in the tables already."""
        end = message.physical_offset + message.store_bytes
        try:
            change = Change.decode(bytes(message.body))
        except BodyError as error:
            log.warning("change skipped offset=%s reason=%s", message.physical_offset, error)
        else:
            if change.kind is Kind.TOPIC and change.config is None:
                self.deleted(change.name)
            if self._undecided and self._undecided[0].message.physical_offset == message.physical_offset:
                self._committed(self._undecided.popleft())
            elif end > self.covered:
                self._make(change)
            if not self.complete:
                self._replayed.append(message)
        self.covered = max(self.covered, end)
        self._save_soon()

    def _committed(self, entry: _Undecided) -> None:
        entry.answer(PutStatus.PUT_OK)
        key = entry.change.kind, entry.change.name
        if self._last.get(key) is entry:
            del self._last[key]

    def _make(self, change: Change) -> None:
        if change.kind is Kind.TOPIC:
            assert not isinstance(change.config, SubscriptionGroupConfig)
            self._topics.apply(change.name, change.config, change.before, change.after)
            if change.config is None:
                self._offsets.remove_topic(change.name)
        else:
            assert not isinstance(change.config, TopicConfig)
            self._groups.apply(change.name, change.config, change.before, change.after)

    # ---- whole tables of other members

    def takes(self, covered: int) -> bool:
        """Whether the tables of a member that cover the log up to a position are not older than the own ones."""
        return covered >= self.covered and self._within_log(covered)

    def _within_log(self, covered: int) -> bool:
        """Whether the own log reaches a position that a member reports: beyond it, the position would hide later changes."""
        end = self._group.store.log.end
        if covered <= end:
            return True
        if not self._beyond_logged:
            self._beyond_logged = True
            log.info("tables not taken until the own log reaches them covered=%s log_end=%s", covered, end)
        return False

    def took(self, covered: int) -> None:
        """The tables of the leader, which cover the log up to a position, were taken over."""
        self.covered = max(self.covered, covered)
        self._set_complete()

    def adopts(self, covered: int) -> bool:
        """Whether the tables of another complete member, with the changes in the own log, make this member complete."""
        ledger = self._group.log.ledger
        return not self.complete and ledger is not None and covered >= ledger.begin_pos and self._within_log(covered)

    def adopt(self, topics: TopicConfigTable, groups: SubscriptionGroupTable, covered: int) -> None:
        """Take over the tables of another member, then make the later changes of the own log again."""
        replayed, self._replayed = self._replayed, []
        self._topics.take(topics)
        self._groups.take(groups)
        for message in replayed:
            if message.physical_offset >= covered:
                self._make(Change.decode(bytes(message.body)))
        self.took(covered)

    # ---- file

    def _save_soon(self) -> None:
        if self._saving is None and self._loaded:
            self._saving = supervised(self._save(), "position of the changes of topics and groups")

    async def _save(self) -> None:
        while self._saved != (self.covered, self.complete) or self._group.dispatch.unsaved:
            try:
                await self._save_once()
            except StoreError as error:
                log.error("changes of topics and groups not saved retry_s=%s error=%s", SAVE_RETRY_SECONDS, error)
                await asyncio.sleep(SAVE_RETRY_SECONDS)
        self._saving = None

    async def _save_once(self) -> None:
        """Save the tables, then up to where they cover the log. Raises StoreError."""
        covered, complete = state = self.covered, self.complete
        await asyncio.gather(self._topics.writer.saved(), self._groups.writer.saved())
        if state != self._saved:
            self._saved = covered, complete
            self._writer.changed()
        await self._writer.saved()
        self._group.dispatch.saved(covered)


def _refused(change: Change, status: PutStatus, reason: str) -> ResponseError:
    """The error of a change that was not recorded."""
    elsewhere = status is PutStatus.SERVICE_NOT_AVAILABLE
    code = ResponseCode.SERVICE_NOT_AVAILABLE if elsewhere else ResponseCode.SYSTEM_ERROR
    return response_error(code, f"{change.kind.value}[{change.name}] was not changed: {reason or status.value}")


def _encode(covered: int, complete: bool) -> bytes:
    return json.dumps({"covered": covered, "complete": complete}).encode()


def _decode(data: bytes) -> tuple[int, bool]:
    fields = json.loads(data)
    return int(fields["covered"]), bool(fields["complete"])
