"""Commands on subscription groups.

Requirements: C-33..C-35, C-37.
"""

from __future__ import annotations

import asyncio
import dataclasses
from typing import TYPE_CHECKING, Any, Final

from saturnmq.admin.consumption import by_queue, lag
from saturnmq.admin.groups import GroupConfigured, GroupSummary
from saturnmq.cli.mqadmin import since
from saturnmq.cli.mqadmin.java_forms import address_order, boolean, cut, fields_text, fixed, text_order, version_name
from saturnmq.cli.mqadmin.options import WrongOptions
from saturnmq.cli.mqadmin.output import Call, Shown, Time
from saturnmq.protocol.bodies import SubscriptionGroupConfig
from saturnmq.protocol.errors import SaturnError

if TYPE_CHECKING:
    from saturnmq.history import Baseline

_PROGRESS_LAYOUT: Final = "%-64s  %-32s  %-4s  %-20s  %-20s  %-20s  %s\n"
_PROGRESS_LAYOUT_WITH_IP: Final = "%-64s  %-32s  %-4s  %-20s  %-20s  %-20s %-20s  %s\n"
_SUMMARY_LAYOUT: Final = "%-64s  %-6s  %-24s %-5s  %-14s  %-7s  %s\n"
_SUMMARY_LAYOUT_SINCE: Final = _SUMMARY_LAYOUT.replace("%s\n", "%-10s") + since.LAYOUT + "\n"
_RULE: Final = "=" * 29


async def update_sub_group(call: Call) -> None:
    """Create a group, or replace its whole configuration: fields without an option get their default."""
    config = _config_of(call)
    broker, cluster = call.options.text("b"), call.options.text("c")
    if broker:
        await call.admin.groups.put(broker, config)
        _report_created(call, broker, config)
    elif cluster:
        for address in await _master_addresses(call, cluster):
            try:
                await call.admin.groups.put(address, config)
            except SaturnError as error:
                call.out.problem(f"{address}: {error.message}")
            else:
                _report_created(call, address, config)
    else:
        raise WrongOptions("-b brokerAddr or -c clusterName is needed")
    if not call.out.as_json:
        call.out.change_line(fields_text("SubscriptionGroupConfig", _java_fields(config)), end="")


async def _master_addresses(call: Call, cluster: str) -> list[str]:
    """The addresses of a cluster's masters in the order in which Apache's tool sends to them."""
    masters = await call.admin.connection.masters(cluster)
    return address_order({name: [address] for name, address in masters.items()})


def _report_created(call: Call, broker: str, config: SubscriptionGroupConfig) -> None:
    call.out.change_line(f"create subscription group to {broker} success.", broker=broker, **dataclasses.asdict(config))


def _config_of(call: Call) -> SubscriptionGroupConfig:
    options = call.options
    return SubscriptionGroupConfig(
        group_name=options.text("g"),
        consume_enable=options.boolean("s", True),
        consume_from_min_enable=options.boolean("m", False),
        consume_broadcast_enable=options.boolean("d", False),
        retry_queue_nums=options.integer("q", 1),
        retry_max_times=options.integer("r", 16),
        broker_id=options.integer("i", 0),
        which_broker_when_consume_slowly=options.integer("w", 1),
        notify_consumer_ids_changed_enable=options.boolean("a", True),
    )


def _java_fields(config: SubscriptionGroupConfig) -> dict[str, object]:
    """The fields under their names in Java, in the order of their declaration there."""
    return {
        "groupName": config.group_name,
        "consumeEnable": config.consume_enable,
        "consumeFromMinEnable": config.consume_from_min_enable,
        "consumeBroadcastEnable": config.consume_broadcast_enable,
        "retryQueueNums": config.retry_queue_nums,
        "retryMaxTimes": config.retry_max_times,
        "brokerId": config.broker_id,
        "whichBrokerWhenConsumeSlowly": config.which_broker_when_consume_slowly,
        "notifyConsumerIdsChangedEnable": config.notify_consumer_ids_changed_enable,
    }


async def delete_sub_group(call: Call) -> None:
    """Delete a group; with -c also its retry topic and its dead-letter topic."""
    group, broker, cluster = (call.options.text(option) for option in "gbc")
    removes_offset = call.options.boolean("r", False)
    if broker:
        await call.admin.groups.delete(broker, group, remove_offset=removes_offset)
        text = f"delete subscription group [{group}] from broker [{broker}] success."
        call.out.change_line(text, group=group, broker=broker)
        return
    if not cluster:
        raise WrongOptions("-b brokerAddr or -c clusterName is needed")
    for address in await _master_addresses(call, cluster):
        await call.admin.groups.delete(address, group, remove_offset=removes_offset)
        text = f"delete subscription group [{group}] from broker [{address}] in cluster [{cluster}] success."
        call.out.change_line(text, group=group, broker=address)
    for topic in call.admin.groups.topics_of(group):
        await call.admin.topics.delete_from_brokers(topic, cluster)
        call.out.change_line(f"delete topic [{topic}] from cluster [{cluster}] success.", topic=topic, cluster=cluster)
        await call.admin.topics.delete_from_name_servers(topic, cluster)
        call.out.change_line(f"delete topic [{topic}] from NameServer success.")


