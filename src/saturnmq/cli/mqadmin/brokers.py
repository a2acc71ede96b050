"""Commands on brokers and clusters.

Requirements: C-10..C-20, ADM-07.
"""

from __future__ import annotations

import time
from asyncio import sleep
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import asdict
from datetime import UTC, datetime, timedelta, timezone
from math import nan
from typing import TYPE_CHECKING, Any, Final

from saturnmq.admin.connection import MASTER_ID, ask_each, read_address
from saturnmq.cli.mqadmin.java_forms import address_order, fixed, indented, text_order
from saturnmq.cli.mqadmin.options import WrongOptions
from saturnmq.cli.mqadmin.output import Call, Shown, Time
from saturnmq.cli.output import EXIT_FAILED, warn
from saturnmq.escaping import escaped
from saturnmq.protocol.bodies import ConsumeQueueData, ConsumeStatsList
from saturnmq.protocol.errors import ConfigError, SaturnError

if TYPE_CHECKING:
    from saturnmq.admin.brokers import BrokerState
    from saturnmq.client.receipt import Receipt

STATS_TIMEOUT_MS: Final = 50_000
BODY_BYTES_MAX: Final = 4 * 1024 * 1024
CHINA: Final = timezone(timedelta(hours=8))
_SEPARATOR: Final = "=" * 38
_STATUS_GROUP: Final = "PID_SMSC"
_WARM_UP_BYTES: Final = 16
_BODY_WORD: Final = "hello jodie"

_BASE_LAYOUT: Final = "%-16s  %-22s  %-4s  %-22s %-16s %19s %19s %10s %5s %6s"
_BASE_COLUMNS: Final = (
    ("#Cluster Name", "cluster"),
    ("#Broker Name", "broker_name"),
    ("#BID", "broker_id"),
    ("#Addr", "address"),
    ("#Version", "version"),
    ("#InTPS(LOAD)", "in"),
    ("#OutTPS(LOAD)", "out"),
    ("#PCWait(ms)", "page_cache_wait_ms"),
    ("#Hour", "hours"),
    ("#SPACE", "space"),
)
_MORE_LAYOUT: Final = "%-16s  %-32s %14s %14s %14s %14s"
_MORE_COLUMNS: Final = (
    ("#Cluster Name", "cluster"),
    ("#Broker Name", "broker_name"),
    ("#InTotalYest", "in_yesterday"),
    ("#OutTotalYest", "out_yesterday"),
    ("#InTotalToday", "in_today"),
    ("#OutTotalToday", "out_today"),
)
_STATS_COLUMNS: Final = (
    ("#Topic", "topic"),
    ("#Group", "group"),
    ("#Broker Name", "broker_name"),
    ("#QID", "queue_id"),
    ("#Broker Offset", "broker_offset"),
    ("#Consumer Offset", "consumer_offset"),
    ("#Diff", "diff"),
    ("#LastTime", "last_time"),
)
_RT_HEAD: Final = "%-24s  %-24s  %-4s  %-8s  %-8s"
_RT_LAYOUT: Final = "%-24s  %-24s  %-8s  %-16s  %-16s"


# ---- configuration


async def update_broker_config(call: Call) -> None:
    """Set a key on one broker or on all masters of a cluster."""
    options, brokers = call.options, call.admin.brokers
    if "b" not in options and "c" not in options:
        raise WrongOptions("Missing required option: -b | -c")
    key, value = options.text("k"), options.text("v")
    if "b" in options:
        addresses = [options.text("b")]
    else:
        masters = await call.admin.connection.masters(options.text("c"))
        addresses = address_order({name: [address] for name, address in masters.items()})
    failures = await brokers.update_configuration(addresses, key, value)
    for address in addresses:
        if address in failures:
            call.out.problem(f"{address}: {failures[address].message}")
        else:
            call.out.change_line(f"update broker config success, {address}", broker=address, key=key, value=value)


