"""One queue that this consumer owns: its open messages, its pull loop, its place in the flow control.

Source: spec 03 section 2, PL-01..PL-11, API-19, API-20, API-23.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final, Protocol

from saturnmq.client import namespaces
from saturnmq.client.core import Core
from saturnmq.client.errors import AlreadySettled
from saturnmq.client.message import Ack, Message
from saturnmq.client.offsets import ClusterOffsets
from saturnmq.client.process_queue import ProcessQueue
from saturnmq.client.puller import PullResult, PullStatus, pull_command, pull_result
from saturnmq.client.send_back import DEAD_LETTER, SendBack, level_for
from saturnmq.protocol.bodies import MessageQueue
from saturnmq.protocol.codes import PullSysFlag, ResponseCode
from saturnmq.protocol.errors import SaturnError
from saturnmq.protocol.message import decode_records

logger = logging.getLogger(__name__)

SPAN_MAX: Final = 2000  # distance of the first open offset to the newest pulled one (PL-01)
BROKER_SUSPEND_MS: Final = 15_000
PULL_TIMEOUT_MS: Final = 30_000
EXCEPTION_DELAY_S: Final = 1.0
FLOW_CONTROL_DELAY_S: Final = 0.02
IDLE_DELAY_S: Final = 0.05
_IDLE: Final = frozenset({PullStatus.NO_NEW_MESSAGE, PullStatus.OFFSET_ILLEGAL})
_SUBSCRIPTION_CODES: Final = frozenset(
    {
        int(ResponseCode.SUBSCRIPTION_NOT_EXIST),
        int(ResponseCode.SUBSCRIPTION_NOT_LATEST),
        int(ResponseCode.FILTER_DATA_NOT_EXIST),
        int(ResponseCode.FILTER_DATA_NOT_LATEST),
    }
)


class Host(Protocol):
    """What an assignment needs of its consumer."""

    core: Core
    group: str
    codec: Any
    offsets: ClusterOffsets
    send_back: SendBack
    prefetch: int
    pull_batch: int

    def wanted_tags(self, topic: str) -> frozenset[str]: ...
    def subscription_version(self, topic: str) -> int: ...
    def subscription_type(self, topic: str) -> str: ...
    def deliver(self, messages: list[Message[Any]]) -> None: ...
    def bytes_left(self) -> bool: ...
    def room_made(self) -> None: ...
    def task_ended(self, task: asyncio.Task[Any]) -> None: ...


class Generation:
    """The messages of one stretch of ownership. A queue that moved away and came back has another one."""

    __slots__ = ("assignment", "delivered", "process_queue", "verdicts")

    def __init__(self, assignment: Assignment, start_offset: int) -> None:
        self.assignment = assignment
        self.process_queue = ProcessQueue(start_offset)
        self.delivered: dict[int, tuple[float, Message[Any]]] = {}
        self.verdicts: dict[int, Ack] = {}

    async def settle(
        self, message: Message[Any], verdict: Ack, *, after: timedelta | None = None, reason: str = ""
    ) -> None:
        """Settle once; alike again does nothing, differently raises AlreadySettled (API-19).

        A message of a queue that moved away is left to its new owner. A failed or cancelled retry settles nothing.
        """
        offset = message.offset
        known = self.verdicts.get(offset)
        if known is not None:
            if known is verdict:
                return
            raise AlreadySettled(f"{message!r} was settled as {known.value}, it cannot be settled as {verdict.value}")
        if self.process_queue.dropped or not self.process_queue.is_open(offset):
            return
        self.verdicts[offset] = verdict
        if verdict is not Ack.SUCCESS:
            try:
                level = DEAD_LETTER if verdict is Ack.REJECT else level_for(after)
                await self.assignment.host.send_back.send(message, level, reason)
            except BaseException:
                self.verdicts.pop(offset, None)
                raise
        self.close(offset)

    def close(self, offset: int) -> None:
        """The offset is done: commit what can be committed, make room."""
        self.delivered.pop(offset, None)
        process_queue = self.process_queue
        commit = process_queue.settle(offset)
        if commit is None or process_queue.dropped:
            return
        self.assignment.committed(commit)
        if len(self.verdicts) > 4096:
            self.verdicts = {key: value for key, value in self.verdicts.items() if key >= commit}


class Assignment:
    """A queue and the task that pulls it. `queue` carries the topic's name on the wire."""

    def __init__(self, host: Host, queue: MessageQueue, start_offset: int) -> None:
        self.host = host
        self.queue = queue
        self.user_queue = namespaces.strip_queue(host.core.settings.namespace, queue)
        self.next_offset = start_offset
        self.generation = Generation(self, start_offset)
        self.paused = False
        self._room = asyncio.Event()
        self._broker_id = 0
        self._task: asyncio.Task[Any] | None = None

    # life

    def start(self) -> None:
        """Begin to pull."""
        self._task = self.host.core.spawn(f"pull {self.queue.topic} {self.queue.queue_id}", self._loop(), vital=False)
        self._task.add_done_callback(self.host.task_ended)

    def drop(self) -> None:
        """The queue belongs to somebody else: settle nothing more, stop pulling."""
        self.generation.process_queue.dropped = True
        if self._task is not None:
            self._task.cancel()

    async def join(self) -> None:
        """Until the pull loop has ended."""
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)

    def restart_at(self, offset: int) -> None:
        """Forget all open messages and go on at offset: a reset, or an offset the broker does not have (PL-08, OF-06)."""
        self.generation.process_queue.dropped = True
        self.generation = Generation(self, offset)
        self.next_offset = offset
        self.host.offsets.update(self.queue, offset, increase_only=False)
        self._room.set()
        self.host.room_made()

    def reset(self, offset: int) -> None:
        """An operator moved the group: go on at offset at once, whatever pull is under way (OF-06)."""
        self.restart_at(offset)
        if self._task is not None:
            self._task.cancel()
        self.start()

    # flow control

    def committed(self, offset: int) -> None:
        """Everything before offset is settled."""
        host = self.host
        host.offsets.update(self.queue, offset)
        if not self._room.is_set():
            self.check_room()
        host.room_made()

    def check_room(self) -> None:
        """Wake the pull loop when there is room again: at half of what made it wait (API-23)."""
        open_messages = self.generation.process_queue
        half = self.host.prefetch // 2
        if not self.paused and len(open_messages) <= half and open_messages.span <= SPAN_MAX and self.host.bytes_left():
            self._room.set()

    @property
    def _full(self) -> bool:
        open_messages = self.generation.process_queue
        full = len(open_messages) >= self.host.prefetch or open_messages.span > SPAN_MAX
        return full or self.paused or not self.host.bytes_left()

    # pulling

    async def _loop(self) -> None:
        while not self.generation.process_queue.dropped:
            if self._full:
                self._room.clear()
                await self._room.wait()
                self._room.set()
                continue
            self._room.set()
            generation, begin = self.generation, time.monotonic()
            try:
                result = await self._pull()
            except SaturnError as error:
                await self._after_error(error)
                continue
            if generation is self.generation:  # otherwise it was reset meanwhile
                self._take(generation, result)
            if result.status in _IDLE and time.monotonic() - begin < IDLE_DELAY_S:
                await asyncio.sleep(IDLE_DELAY_S)  # a broker that does not hold requests is not asked in a tight loop

    async def _pull(self) -> PullResult:
        """One long-polled pull. Raises the error of the answer or of the way to it."""
        host, queue = self.host, self.queue
        address, is_slave = await host.core.read_address(queue.topic, queue.broker_name, self._broker_id)
        commit = host.offsets.get(queue) or 0
        sys_flag = int(PullSysFlag.SUSPEND)
        if commit > 0 and not is_slave:
            sys_flag |= int(PullSysFlag.COMMIT_OFFSET)
        command = pull_command(
            queue,
            group=host.group,
            offset=self.next_offset,
            max_count=min(host.pull_batch, host.prefetch),
            sys_flag=sys_flag,
            commit_offset=commit,
            suspend_ms=BROKER_SUSPEND_MS,
            kind=host.subscription_type(queue.topic),
            version_ms=host.subscription_version(queue.topic),
        )
        answer = await host.core.remote.call(address, command, PULL_TIMEOUT_MS)
        result = pull_result(answer, self.user_queue)
        if result is None:
            raise host.core.answer_error(answer, f"{queue.broker_name}@{address}", topic=queue.topic, group=host.group)
        self._broker_id = result.suggested_broker_id
        return result

    async def _after_error(self, error: SaturnError) -> None:
        logger.warning("pull failed group=%s queue=%s error=%s", self.host.group, self.queue, error)
        self._broker_id = 0
        if error.code == ResponseCode.FLOW_CONTROL:
            await asyncio.sleep(FLOW_CONTROL_DELAY_S)
            return
        if error.code in _SUBSCRIPTION_CODES:
            self.host.core.beat_soon()  # the broker lost us, or our newest subscription
        await asyncio.sleep(EXCEPTION_DELAY_S)

    def _take(self, generation: Generation, result: PullResult) -> None:
        host, process_queue = self.host, generation.process_queue
        if result.status is PullStatus.OFFSET_ILLEGAL:
            logger.warning(
                "offset moved group=%s queue=%s from=%d to=%d",
                host.group,
                self.queue,
                self.next_offset,
                result.next_offset,
            )
            self.restart_at(result.next_offset)
            return
        messages: list[Message[Any]] = []
        if result.status is PullStatus.FOUND:
            wanted = host.wanted_tags(self.queue.topic)
            namespace, codec, queue = host.core.settings.namespace, host.codec, self.user_queue
            messages = [
                Message(record, queue, codec, generation, namespace)
                for record in decode_records(result.body)
                if (not wanted or record.tags in wanted) and record.queue_offset > process_queue.max_offset
            ]
            process_queue.put((message.offset, len(message.record.body)) for message in messages)
        self.next_offset = max(result.next_offset, process_queue.max_offset + 1)
        process_queue.skip_to(self.next_offset)
        if not len(process_queue):
            host.offsets.update(self.queue, process_queue.commit_offset)
        if messages:
            host.deliver(messages)

    def expired(self, before: float) -> list[tuple[Generation, Message[Any]]]:
        """Messages handed out before this monotonic time and not settled since, oldest first, at most 16 (PL-14)."""
        generation = self.generation
        late: list[tuple[Generation, Message[Any]]] = []
        for handed_out, message in generation.delivered.values():
            if handed_out > before or len(late) >= 16:
                break
            if message.offset not in generation.verdicts:
                late.append((generation, message))
        return late


def mark_delivered(message: Message[Any], clock: Callable[[], float] = time.monotonic) -> bool:
    """Note that a message is handed out; False when its queue moved away or it was settled already."""
    generation = message._settler
    assert isinstance(generation, Generation)
    if generation.process_queue.dropped or message.offset in generation.verdicts:
        return False
    generation.delivered[message.offset] = (clock(), message)
    return True
