"""State of a queue at its master: present, deleted, or unknown because the master does not answer.

A queue is deleted only if its broker is registered at the NameServer and answers that it has no such topic or queue. A broker that
is down, not registered or without a master proves nothing, and nor does a slave, which may be behind: callers wait for the master
(docs/decisions/0031-masters-decide.md). Does not import pyspark.

Requirements: SRC-13..SRC-15.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from saturnmq.client.connection.core import Core
from saturnmq.client.puller.puller import PullResult, PullStatus, pull_command, pull_result
from saturnmq.protocol.bodies import ClusterInfo, MessageQueue
from saturnmq.protocol.codes import MASTER_ID, PullSysFlag, RequestCode, ResponseCode
from saturnmq.protocol.errors import MessageError, SaturnError
from saturnmq.protocol.frames.command import Command
from saturnmq.protocol.message import decode_record
from saturnmq.spark.parallel import gathered
from saturnmq.spark.ranges import Bounds, Key, Preceding, key_of


class QueueState(NamedTuple):
    """A queue as its master describes it.

    bounds: its first and next offset, None without an answer that has them. deleted: the master does not have the queue.
    reason: why it is deleted, or why there are no bounds. record: the one at the requested offset, None if the master does not
    have it. next_offset: where a reader goes on behind the requested offset.
    """

    bounds: Bounds | None = None
    deleted: bool = False
    reason: str = ""
    record: Preceding | None = None
    next_offset: int = 0


def record_at(result: PullResult, offset: int) -> Preceding | None:
    """Return store time and position of the record at the offset; None if the answer does not begin with it."""
    try:
        record = decode_record(result.body)
    except MessageError:  # no record, or a damaged one: those are the reader's to report
        return None
    # A broker may answer with a later record.
    return Preceding(record.store_timestamp_ms, record.physical_offset) if record.queue_offset == offset else None


async def queue_states(core: Core, group: str, offsets: Mapping[MessageQueue, int]) -> dict[Key, QueueState]:
    """Return the state of each queue, asked of its master by a pull at the offset, which should be one that the queue may have.

    Raises the error of a NameServer that does not answer.
    """
    # Not from a cached route, which may name a broker of the past.
    command = Command(RequestCode.GET_BROKER_CLUSTER_INFO)
    answer = await core.name_servers.call(command, core.settings.api_timeout_ms)
    brokers = ClusterInfo.decode(answer.body or b"{}").broker_addr_table

    async def ask(item: tuple[MessageQueue, int]) -> QueueState:
        queue, offset = item
        broker = brokers.get(queue.broker_name)
        if broker is None:
            return QueueState(reason=f"broker {queue.broker_name} is not registered at the name server")
        address = broker.broker_addrs.get(MASTER_ID)
        if address is None:
            return QueueState(reason=f"broker {queue.broker_name} has no master at the name server")
        return await _state(core, group, queue, offset, address)

    states = await gathered(ask, offsets.items())
    return {key_of(queue): state for queue, state in zip(offsets, states, strict=True)}


async def _state(core: Core, group: str, queue: MessageQueue, offset: int, address: str) -> QueueState:
    """Return the answer of one broker. A leader that was voted out, and is registered still, answers "ask the master" and 0..0."""
    flags = int(PullSysFlag.SUBSCRIPTION)
    command = pull_command(queue, group=group, offset=offset, max_count=1, sys_flag=flags, expression="*")
    try:
        answer = await core.remote.call(address, command, core.settings.api_timeout_ms)
        result = pull_result(answer, queue)
        # A leader that was voted out answers so.
        if result is not None and result.status is PullStatus.NO_MATCHED_MESSAGE and result.next_offset <= offset:
            return QueueState(reason=f"broker {queue.broker_name} at {address} does not lead its group any more")
        if result is not None:
            # Read one after the other: the minimum may have moved past the maximum.
            limits = Bounds(result.min_offset, max(result.min_offset, result.max_offset))
            return QueueState(limits, record=record_at(result, offset), next_offset=result.next_offset)
        if answer.code == ResponseCode.TOPIC_NOT_EXIST:
            return QueueState(deleted=True, reason=f"broker {queue.broker_name} does not have the topic any more")
        if answer.code == ResponseCode.SYSTEM_ERROR:
            # The same code for a queue that does not exist and for other failures: the route decides.
            route = await core.routes.refresh(queue.topic)
            queues = () if route is None else [q for q in route.read_queues if q.broker_name == queue.broker_name]
            if queues and queue not in queues:  # the broker checks permission before the queue id
                reason = f"the topic has only {len(queues)} queues on broker {queue.broker_name}"
                return QueueState(deleted=True, reason=reason)
        reason = f"code {answer.code}: {(answer.remark or '').strip()}"
    # A master that does not answer proves neither a deletion nor a loss.
    except SaturnError as error:
        reason = str(error)
    return QueueState(reason=f"broker {queue.broker_name} at {address}: {reason}")