async def get_broker_config(call: Call) -> None:
    """Print the keys and values of one broker, or of all of a cluster."""
    options, brokers = call.options, call.admin.brokers
    if "b" in options:
        address = options.text("b")
        call.out.line(f"============{address}============")
        _print_configuration(call, address, await brokers.configuration(address))
        return
    groups = await brokers.groups(options.text("c")) if "c" in options else {}
    addresses = [address for members in groups.values() for address in members.values()]
    configurations = await ask_each(addresses, brokers.configuration)
    masters = {members[MASTER_ID]: members for members in groups.values() if MASTER_ID in members}
    order = address_order({name: [members[MASTER_ID]] for name, members in groups.items() if MASTER_ID in members})
    for group in (
        *map(masters.__getitem__, order),
        *(members for members in groups.values() if MASTER_ID not in members),
    ):
        master = group.get(MASTER_ID, "null")
        heads = {master: f"============Master: {master}============"} if MASTER_ID in group else {}
        for number, slave in group.items():
            if number != MASTER_ID:
                heads[slave] = f"============My Master: {master}=====Slave: {slave}============"
        for address, head in heads.items():
            call.out.line(head)
            configuration = configurations[address]
            if isinstance(configuration, SaturnError):
                call.out.problem(f"{address}: {configuration.message}")
            else:
                _print_configuration(call, address, configuration)


def _print_configuration(call: Call, address: str, configuration: Mapping[str, str]) -> None:
    for key, value in sorted(configuration.items()):
        call.out.line(f"{key:<50}=  {value}", broker=address, key=key, value=value)
    call.out.line()


# ---- state


async def broker_status(call: Call) -> None:
    """Print the runtime information of one broker, or of all of a cluster."""
    options, brokers = call.options, call.admin.brokers
    if "b" in options:
        address = options.text("b")
        for key, value in sorted((await brokers.runtime(address)).items()):
            call.out.line(f"{key:<32}: {value}", broker=address, key=key, value=value)
    elif "c" in options:
        from saturnmq.admin.connection import ask_each

        groups = await brokers.groups(options.text("c"))
        addresses = address_order({name: members.values() for name, members in groups.items()})
        for address, runtime in (await ask_each(addresses, brokers.runtime)).items():
            if isinstance(runtime, SaturnError):
                call.out.problem(f"{address}: {runtime.message}")
                continue
            for key, value in sorted(runtime.items()):
                call.out.line(f"{address:<24} {key:<32}: {value}", broker=address, key=key, value=value)


async def broker_consume_stats(call: Call) -> None:
    """Print the progress of all groups of a broker."""
    options = call.options
    least = options.integer("l", 0)
    stats_list = await call.admin.brokers.consume_statistics(
        options.text("b"),
        ordered=options.boolean("o", False),
        timeout_ms=options.integer("t", STATS_TIMEOUT_MS),
    )
    layout = "%-64s  %-64s  %-32s  %-4s  %-20s  %-20s  %-20s  %s"
    call.out.table(layout, _STATS_COLUMNS, _progress_rows(stats_list, least))
    call.out.line()
    call.out.summary(f"Diff Total: {stats_list.total_diff}", total_diff=stats_list.total_diff)


def _progress_rows(stats_list: ConsumeStatsList, least: int) -> Iterable[tuple[Any, ...]]:
    for groups in stats_list.consume_stats_list:
        for group, topics in groups.items():
            for stats in topics:
                for queue in sorted(
                    stats.offset_table, key=lambda queue: (queue.topic, queue.broker_name, queue.queue_id)
                ):
                    at = stats.offset_table[queue]
                    diff = at.broker_offset - at.consumer_offset
                    if diff < least or at.last_timestamp <= 0:
                        continue
                    yield (
                        Shown(queue.topic[:64], queue.topic),
                        group,
                        Shown(queue.broker_name[:32], queue.broker_name),
                        queue.queue_id,
                        at.broker_offset,
                        at.consumer_offset,
                        diff,
                        Time(at.last_timestamp, millis=False),
                    )


