"""Commands on what consumer clients report of themselves.

Requirements: C-38.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from saturnmq.admin.connection import ask_each
from saturnmq.admin.health import QueueTrouble, Trouble, queue_troubles, same_subscriptions
from saturnmq.cli.mqadmin.files import safe_name, write_file
from saturnmq.cli.mqadmin.java_forms import boolean, fields_text, fixed, queue_text, text_order, version_name
from saturnmq.cli.mqadmin.options import WrongOptions
from saturnmq.cli.mqadmin.output import Call
from saturnmq.escaping import escaped
from saturnmq.protocol.bodies import ConsumerRunningInfo, MessageQueue, ProcessQueueInfo
from saturnmq.protocol.errors import SaturnError

_CLIENTS: Final = "%-10s %-40s %-20s %s"
_SECONDS: Final = 20.0  # for one client: a broker waits 10 s for it
_TROUBLES: Final = {
    Trouble.NOT_LOCKED: "can't lock for a while, {}ms",
    Trouble.NOT_UNLOCKED: "unlock {} times, still failed",
    Trouble.BLOCKED: "can't consume for a while, maybe blocked, {}ms",
}


async def consumer_status(call: Call) -> None:
    """Ask the clients of a group for their state; write it to files, and print whether the group is healthy."""
    if call.options.text("i"):
        await _print_client(call, call.options.text("i"))
    else:
        await _print_clients(call, head=_CLIENTS % ("#Index", "#ClientId", "#Version", "#ConsumerRunningInfoFile"))


async def consumer(call: Call) -> None:
    """The same, without a heading, as the command that Apache keeps and does not list."""
    await _print_clients(call, head="")


async def _print_client(call: Call, client_id: str) -> None:
    group, broker = call.options.text("g"), call.options.text("b") or None
    await call.admin.clients.consumers(group, broker)
    info = await call.admin.clients.running_info(group, client_id, jstack="s" in call.options)
    if call.out.as_json:
        call.out.line(**_fields(client_id, info))
        return
    for line in info_text(info).splitlines():
        call.out.line(line)


async def _print_clients(call: Call, *, head: str) -> None:
    group, broker = call.options.text("g"), call.options.text("b") or None
    jstack = "s" in call.options
    clients = (await call.admin.clients.consumers(group, broker)).connection_set
    now_ms = time.time_ns() // 1_000_000
    if head:
        call.out.line(head)

    async def ask(client_id: str) -> ConsumerRunningInfo:
        return await call.admin.clients.running_info(group, client_id, jstack=jstack)

    infos: dict[str, ConsumerRunningInfo] = {}
    responses = await ask_each([client.client_id for client in clients], ask, seconds=_SECONDS)
    for client in clients:
        info = responses[client.client_id]
        if isinstance(info, SaturnError):
            call.out.problem(f"{client.client_id}: {info.message}")
            continue
        infos[client.client_id] = info
        number, version = len(infos), version_name(client.version)
        if call.out.as_json:
            call.out.line(index=number, version=version, **_fields(client.client_id, info))
            continue
        path = _write(Path(str(now_ms)), client.client_id, info)
        if head:
            call.out.line(_CLIENTS % (number, client.client_id, version, path))
        else:
            call.out.line(f"{number:03d}  {client.client_id:<40} {version:<20} {path}")
    if infos:
        _health(call, infos)


def _write(folder: Path, client_id: str, info: ConsumerRunningInfo) -> Path:
    folder.mkdir(exist_ok=True)
    text = "\n".join(escaped(line) for line in info_text(info).split("\n"))
    return write_file(folder, safe_name(client_id), text.encode())


def _health(call: Call, infos: Mapping[str, ConsumerRunningInfo]) -> None:
    now_ms = time.time_ns() // 1_000_000
    call.out.line()
    call.out.line()
    if not same_subscriptions(infos, now_ms):
        text = "WARN: Different subscription in the same group of consumer!!!"
        call.out.summary(text, end="", same_subscription=False)
        return
    call.out.summary("Same subscription in the same group of consumer", same_subscription=True)
    call.out.line()
    call.out.summary("Rebalance OK", rebalance="OK")
    troubles = [trouble for client in sorted(infos) for trouble in queue_troubles(client, infos[client], now_ms)]
    for trouble in troubles:
        call.out.line(trouble_text(trouble))
    call.out.summary("", end="", problems=[trouble_text(trouble) for trouble in troubles])


def trouble_text(trouble: QueueTrouble) -> str:
    """The sentence of Apache's tools about a queue."""
    return f"{trouble.client_id} {queue_text(trouble.queue)} {_TROUBLES[trouble.trouble].format(trouble.number)}"


def _fields(client_id: str, info: ConsumerRunningInfo) -> dict[str, Any]:
    return {
        "client_id": client_id,
        "properties": info.properties,
        "subscriptions": [
            {"topic": subscription.topic, "sub_expression": subscription.sub_string}
            for subscription in _subscriptions(info)
        ],
        "queues": [
            {"topic": q.topic, "broker_name": q.broker_name, "queue_id": q.queue_id, **dataclasses.asdict(state)}
            for q, state in _queues(info)
        ],
        "topics": {topic: dataclasses.asdict(info.status_table[topic]) for topic in sorted(info.status_table)},
        "jstack": info.jstack,
    }


