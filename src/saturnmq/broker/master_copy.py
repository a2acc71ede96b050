"""Copies to a slave its master's state that is not in the log: topics, groups, consumer offsets, progress of delivery.

The master is the one that NameServers report. Each table is copied on its own, so that a failure of one affects no other. The
master learns nothing from a slave, except what clients pull and commit there. Requests are signed with haAccessKey, if it is set.

What is copied never exceeds this slave's own log, so that it can become the master: consumer offsets are limited to the ends of
its queues, and progress of delayed and timed messages is written once the log here has all that was delivered until then.

Requirements: MS-01..MS-05, MS-09, HA-20, DUR-19, SEC-19.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple, TypeVar

from saturnmq.broker.services.delay import END_FIELD
from saturnmq.broker.services.registrar import Registrar
from saturnmq.broker.services.timer import PROGRESS_FIELD, encode_progress, parse_progress
from saturnmq.broker.state.groups import Groups
from saturnmq.broker.state.offsets import Offsets
from saturnmq.broker.state.topics import Topics
from saturnmq.net import NetSettings, RemotingClient, TlsSettings
from saturnmq.net.signer import Signer
from saturnmq.protocol.bodies import ConsumerOffsetTable, DelayOffsetTable, SubscriptionGroupTable, TopicConfigTable
from saturnmq.protocol.codes import RequestCode, ResponseCode
from saturnmq.protocol.errors import RemoteProtocolError, SaturnError, response_error
from saturnmq.protocol.frames.command import Command
from saturnmq.protocol.headers.messaging import GetAllConsumerOffset
from saturnmq.protocol.headers.numbers import int64_or
from saturnmq.slices import Slices, Steps
from saturnmq.store import MessageStore, StateFile
from saturnmq.tasks import cancel, supervised

log = logging.getLogger(__name__)

FIRST_SECONDS: Final = 3.0
PERIOD_SECONDS: Final = 10.0
TIMEOUT_MS: Final = 3000
REACH_SECONDS: Final = 2.0  # how long the log here may take to have what a copied progress covers, before the next copy
_LOOKS: Final = 40  # in that time
_PAGES_MAX: Final = 1000  # of the table of offsets
_Offsets = dict[str, dict[int, int]]
_T = TypeVar("_T")


class _Progress(NamedTuple):
    """Progress of the master when its log ended at `end`: files and their contents."""

    end: int
    files: list[tuple[StateFile, bytes]]


class MasterCopy:
    """Copies periodically while it runs. own_address: the address that this broker registers. signer: None without an account."""

    def __init__(
        self,
        broker_name: str,
        store: MessageStore,
        registrar: Registrar,
        topics: Topics,
        groups: Groups,
        offsets: Offsets,
        delay_file: StateFile,
        timer_file: StateFile,
        net: NetSettings,
        tls: TlsSettings | None,
        own_address: Callable[[], str],
        signer: Signer | None,
    ) -> None:
        self._broker_name = broker_name
        self._store = store
        self._registrar = registrar
        self._topics, self._groups, self._offsets = topics, groups, offsets
        self._delay_file, self._timer_file = delay_file, timer_file
        self._signer = signer
        self._slices = Slices()
        self._progress: _Progress | None = None  # copied, not written yet
        self._client = RemotingClient(settings=net, tls=tls)
        self._own_address = own_address
        self._masters: _Offsets = {}  # the master's offsets at the last copy, as far as they were taken over
        self._errors: dict[str, str] = {}  # last error by table
        self._missing: dict[str, int] = {}  # topics that only replicated messages have, and the queues they need
        self._task: asyncio.Task[None] | None = None

    @property
    def ports(self) -> set[int]:
        """Local ports of the connections to the master."""
        return self._client.ports

    def start(self) -> None:
        """Copy in the background."""
        self._task = supervised(self._run(), "copies from the master")

    async def stop(self) -> None:
        """Stop copying and close the connection."""
        await cancel(self._task)
        self._task = None
        await self._client.close()
        self._recreate()

    def replicated(self, topic: str, queue_id: int) -> None:
        """Called for each replicated message: note a topic that is not in the table."""
        # The master's table is copied later, or the master is lost before that.
        if topic not in self._topics.table:
            self._missing[topic] = max(self._missing.get(topic, 0), queue_id + 1)

    def _recreate(self) -> None:
        """Create the topics whose messages arrived and which no copy of the master's topics decided about."""
        missing, self._missing = self._missing, {}
        self._topics.recreate(missing)

    async def _run(self) -> None:
        await asyncio.sleep(FIRST_SECONDS)
        while True:
            await self.copy()
            await asyncio.sleep(PERIOD_SECONDS)

    async def copy(self) -> None:
        """Copy all tables once, in the order of Apache RocketMQ (MS-02); nothing while the master is unknown."""
        address = self._registrar.master_address
        # It has become the master itself.
        if not address or address == self._own_address():
            self._recreate()
            return
        await self._guarded("topics", self._copy_topics, address)
        await self._guarded("consumer offsets", self._copy_offsets, address)
        await self._guarded("delay offsets", self._copy_delays, address)
        await self._guarded("groups", self._copy_groups, address)

    async def _guarded(self, table_name: str, work: Callable[[str], Awaitable[None]], address: str) -> None:
        text = ""
        try:
            await work(address)
        except (SaturnError, OSError, ValueError, KeyError, TypeError) as error:
            # Reported once, as long as the error stays the same.
            text = str(error) or repr(error)
        except Exception as error:
            log.exception("copy from master failed table=%s master=%s", table_name, address)
            text = repr(error)
        if text and text != self._errors.get(table_name):
            log.warning("copy from master failed table=%s master=%s error=%s", table_name, address, text)
        self._errors[table_name] = text

    async def _ask(self, address: str, code: RequestCode, ext: dict[str, str] | None = None) -> Command:
        request = Command(code, ext=ext or {})
        if self._signer is not None:
            self._signer.sign(request)
        answer = await self._client.invoke(address, request, TIMEOUT_MS)
        if answer.code != ResponseCode.SUCCESS:
            raise response_error(answer.code, answer.remark, broker=address)
        return answer

    async def _table(self, address: str, code: RequestCode, decode: Callable[[bytes], _T]) -> _T:
        """A table of the master; a thread decodes it, because it may be large."""
        answer = await self._ask(address, code)
        return await asyncio.get_running_loop().run_in_executor(None, decode, answer.body or b"")

    async def _copy_topics(self, address: str) -> None:
        # What is missing before the question: the answer decides about these.
        decided = list(self._missing)
        try:
            master_table = await self._table(address, RequestCode.GET_ALL_TOPIC_CONFIG, TopicConfigTable.decode)
        except SaturnError:
            self._recreate()  # the master may be lost, and this broker become the master
            raise
        if self._broker_name not in master_table.topic_config_table:  # every broker has a topic of its name
            raise RemoteProtocolError(f"the topics of {address} are not of a broker {self._broker_name}")
        for name in decided:
            # Also those that the master does not have: they were deleted there.
            self._missing.pop(name, None)
        # The table has not changed since the last copy.
        if master_table.data_version != self._topics.version:
            self._topics.take(master_table)
            log.info("topics copied master=%s count=%s", address, len(master_table.topic_config_table))

    async def _copy_offsets(self, address: str) -> None:
        """Take over what changed on the master since the last copy; of a first copy, only greater offsets.

        Offsets that clients committed here while the master was down are kept until the master has newer ones, and a reset on
        the master reaches the slave, too.
        """
        master_offsets: _Offsets = {}
        start: str | None = None
        # A master that never ends its pages must not hold the copy.
        for _ in range(_PAGES_MAX):
            ext = GetAllConsumerOffset(paged=True, start_group=start).to_ext()
            answer = await self._ask(address, RequestCode.GET_ALL_CONSUMER_OFFSET, ext)
            page = await asyncio.get_running_loop().run_in_executor(
                None, ConsumerOffsetTable.decode, answer.body or b""
            )
            master_offsets |= page.offset_table
            start = answer.ext.get("nextGroup")
            if not start:
                break
        # Remembered as taken over, so that only what changes there next is taken.
        self._masters = await self._slices.result(self._take_offsets(master_offsets))
        await self._offsets.save()

    def _take_offsets(self, master_offsets: _Offsets) -> Steps[_Offsets]:
        """Take over offsets in steps; the result is what they are limited to here."""
        limited_offsets: _Offsets = {}
        for name, queues in master_offsets.items():
            topic = name.partition("@")[0]
            # This slave may become the master: no offset may be beyond the end of its queues.
            limited = {queue: min(offset, self._store.max_offset(topic, queue)) for queue, offset in queues.items()}
            before = self._masters.get(name, {})
            # It differs from the last copy: also when it went back, as after a reset.
            changed = {queue: offset for queue, offset in limited.items() if before.get(queue, offset) != offset}
            new = {queue: offset for queue, offset in limited.items() if queue not in before}
            if changed:
                self._offsets.take({name: changed})
            if new:
                # The first copy of a queue only advances it: clients may have committed here.
                self._offsets.take({name: new}, forward=True)
            limited_offsets[name] = limited
            yield
        return limited_offsets

    async def _copy_delays(self, address: str) -> None:
        """Copy the progress of delayed and timed messages; a Java master has no timed ones and does not say where its log ends."""
        await self._write_progress()  # of the last copy, if it was ahead of this log until now
        answer = await self._ask(address, RequestCode.GET_ALL_DELAY_OFFSET)
        files = [(self._delay_file, DelayOffsetTable.decode(answer.body or b"").encode())]
        timed = answer.ext.get(PROGRESS_FIELD)
        if timed is not None:
            # Parsed and encoded again: nothing unchecked is written to the file.
            files.append((self._timer_file, encode_progress(*parse_progress(timed.encode())).encode()))
        self._progress = _Progress(int64_or(answer.ext, END_FIELD, 0), files)
        for _ in range(_LOOKS):
            if await self._write_progress():
                return
            await asyncio.sleep(REACH_SECONDS / _LOOKS)

    async def _write_progress(self) -> bool:
        """Write the copied progress if the log here has everything that it covers; returns whether nothing is left to write."""
        progress = self._progress
        if progress is None:
            return True
        # Flushed, not only received: after a crash the log would end before the progress.
        if self._store.flushed_offset < progress.end:
            self._store.log.start_flush()
            return False
        for file, data in progress.files:
            await asyncio.get_running_loop().run_in_executor(None, _write_changed, file, data)
        self._progress = None
        return True

    async def _copy_groups(self, address: str) -> None:
        master_table = await self._table(
            address, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, SubscriptionGroupTable.decode
        )
        if master_table.data_version != self._groups.version:
            self._groups.take(master_table)
            log.info("groups copied master=%s count=%s", address, len(master_table.subscription_group_table))


def _write_changed(file: StateFile, data: bytes) -> None:
    # An unchanged file is not written every ten seconds.
    if file.candidates()[:1] != [data]:
        file.write(data)