async def query_cq(call: Call) -> None:
    """Print units of a consume queue."""
    options = call.options
    topic, queue_id, index = options.text("t"), options.integer("q", 0), options.integer("i", 0)
    address = options.text("b")
    if not address:
        brokers = (await call.admin.topics.route(topic)).broker_datas
        address = (read_address(brokers[0]) if brokers else None) or ""
        if not address:
            raise ConfigError(f"No topic route data! No broker serves topic {topic}")
    units = await call.admin.brokers.consume_queue(
        address, topic, queue_id, index, count=options.integer("c", 10), group=options.text("g") or None
    )
    out, response = call.out, units.response
    if units.remark and not response.queue_data:
        warn(f"warning: {escaped(units.remark)}")
    if response.subscription_data is not None:
        data = response.subscription_data.to_json()
        sets = {name: tuple(data.get(name, ())) for name in ("tagsSet", "codeSet")}
        out.line("Subscription data: ")
        out.block(indented(data | sets))
        out.line(_SEPARATOR)
    if response.filter_data is not None:
        out.line("Filter data: ")
        out.line(response.filter_data)
        out.line(_SEPARATOR)
    out.line("Queue data: ")
    out.summary(
        f"max: {response.max_queue_index}, min: {response.min_queue_index}",
        max_index=response.max_queue_index,
        min_index=response.min_queue_index,
        filter_data=response.filter_data,
        broker=address,
        subscription=response.subscription_data and asdict(response.subscription_data),
    )
    out.line(_SEPARATOR)
    for at, unit in enumerate(response.queue_data, index):
        out.line(f"idx: {at}", index=at, **asdict(unit))
        out.line(_unit(unit))
        out.line(_SEPARATOR)


def _unit(unit: ConsumeQueueData) -> str:
    texts = (("null" if text is None else text) for text in (unit.extend_data_json, unit.bit_map, unit.msg))
    extension, bits, message = texts
    return (
        f"ConsumeQueueData{{physicOffset={unit.physic_offset}, physicSize={unit.physic_size}, tagsCode={unit.tags_code}, "
        f"extendDataJson='{extension}', bitMap='{bits}', eval={'true' if unit.eval else 'false'}, msg='{message}'}}"
    )


# ---- cleaning


async def clean_expired_cq(call: Call) -> int | None:
    """Drop consume queues whose messages have all expired."""
    return await _clean(call, call.admin.brokers.clean_queues)


async def delete_expired_commit_log(call: Call) -> int | None:
    """Delete expired commit log files now."""
    return await _clean(call, call.admin.brokers.delete_expired_log)


async def clean_unused_topic(call: Call) -> int | None:
    """Drop consume queues of topics without a configuration."""
    return await _clean(call, call.admin.brokers.clean_unused_topics)


async def _clean(call: Call, clean: Callable[[Iterable[str]], Awaitable[dict[str, SaturnError]]]) -> int | None:
    """Clean one broker, a cluster or all brokers; print one word. The word is `false` where there is no broker, as in 4.9.7."""
    options = call.options
    if "b" in options:
        addresses = [options.text("b")]
    else:
        names_by_cluster = (await call.admin.connection.cluster()).cluster_addr_table
        cluster = options.text("c")
        addresses = await call.admin.brokers.addresses(cluster) if not cluster or cluster in names_by_cluster else []
        if not addresses:
            call.out.change_line("false", end="")
            scope = f"in cluster {cluster}; the NameServer knows: {', '.join(sorted(names_by_cluster)) or 'none'}"
            call.out.problem(f"no broker {scope if cluster else 'at the NameServer'}")
            return EXIT_FAILED
    failures = await clean(addresses)
    for address in addresses:
        if address in failures:
            call.out.problem(f"{address}: {failures[address].message}")
    if not failures:
        call.out.change_line("success", end="", brokers=addresses)
    return None


# ---- clusters


