"""Administration without `await`, for threads and scripts: the same names and signatures as in `saturnmq.admin`.

Example:
    from saturnmq.admin.sync import Admin

    with Admin("127.0.0.1:9876") as admin:
        print(admin.topics.names())

Calls run on the event loop thread of `saturnmq.sync` and block until they are done.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Generic, Self, TypeVar

from saturnmq.admin import (
    accounts,
    admin,
    brokers,
    clients,
    dead_letters,
    export,
    groups,
    messages,
    name_servers,
    offsets,
    statistics,
    topics,
    traces,
    waiting,
)
from saturnmq.admin.connection import TIMEOUT_MS
from saturnmq.admin.credentials import AdminAccess
from saturnmq.client.sync.facade import blocking, iterating

A = TypeVar("A")


class _Family(Generic[A]):
    def __init__(self, inner: A) -> None:
        self._inner = inner


class Topics(_Family[topics.Topics]):
    """saturnmq.admin.topics.Topics without `await`."""

    names = blocking(topics.Topics.names)
    route = blocking(topics.Topics.route)
    readable_queues = blocking(topics.Topics.readable_queues)
    clusters = blocking(topics.Topics.clusters)
    uses = blocking(topics.Topics.uses)
    groups = blocking(topics.Topics.groups)
    statistics = blocking(topics.Topics.statistics)
    configuration = blocking(topics.Topics.configuration)
    update = blocking(topics.Topics.update)
    set_permission = blocking(topics.Topics.set_permission)
    delete_from_brokers = blocking(topics.Topics.delete_from_brokers)
    delete_from_name_servers = blocking(topics.Topics.delete_from_name_servers)
    order = blocking(topics.Topics.order)
    set_order = blocking(topics.Topics.set_order)
    merge_order = blocking(topics.Topics.merge_order)
    delete_order = blocking(topics.Topics.delete_order)


class Groups(_Family[groups.Groups]):
    """saturnmq.admin.groups.Groups without `await`."""

    put = blocking(groups.Groups.put)
    delete = blocking(groups.Groups.delete)
    all_on = blocking(groups.Groups.all_on)
    configurations = blocking(groups.Groups.configurations)
    progress = blocking(groups.Groups.progress)
    names = blocking(groups.Groups.names)
    summaries = blocking(groups.Groups.summaries)


class Brokers(_Family[brokers.Brokers]):
    """saturnmq.admin.brokers.Brokers without `await`."""

    configuration = blocking(brokers.Brokers.configuration)
    update_configuration = blocking(brokers.Brokers.update_configuration)
    groups = blocking(brokers.Brokers.groups)
    name_of = blocking(brokers.Brokers.name_of)
    runtime = blocking(brokers.Brokers.runtime)
    states = blocking(brokers.Brokers.states)
    dead = blocking(brokers.Brokers.dead)
    consume_statistics = blocking(brokers.Brokers.consume_statistics)
    consume_queue = blocking(brokers.Brokers.consume_queue)
    addresses = blocking(brokers.Brokers.addresses)
    clean_queues = blocking(brokers.Brokers.clean_queues)
    delete_expired_log = blocking(brokers.Brokers.delete_expired_log)
    clean_unused_topics = blocking(brokers.Brokers.clean_unused_topics)


class NameServers(_Family[name_servers.NameServers]):
    """saturnmq.admin.name_servers.NameServers without `await`."""

    configuration = blocking(name_servers.NameServers.configuration)
    update_configuration = blocking(name_servers.NameServers.update_configuration)
    broker_count = blocking(name_servers.NameServers.broker_count)
    value = blocking(name_servers.NameServers.value)
    set_value = blocking(name_servers.NameServers.set_value)
    delete_value = blocking(name_servers.NameServers.delete_value)
    wipe_write_permission = blocking(name_servers.NameServers.wipe_write_permission)
    add_write_permission = blocking(name_servers.NameServers.add_write_permission)


class Messages(_Family[messages.Messages]):
    """saturnmq.admin.messages.Messages without `await`."""

    by_offset_id = blocking(messages.Messages.by_offset_id)
    by_key = blocking(messages.Messages.by_key)
    by_unique_id = blocking(messages.Messages.by_unique_id)
    view = blocking(messages.Messages.view)
    by_queue_offset = blocking(messages.Messages.by_queue_offset)
    trace = blocking(messages.Messages.trace)
    tracks = blocking(messages.Messages.tracks)
    consume_directly = blocking(messages.Messages.consume_directly)
    send = blocking(messages.Messages.send)
    send_again = blocking(messages.Messages.send_again)


class DeadLetters(_Family[dead_letters.DeadLetters]):
    """saturnmq.admin.dead_letters.DeadLetters without `await`."""

    listing = blocking(dead_letters.DeadLetters.listing)
    all_of = iterating(dead_letters.DeadLetters.all_of)
    at = blocking(dead_letters.DeadLetters.at)
    resend = blocking(dead_letters.DeadLetters.resend)


class Traces(_Family[traces.Traces]):
    """saturnmq.admin.traces.Traces without `await`."""

    find = blocking(traces.Traces.find)


class WaitingMessages(_Family[waiting.WaitingMessages]):
    """saturnmq.admin.waiting.WaitingMessages without `await`."""

    transactions = blocking(waiting.WaitingMessages.transactions)
    delays = blocking(waiting.WaitingMessages.delays)
    timed = blocking(waiting.WaitingMessages.timed)


class Offsets(_Family[offsets.Offsets]):
    """saturnmq.admin.offsets.Offsets without `await`."""

    reset = blocking(offsets.Offsets.reset)
    reset_online = blocking(offsets.Offsets.reset_online)
    reset_offline = blocking(offsets.Offsets.reset_offline)
    positions = blocking(offsets.Offsets.positions)
    set = blocking(offsets.Offsets.set)
    clone = blocking(offsets.Offsets.clone)
    of_clients = blocking(offsets.Offsets.of_clients)


class Clients(_Family[clients.Clients]):
    """saturnmq.admin.clients.Clients without `await`."""

    consumers = blocking(clients.Clients.consumers)
    producers = blocking(clients.Clients.producers)
    all_producers = blocking(clients.Clients.all_producers)
    running_info = blocking(clients.Clients.running_info)
    owners = blocking(clients.Clients.owners)


class Statistics(_Family[statistics.Statistics]):
    """saturnmq.admin.statistics.Statistics without `await`."""

    broker = blocking(statistics.Statistics.broker)
    topic = blocking(statistics.Statistics.topic)


class Accounts(_Family[accounts.Accounts]):
    """saturnmq.admin.accounts.Accounts without `await`."""

    put = blocking(accounts.Accounts.put)
    delete = blocking(accounts.Accounts.delete)
    set_white_addresses = blocking(accounts.Accounts.set_white_addresses)
    versions = blocking(accounts.Accounts.versions)
    listing = blocking(accounts.Accounts.listing)


class Export(_Family[export.Export]):
    """saturnmq.admin.export.Export without `await`."""

    topics = blocking(export.Export.topics)
    groups = blocking(export.Export.groups)
    metadata = blocking(export.Export.metadata)
    settings = blocking(export.Export.settings)
    metrics = blocking(export.Export.metrics)


class Admin:
    """saturnmq.admin.Admin without `await`.

    Example:
        with Admin("127.0.0.1:9876") as admin:
            print(admin.topics.names())
    """

    def __init__(
        self,
        name_servers: str | Sequence[str],
        *,
        access: AdminAccess | None = None,
        timeout_ms: int = TIMEOUT_MS,
        vip_channel: bool = False,
        dry_run: Callable[[str], None] | None = None,
    ) -> None:
        self._inner = admin.Admin(
            name_servers, access=access, timeout_ms=timeout_ms, vip_channel=vip_channel, dry_run=dry_run
        )
        self.topics = Topics(self._inner.topics)
        self.groups = Groups(self._inner.groups)
        self.brokers = Brokers(self._inner.brokers)
        self.name_servers = NameServers(self._inner.name_servers)
        self.messages = Messages(self._inner.messages)
        self.dead_letters = DeadLetters(self._inner.dead_letters)
        self.traces = Traces(self._inner.traces)
        self.waiting = WaitingMessages(self._inner.waiting)
        self.offsets = Offsets(self._inner.offsets)
        self.clients = Clients(self._inner.clients)
        self.statistics = Statistics(self._inner.statistics)
        self.accounts = Accounts(self._inner.accounts)
        self.export = Export(self._inner.export)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    close = blocking(admin.Admin.close)
