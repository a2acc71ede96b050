"""Commands on the committed offsets of groups.

Requirements: C-41..C-43.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from saturnmq.admin.consumption import queue_order
from saturnmq.admin.offsets import TO_THE_END, Rollback
from saturnmq.cli.mqadmin import java_forms
from saturnmq.cli.mqadmin.java_forms import boolean, cut, time_of
from saturnmq.cli.mqadmin.output import Call
from saturnmq.protocol.bodies import MessageQueue

_ONLINE: Final = "%-40s  %-40s  %-40s\n"
_OFFLINE: Final = "%-20s  %-20s  %-20s  %-20s  %-20s  %-20s\n"
_CLIENTS: Final = "%-50s  %-15s  %-15s  %-20s\n"


async def reset_by_time(call: Call) -> None:
    """Set a group to the messages stored at a time."""
    group, topic, when = (call.options.text(letter) for letter in "gts")
    force = call.options.boolean("f", True)
    time_ms = TO_THE_END if when == "now" else time_of(when, "s")
    new_offsets = await call.admin.offsets.reset(group, topic, time_ms, force=force, cpp="c" in call.options)
    label = "group" if isinstance(new_offsets, dict) else "consumerGroup"
    call.out.line(
        f"rollback consumer offset by specified {label}[{group}], topic[{topic}], force[{boolean(force)}], "
        f"timestamp(string)[{when}], timestamp(long)[{time_ms}]"
    )
    _print(call, new_offsets)


async def reset_by_time_old(call: Call) -> None:
    """Set a group without clients to the messages stored at a time."""
    group, topic, when = (call.options.text(letter) for letter in "gts")
    force, time_ms = call.options.boolean("f", True), time_of(when, "s")
    rollbacks = await call.admin.offsets.reset_offline(group, topic, time_ms, force=force)
    call.out.line(
        f"rollback consumer offset by specified consumerGroup[{group}], topic[{topic}], force[{boolean(force)}], "
        f"timestamp(string)[{when}], timestamp(long)[{time_ms}]"
    )
    _print(call, rollbacks)


async def skip(call: Call) -> None:
    """Set a group to the end of all queues of a topic."""
    force = call.options.boolean("f", True)
    _print(
        call, await call.admin.offsets.reset(call.options.text("g"), call.options.text("t"), TO_THE_END, force=force)
    )


def _print(call: Call, new_offsets: Mapping[MessageQueue, int] | Sequence[Rollback]) -> None:
    name, number = ("#brokerName", "broker_name"), ("#queueId", "queue_id")
    if isinstance(new_offsets, Mapping):
        queues = java_forms.queue_order(new_offsets)
        rows = [(cut(queue.broker_name, 32), queue.queue_id, new_offsets[queue]) for queue in queues]
        call.out.table(_ONLINE, [name, number, ("#offset", "offset")], rows)
        return
    columns = [name, number, ("#brokerOffset", "broker_offset"), ("#consumerOffset", "consumer_offset")]
    columns += [("#timestampOffset", "timestamp_offset"), ("#rollbackOffset", "rollback_offset")]
    by_queue = {rollback.queue: rollback for rollback in new_offsets}
    listed = [by_queue[queue] for queue in java_forms.queue_order(by_queue)]
    call.out.table(
        _OFFLINE,
        columns,
        [
            (
                cut(rollback.queue.broker_name, 32),
                rollback.queue.queue_id,
                rollback.broker_offset,
                rollback.consumer_offset,
                rollback.target,
                rollback.chosen,
            )
            for rollback in listed
        ],
    )


async def clone(call: Call) -> None:
    """Commit the offsets of one group for another."""
    source, destination, topic = (call.options.text(letter) for letter in "sdt")
    cloned = await call.admin.offsets.clone(source, destination, topic)
    text = f"clone group offset success. srcGroup[{source}], destGroup=[{destination}], topic[{topic}]"
    if not call.out.as_json:
        call.out.change_line(text, end="")
    for queue, offset in cloned.items():
        if call.out.as_json:
            call.out.change_line(
                "", topic=queue.topic, broker_name=queue.broker_name, queue_id=queue.queue_id, offset=offset
            )


async def consumer_status(call: Call) -> None:
    """Print the offsets that the clients of a group hold."""
    group, topic, client = (call.options.text(letter) for letter in "gti")
    offsets_by_client = await call.admin.offsets.of_clients(group, topic, client)
    call.out.line(f"get consumer status from client. group={group}, topic={topic}, originClientId={client}")
    columns = [("#clientId", "client_id"), ("#brokerName", "broker_name"), ("#queueId", "queue_id")]
    rows = [
        (cut(name, 50), queue.broker_name, queue.queue_id, offsets_by_client[name][queue])
        for name in sorted(offsets_by_client)
        for queue in sorted(offsets_by_client[name], key=queue_order)
    ]
    call.out.table(_CLIENTS, [*columns, ("#offset", "offset")], rows)
