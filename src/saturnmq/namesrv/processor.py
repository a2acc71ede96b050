"""The request codes that a NameServer serves: one handler per code, and one row per code with everything that depends on it.

A code without a row is answered with REQUEST_CODE_NOT_SUPPORTED. Handlers are synchronous and run on the event loop, so each
request sees and leaves a consistent route table.

Requirements: NS-08..NS-13, NS-18, NS-20..NS-29, REM-10, LIM-13.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Callable
from typing import Any, Final, NamedTuple, Protocol

from saturnmq.config.settings import parse_properties
from saturnmq.namesrv.kv_config import KVConfig
from saturnmq.namesrv.routes import UNIT, UNIT_SUB, Registration, RouteTable
from saturnmq.namesrv.settings import NameServerSettings
from saturnmq.protocol.bodies import DataVersion, KVTable, RegisterBrokerBody, TopicConfigTable, TopicList
from saturnmq.protocol.codes import (
    ORDER_TOPIC_NAMESPACE,
    VERSION_REGISTER_BODY,
    RequestCode,
    ResponseCode,
)
from saturnmq.protocol.errors import ConfigError, RemoteProtocolError, response_error
from saturnmq.protocol.frames.command import Command
from saturnmq.protocol.headers import messaging as h
from saturnmq.protocol.headers.messaging import decode_header

log = logging.getLogger(__name__)

FAQ_HINT: Final = "\nSee http://rocketmq.apache.org/docs/faq/ for further details."
COMPLETE_FIELD: Final = "saturnmqComplete"  # set by SaturnMQ brokers when a registration lists all their topics


class Context(Protocol):
    """The part of the NameServer that handlers use."""

    routes: RouteTable
    kv: KVConfig
    settings: NameServerSettings

    def now_ms(self) -> int: ...
    def order_messages(self) -> bool: ...
    def route_bytes(self, topic: str, encode: Callable[[], bytes | None]) -> bytes | None: ...
    def config_text(self) -> str: ...
    def update_config(self, pairs: dict[str, str]) -> None: ...


Handler = Callable[[Context, object, Command, Any], Command]


class Route(NamedTuple):
    """One request code. changes: whether a request may change routes, liveness, KV configuration or settings."""

    code: RequestCode
    header: type[Any]
    handler: Handler
    changes: bool


def register_broker(ctx: Context, connection: object, request: Command, header: h.RegisterBroker) -> Command:
    """REGISTER_BROKER, 103 (NS-08..NS-13)."""
    body = request.body or b""
    if header.body_crc32 and header.body_crc32 != zlib.crc32(body) & 0x7FFFFFFF:
        raise response_error(ResponseCode.SYSTEM_ERROR, "crc32 not match")
    registration = _registration(request, header, body)
    _check_limits(ctx, registration)
    result = ctx.routes.register(registration, connection, ctx.now_ms())
    ext = h.RegisterBrokerResponse(
        ha_server_addr=result.ha_address or None, master_addr=result.master_address or None
    ).to_ext()
    orders = ctx.kv.namespace(ORDER_TOPIC_NAMESPACE)
    return request.reply(ext=ext, body=KVTable(dict(orders)).encode() if orders is not None else None)


def _check_limits(ctx: Context, registration: Registration) -> None:
    """Raise ResponseError when the registration would exceed the limit on brokers or topics (LIM-13)."""
    limit = ctx.settings.brokers_max
    if registration.address not in ctx.routes.live and len(ctx.routes.live) >= limit:
        raise response_error(
            ResponseCode.SYSTEM_BUSY, f"brokersMax={limit} brokers are registered, new ones are rejected"
        )
    known, limit = ctx.routes.topics, ctx.settings.topics_max
    if registration.topics and len(known) + len(registration.topics) > limit:
        count = len(known) + len(registration.topics.keys() - known.keys())
        if count > limit:
            raise response_error(ResponseCode.SYSTEM_BUSY, f"{count} topics exceed topicsMax={limit}")


def _registration(request: Command, header: h.RegisterBroker, body: bytes) -> Registration:
    filters: list[str] | None = None
    if not body:
        table = TopicConfigTable({}, DataVersion(0, 0))
    elif request.version < VERSION_REGISTER_BODY:
        table = TopicConfigTable.decode(body)
    else:
        decoded = RegisterBrokerBody.decode_compressed(body) if header.compressed else RegisterBrokerBody.decode(body)
        table, filters = decoded.topic_config_serialize_wrapper, decoded.filter_server_list
    return Registration(
        header.cluster_name,
        header.broker_name,
        header.broker_id,
        header.broker_addr,
        header.ha_server_addr,
        table.data_version,
        table.topic_config_table,
        filters,
        complete=request.ext.get(COMPLETE_FIELD) == "true",
    )


def unregister_broker(ctx: Context, connection: object, request: Command, header: h.UnregisterBroker) -> Command:
    """UNREGISTER_BROKER, 104 (NS-18)."""
    ctx.routes.unregister(header.broker_name, header.broker_id, header.broker_addr)
    log.info("broker unregistered broker=%s id=%s address=%s", header.broker_name, header.broker_id, header.broker_addr)
    return request.reply()


def query_data_version(ctx: Context, connection: object, request: Command, header: h.QueryDataVersion) -> Command:
    """QUERY_DATA_VERSION, 322 (NS-25)."""
    own = DataVersion.decode(request.body) if request.body else DataVersion(0, 0)
    changed, known = ctx.routes.version_changed(header.broker_addr, own, ctx.now_ms(), connection)
    return request.reply(
        ext=h.QueryDataVersionResponse(changed=changed).to_ext(), body=known.encode() if known else None
    )


def get_route(ctx: Context, connection: object, request: Command, header: h.GetRouteInfo) -> Command:
    """GET_ROUTEINFO_BY_TOPIC, 105 (NS-20..NS-22)."""
    topic = header.topic

    def encode() -> bytes | None:
        route = ctx.routes.route(topic)
        if route is None:
            return None
        if ctx.order_messages():
            route.order_topic_conf = ctx.kv.get(ORDER_TOPIC_NAMESPACE, topic)
        return route.encode()

    body = ctx.route_bytes(topic, encode)
    if body is None:
        remark = f"No topic route info in name server for the topic: {topic}{FAQ_HINT}"
        return request.reply(ResponseCode.TOPIC_NOT_EXIST, remark)
    return request.reply(body=body)


def put_kv(ctx: Context, connection: object, request: Command, header: h.PutKVConfig) -> Command:
    """PUT_KV_CONFIG, 100 (NS-24)."""
    if not header.namespace or not header.key:
        raise response_error(ResponseCode.SYSTEM_ERROR, "namespace or key is null")
    limit = ctx.settings.kv_entries_max
    if ctx.kv.get(header.namespace, header.key) is None and sum(map(len, ctx.kv.table.values())) >= limit:
        raise response_error(ResponseCode.SYSTEM_BUSY, f"kvEntriesMax={limit} entries exist, new keys are rejected")
    ctx.kv.put(header.namespace, header.key, header.value)
    ctx.routes.changes += 1
    return request.reply()


def get_kv(ctx: Context, connection: object, request: Command, header: h.GetKVConfig) -> Command:
    """GET_KV_CONFIG, 101."""
    value = ctx.kv.get(header.namespace, header.key)
    if value is None:
        remark = f"No config item, Namespace: {header.namespace} Key: {header.key}"
        return request.reply(ResponseCode.QUERY_NOT_FOUND, remark)
    return request.reply(ext={"value": value})


def delete_kv(ctx: Context, connection: object, request: Command, header: h.GetKVConfig) -> Command:
    """DELETE_KV_CONFIG, 102."""
    ctx.kv.delete(header.namespace, header.key)
    ctx.routes.changes += 1
    return request.reply()


def list_kv(ctx: Context, connection: object, request: Command, header: h.GetKVListByNamespace) -> Command:
    """GET_KVLIST_BY_NAMESPACE, 219."""
    entries = ctx.kv.namespace(header.namespace)
    if entries is None:
        remark = f"No config item, Namespace: {header.namespace}"
        return request.reply(ResponseCode.QUERY_NOT_FOUND, remark)
    return request.reply(body=KVTable(dict(entries)).encode())


def cluster_info(ctx: Context, connection: object, request: Command, header: object) -> Command:
    """GET_BROKER_CLUSTER_INFO, 106."""
    return request.reply(body=ctx.routes.cluster_info().encode())


def wipe_write_permission(ctx: Context, connection: object, request: Command, header: h.BrokerNameOnly) -> Command:
    """WIPE_WRITE_PERM_OF_BROKER, 205 (NS-26)."""
    count = ctx.routes.wipe_write_permission(header.broker_name)
    return request.reply(ext={"wipeTopicCount": str(count)})


def add_write_permission(ctx: Context, connection: object, request: Command, header: h.BrokerNameOnly) -> Command:
    """ADD_WRITE_PERM_OF_BROKER, 327 (NS-26)."""
    count = ctx.routes.add_write_permission(header.broker_name)
    return request.reply(ext={"addTopicCount": str(count)})


def all_topics(ctx: Context, connection: object, request: Command, header: object) -> Command:
    """GET_ALL_TOPIC_LIST_FROM_NAMESERVER, 206."""
    return request.reply(body=TopicList(list(ctx.routes.topics)).encode())


def delete_topic(ctx: Context, connection: object, request: Command, header: h.DeleteTopicInNamesrv) -> Command:
    """DELETE_TOPIC_IN_NAMESRV, 216 (NS-27)."""
    ctx.routes.delete_topic(header.topic, header.cluster_name or None)
    return request.reply()


def topics_by_cluster(ctx: Context, connection: object, request: Command, header: h.GetTopicsByCluster) -> Command:
    """GET_TOPICS_BY_CLUSTER, 224."""
    return request.reply(body=TopicList(ctx.routes.topics_of_cluster(header.cluster)).encode())


def system_topics(ctx: Context, connection: object, request: Command, header: object) -> Command:
    """GET_SYSTEM_TOPIC_LIST_FROM_NS, 304."""
    names, address = ctx.routes.system_topics()
    return request.reply(body=TopicList(names, address).encode())


def unit_topics(ctx: Context, connection: object, request: Command, header: object) -> Command:
    """GET_UNIT_TOPIC_LIST, 311."""
    return request.reply(body=TopicList(ctx.routes.unit_topics(UNIT)).encode())


def unit_sub_topics(ctx: Context, connection: object, request: Command, header: object) -> Command:
    """GET_HAS_UNIT_SUB_TOPIC_LIST, 312."""
    return request.reply(body=TopicList(ctx.routes.unit_topics(UNIT_SUB)).encode())


def unit_sub_not_unit_topics(ctx: Context, connection: object, request: Command, header: object) -> Command:
    """GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST, 313."""
    return request.reply(body=TopicList(ctx.routes.unit_topics(UNIT_SUB, without=UNIT)).encode())


def get_config(ctx: Context, connection: object, request: Command, header: object) -> Command:
    """GET_NAMESRV_CONFIG, 319."""
    return request.reply(body=ctx.config_text().encode())


def update_config(ctx: Context, connection: object, request: Command, header: object) -> Command:
    """UPDATE_NAMESRV_CONFIG, 318 (NS-29)."""
    try:
        pairs = parse_properties((request.body or b"").decode())
    except UnicodeDecodeError as error:
        raise RemoteProtocolError(f"the configuration text is not UTF-8: {error}") from error
    try:
        ctx.update_config(pairs)
    except ConfigError as error:
        raise response_error(ResponseCode.SYSTEM_ERROR, str(error)) from error
    return request.reply()


ROUTES: Final = (
    # brokers
    Route(RequestCode.REGISTER_BROKER, h.RegisterBroker, register_broker, changes=True),
    Route(RequestCode.UNREGISTER_BROKER, h.UnregisterBroker, unregister_broker, changes=True),
    # Renews the registration if the versions are equal.
    Route(RequestCode.QUERY_DATA_VERSION, h.QueryDataVersion, query_data_version, changes=True),
    Route(RequestCode.GET_BROKER_CLUSTER_INFO, h.NoFields, cluster_info, changes=False),
    Route(RequestCode.WIPE_WRITE_PERM_OF_BROKER, h.BrokerNameOnly, wipe_write_permission, changes=True),
    Route(RequestCode.ADD_WRITE_PERM_OF_BROKER, h.BrokerNameOnly, add_write_permission, changes=True),
    # topics
    Route(RequestCode.GET_ROUTEINFO_BY_TOPIC, h.GetRouteInfo, get_route, changes=False),
    Route(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, h.NoFields, all_topics, changes=False),
    Route(RequestCode.GET_TOPICS_BY_CLUSTER, h.GetTopicsByCluster, topics_by_cluster, changes=False),
    Route(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS, h.NoFields, system_topics, changes=False),
    Route(RequestCode.GET_UNIT_TOPIC_LIST, h.NoFields, unit_topics, changes=False),
    Route(RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST, h.NoFields, unit_sub_topics, changes=False),
    Route(RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST, h.NoFields, unit_sub_not_unit_topics, changes=False),
    Route(RequestCode.DELETE_TOPIC_IN_NAMESRV, h.DeleteTopicInNamesrv, delete_topic, changes=True),
    # KV configuration and settings
    Route(RequestCode.PUT_KV_CONFIG, h.PutKVConfig, put_kv, changes=True),
    Route(RequestCode.GET_KV_CONFIG, h.GetKVConfig, get_kv, changes=False),
    Route(RequestCode.DELETE_KV_CONFIG, h.GetKVConfig, delete_kv, changes=True),
    Route(RequestCode.GET_KVLIST_BY_NAMESPACE, h.GetKVListByNamespace, list_kv, changes=False),
    Route(RequestCode.UPDATE_NAMESRV_CONFIG, h.NoFields, update_config, changes=True),
    Route(RequestCode.GET_NAMESRV_CONFIG, h.NoFields, get_config, changes=False),
)
# Codes that a NameServer of 4.9.7 serves and this one does not, with the reason.
NOT_SERVED: Final[dict[RequestCode, str]] = {}
TABLE: Final[dict[int, Route]] = {int(route.code): route for route in ROUTES}


def process(ctx: Context, connection: object, request: Command) -> Command:
    """Handle a request; an unknown code is answered with code 3, REQUEST_CODE_NOT_SUPPORTED (REM-10)."""
    route = TABLE.get(request.code)
    if route is None:
        return request.reply(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, f" request type {request.code} not supported")
    return route.handler(ctx, connection, request, decode_header(route.header, request.ext))