async def get_consumer_config(call: Call) -> None:
    """Print the configuration of a group on every broker."""
    group_configs = {
        group_config.broker_name: group_config
        for group_config in await call.admin.groups.configurations(call.options.text("g"))
    }
    for name in text_order(group_configs):
        _print_config(call, group_configs[name])


def _print_config(call: Call, group_config: GroupConfigured) -> None:
    if call.out.as_json:
        fields = dataclasses.asdict(group_config.config)
        call.out.line(cluster_name=group_config.cluster, broker_name=group_config.broker_name, **fields)
        return
    call.out.line(f"{_RULE}{group_config.cluster}:{group_config.broker_name}{_RULE}")
    for name, value in _java_fields(group_config.config).items():
        call.out.line(f"{name:<40}=  {boolean(value) if isinstance(value, bool) else value}")


async def consumer_progress(call: Call) -> None:
    """Print the offsets of one group by queue, or a line for each group."""
    group = call.options.text("g")
    baseline = await asyncio.to_thread(since.baseline_of, call)
    if group:
        await _print_progress(call, group, baseline)
    else:
        await _print_summaries(call, baseline)


async def _print_progress(call: Call, group: str, baseline: Baseline | None) -> None:
    progress = await call.admin.groups.progress(group)
    shows_clients = call.options.boolean("s", False)
    owners = await call.admin.clients.owners(group) if shows_clients else {}
    rows = []
    for queue, offsets in by_queue(progress):
        row = [cut(queue.topic, 64), cut(queue.broker_name, 32), queue.queue_id, offsets.broker_offset]
        row.append(offsets.consumer_offset)
        if shows_clients:
            row.append(owners[queue].split("@")[0] if queue in owners else "N/A")
        last_time = Time(offsets.last_timestamp, absent="N/A", millis=False)
        rows.append((*row, offsets.broker_offset - offsets.consumer_offset, last_time))
    columns = [("#Topic", "topic"), ("#Broker Name", "broker_name"), ("#QID", "queue_id")]
    columns += [("#Broker Offset", "broker_offset"), ("#Consumer Offset", "consumer_offset")]
    columns += [("#Client IP", "client_ip")] * shows_clients
    columns += [("#Diff", "diff"), ("#LastTime", "last_time")]
    call.out.table(_PROGRESS_LAYOUT_WITH_IP if shows_clients else _PROGRESS_LAYOUT, columns, rows)
    call.out.line()
    call.out.summary(f"Consume TPS: {fixed(progress.consume_tps, 2)}", consume_tps=progress.consume_tps)
    call.out.summary(f"Diff Total: {lag(progress)}", diff_total=lag(progress))
    if baseline is not None:
        change = None if call.admin.connection.unanswered else since.change_of(baseline, group, progress)
        for (heading, key), cell in zip(since.COLUMNS, since.cells(change), strict=True):
            field: dict[str, Any] = {key: cell}
            call.out.summary(f"{heading.lstrip('#')}: {cell}", **field)


async def _print_summaries(call: Call, baseline: Baseline | None) -> None:
    summaries = await call.admin.groups.summaries()
    for address, error in summaries.unreachable.items():
        call.out.problem(f"{address}: its queues and clients are missing: {error.message}")
    summaries_by_group = {summary.group: summary for summary in summaries.groups}
    columns = [("#Group", "group"), ("#Count", "count"), ("#Version", "version"), ("#Type", "type")]
    columns += [("#Model", "model"), ("#TPS", "tps"), ("#Diff Total", "diff_total")]
    rows = [_summary_row(summaries_by_group[name]) for name in text_order(summaries_by_group)]
    if baseline is None:
        call.out.table(_SUMMARY_LAYOUT, columns, rows)
        return
    for index, name in enumerate(text_order(summaries_by_group)):
        # Without the offsets of a broker that does not answer, its messages would count as consumed.
        change = None if summaries.unreachable else since.change_of(baseline, name, summaries_by_group[name].progress)
        rows[index] += since.cells(change)
    call.out.table(_SUMMARY_LAYOUT_SINCE, [*columns, *since.COLUMNS], rows)


def _summary_row(summary: GroupSummary) -> tuple[object, ...]:
    tps = summary.progress.consume_tps if summary.progress is not None else 0.0
    if summary.clients is None:
        return cut(summary.group, 64), 0, Shown("OFFLINE", None), "", "", Shown(str(int(tps)), tps), summary.lag
    clients = summary.clients.connection_set
    is_pull = summary.clients.consume_type == "CONSUME_ACTIVELY"
    model = summary.clients.message_model or "" if summary.clients.consume_type == "CONSUME_PASSIVELY" else ""
    version = version_name(min(client.version for client in clients))
    kind = "PULL" if is_pull else "PUSH"
    return cut(summary.group, 64), len(clients), version, kind, model, Shown(str(int(tps)), tps), summary.lag
