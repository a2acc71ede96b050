"""Commands on topics.

Where mqadmin's order is that of a Java hash table, the text has that order and JSON a sorted one.

Requirements: C-01..C-09, ADM-07.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Final

from saturnmq.admin.topics import entries_by_broker, master_of, merged_config
from saturnmq.cli.mqadmin.java_forms import address_order, compact, indented, queue_order, text_order
from saturnmq.cli.mqadmin.options import WrongOptions
from saturnmq.cli.mqadmin.output import Call, Shown, Time
from saturnmq.cli.output import EXIT_FAILED
from saturnmq.protocol.bodies import MessageQueue, TopicConfig, TopicRouteData
from saturnmq.protocol.errors import ConfigError, SaturnError

UNIT_FLAG: Final = 1
UNIT_SUBSCRIBED_FLAG: Final = 2
QUEUES_DEFAULT: Final = 8
READ_WRITE: Final = 6
STRATEGIES: Final = ("average", "circle", "hash")
_ROUTE_LAYOUT: Final = "%-45s %-32s %-50s %-10s %-11s %-5s"
_FIELDS: Final = {
    "r": "read_queue_nums",
    "w": "write_queue_nums",
    "p": "perm",
    "o": "order",
    "u": "topic_sys_flag",
    "s": "topic_sys_flag",
}


# ---- changing


async def update_topic(call: Call) -> None:
    """Create a topic on one master or on all of a cluster, or replace its configuration."""
    options, topics = call.options, call.admin.topics
    flags = UNIT_FLAG * options.boolean("u", False) | UNIT_SUBSCRIBED_FLAG * options.boolean("s", False)
    config = TopicConfig(
        options.text("t"),
        options.integer("r", QUEUES_DEFAULT),
        options.integer("w", QUEUES_DEFAULT),
        perm=options.integer("p", READ_WRITE),
        topic_sys_flag=flags,
        order=options.boolean("o", False),
    )
    if "b" in options:
        address = options.text("b")
        config = await _with_kept(call, address, config)
        await topics.update(address, config)
        if config.order and "o" in options:
            name = await call.admin.brokers.name_of(address)
            await topics.merge_order(config.topic_name, name, config.write_queue_nums)
            await topics.update(address, config)  # brokers read the order configuration when they register a topic
            text = f"set broker orderConf. isOrder=true, orderConf=[{name}:{config.write_queue_nums}]"
            call.out.change_line(text, end="")
        call.out.change_line(f"create topic to {address} success.", broker=address, **asdict(config))
        call.out.change_line(config.describe(), end="")
        return
    await _update_in_cluster(call, options.text("c"), config)


async def _update_in_cluster(call: Call, cluster: str, config: TopicConfig) -> None:
    topics = call.admin.topics
    masters = await call.admin.connection.masters(cluster)
    configs = dict[str, TopicConfig]()
    for address in address_order({name: [address] for name, address in masters.items()}):
        try:
            updated = await _with_kept(call, address, config)
            await topics.update(address, updated)
        except SaturnError as error:
            call.out.problem(f"{address}: {error.message}")
        else:
            configs[address] = updated
            call.out.change_line(f"create topic to {address} success.", broker=address, **asdict(updated))
            config = updated if len(masters) == 1 else config
    if call.out.problems:
        return
    if config.order and "o" in call.options:
        order = ";".join(f"{name}:{config.write_queue_nums}" for name in text_order(masters))
        await topics.set_order(config.topic_name, order)
        for address, updated in configs.items():
            await topics.update(address, updated)  # brokers read the order configuration when they register a topic
        call.out.change_line(f"set cluster orderConf. isOrder=true, orderConf=[{order}]", end="")
    call.out.change_line(config.describe(), end="")


async def _with_kept(call: Call, address: str, config: TopicConfig) -> TopicConfig:
    """With --keep, what is not given is that of the topic that exists."""
    if "keep" not in call.options:
        return config
    given_fields = {_FIELDS[letter] for letter in _FIELDS if letter in call.options}
    return merged_config(await call.admin.topics.configuration(address, config.topic_name), config, given_fields)


async def delete_topic(call: Call) -> None:
    """Delete a topic from the masters of a cluster, then from the NameServers; with --broker, from that master only."""
    topic, cluster, only = (call.options.text(key) for key in ("t", "c", "broker"))
    if only:
        await call.admin.topics.delete_from_brokers(topic, cluster, only)
        call.out.change_line(f"delete topic [{topic}] from broker [{only}] success.", topic=topic, broker=only)
        return
    await call.admin.topics.delete_from_brokers(topic, cluster)
    call.out.change_line(f"delete topic [{topic}] from cluster [{cluster}] success.", topic=topic, cluster=cluster)
    await call.admin.topics.delete_from_name_servers(topic, cluster)
    call.out.change_line(f"delete topic [{topic}] from NameServer success.")


async def update_topic_perm(call: Call) -> int | None:
    """Change the permission of a topic on one master or on all of a cluster; its queues stay as they are on each."""
    options, topics = call.options, call.admin.topics
    topic, perm = options.text("t"), options.integer("p", READ_WRITE)
    route = await topics.route(topic)
    if "b" in options:
        return await _perm_on_broker(call, route, topic, perm)
    if "c" not in options:
        raise WrongOptions("Missing required option: -b | -c")
    entries = entries_by_broker(route)
    masters = await call.admin.connection.masters(options.text("c"))
    names = {address: name for name, address in masters.items()}
    for address in address_order({name: [address] for name, address in masters.items()}):
        old = entries.get(names[address])
        if old is None:  # mqadmin creates the topic there, with the queues of the first entry
            old = route.queue_datas[0]
        try:
            await topics.set_permission(address, old, topic, perm)
        except SaturnError as error:
            call.out.problem(f"{address}: {error.message}")
        else:
            _changed_perm(call, address, old.perm, perm)
    return None


async def _perm_on_broker(call: Call, route: TopicRouteData, topic: str, perm: int) -> int | None:
    address = call.options.text("b")
    name = master_of(route, address)
    if name is None:
        call.out.line("updateTopicPerm error broker not exit or broker is not master!.")
        call.out.problem(f"{address} is not the address of a master that serves topic {topic}")
        return EXIT_FAILED
    old = entries_by_broker(route)[name]
    if old.perm == perm:
        call.out.line("new perm equals to the old one!", broker=address, old_perm=perm, perm=perm)
        return None
    config = await call.admin.topics.set_permission(address, old, topic, perm)
    _changed_perm(call, address, old.perm, perm)
    call.out.change_line(f"{config.describe()}.")
    return None


def _changed_perm(call: Call, address: str, old: int, perm: int) -> None:
    text = f"update topic perm from {old} to {perm} in {address} success."
    call.out.change_line(text, broker=address, old_perm=old, perm=perm)


async def update_order_conf(call: Call) -> None:
    """Print, replace or delete the order configuration of a topic."""
    topic, method, topics = call.options.text("t"), call.options.text("m"), call.admin.topics
    if method == "get":
        order = await topics.order(topic)
        text = f"get orderConf success. topic=[{topic}], orderConf=[{order}] "
        call.out.line(text, end="", topic=topic, order_conf=order)
    elif method == "put":
        order = call.options.text("v")
        if not order:
            raise ConfigError("please set orderConf with option -v.")
        await topics.set_order(topic, order)
        text = f"update orderConf success. topic=[{topic}], orderConf=[{order}]"
        call.out.change_line(text, end="", topic=topic, order_conf=order)
    elif method == "delete":
        await topics.delete_order(topic)
        call.out.change_line(f"delete orderConf success. topic=[{topic}]", end="", topic=topic)
    else:
        raise WrongOptions(f"-m {method!r:.80} must be put, get or delete")


# ---- reading


async def topic_route(call: Call) -> None:
    """Print the route of a topic as JSON, or as a list."""
    route = await call.admin.topics.route(call.options.text("t"))
    if "l" in call.options:
        _route_list(call, route)
    else:
        document = route.to_json()
        for broker in document["brokerDatas"]:
            broker["brokerAddrs"] = {int(number): address for number, address in broker["brokerAddrs"].items()}
        call.out.block(indented(document), **asdict(route))


def _route_list(call: Call, route: TopicRouteData) -> None:
    entries = entries_by_broker(route)
    rows = []
    for broker in sorted(route.broker_datas, key=lambda data: data.broker_name):
        entry = entries.get(broker.broker_name)
        if entry is None:
            continue
        addresses = ", ".join(f"{number}={address}" for number, address in sorted(broker.broker_addrs.items()))
        rows.append(
            (
                broker.cluster,
                broker.broker_name,
                Shown(f"{{{addresses}}}", {str(number): address for number, address in broker.broker_addrs.items()}),
                entry.read_queue_nums,
                entry.write_queue_nums,
                entry.perm,
            )
        )
    columns = (
        ("#ClusterName", "cluster"),
        ("#BrokerName", "broker_name"),
        ("#BrokerAddrs", "broker_addrs"),
        ("#ReadQueue", "read_queues"),
        ("#WriteQueue", "write_queues"),
        ("#Perm", "perm"),
    )
    call.out.table(_ROUTE_LAYOUT, columns, rows)
    reads, writes = sum(row[3] for row in rows), sum(row[4] for row in rows)
    call.out.line("-" * 158)
    total = _ROUTE_LAYOUT % ("Total:", len(entries), "", reads, writes, "")
    call.out.summary(total, brokers=len(entries), read_queues=reads, write_queues=writes)


async def topic_status(call: Call) -> int | None:
    """Print the offsets of the queues of a topic."""
    topic = call.options.text("t")
    statistics = await call.admin.topics.statistics(topic)
    for address, error in statistics.failures.items():
        call.out.problem(f"{address}: {error.message}")
    if not statistics.offsets and statistics.failures:
        return EXIT_FAILED
    if not statistics.offsets:
        error = ConfigError(f"Not found the topic stats info: no broker knows a queue of topic {topic}")
        error.hint = f"See which brokers should: saturnmq admin topicRoute -t {topic} -l"
        raise error
    columns = (
        ("#Broker Name", "broker_name"),
        ("#QID", "queue_id"),
        ("#Min Offset", "min_offset"),
        ("#Max Offset", "max_offset"),
        ("#Last Updated", "last_updated"),
    )
    rows = (
        (
            Shown(queue.broker_name[:32], queue.broker_name),
            queue.queue_id,
            offsets.min_offset,
            offsets.max_offset,
            Time(offsets.last_update_timestamp),
        )
        for queue, offsets in statistics.offsets.items()
    )
    call.out.table("%-32s  %-4s  %-20s  %-20s    %s", columns, rows)
    return None


async def topic_cluster_list(call: Call) -> None:
    """Print the clusters of a topic."""
    for name in await call.admin.topics.clusters(call.options.text("t")):
        call.out.line(name, cluster=name)


async def topic_list(call: Call) -> None:
    """Print the names of all topics; with -c their clusters and groups too."""
    order: Callable[[list[str]], list[str]] = sorted if call.out.as_json else text_order
    if "c" not in call.options:
        for name in order(await call.admin.topics.names()):
            call.out.line(name, topic=name)
        return
    columns = (("#Cluster Name", "cluster"), ("#Topic", "topic"), ("#Consumer Group", "group"))
    uses = {use.topic: use for use in await call.admin.topics.uses()}
    rows = (
        (
            Shown("null" if use.cluster is None else use.cluster[:20], use.cluster),
            Shown(name[:64], name),
            Shown(group[:64], group or None),
        )
        for name, use in ((name, uses[name]) for name in order(list(uses)))
        for group in use.groups or ("",)
    )
    call.out.table("%-20s  %-64s  %-64s", columns, rows, head="%-20s  %-48s  %-48s")


async def allocate_mq(call: Call) -> None:
    """Print how consumers with these addresses divide the queues of a topic.

    4.9.7 divides them in the order of a hash table, which clients do not; --strategy prints what clients compute.
    """
    queues = await call.admin.topics.readable_queues(call.options.text("t"))
    if not queues:
        raise ConfigError(f"topic {call.options.text('t')} has no queue that can be read")
    addresses = [address for address in call.options.text("i").split(",") if address]
    members = list(dict.fromkeys(addresses))
    strategy = call.options.text("strategy")
    if strategy:
        shares = _shares_of_clients(strategy, queues, members)
    else:
        shares = {member: _average(queue_order(queues), addresses, member) for member in text_order(members)}
    for member, share in shares.items() if call.out.as_json else ():
        call.out.line(member=member, queues=[asdict(queue) for queue in share])
    parts = (
        f"{compact(member)}:[{','.join(compact(dict(sorted(queue.to_json().items()))) for queue in share)}]"
        for member, share in shares.items()
    )
    call.out.line(f'{{"result":{{{",".join(parts)}}}}}')


def _shares_of_clients(strategy: str, queues: list[MessageQueue], members: list[str]) -> dict[str, list[MessageQueue]]:
    from saturnmq.client.consumer.rebalance_strategies import average, average_by_circle, consistent_hash

    if strategy not in STRATEGIES:
        raise WrongOptions(f"--strategy {strategy!r:.80} must be one of: {', '.join(STRATEGIES)}")
    allocate = {"average": average, "circle": average_by_circle, "hash": consistent_hash()}[strategy]
    return {member: allocate(queues, members, member) for member in members}


def _average(queues: list[MessageQueue], members: list[str], me: str) -> list[MessageQueue]:
    """A contiguous block of the queues, which are not sorted again, nor are the members."""
    at, (size, remainder) = members.index(me), divmod(len(queues), len(members))
    start = at * size + min(at, remainder)
    return queues[start : start + size + (1 if at < remainder else 0)]
