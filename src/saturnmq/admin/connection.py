"""Requests of an administrator to NameServers and brokers: which server is asked, how long, and what a refusal becomes.

Every operation of `saturnmq.admin` sends through here: `read` asks, `change` alters, and with dry_run a change is reported, not
sent.

Requirements: ADM-03, ADM-07, ADM-09, ADM-10.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final, TypedDict, TypeVar, Unpack

from saturnmq.admin.credentials import AdminAccess
from saturnmq.client.connection.routes import check_route
from saturnmq.client.connection.url import parse_addresses
from saturnmq.client.hints import unreachable_name_servers
from saturnmq.errors import CallTimeout, ConnectFailed, NoNameServer
from saturnmq.net import NetSettings, RemotingClient
from saturnmq.protocol.addresses import vip_address
from saturnmq.protocol.bodies import BrokerData, ClusterInfo, TopicRouteData
from saturnmq.protocol.codes import Language, RequestCode, ResponseCode
from saturnmq.protocol.errors import ConfigError, SaturnError, response_error
from saturnmq.protocol.frames.command import Command
from saturnmq.protocol.headers.fields import SECRET_FIELDS, Header
from saturnmq.protocol.headers.messaging import (
    DeleteKVConfig,
    GetKVConfig,
    GetKVConfigResponse,
    GetRouteInfo,
    PutKVConfig,
)

if TYPE_CHECKING:
    from saturnmq.client.client import Client

R = TypeVar("R")
TIMEOUT_MS: Final = 5000
LISTING_SECONDS: Final = 2.0
UNANSWERED_MAX: Final = 1000
SILENT_SECONDS: Final = 30.0
CONCURRENT_MAX: Final = 16
MASTER_ID: Final = 0
UNKNOWN_CLUSTER: Final = (
    "[error] Make sure the specified clusterName exists or the name server connected to is correct."
)


class UnknownCluster(ConfigError):
    """A cluster that the NameServer does not know. The error names those that it knows."""

    def __init__(self, cluster: str, cluster_names: Iterable[str]) -> None:
        names = ", ".join(sorted(cluster_names)) or "none"
        super().__init__(f"no cluster {cluster!r:.200} at the NameServer; it knows: {names:.1000}")
        self.hint = "List all brokers: saturnmq admin clusterList"


class RequestOptions(TypedDict, total=False):
    """Options of `AdminConnection.read` that a change has as well."""

    timeout_ms: int | None
    main_port: bool
    language: Language


class AdminConnection:
    """Connections to the NameServers and brokers of one cluster.

    dry_run: called with a line per change that would be sent; the change is answered with success and not sent.
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
        self.name_servers: tuple[str, ...] = tuple(parse_addresses(name_servers))
        self.access = access or AdminAccess()
        self._signer = self.access.signer
        self.timeout_ms = timeout_ms
        self.vip_channel = vip_channel
        # Brokers that did not answer a request, by address, with the last error; a command reports them.
        self.unanswered: dict[str, SaturnError] = {}
        self._silent: dict[str, tuple[float, SaturnError]] = {}  # as above, with the time, until it answers any request
        self._dry_run = dry_run
        self._client: RemotingClient | None = None
        self._messaging: Client | None = None

    @property
    def client(self) -> RemotingClient:
        """The transport; it is made at the first use, on the running event loop."""
        if self._client is None:
            self._client = RemotingClient(settings=NetSettings(), tls=self.access.tls_settings)
        return self._client

    async def messaging(self) -> Client:
        """A client that sends, pulls and queries messages with the same access; it is started at the first use."""
        if self._messaging is None:
            from saturnmq.client.client import Client

            self._messaging = Client(
                name_servers=self.name_servers,
                timeout=self.timeout_ms / 1000,
                api_timeout_ms=self.timeout_ms,
                vip_channel=self.vip_channel,
                **self.access.access_settings,
            )
            await self._messaging.start()
        return self._messaging

    async def switch(self, name_servers: str | Sequence[str], *, vip_channel: bool, tls: bool | None = None) -> None:
        """Use other NameServers, this VIP channel setting and TLS or none from now on, as if constructed with them.

        tls: None keeps it. Raises ConfigError for bad addresses, NoNameServer if none of them answers; then nothing is changed.
        """
        before = self.name_servers, self.vip_channel, self.access, self._client
        self.name_servers, self.vip_channel = tuple(parse_addresses(name_servers)), vip_channel
        if tls is not None and tls != self.access.tls:
            self.access, self._client = replace(self.access, tls=tls), None
        try:
            await self.cluster()
        except BaseException:
            unused = self._client  # that of before, or one created by this attempt
            self.name_servers, self.vip_channel, self.access, self._client = before
            if unused is not None and unused is not self._client:
                await unused.close()
            raise
        if before[3] is not None and before[3] is not self._client:
            await before[3].close()
        messaging, self._messaging = self._messaging, None
        if messaging is not None:
            await messaging.stop()

    async def close(self) -> None:
        """Close all connections."""
        if self._messaging is not None:
            await self._messaging.stop()
        if self._client is not None:
            await self._client.close()

    @property
    def is_dry_run(self) -> bool:
        """Whether changes are reported instead of sent."""
        return self._dry_run is not None

    def announce(self, change: str) -> bool:
        """Whether this is a dry run; if so, report a change that does not go through `change`."""
        if self._dry_run is not None:
            self._dry_run(change)
        return self._dry_run is not None

    # ---- one server

    async def read(
        self,
        address: str,
        code: RequestCode,
        header: Header | Mapping[str, str] | None = None,
        body: bytes | None = None,
        *,
        timeout_ms: int | None = None,
        accept: Sequence[ResponseCode] = (ResponseCode.SUCCESS,),
        main_port: bool = False,
        language: Language = Language.PYTHON,
    ) -> Command:
        """The response of a server. Raises ResponseError for a code outside `accept`, ConnectFailed, CallTimeout.

        main_port: not over the VIP channel, even if that is switched on (code 26). language: of the request; brokers answer C++
        clients in another form.
        """
        where = vip_address(address) if self.vip_channel and not main_port else address
        command = Command(code, ext=_ext(header), body=body, language=language)
        if self._signer is not None:
            self._signer.sign(command)
        try:
            answer = await self.client.invoke(where, command, self.timeout_ms if timeout_ms is None else timeout_ms)
        except (ConnectFailed, CallTimeout) as error:
            error.broker = where
            self._not_answered(address, error)
            raise
        except asyncio.CancelledError:  # by the deadline of a listing
            self._not_answered(address, CallTimeout(f"no response from {address}", broker=where))
            raise
        self._silent.pop(address, None)
        if answer.code not in accept:
            raise response_error(answer.code, answer.remark or "", broker=where)
        return answer

    @property
    def silent(self) -> dict[str, SaturnError]:
        """Brokers whose last request was not answered, in the last 30 s: not to be waited for once more; address to error."""
        since = time.monotonic() - SILENT_SECONDS
        return {address: error for address, (at, error) in self._silent.items() if at > since}

    def _not_answered(self, address: str, error: SaturnError) -> None:
        if address in self.name_servers:  # NoNameServer names those
            return
        if address in self.unanswered or len(self.unanswered) < UNANSWERED_MAX:
            self.unanswered[address] = error
        if address in self._silent or len(self._silent) < UNANSWERED_MAX:
            self._silent[address] = time.monotonic(), error

    async def change(
        self,
        address: str,
        code: RequestCode,
        header: Header | Mapping[str, str] | None = None,
        body: bytes | None = None,
        **options: Unpack[RequestOptions],
    ) -> Command:
        """`read` for a request that changes something: with dry_run it is reported instead of sent."""
        if self._dry_run is not None:
            fields = " ".join(f"{name}={_shown(name, value)}" for name, value in _ext(header).items())
            self._dry_run(f"{address} {code.name} {fields}".rstrip())
            return Command(ResponseCode.SUCCESS)
        return await self.read(address, code, header, body, **options)

    # ---- NameServers

    async def ask_name_server(
        self,
        code: RequestCode,
        header: Header | Mapping[str, str] | None = None,
        *,
        accept: Sequence[ResponseCode] = (ResponseCode.SUCCESS,),
    ) -> Command:
        """The response of the first NameServer that gives one. Raises NoNameServer naming each failure, ResponseError."""
        tried = []
        for address in self.name_servers:
            try:
                return await self.read(address, code, header, accept=accept, main_port=True)
            except (ConnectFailed, CallTimeout) as error:
                tried.append((address, error.message))
        raise NoNameServer(unreachable_name_servers(tried))

    async def change_name_servers(
        self, code: RequestCode, header: Header | Mapping[str, str] | None = None, body: bytes | None = None
    ) -> dict[str, Command]:
        """Send a change to every NameServer, in the order of the list; responses by address. Raises at the first failure."""
        return {
            address: await self.change(address, code, header, body, main_port=True) for address in self.name_servers
        }

    async def key_value(self, namespace: str, key: str) -> str:
        """A value of the NameServers' table of keys and values (101). Raises QueryNotFound."""
        header = GetKVConfig(namespace=namespace, key=key)
        answer = await self.ask_name_server(RequestCode.GET_KV_CONFIG, header)
        return GetKVConfigResponse.decode(answer.ext).value or ""

    async def set_key_value(self, namespace: str, key: str, value: str) -> None:
        """Set a value on every NameServer (100)."""
        header = PutKVConfig(namespace=namespace, key=key, value=value)
        await self.change_name_servers(RequestCode.PUT_KV_CONFIG, header)

    async def delete_key_value(self, namespace: str, key: str) -> None:
        """Delete a value on every NameServer (102)."""
        header = DeleteKVConfig(namespace=namespace, key=key)
        await self.change_name_servers(RequestCode.DELETE_KV_CONFIG, header)

    # ---- what the NameServer knows

    async def cluster(self) -> ClusterInfo:
        """Brokers by name and broker names by cluster (106)."""
        answer = await self.ask_name_server(RequestCode.GET_BROKER_CLUSTER_INFO)
        return ClusterInfo.decode(answer.body)

    async def route(self, topic: str) -> TopicRouteData:
        """The route of a topic (105). Raises TopicNotExist (17), BodyError for more queues or brokers than a topic may have."""
        answer = await self.ask_name_server(RequestCode.GET_ROUTEINFO_BY_TOPIC, GetRouteInfo(topic=topic))
        route = TopicRouteData.decode(answer.body)
        check_route(topic, route)
        return route

    async def masters(self, cluster: str) -> dict[str, str]:
        """Addresses of the masters of a cluster by broker name. Raises UnknownCluster (ADM-07)."""
        brokers = await self.brokers(cluster)
        return {
            broker.broker_name: broker.broker_addrs[MASTER_ID] for broker in brokers if MASTER_ID in broker.broker_addrs
        }

    async def masters_and_slaves(self, cluster: str) -> list[str]:
        """Addresses of all brokers of a cluster. Raises UnknownCluster (ADM-07)."""
        return [address for broker in await self.brokers(cluster) for _, address in sorted(broker.broker_addrs.items())]

    async def brokers(self, cluster: str) -> list[BrokerData]:
        """The brokers of a cluster by name. Raises UnknownCluster (ADM-07)."""
        cluster_info = await self.cluster()
        if cluster not in cluster_info.cluster_addr_table:
            raise UnknownCluster(cluster, cluster_info.cluster_addr_table)
        table = cluster_info.broker_addr_table
        return [table[name] for name in sorted(cluster_info.cluster_addr_table[cluster]) if name in table]