def _subscriptions(info: ConsumerRunningInfo) -> list[Any]:
    return sorted(info.subscription_set, key=lambda subscription: f"{subscription.topic}@{subscription.sub_string}")


def _queues(info: ConsumerRunningInfo) -> list[tuple[MessageQueue, ProcessQueueInfo]]:
    return sorted(info.mq_table.items(), key=lambda item: (item[0].topic, item[0].broker_name, item[0].queue_id))


def info_text(info: ConsumerRunningInfo) -> str:
    """The running information of a client as Apache's tools print it."""
    lines = ["#Consumer Properties#"]
    lines += [f"{name:<40}: {info.properties[name]}" for name in text_order(info.properties)]
    lines += ["", "", "#Consumer Subscription#"]
    for number, subscription in enumerate(_subscriptions(info), 1):
        mode = boolean(subscription.class_filter_mode)
        lines.append(
            f"{number:03d} Topic: {subscription.topic:<40} ClassFilter: {mode:<8} SubExpression: {subscription.sub_string}"
        )
    lines += ["", "", "#Consumer Offset#", _row(64, "#Topic", "#Broker Name", "#QID", f"{'#Consumer Offset':<20}")]
    for queue, state in _queues(info):
        lines.append(_row(32, queue.topic, queue.broker_name, queue.queue_id, f"{state.commit_offset:<20}"))
    lines += ["", "", "#Consumer MQ Detail#", _row(64, "#Topic", "#Broker Name", "#QID", f"{'#ProcessQueueInfo':<20}")]
    for queue, state in _queues(info):
        lines.append(_row(64, queue.topic, queue.broker_name, queue.queue_id, _state_text(state)))
    lines += ["", "", "#Consumer RT&TPS#"]
    names = ("#Pull RT", "#Pull TPS", "#Consume RT", "#ConsumeOK TPS", "#ConsumeFailed TPS", "#ConsumeFailedMsgsInHour")
    lines.append(
        f"{'#Topic':<64}  {names[0]:>14} {names[1]:>14} {names[2]:>14} {names[3]:>14} {names[4]:>18} {names[5]:>25}"
    )
    for topic in sorted(info.status_table):
        status = info.status_table[topic]
        rates = [
            fixed(value, 2) for value in (status.pull_rt, status.pull_tps, status.consume_rt, status.consume_ok_tps)
        ]
        cells = " ".join(f"{rate:>14}" for rate in rates)
        lines.append(f"{topic:<32}  {cells} {fixed(status.consume_failed_tps, 2):>18} {status.consume_failed_msgs:>25}")
    text = "\n".join(lines) + "\n"
    if info.jstack is not None:
        text += "\n\n#Consumer jstack#\n" + info.jstack
    return text


def _row(width: int, topic: str, broker: str, queue_id: int | str, last: str) -> str:
    return f"{topic:<{width}}  {broker:<32}  {queue_id:<4}  {last}"


def _state_text(state: ProcessQueueInfo) -> str:
    return fields_text(
        "ProcessQueueInfo",
        {
            "commitOffset": state.commit_offset,
            "cachedMsgMinOffset": state.cached_msg_min_offset,
            "cachedMsgMaxOffset": state.cached_msg_max_offset,
            "cachedMsgCount": state.cached_msg_count,
            "cachedMsgSizeInMiB": state.cached_msg_size_mib,
            "transactionMsgMinOffset": state.transaction_msg_min_offset,
            "transactionMsgMaxOffset": state.transaction_msg_max_offset,
            "transactionMsgCount": state.transaction_msg_count,
            "locked": state.locked,
            "tryUnlockTimes": state.try_unlock_times,
            "lastLockTimestamp": _stamp(state.last_lock_timestamp),
            "droped": state.droped,
            "lastPullTimestamp": _stamp(state.last_pull_timestamp),
            "lastConsumeTimestamp": _stamp(state.last_consume_timestamp),
        },
    )


def _stamp(ms: int) -> str:
    """`yyyyMMddHHmmssSSS` in local time."""
    if not 0 <= ms < 253_402_000_000_000:
        return str(ms)
    return datetime.fromtimestamp(ms // 1000).strftime("%Y%m%d%H%M%S") + f"{ms % 1000:03d}"


async def start_monitoring(call: Call) -> None:
    """Look at all groups every minute until interrupted, and log what is found; with --webhook also post it."""
    from saturnmq.admin.monitoring import LogListener, Monitoring, MonitorListener, WebhookListener

    listeners: list[MonitorListener] = [LogListener()]
    if url := call.options.text("webhook"):
        try:
            listeners.append(WebhookListener(url))
        except ValueError as error:
            raise WrongOptions(f"--{error}") from None
    if not logging.getLogger().handlers:
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    await Monitoring(call.admin, *listeners).run()