async def cluster_list(call: Call) -> None:
    """Print all brokers, repeatedly with -i."""
    options = call.options
    rounds = _rounds(call, 0 if "i" in options else 1)
    interval = options.integer("i", 1)
    rounds_done = 0
    while True:
        states = await call.admin.brokers.states()
        if not call.out.as_json:
            cluster_order = {name: at for at, name in enumerate(text_order(state.cluster for state in states))}
            states.sort(key=lambda state: cluster_order[state.cluster])
        if "m" in options:
            call.out.table(_MORE_LAYOUT, _MORE_COLUMNS, map(_totals, states))
        else:
            call.out.table(_BASE_LAYOUT, _BASE_COLUMNS, [_base(state, time.time_ns() // 1_000_000) for state in states])
        for state in states:
            if state.problem:
                call.out.problem(f"{state.address}: {state.problem}")
        rounds_done += 1
        if rounds_done == rounds:
            return
        call.out.finish()
        await sleep(interval)


def _rounds(call: Call, default: int) -> int:
    """Number of repetitions; 0 without end."""
    if (rounds := call.options.integer("rounds", default)) < 0:
        raise WrongOptions(f"--rounds {rounds} must be 1 or more, or 0 for no end")
    return rounds


def _base(state: BrokerState, now_ms: int) -> tuple[Any, ...]:
    earliest = state.integer("earliestMessageTimeStamp")
    hours = (now_ms - earliest) / 3_600_000 if state.text("earliestMessageTimeStamp") not in ("", "null") else 0.0
    wait = state.text("pageCacheLockTimeMills")
    space = state.first_number("commitLogDiskRatio") or 0.0
    return (
        state.cluster,
        state.name,
        state.number,
        state.address,
        Shown(state.text("brokerVersionDesc"), state.text("brokerVersionDesc") or None),
        _rate(state, "putTps", "send"),
        _rate(state, "getTransferedTps", "pull"),
        Shown(wait, state.integer("pageCacheLockTimeMills")),
        Shown(fixed(hours, 2), round(hours, 2) if earliest > 0 else None),
        Shown(fixed(space, 4), space),
    )


def _rate(state: BrokerState, key: str, pool: str) -> Shown:
    """Messages per second with the queue of the requests: its length and the age of its head."""
    rate = state.first_number(key) or 0.0
    size, wait = f"{pool}ThreadPoolQueueSize", f"{pool}ThreadPoolQueueHeadWaitTimeMills"
    text = f"{fixed(rate, 2):>9}({state.text(size)},{state.text(wait)}ms)"
    return Shown(text, {"tps": rate, "queued": state.integer(size), "head_wait_ms": state.integer(wait)})


def _totals(state: BrokerState) -> tuple[Any, ...]:
    def between(kind: str, first: str, last: str) -> int:
        return state.integer(f"msg{kind}Total{last}") - state.integer(f"msg{kind}Total{first}")

    days = (("YesterdayMorning", "TodayMorning"), ("TodayMorning", "TodayNow"))
    return (
        state.cluster,
        state.name,
        *(between(kind, first, last) for first, last in days for kind in ("Put", "Get")),
    )


# ---- test sends


async def send_msg_status(call: Call) -> None:
    """Send messages to the topic of a broker's name and print the time and result of each."""
    options = call.options
    topic = options.text("b")
    size = _in_range(call, "s", 128, 0, BODY_BYTES_MAX)
    count = _in_range(call, "c", 50, 0, 1_000_000)
    bodies = [_jodie(_WARM_UP_BYTES), *[_jodie(size)] * count]
    first = True
    async for timed_send in call.admin.messages.timed_sends(topic, bodies, group=_STATUS_GROUP):
        if isinstance(timed_send.result, SaturnError):
            raise timed_send.result
        if not first:
            text = f"rt={timed_send.elapsed_ms}ms, SendResult={send_result(timed_send.result)}"
            call.out.line(text, rt_ms=timed_send.elapsed_ms, **_receipt(timed_send.result))
        first = False


def _jodie(size: int) -> bytes:
    return (_BODY_WORD * -(-size // len(_BODY_WORD))).encode()


def _in_range(call: Call, letter: str, default: int, low: int, high: int) -> int:
    value = call.options.integer(letter, default)
    if not low <= value <= high:
        raise WrongOptions(f"-{letter} {value} must be in {low}..{high}")
    return value


def send_result(receipt: Receipt) -> str:
    """The text of Java's SendResult."""
    queue = receipt.queue
    return (
        f"SendResult [sendStatus={receipt.status.value}, msgId={receipt.message_id}, "
        f"offsetMsgId={receipt.offset_message_id}, messageQueue=MessageQueue [topic={queue.topic}, "
        f"brokerName={queue.broker_name}, queueId={queue.queue_id}], queueOffset={receipt.offset}]"
    )


def _receipt(receipt: Receipt) -> dict[str, Any]:
    return {
        "send_status": receipt.status.value,
        "message_id": receipt.message_id,
        "offset_message_id": receipt.offset_message_id,
        "topic": receipt.queue.topic,
        "broker_name": receipt.queue.broker_name,
        "queue_id": receipt.queue.queue_id,
        "queue_offset": receipt.offset,
    }


async def cluster_rt(call: Call) -> int | None:
    """Send messages to the topics of all brokers' names and print the mean time of each, again and again."""
    options = call.options
    amount = _in_range(call, "a", 100, 1, 1_000_000)
    body = b"a" * _in_range(call, "s", 128, 1, BODY_BYTES_MAX)
    interval, rounds = _in_range(call, "i", 10, 0, 86_400), _rounds(call, 0)
    names_by_cluster = (await call.admin.connection.cluster()).cluster_addr_table
    as_log, site = options.boolean("p", False), options.text("m", "noname")
    chosen = [options.text("c")] if "c" in options else text_order(names_by_cluster)
    if not as_log:
        call.out.line(_RT_HEAD % ("#Cluster Name", "#Broker Name", "#RT", "#successCount", "#failCount"))
    rounds_done = 0
    while True:
        for cluster in chosen:
            if cluster not in names_by_cluster:
                call.out.line(f"cluster [{cluster}] not exist", end="")
                call.out.problem(
                    f"no cluster {cluster}; the NameServer knows: {', '.join(sorted(names_by_cluster)) or 'none'}"
                )
                return EXIT_FAILED
            for broker in text_order(names_by_cluster[cluster]):
                await _print_times(call, cluster, broker, body, amount, site if as_log else None)
        rounds_done += 1
        if rounds_done == rounds or call.out.dry_run:
            return None
        call.out.finish()
        await sleep(interval)


async def _print_times(call: Call, cluster: str, broker: str, body: bytes, amount: int, site: str | None) -> None:
    """Send `amount` messages and print the mean time without the first. site: of the form for logs; None for the table."""
    group = str(time.time_ns() // 1_000_000)
    sends = [timed_send async for timed_send in call.admin.messages.timed_sends(broker, [body] * amount, group=group)]
    errors = [timed_send.result for timed_send in sends if isinstance(timed_send.result, SaturnError)]
    mean = sum(timed_send.elapsed_ms for timed_send in sends[1:]) / (amount - 1) if amount > 1 else nan
    if site is None:
        row: tuple[Any, ...] = (cluster, broker, fixed(mean, 2), len(sends) - len(errors), len(errors))
        text = _RT_LAYOUT % row
    else:
        now = datetime.now(UTC).astimezone(CHINA).strftime("%Y-%m-%d %H:%M:%S")
        text = f"{now}|{site}|{cluster}|{broker}|{fixed(mean, 0)}"
    call.out.change_line(
        text,
        cluster=cluster,
        broker_name=broker,
        rt_ms=mean if amount > 1 else None,
        success_count=len(sends) - len(errors),
        fail_count=len(errors),
    )
    if errors:
        call.out.problem(f"{broker}: {errors[-1].message}")