def read_address(broker: BrokerData) -> str | None:
    """The master of a broker, or else the slave with the lowest id; None without an address."""
    addresses = broker.broker_addrs
    return addresses[min(addresses)] if addresses else None


def _shown(name: str, value: str) -> str:
    return "***" if name in SECRET_FIELDS else value


def _ext(header: Header | Mapping[str, str] | None) -> dict[str, str]:
    if header is None:
        return {}
    return header.to_ext() if isinstance(header, Header) else dict(header)


def answered(outcomes: Mapping[str, R | SaturnError]) -> dict[str, R]:
    """The answers of `ask_each`, without the errors."""
    return {name: outcome for name, outcome in outcomes.items() if not isinstance(outcome, SaturnError)}


def failed(outcomes: Mapping[str, R | SaturnError]) -> dict[str, SaturnError]:
    """The errors of `ask_each`, by name."""
    return {name: outcome for name, outcome in outcomes.items() if isinstance(outcome, SaturnError)}


async def ask_each(
    names: Iterable[str], ask: Callable[[str], Awaitable[R]], *, seconds: float = LISTING_SECONDS
) -> dict[str, R | SaturnError]:
    """Ask several servers at once; by name, in the order of `names`, the answer or the error. None may take longer than `seconds`.

    For listings: a server that hangs or refuses costs its own row only.
    """
    permits = asyncio.Semaphore(CONCURRENT_MAX)

    async def ask_one(name: str) -> R | SaturnError:
        try:
            async with permits, asyncio.timeout(seconds):
                return await ask(name)
        except SaturnError as error:
            return error
        except TimeoutError:
            return CallTimeout(f"no response from {name} within {seconds:g} s", broker=name)

    unique_names = list(dict.fromkeys(names))
    return dict(zip(unique_names, await asyncio.gather(*map(ask_one, unique_names)), strict=True))
