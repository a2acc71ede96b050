"""Registers a broker with every NameServer: at start, every 30 s, on reconnection, and when a topic changes.

There are two kinds of registration. A full one has all topics and goes to all NameServers: periodically, after a topic was
deleted, and for NameServers that miss something. An incremental one has only the topics set since the last one; it is sent at
once, one at a time, to the NameServers that have all other topics (`_current`), over the connection that they have them from.
So a thousand new topics cost a thousand small requests.

Every registration carries the version of the whole table, and a NameServer ignores another registration with the same
version. Therefore a NameServer that did not answer an incremental one gets a full one next.

An answer has the ordered topics as they were when the NameServer answered. Answers may come late, for instance while another
NameServer is waited for. So the order flag of a topic comes from the registration that was sent last among those answered.

A NameServer that was restarted has no routes. Therefore each one is reconnected to as soon as its connection is lost, by a task
of its own with back-off and jitter, and gets a full registration.

Requirements: NS-32..NS-36.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from saturnmq.broker.services.address_server import LookupFailed, look_up
from saturnmq.broker.settings import BrokerSettings
from saturnmq.broker.state.topics import Topics
from saturnmq.net import NetSettings, RemotingClient, TlsSettings
from saturnmq.net.client import split_addresses
from saturnmq.net.reconnection import Losses, chance, reconnect_seconds
from saturnmq.net.signer import Signer
from saturnmq.protocol.bodies import ClusterInfo, KVTable, RegisterBrokerBody, TopicConfig, TopicConfigTable
from saturnmq.protocol.codes import COMPLETE_FIELD, RequestCode, ResponseCode
from saturnmq.protocol.crc import crc32
from saturnmq.protocol.errors import SaturnError, response_error
from saturnmq.protocol.frames.command import Command
from saturnmq.protocol.headers import messaging as h
from saturnmq.tasks import cancel, one_round, supervised

log = logging.getLogger(__name__)

UNREGISTER_TIMEOUT_MS: Final = 3000
LOOK_UP_SECONDS: Final = 120
CHANGES_WAIT_MS: Final = 2000  # less than clients' usual timeout of an admin request
FULL_PAUSE_FACTOR: Final = 10  # pause after a full registration, as a multiple of its duration
FULL_PAUSE_SECONDS_MAX: Final = 10


class Registrar:
    """Registers one broker with all its NameServers in parallel; a failing one does not affect the others."""

    def __init__(
        self,
        settings: BrokerSettings,
        net: NetSettings,
        topics: Topics,
        *,
        address: Callable[[], str],
        ha_address: Callable[[], str],
        tls: TlsSettings | None = None,
        broker_id: Callable[[], int] | None = None,
    ) -> None:
        """broker_id: the current id; below 0 the broker is not registered yet (DL-X19)."""
        self._settings = settings
        self._topics = topics
        self._address = address
        self._ha_address = ha_address
        self._client = RemotingClient(settings=net, tls=tls, listener=Losses(self._reconnect_missing))
        self._task: asyncio.Task[None] | None = None
        self._reconnecting: dict[str, asyncio.Task[None]] = {}  # by address of the NameServer
        self._failed: set[str] = set()  # NameServers that failed the last request
        self._full_event: asyncio.Event = asyncio.Event()  # a full registration is due
        self._full_done = asyncio.Event()  # none is due that `require_full` asked for
        self._full_done.set()
        self._changes_event: asyncio.Event = asyncio.Event()  # _changed is not empty
        self._changed: dict[str, None] = {}  # topics set since the last incremental registration; an ordered set
        self._registered_event: asyncio.Event = asyncio.Event()  # set when the topics in _changed are registered
        self._registering_event: asyncio.Event | None = None  # set when those being registered now are
        self._current: set[str] = set()  # NameServers that have everything except _changed
        self._losses = 0  # incremented when _current is cleared
        self._registered_as = -1  # broker id of the last incremental registration
        self._requests = itertools.count(1)  # numbers of registrations, in the order in which they are sent
        self._flags_of = 0  # number of the full registration that set the order flags
        self._flags_after: dict[str, int] = {}  # as _flags_of, by topic, of incremental ones sent after it
        self._looked_up: list[str] = []
        self._in_use: list[str] = []  # the list of NameServers when it was last compared
        self._leaving: dict[str, asyncio.Task[None]] = {}  # by address of a NameServer that was removed from the list
        self._look_up_task: asyncio.Task[None] | None = None
        self._broker_id = broker_id or (lambda: settings.broker_id)
        self.master_address = ""  # as last reported to a slave by the NameServers
        self.ha_server_address = ""  # the master's HA port, kept while the NameServers know no master
        self.registered = 0  # rounds answered by at least one NameServer

    @property
    def name_servers(self) -> list[str]:
        """Addresses of `namesrvAddr`, or without it the last list from the address server."""
        return split_addresses(self._settings.namesrv_addr) or self._looked_up

    async def start(self) -> None:
        """Register once, then start the background tasks."""
        # Only without namesrvAddr: a configured list is never replaced.
        if self._settings.fetch_name_servers and not self.name_servers:
            await self.look_up()
            self._look_up_task = supervised(self._look_up_again(), "name server look-ups")
        self._in_use = self.name_servers
        self._registered_as = self._broker_id()
        # Before the background tasks: clients find the broker as soon as it is started.
        await self.register()
        self._task = supervised(self._run(), "registration")
        self._reconnect_missing()

    async def stop(self) -> None:
        """Unregister from all NameServers, so that clients are not routed here any more (NS-18)."""
        await cancel(self._look_up_task)
        self._look_up_task = None
        if self._task is not None:
            task, self._task = self._task, None
            await cancel(task, *self._reconnecting.values())
            # Administrative requests that wait for the registration must not wait for a stopped broker.
            self._registered_event.set()
            await asyncio.gather(*self._leaving.values(), self._request_all(self._unregister, UNREGISTER_TIMEOUT_MS))
        await self._client.close()

    def _unregister(self) -> Command:
        header = h.UnregisterBroker(
            broker_name=self._settings.broker_name,
            broker_addr=self._address(),
            cluster_name=self._settings.cluster_name,
            broker_id=self._broker_id(),
        )
        return Command(RequestCode.UNREGISTER_BROKER, ext=header.to_ext())

    @property
    def ports(self) -> set[int]:
        """Local ports of the connections to NameServers."""
        return self._client.ports

    async def abort(self) -> None:
        """Stop without unregistering."""
        tasks = self._task, self._look_up_task, *self._reconnecting.values(), *self._leaving.values()
        self._task = self._look_up_task = None
        await cancel(*tasks)
        await self._client.close()

    async def look_up(self) -> None:
        """Query the address server for the NameServers; on failure the known ones are kept (NS-36)."""
        try:
            addresses = await look_up(*self._settings.address_server)
        # The list that is in use stays.
        except LookupFailed as error:
            log.warning("name server lookup failed error=%s", error)
            return
        self._looked_up = addresses
        self.addresses_changed()

    def addresses_changed(self) -> None:
        """Register with NameServers that are new in the list, and unregister from those that are no longer in it (NS-36)."""
        before, self._in_use = self._in_use, self.name_servers
        # Not before `start` and not after `stop`.
        if self._task is None or set(before) == set(self._in_use):
            return
        log.info("name servers changed addresses=%s before=%s", ",".join(self._in_use), ",".join(before))
        for address in set(before).difference(self._in_use, self._leaving):
            self._leaving[address] = supervised(self._leave(address), f"removal from {address}")
        self._reconnect_missing()
        self._full_event.set()

    async def _leave(self, address: str) -> None:
        """Unregister from a NameServer that was removed from the list; one that does not answer expires the broker by itself."""
        if self._broker_id() >= 0:
            await self._request(address, self._unregister(), UNREGISTER_TIMEOUT_MS)
        self._current.discard(address)
        self._failed.discard(address)
        # Before the check below: the address may be back in the list.
        del self._leaving[address]
        if address in self.name_servers:  # again
            self.require_full()
            return
        self._client.drop(address, "the NameServer was removed from the list of addresses")

    async def _look_up_again(self) -> None:
        while True:
            await asyncio.sleep(LOOK_UP_SECONDS)
            await one_round("name server look-ups", self.look_up)

    def topics_changed(self, topics: list[TopicConfig]) -> None:
        """Register changed topics soon, not only at the next period (NS-34)."""
        for config in topics:
            if self._topics.get(config.topic_name) is None:
                self.require_full()  # only a full registration conveys a deletion
            else:
                self._changed[config.topic_name] = None
        if self._changed:
            self._changes_event.set()

    def require_full(self) -> None:
        """Require a full registration of all NameServers.

        No incremental one is sent before it: the NameServers would then ignore the full one, which has the same version.
        """
        self._losses += 1
        self._current.clear()
        self._full_done.clear()
        self._full_event.set()

    async def wait_registered(self) -> None:
        """Wait until the NameServers have all topics set so far, at most CHANGES_WAIT_MS (NS-34).

        NameServers that failed the last registration are not waited for. What was set after a deletion is part of the full
        registration that conveys the deletion.
        """
        # The registration that has these topics: the next one, or the one that is under way.
        event = self._registered_event if self._changed else self._registering_event
        if self._task is None:
            return
        # NameServers that do not answer must not block administrators: the periodic registration repeats it.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(min(self._settings.register_timeout_ms, CHANGES_WAIT_MS) / 1000):
                if event is not None:
                    await event.wait()
                await self._full_done.wait()

    async def _run_changes(self) -> None:
        while True:
            await self._changes_event.wait()
            self._changes_event.clear()
            # Taken before the request: what changes meanwhile is the next registration.
            names, self._changed = list(self._changed), {}
            self._registering_event, self._registered_event = self._registered_event, asyncio.Event()
            try:
                await self._register_changes(names)
            except Exception:
                self._full_event.set()
                log.exception("registration of changed topics failed, full registration scheduled")
            finally:
                self._registering_event.set()
                self._registering_event = None

    async def _register_changes(self, names: list[str]) -> None:
        """Register these topics with the NameServers that have all others; the remaining ones get a full registration later."""
        broker_id = self._broker_id()
        if broker_id < 0:
            return
        # A NameServer with this version may have it from another member, with fewer topics.
        if broker_id != self._registered_as:
            self._registered_as = broker_id
            self.require_full()
        addresses = self.name_servers
        ready = [address for address in addresses if address in self._current]
        # Some NameServer misses more than these topics.
        if len(ready) < len(addresses):
            self._full_event.set()
        table = self._topics.registered(names)
        if ready and table.topic_config_table:
            number = next(self._requests)
            answers = await self._register_with(ready, table, complete=False)
            if None in answers:
                self._full_event.set()
            orders = _orders(answers)
            # An answer that was sent before a newer one must not set old flags.
            if orders is not None and number > self._flags_of:
                self._topics.set_order_topics(orders, table.topic_config_table)
                self._flags_after.update(dict.fromkeys(table.topic_config_table, number))

    async def _register_with(
        self, addresses: Sequence[str], table: TopicConfigTable, *, complete: bool
    ) -> list[Command | None]:
        """Responses in order of addresses; None where it failed, and that NameServer is then not current any more."""
        timeout_ms, losses = self._settings.register_timeout_ms, self._losses
        answers = await asyncio.gather(
            *(
                self._request(address, self._command(table, complete=complete), timeout_ms, connect=complete)
                for address in addresses
            )
        )
        for address, answer in zip(addresses, answers, strict=True):
            if answer is None:
                self._current.discard(address)
                continue
            # Cleared in between: what this answer confirms may be outdated.
            if complete and losses == self._losses:
                self._current.add(address)
            log.info("registered address=%s topics=%s complete=%s", address, len(table.topic_config_table), complete)
        return answers

    def _reconnect_missing(self) -> None:
        """Start a reconnection to each NameServer without a connection, unless one is in progress."""
        if self._task is None:
            return
        for address in self.name_servers:
            if address not in self._reconnecting and not self._client.is_connected(address):
                self._current.discard(address)
                self._reconnecting[address] = supervised(self._reconnect(address), f"reconnection to {address}")

    async def _reconnect(self, address: str) -> None:
        """Register with one NameServer until it is connected again, with back-off and jitter between the attempts."""
        try:
            for attempt in itertools.count(1):
                # Before the first attempt too: all brokers lose a restarted NameServer at the same time.
                await asyncio.sleep(reconnect_seconds(attempt, chance()))
                if address not in self.name_servers:
                    return
                if self._client.is_connected(address) and address in self._current:
                    return  # by a periodic registration meanwhile
                if self._broker_id() < 0:
                    # A member without an id waits for its role.
                    continue
                try:
                    await self._client.connect(address, self._settings.register_timeout_ms)
                except SaturnError as error:
                    self._note_failure(address, RequestCode.REGISTER_BROKER, error)
                    continue
                await self._register_with([address], self._topics.registered(), complete=True)
                if self._client.is_connected(address):
                    return  # it has the registration, or has rejected it, which only the next period may change
        finally:
            del self._reconnecting[address]

    async def _run(self) -> None:
        await asyncio.gather(self._run_full(), self._run_changes())

    async def _run_full(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._settings.register_seconds):
                    await self._full_event.wait()
            self._full_event.clear()
            began = loop.time()
            try:
                await self.register()
            except Exception:
                log.exception("registration failed retry_s=%s", self._settings.register_seconds)
            # Another full one is due already.
            if not self._full_event.is_set():
                self._full_done.set()
            # Its cost grows with the number of topics: a tenth of the time goes into it, more only if one takes over a second.
            await asyncio.sleep(min(FULL_PAUSE_FACTOR * (loop.time() - began), FULL_PAUSE_SECONDS_MAX))

    async def register(self, *, force: bool = False) -> bool:
        """Send one full registration; without forceRegister only if a NameServer has another version or fails (NS-33).

        Returns whether a NameServer accepted it, or there was nothing to send.
        """
        if self._broker_id() < 0 or not self.name_servers:
            return True
        # A small request instead of the whole table.
        if not force and not self._settings.force_register and not await self._any_differs():
            return True
        number = next(self._requests)
        answers = await self._register_with(self.name_servers, self._topics.registered(), complete=True)
        if not any(answers):
            log.warning("registered with no name server addresses=%s", self.name_servers)
            return False
        self.registered += 1
        # Empty if no NameServer names one: a slave then has no master.
        self.master_address = next((a.ext["masterAddr"] for a in answers if a and a.ext.get("masterAddr")), "")
        ha_servers = (answer.ext.get("haServerAddr") for answer in answers if answer)
        # Kept: a slave goes on copying while no NameServer has a master.
        self.ha_server_address = next(filter(None, ha_servers), self.ha_server_address)
        orders = _orders(answers)
        if orders is not None and number > self._flags_of:
            self._flags_of = number
            self._flags_after = {topic: at for topic, at in self._flags_after.items() if at > number}
            # Topics whose flag a later registration has set keep it.
            self._topics.set_order_topics(orders, self._topics.table.keys() - self._flags_after.keys())
        return True

    async def siblings(self, timeout_ms: int) -> list[str]:
        """Addresses of the other brokers of this name.

        All NameServers are queried in parallel; the first response counts.
        """
        requests = [
            asyncio.get_running_loop().create_task(
                self._request(address, Command(RequestCode.GET_BROKER_CLUSTER_INFO), timeout_ms)
            )
            for address in self.name_servers
        ]
        try:
            for answered in asyncio.as_completed(requests):
                answer = await answered
                if answer is not None:
                    table = ClusterInfo.decode(answer.body).broker_addr_table
                    name = self._settings.broker_name
                    broker_addresses = table[name].broker_addrs if name in table else {}
                    return sorted(set(broker_addresses.values()) - {self._address()})
        finally:
            await cancel(*requests)
        return []

    def _command(self, table: TopicConfigTable, *, complete: bool) -> Command:
        body = RegisterBrokerBody(table, [])
        compressed = self._settings.compressed_register
        data = body.encode_compressed() if compressed else body.encode()
        header = h.RegisterBroker(
            broker_name=self._settings.broker_name,
            broker_addr=self._address(),
            cluster_name=self._settings.cluster_name,
            ha_server_addr=self._ha_address(),
            broker_id=self._broker_id(),
            compressed=compressed,
            # As Java's UtilAll.crc32: without the sign bit.
            body_crc32=crc32(data) & 0x7FFFFFFF,
        )
        ext = header.to_ext() | ({COMPLETE_FIELD: "true"} if complete else {})
        return Command(RequestCode.REGISTER_BROKER, ext=ext, body=data)

    async def _any_differs(self) -> bool:
        header = h.QueryDataVersion(
            broker_name=self._settings.broker_name,
            broker_addr=self._address(),
            cluster_name=self._settings.cluster_name,
            broker_id=self._broker_id(),
        )
        version = self._topics.version.encode()
        addresses, losses = self.name_servers, self._losses
        answers = await self._request_all(
            lambda: Command(RequestCode.QUERY_DATA_VERSION, ext=header.to_ext(), body=version),
            self._settings.register_timeout_ms,
        )
        same = [answer is not None and answer.ext.get("changed") == "false" for answer in answers]
        # If it was cleared meanwhile, these answers may be outdated.
        if losses == self._losses:
            self._current.update(address for address, unchanged in zip(addresses, same, strict=True) if unchanged)
        return not all(same)

    async def _request_all(self, command: Callable[[], Command], timeout_ms: int) -> list[Command | None]:
        """Responses of all NameServers, queried in parallel; None where it failed."""
        return await asyncio.gather(*(self._request(address, command(), timeout_ms) for address in self.name_servers))

    def _sign(self, command: Command) -> None:
        """Sign a request for NameServers with namesrvAccess=signed, if this broker has an account for them."""
        settings = self._settings
        if settings.namesrv_access_key:
            Signer(settings.namesrv_access_key, settings.namesrv_secret_key, version="v2").sign(command)

    async def _request(
        self, address: str, command: Command, timeout_ms: int, *, connect: bool = True
    ) -> Command | None:
        """Send one request; None and a log line if it fails.

        connect=False: only over an open connection, as a NameServer that was restarted may have fewer topics.
        """
        self._sign(command)
        try:
            pending_answer = None if connect else self._client.ask(address, command, timeout_ms)
            if pending_answer is None and not connect:
                return None
            answer = await (
                pending_answer if pending_answer is not None else self._client.invoke(address, command, timeout_ms)
            )
            if answer.code != ResponseCode.SUCCESS:
                raise response_error(answer.code, answer.remark, broker=address)
        except (SaturnError, OSError) as error:
            self._note_failure(address, command.code, error)
            self._reconnect_missing()
            return None
        if address in self._failed:
            self._failed.discard(address)
            log.info("name server answers again address=%s code=%s", address, command.code)
        log.debug("name server answered address=%s code=%s", address, command.code)
        return answer

    def _note_failure(self, address: str, code: int, error: Exception) -> None:
        """Log a failure, at WARNING only if the request before did not fail."""
        level = logging.DEBUG if address in self._failed else logging.WARNING
        log.log(level, "name server failed address=%s code=%s error=%s", address, code, error)
        self._failed.add(address)


def _orders(answers: Iterable[Command | None]) -> dict[str, str] | None:
    """Ordered topics in the first NameServer's response; None if it has none, or they cannot be parsed (NS-32)."""
    # The first answer; NameServers of one cluster have the same ordered topics.
    answer = next(filter(None, answers), None)
    if answer is None or not answer.body:
        return None
    try:
        return KVTable.decode(answer.body).table
    except SaturnError as error:
        log.warning("ordered topics not applied error=%s", error)
        return None
