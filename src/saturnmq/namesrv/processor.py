"""The request codes that a NameServer serves: one handler per code, and one row per code with everything that depends on it.

A code without a row is answered with REQUEST_CODE_NOT_SUPPORTED. Handlers change the route table in one step on the
event loop, so each request sees and leaves a consistent one.

Requirements: NS-08..NS-13, NS-18, NS-20..NS-29, REM-10, LIM-13, SEC-17.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple, NoReturn, Protocol, TypeVar, cast

from saturnmq.acl.rules import AccessDenied
from saturnmq.namesrv.access_control import NameServerAccounts
from saturnmq.namesrv.answer_cache import AnswerCache
from saturnmq.namesrv.broker_places import BrokerPlaces
from saturnmq.namesrv.kv_config import BYTES_MAX, NAME_CHARS_MAX, KVConfig
from saturnmq.namesrv.registration import TOPICS_PER_NAME_MAX, RegisteredTopics, is_large, parse
from saturnmq.namesrv.routes import (
    CLUSTERS_PER_NAME_MAX,
    QUEUES_MAX,
    UNIT,
    UNIT_SUB,
    Merged,
    Registration,
    RouteTable,
)
from saturnmq.namesrv.settings import NameServerSettings
from saturnmq.protocol.addresses import host_of, network_of
from saturnmq.protocol.bodies import Body, ClusterInfo, DataVersion, TopicList
from saturnmq.protocol.codes import (
    MASTER_ID,
    ORDER_TOPIC_NAMESPACE,
    RequestCode,
    ResponseCode,
)
from saturnmq.protocol.errors import response_error
from saturnmq.protocol.frames.command import Command
from saturnmq.protocol.headers import messaging as h
from saturnmq.protocol.headers.messaging import decode_header
from saturnmq.server_admin import Administration
from saturnmq.slices import Steps, finish

_NAME_CHARS_MAX: Final = 255
_SHOWN_CHARS: Final = 200  # of a name in a log line
_COUNT: Final = r"(?:[1-9]\d{0,3}|[1-5]\d{4}|6[0-4]\d{3}|65[0-4]\d\d|655[0-2]\d|6553[0-6])"
# `broker-a:4;broker-b:4`: clients parse the numbers.
_ORDER: Final = re.compile(rf"[^:;]{{1,255}}:{_COUNT}(?:;[^:;]{{1,255}}:{_COUNT})*;?", re.ASCII)
_MERGES_MAX: Final = 3  # attempts to merge a large registration with a table that changes meanwhile
FAQ_HINT: Final = "\nSee http://rocketmq.apache.org/docs/faq/ for further details."


class Peer(Protocol):
    """The part of a connection that handlers use."""

    remote_address: str
    closed: bool

    @property
    def encrypted(self) -> bool: ...
    async def drain(self) -> None: ...


class Context(Protocol):
    """The part of the NameServer that handlers use."""

    administration: Administration
    accounts: NameServerAccounts | None

    routes: RouteTable
    broker_places: BrokerPlaces
    kv: KVConfig
    settings: NameServerSettings
    answers: AnswerCache

    def now_ms(self) -> int: ...
    def is_registering(self, connection: Peer) -> bool: ...
    def later(
        self, connection: Peer, request: Command, work: Callable[[], Awaitable[Command]]
    ) -> Awaitable[Command]: ...
    async def in_thread(self, work: Callable[[], T]) -> T: ...
    def removed(self, addresses: list[str], peer: str, reason: str) -> None: ...
    def report(self, event: str, peer: str, detail: str) -> None: ...
    def order_messages(self) -> bool: ...
    def config_text(self) -> str: ...
    async def update_config(self, body: bytes, peer: str) -> None: ...


T = TypeVar("T")
Answer = Command | Awaitable[Command]
Handler = Callable[[Context, Peer, Command, Any], Answer]


class NameServerRoute(NamedTuple):
    """One request code.

    changes: whether a request may change routes, liveness, KV configuration or settings. administrative: served from
    adminAddresses only, or to an administrator's account. of_brokers: open, unless namesrvAccess=signed (SEC-17).
    """

    code: RequestCode
    header: type[Any]
    handler: Handler
    changes: bool
    administrative: bool = False
    of_brokers: bool = False


def register_broker(ctx: Context, connection: Peer, request: Command, header: h.RegisterBroker) -> Answer:
    """REGISTER_BROKER, 103 (NS-08..NS-13).

    A large body is parsed in a thread and merged in slices, when it is the turn of its address; requests of a connection keep
    their order.
    """
    topics_max = min(ctx.settings.topics_max, TOPICS_PER_NAME_MAX)
    # After a large one of the same connection: its requests keep their order.
    if is_large(request, header) or ctx.is_registering(connection):
        return ctx.later(connection, request, lambda: _register_large(ctx, connection, request, header, topics_max))
    registration, topics = parse(request, header, topics_max)
    return _register(ctx, connection, request, registration, topics)


async def _register_large(
    ctx: Context, connection: Peer, request: Command, header: h.RegisterBroker, topics_max: int
) -> Command:
    if connection.closed:  # its end has been handled: nothing would ever remove the broker
        return _connection_closed(request)
    # Parsing holds up no other request.
    registration, topics = await ctx.in_thread(lambda: parse(request, header, topics_max))
    # Another registration may change the table between the steps.
    for _ in range(_MERGES_MAX):
        merged = await finish(ctx.routes.merge(registration)) if ctx.routes.takes_topics(registration) else None
        # Checked after each wait.
        if connection.closed:
            return _connection_closed(request)
        # No wait from here to the change of the table.
        if merged is None or ctx.routes.is_fresh(registration, merged):
            return _register(ctx, connection, request, registration, topics, merged)
    text = f"the topics of {registration.broker_name} are being changed by another registration; try again"
    raise response_error(ResponseCode.SYSTEM_BUSY, text)


def _connection_closed(request: Command) -> Command:
    return request.reply(ResponseCode.SYSTEM_ERROR, "the connection is closed")


def _register(
    ctx: Context,
    connection: Peer,
    request: Command,
    registration: Registration,
    topics: RegisteredTopics,
    merged: Merged | None = None,
) -> Command:
    # All checks come before the first change.
    _check_owner(ctx, connection, request, registration)
    host = network_of(host_of(connection.remote_address))
    _check_limits(ctx, connection, registration, host, merged)
    _check_place(ctx, connection, request, registration)
    if topics.ignored:
        text = (
            f"{topics.ignored} topics of broker {registration.broker_name[:_SHOWN_CHARS]!r} ignored, illegal name or number; "
            f"the first: {topics.first[:_SHOWN_CHARS]!r}"
        )
        ctx.report("topics ignored", connection.remote_address, text)
    result = ctx.routes.register(registration, connection, ctx.now_ms(), host, merged)
    ext = h.RegisterBrokerResponse(
        ha_server_addr=result.ha_address or None, master_addr=result.master_address or None
    ).to_ext()
    # Brokers read from it which topics are ordered.
    return request.reply(ext=ext, body=ctx.kv.encoded(ORDER_TOPIC_NAMESPACE))


def _owner(ctx: Context, address: str) -> Peer | None:
    """The open connection over which a broker address is registered, if there is one."""
    live = ctx.routes.live.get(address)
    owner = cast("Peer", live.connection) if live is not None else None
    # A connection that is closed defends nothing, though its end is not handled yet.
    return owner if owner is not None and not owner.closed else None


def _check_owner(ctx: Context, connection: Peer, request: Command, registration: Registration) -> None:
    """Raise ResponseError for the address of another live broker: from another host, or under another broker or cluster name.

    A broker that reconnects registers from the host of its former connection. A renamed one has closed its former connection.
    A broker that registers from the host of the address replaces one elsewhere, which claimed it while this one was not connected.
    """
    owner = _owner(ctx, registration.address)
    if owner is None or owner is connection:
        return
    peer = connection.remote_address
    if host_of(peer) == host_of(registration.address) != host_of(owner.remote_address):
        # The former owner may not keep the address, which is not its own.
        ctx.routes.unregister(registration.address)
        ctx.removed([registration.address], peer, f"the host of the address registers it, not {owner.remote_address}")
        return
    name, cluster = ctx.routes.name_of(registration.address)
    problem = None
    if host_of(owner.remote_address) != host_of(connection.remote_address):
        problem = f"from {owner.remote_address}"
    elif name != registration.broker_name:
        problem = f"under broker name {name}"
    elif cluster != registration.cluster and registration.broker_id == MASTER_ID:
        problem = f"in cluster {cluster}"
    if problem is not None:
        _refuse(ctx, connection, request, f"{registration.address} is registered {problem} and live")


def _check_place(ctx: Context, connection: Peer, request: Command, registration: Registration) -> None:
    """Raise ResponseError for the name and id of another live broker (broker_places.py)."""

    def owner_host(address: str) -> str | None:
        owner = _owner(ctx, address)
        return host_of(owner.remote_address) if owner is not None else None

    problem = ctx.broker_places.refusal(registration, host_of(connection.remote_address), owner_host, ctx.now_ms())
    if problem is not None:
        _refuse(ctx, connection, request, problem)


def _refuse(ctx: Context, connection: Peer, request: Command, reason: str) -> NoReturn:
    ctx.administration.write_refusal(connection.remote_address, request, reason)
    raise response_error(ResponseCode.NO_PERMISSION, reason)


def _check_limits(ctx: Context, connection: Peer, registration: Registration, host: str, merged: Merged | None) -> None:
    """Raise ResponseError when the registration would exceed the limit on brokers, clusters or topics (LIM-13).

    Each is shared by the addresses that register (net/shares.py); host is what the registration is charged to.
    """
    routes = ctx.routes
    names = (registration.cluster, registration.broker_name, registration.address, registration.ha_address)
    if max(map(len, names)) > _NAME_CHARS_MAX:
        text = f"a name or address of a broker has more than {_NAME_CHARS_MAX} characters"
        raise response_error(ResponseCode.SYSTEM_ERROR, text)
    limit = ctx.settings.brokers_max
    for kind, shares, is_registered in (
        ("clusters", routes.cluster_shares, registration.cluster in routes.clusters),
        ("brokers", routes.broker_shares, registration.address in routes.live),
    ):
        # Renewals pass even if the limit is lower now.
        if not is_registered and shares.exceeded(host, 1, limit):
            text = f"brokersMax={limit}: {shares.total} {kind} are registered, {shares.used(host)} of them from {host}, which "
            _reject(ctx, connection, text + "may add no more")
    name = registration.broker_name
    if not routes.is_in(name, registration.cluster) and routes.clusters_of(name) >= CLUSTERS_PER_NAME_MAX:
        _reject(ctx, connection, f"a broker name is in at most {CLUSTERS_PER_NAME_MAX} clusters")
    # Topics that are not taken count nothing.
    if not routes.takes_topics(registration):
        return
    after, growth, charged = routes.growth(registration, host, merged)
    # A registration that shrinks passes.
    if growth > 0 and after > TOPICS_PER_NAME_MAX:
        _reject(ctx, connection, f"a broker name has at most {TOPICS_PER_NAME_MAX} topics, this one would have {after}")
    shares, limit = routes.topic_shares, ctx.settings.topics_max
    if shares.exceeded(host, charged, limit, growth):
        text = f"topicsMax={limit}: brokers have {shares.total} topics, {shares.used(host)} of them registered from {host}, which "
        _reject(ctx, connection, text + f"may not add {growth}")


def _reject(ctx: Context, connection: Peer, text: str) -> NoReturn:
    ctx.report("registration rejected", connection.remote_address, text)
    raise response_error(ResponseCode.SYSTEM_BUSY, text)


def unregister_broker(ctx: Context, connection: Peer, request: Command, header: h.UnregisterBroker) -> Command:
    """UNREGISTER_BROKER, 104 (NS-18), of a live broker only from its own host or an administrator (SEC-17)."""
    peer, owner = connection.remote_address, _owner(ctx, header.broker_addr)
    if owner is not None and host_of(owner.remote_address) != host_of(peer) and not ctx.administration.allows(peer):
        _refuse(ctx, connection, request, f"{header.broker_addr} is registered from {owner.remote_address} and live")
    # An unknown address is not an error, as in Apache's NameServer.
    if header.broker_addr in ctx.routes.live:
        ctx.routes.unregister(header.broker_addr)
        ctx.broker_places.note_unregistered(
            header.broker_addr, None if ctx.administration.allows(peer) else host_of(peer)
        )
        ctx.removed([header.broker_addr], peer, "unregistered")
    return request.reply()


def query_data_version(ctx: Context, connection: Peer, request: Command, header: h.QueryDataVersion) -> Command:
    """QUERY_DATA_VERSION, 322 (NS-25).

    Over a connection other than the open one of that broker: "changed", so that a broker that reconnected registers (SEC-17).
    """
    if _owner(ctx, header.broker_addr) not in (None, connection):
        # The broker registers, and that decides.
        return request.reply(ext=h.QueryDataVersionResponse(changed=True).to_ext())
    broker_version = DataVersion.decode(request.body) if request.body else DataVersion(0, 0)
    ctx.broker_places.note_live(header.broker_addr, ctx.now_ms())
    changed, registered_version = ctx.routes.version_changed(
        header.broker_addr, broker_version, ctx.now_ms(), connection
    )
    return request.reply(
        ext=h.QueryDataVersionResponse(changed=changed).to_ext(),
        body=registered_version.encode() if registered_version else None,
    )


def get_route(ctx: Context, connection: Peer, request: Command, header: h.GetRouteInfo) -> Answer:
    """GET_ROUTEINFO_BY_TOPIC, 105 (NS-20..NS-22)."""
    topic = header.topic

    # Runs only if the answer is not cached.
    def encode() -> Steps[bytes | None]:
        route = ctx.routes.route(topic)
        if route is None:
            return None
        if ctx.order_messages():
            route.order_topic_conf = ctx.kv.get(ORDER_TOPIC_NAMESPACE, topic)
        return (yield from ctx.answers.encoded(route))

    def respond(body: bytes | None) -> Command:
        if body is None:
            remark = f"No topic route info in name server for the topic: {topic}{FAQ_HINT}"
            return request.reply(ResponseCode.TOPIC_NOT_EXIST, remark)
        return request.reply(body=body)

    return ctx.answers.answer(connection, ("route", topic), encode, respond)


async def put_kv(ctx: Context, connection: Peer, request: Command, header: h.PutKVConfig) -> Command:
    """PUT_KV_CONFIG, 100 (NS-24)."""
    if not header.namespace or not header.key:
        raise response_error(ResponseCode.SYSTEM_ERROR, "namespace or key is null")
    if header.namespace == ORDER_TOPIC_NAMESPACE and _ORDER.fullmatch(header.value) is None:
        raise response_error(
            ResponseCode.SYSTEM_ERROR,
            f"the order configuration {header.value[:80]!r} must be broker:queues;..., for instance broker-a:4;broker-b:4, with "
            f"1 to {QUEUES_MAX} queues",
        )
    if max(len(header.namespace), len(header.key)) > NAME_CHARS_MAX:
        raise response_error(ResponseCode.SYSTEM_ERROR, f"a namespace or key has more than {NAME_CHARS_MAX} characters")
    limit = ctx.settings.kv_entries_max
    entries, size = ctx.kv.size_with(header.namespace, header.key, header.value)
    # A change of an existing key passes.
    if entries > limit and ctx.kv.get(header.namespace, header.key) is None:
        raise response_error(ResponseCode.SYSTEM_BUSY, f"kvEntriesMax={limit} entries exist, new keys are rejected")
    if size > BYTES_MAX:
        text = f"the KV configuration would have {size} bytes, at most {BYTES_MAX} are allowed: delete keys first"
        raise response_error(ResponseCode.SYSTEM_BUSY, text)
    await ctx.kv.put(header.namespace, header.key, header.value)
    # Answers about routes contain the order configuration.
    ctx.routes.changes += 1
    return request.reply()


def get_kv(ctx: Context, connection: Peer, request: Command, header: h.GetKVConfig) -> Command:
    """GET_KV_CONFIG, 101."""
    value = ctx.kv.get(header.namespace, header.key)
    if value is None:
        remark = f"No config item, Namespace: {header.namespace} Key: {header.key}"
        return request.reply(ResponseCode.QUERY_NOT_FOUND, remark)
    return request.reply(ext={"value": value})


async def delete_kv(ctx: Context, connection: Peer, request: Command, header: h.GetKVConfig) -> Command:
    """DELETE_KV_CONFIG, 102."""
    await ctx.kv.delete(header.namespace, header.key)
    ctx.routes.changes += 1
    return request.reply()


def list_kv(ctx: Context, connection: Peer, request: Command, header: h.GetKVListByNamespace) -> Command:
    """GET_KVLIST_BY_NAMESPACE, 219."""
    body = ctx.kv.encoded(header.namespace)
    if body is None:
        remark = f"No config item, Namespace: {header.namespace}"
        return request.reply(ResponseCode.QUERY_NOT_FOUND, remark)
    return request.reply(body=body)


def cluster_info(ctx: Context, connection: Peer, request: Command, header: object) -> Answer:
    """GET_BROKER_CLUSTER_INFO, 106."""

    def listing() -> Steps[ClusterInfo]:
        # Makes this a generator of one step: the cache runs its computations in steps.
        yield
        return ctx.routes.cluster_info()

    return ctx.answers.listed(connection, request, "clusters", listing)


def _changed(ctx: Context, request: Command, name: str, changing: Steps[int]) -> Answer:
    def changed() -> Steps[Command]:
        count = yield from changing
        return request.reply(ext={name: str(count)})

    return ctx.answers.slices.run(changed())


def wipe_write_permission(ctx: Context, connection: Peer, request: Command, header: h.BrokerNameOnly) -> Answer:
    """WIPE_WRITE_PERM_OF_BROKER, 205 (NS-26)."""
    return _changed(ctx, request, "wipeTopicCount", ctx.routes.wipe_write_permission(header.broker_name))


def add_write_permission(ctx: Context, connection: Peer, request: Command, header: h.BrokerNameOnly) -> Answer:
    """ADD_WRITE_PERM_OF_BROKER, 327 (NS-26)."""
    return _changed(ctx, request, "addTopicCount", ctx.routes.add_write_permission(header.broker_name))


def _listed(
    ctx: Context, connection: Peer, request: Command, key: object, names: Callable[[], Steps[list[str]]]
) -> Answer:
    """The response with a list of topics, which is made and encoded in steps."""

    def topic_list() -> Steps[Body]:
        return TopicList((yield from names()))

    return ctx.answers.listed(connection, request, key, topic_list)


def all_topics(ctx: Context, connection: Peer, request: Command, header: object) -> Answer:
    """GET_ALL_TOPIC_LIST_FROM_NAMESERVER, 206."""
    return _listed(ctx, connection, request, "topics", ctx.routes.topic_names)


def delete_topic(ctx: Context, connection: Peer, request: Command, header: h.DeleteTopicInNamesrv) -> Command:
    """DELETE_TOPIC_IN_NAMESRV, 216 (NS-27)."""
    ctx.routes.delete_topic(header.topic, header.cluster_name or None)
    return request.reply()


def topics_by_cluster(ctx: Context, connection: Peer, request: Command, header: h.GetTopicsByCluster) -> Answer:
    """GET_TOPICS_BY_CLUSTER, 224."""
    cluster = header.cluster
    if cluster not in ctx.routes.clusters:
        return request.reply(body=TopicList().encode())
    return _listed(ctx, connection, request, ("cluster", cluster), lambda: ctx.routes.topics_of_cluster(cluster))


def system_topics(ctx: Context, connection: Peer, request: Command, header: object) -> Answer:
    """GET_SYSTEM_TOPIC_LIST_FROM_NS, 304."""

    def topic_lists() -> Steps[Body]:
        yield
        return TopicList(*ctx.routes.system_topics())

    return ctx.answers.listed(connection, request, "system", topic_lists)


def unit_topics(ctx: Context, connection: Peer, request: Command, header: object) -> Answer:
    """GET_UNIT_TOPIC_LIST, 311."""
    return _listed(ctx, connection, request, "unit", lambda: ctx.routes.unit_topics(UNIT))


def unit_sub_topics(ctx: Context, connection: Peer, request: Command, header: object) -> Answer:
    """GET_HAS_UNIT_SUB_TOPIC_LIST, 312."""
    return _listed(ctx, connection, request, "unit_sub", lambda: ctx.routes.unit_topics(UNIT_SUB))


def unit_sub_not_unit_topics(ctx: Context, connection: Peer, request: Command, header: object) -> Answer:
    """GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST, 313."""
    return _listed(ctx, connection, request, "unit_sub_only", lambda: ctx.routes.unit_topics(UNIT_SUB, without=UNIT))


def get_config(ctx: Context, connection: Peer, request: Command, header: object) -> Command:
    """GET_NAMESRV_CONFIG, 319."""
    return request.reply(body=ctx.config_text().encode())


async def update_config(ctx: Context, connection: Peer, request: Command, header: object) -> Command:
    """UPDATE_NAMESRV_CONFIG, 318 (NS-29)."""
    await ctx.update_config(request.body or b"", connection.remote_address)
    return request.reply()


ROUTES: Final = (
    # brokers
    NameServerRoute(RequestCode.REGISTER_BROKER, h.RegisterBroker, register_broker, changes=True, of_brokers=True),
    NameServerRoute(
        RequestCode.UNREGISTER_BROKER, h.UnregisterBroker, unregister_broker, changes=True, of_brokers=True
    ),
    # Renews the registration if the versions are equal.
    NameServerRoute(
        RequestCode.QUERY_DATA_VERSION, h.QueryDataVersion, query_data_version, changes=True, of_brokers=True
    ),
    NameServerRoute(RequestCode.GET_BROKER_CLUSTER_INFO, h.NoFields, cluster_info, changes=False),
    NameServerRoute(
        RequestCode.WIPE_WRITE_PERM_OF_BROKER,
        h.BrokerNameOnly,
        wipe_write_permission,
        changes=True,
        administrative=True,
    ),
    NameServerRoute(
        RequestCode.ADD_WRITE_PERM_OF_BROKER, h.BrokerNameOnly, add_write_permission, changes=True, administrative=True
    ),
    # topics
    NameServerRoute(RequestCode.GET_ROUTEINFO_BY_TOPIC, h.GetRouteInfo, get_route, changes=False),
    NameServerRoute(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, h.NoFields, all_topics, changes=False),
    NameServerRoute(RequestCode.GET_TOPICS_BY_CLUSTER, h.GetTopicsByCluster, topics_by_cluster, changes=False),
    NameServerRoute(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS, h.NoFields, system_topics, changes=False),
    NameServerRoute(RequestCode.GET_UNIT_TOPIC_LIST, h.NoFields, unit_topics, changes=False),
    NameServerRoute(RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST, h.NoFields, unit_sub_topics, changes=False),
    NameServerRoute(
        RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST, h.NoFields, unit_sub_not_unit_topics, changes=False
    ),
    NameServerRoute(
        RequestCode.DELETE_TOPIC_IN_NAMESRV, h.DeleteTopicInNamesrv, delete_topic, changes=True, administrative=True
    ),
    # KV configuration and settings
    NameServerRoute(RequestCode.PUT_KV_CONFIG, h.PutKVConfig, put_kv, changes=True, administrative=True),
    NameServerRoute(RequestCode.GET_KV_CONFIG, h.GetKVConfig, get_kv, changes=False),
    NameServerRoute(RequestCode.DELETE_KV_CONFIG, h.GetKVConfig, delete_kv, changes=True, administrative=True),
    NameServerRoute(RequestCode.GET_KVLIST_BY_NAMESPACE, h.GetKVListByNamespace, list_kv, changes=False),
    NameServerRoute(RequestCode.UPDATE_NAMESRV_CONFIG, h.NoFields, update_config, changes=True, administrative=True),
    NameServerRoute(RequestCode.GET_NAMESRV_CONFIG, h.NoFields, get_config, changes=False),
)
# Codes that a NameServer of 4.9.7 serves and this one does not, with the reason.
NOT_SERVED: Final[dict[RequestCode, str]] = {}
TABLE: Final[dict[int, NameServerRoute]] = {int(route.code): route for route in ROUTES}


def process(ctx: Context, connection: Peer, request: Command) -> Answer:
    """Handle a request; an unknown code is answered with code 3, REQUEST_CODE_NOT_SUPPORTED (REM-10)."""
    route = TABLE.get(request.code)
    if route is None:
        return request.reply(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, f" request type {request.code} not supported")
    account = None
    # Open codes are not checked: clients do not sign.
    if ctx.accounts is not None and (route.administrative or route.of_brokers):
        account = _authenticated(ctx, ctx.accounts, connection, request)
    if route.administrative:
        return ctx.administration.serve(
            connection.remote_address, request, lambda: _decoded(ctx, route, connection, request), account=account
        )
    return _decoded(ctx, route, connection, request)


def _authenticated(ctx: Context, accounts: NameServerAccounts, connection: Peer, request: Command) -> str:
    try:
        return accounts.check(connection.remote_address, connection.encrypted, request)
    except AccessDenied as error:
        ctx.administration.write_refusal(connection.remote_address, request, error.remark, error.account)
        raise


def _decoded(ctx: Context, route: NameServerRoute, connection: Peer, request: Command) -> Answer:
    return route.handler(ctx, connection, request, decode_header(route.header, request.ext))
