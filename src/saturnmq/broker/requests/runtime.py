"""Requests about the state of the broker itself: runtime information (28) and statistics (315).

Requirements: RT-01, MON-01, MON-13.
"""

from __future__ import annotations

import asyncio

from saturnmq.broker.requests.context import RuntimeContext
from saturnmq.broker.services.watermark import Watermark
from saturnmq.net import Connection
from saturnmq.protocol.bodies import BrokerStatsData, BrokerStatsItem, KVTable
from saturnmq.protocol.codes import VERSION, VERSION_DESC, ResponseCode
from saturnmq.protocol.frames.command import Command
from saturnmq.protocol.headers import messaging as h
from saturnmq.statistics import LAST_DAY, LAST_HOUR, LAST_MINUTE
from saturnmq.store import MessageStore
from saturnmq.store.files.capacity import space, used_percent


def runtime_info(ctx: RuntimeContext, connection: Connection, request: Command, header: object) -> Command:
    """Serve GET_BROKER_RUNTIME_INFO (28)."""
    return request.reply(body=KVTable(runtime_table(ctx)).encode())


def runtime_table(ctx: RuntimeContext) -> dict[str, str]:
    """The runtime information, as Apache RocketMQ names and formats it."""
    store, settings = ctx.store, ctx.settings
    now = asyncio.get_running_loop().time()
    seconds = max((ctx.clock_ms() - ctx.stats.started_ms) // 1000, 0)
    days, remaining_seconds = divmod(seconds, 86_400)
    hours, remaining_seconds = divmod(remaining_seconds, 3600)
    minutes, seconds = divmod(remaining_seconds, 60)
    # Asked of the file systems at each request.
    usage = store.disk_usage()
    table = ctx.stats.table(now) | {
        "brokerVersion": str(VERSION),
        "brokerVersionDesc": VERSION_DESC,
        "runtime": f"[ {days} days, {hours} hours, {minutes} minutes, {seconds} seconds ]",
        "commitLogMinOffset": str(max(store.min_physical_offset, 0)),
        "commitLogMaxOffset": str(store.max_physical_offset),
        "remainHowManyDataToFlush": _size(store.max_physical_offset - store.flushed_offset),
        "commitLogDiskRatio": ratio(usage.commit_log),
        "consumeQueueDiskRatio": ratio(usage.consume_queue),
        "dispatchBehindBytes": str(store.behind_bytes),
        "dispatchMaxBuffer": "0",
        "pageCacheLockTimeMills": "0",
        "earliestMessageTimeStamp": str(store.earliest_store_ms),
        "startAcceptSendRequestTimeStamp": str(settings.accept_send_from_ms),
        "flushDiskType": store.settings.flush_disk_type.value,
        "slowFlushTimes": str(store.log.slow_flushes),
        "slowestFlushMs": str(store.log.slowest_flush_ms),
        # Integer.MAX_VALUE without a pool, as Apache RocketMQ answers.
        "remainTransientStoreBufferNumbs": str(store.log.free_buffers if store.log.pooled else 2**31 - 1),
        "sendThreadPoolQueueCapacity": str(settings.send_queue_max),
        "pullThreadPoolQueueCapacity": str(settings.pull_queue_max),
        # Capacities of Apache's thread pools, for tools that compute a share.
        "queryThreadPoolQueueCapacity": "20000",
        "EndTransactionThreadPoolQueueCapacity": "100000",
    }
    table |= _waiting(ctx.watermark)
    refused = {f"rejected_{reason}": str(count) for reason, count in sorted(ctx.rejections.counts.items())}
    return table | _disk(store) | ctx.master.delay.table() | ctx.master.timer.table() | refused


def _waiting(watermark: Watermark) -> dict[str, str]:
    """Size and head wait of what Apache RocketMQ has thread pools for."""
    facts = {"EndTransactionQueueSize": str(watermark.transaction().size)}
    for name, backlog in (("send", watermark.send()), ("pull", watermark.pull()), ("query", watermark.query())):
        facts[f"{name}ThreadPoolQueueSize"] = str(backlog.size)
        facts[f"{name}ThreadPoolQueueHeadWaitTimeMills"] = str(backlog.wait_ms)
    return facts


def _disk(store: MessageStore) -> dict[str, str]:
    """Use and capacity of the log's folders; the exporter reads the capacity by the places of its words."""
    folders = store.log.folders
    facts = {f"commitLogDiskRatio_{folder}": ratio(used_percent(folder)) for folder in folders}
    total, free = space(folders[0])
    facts["commitLogDirCapacity"] = f"Total : {_size(total)}, Free : {_size(free)}."
    if store.log.pooled:
        facts["remainHowManyDataToCommit"] = _size(store.log.end - store.log.readable_end)
    return facts


def ratio(percent: int) -> str:
    """A percentage between 0 and 1, -1 if it is not known."""
    return f"{percent / 100:.2f}" if percent >= 0 else "-1"


def view_stats(ctx: RuntimeContext, connection: Connection, request: Command, header: h.ViewBrokerStatsData) -> Command:
    """Serve VIEW_BROKER_STATS_DATA (315): one item's sums over the last minute, hour and day."""
    item = ctx.stats.find(header.stats_name, header.stats_key)
    if item is None:
        text = f"The stats <{header.stats_name}> <{header.stats_key}> not exist"
        return request.reply(ResponseCode.SYSTEM_ERROR, text)
    minute, hour, day = (
        BrokerStatsItem(s.sum, s.tps, s.avgpt) for s in map(item.over, (LAST_MINUTE, LAST_HOUR, LAST_DAY))
    )
    return request.reply(body=BrokerStatsData(minute, hour, day).encode())


def _size(count: int) -> str:
    if count < 1024:
        return f"{count} B"
    value = count / 1024
    for unit in ("KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"
