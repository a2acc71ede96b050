"""The services that each family of request handlers uses.

A handler's first parameter is annotated with one of these groups; `table.bind` passes the broker's instance of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING

from saturnmq.broker.requests.send_answer import SendAnswers
from saturnmq.broker.services.long_polling import LongPolling
from saturnmq.broker.services.master_services import MasterServices
from saturnmq.broker.services.registrar import Registrar
from saturnmq.broker.services.statistics import Stats
from saturnmq.broker.services.watermark import Watermark
from saturnmq.broker.settings import BrokerSettings
from saturnmq.broker.state.clients import Clients
from saturnmq.broker.state.filters import Filters
from saturnmq.broker.state.groups import Groups
from saturnmq.broker.state.identity import BrokerRole, Identity
from saturnmq.broker.state.in_flight import InFlight, PendingReplies
from saturnmq.broker.state.locks import QueueLockTable
from saturnmq.broker.state.offset_moved import OffsetMovedEvents
from saturnmq.broker.state.offsets import Offsets
from saturnmq.broker.state.relays import Relays
from saturnmq.broker.state.topics import Topics
from saturnmq.net.rejections import Rejections
from saturnmq.server_admin import ServerConfiguration
from saturnmq.slices import Background, Slices
from saturnmq.store import MessageStore

if TYPE_CHECKING:
    from saturnmq.acl.plain import PlainValidator


@dataclass(frozen=True, slots=True)
class SendContext:
    """For sends and messages sent back. cluster_suffix: the CLUSTER property, encoded. turns: numbers sends without a queue."""

    settings: BrokerSettings
    store: MessageStore
    topics: Topics
    groups: Groups
    stats: Stats
    clock_ms: Callable[[], int]
    master: MasterServices
    identity: Identity
    answers: SendAnswers
    in_flight: InFlight
    cluster_suffix: str
    rejections: Rejections
    turns: Iterator[int] = field(default_factory=count)


@dataclass(frozen=True, slots=True)
class ReplyContext:
    """For replies to request messages."""

    send: SendContext
    clients: Clients
    pending: PendingReplies


@dataclass(frozen=True, slots=True)
class TransactionContext:
    """For the end of transactions."""

    master: MasterServices
    rejections: Rejections


@dataclass(frozen=True, slots=True)
class PullContext:
    """For pulls."""

    settings: BrokerSettings
    store: MessageStore
    topics: Topics
    groups: Groups
    offsets: Offsets
    clients: Clients
    filters: Filters
    stats: Stats
    identity: Identity
    role: BrokerRole
    long_polling: LongPolling
    clock_ms: Callable[[], int]
    offset_moved: OffsetMovedEvents
    check_rights: Callable[[object, str, str], None]  # caller, topic, group; raises AccessDenied


@dataclass(frozen=True, slots=True)
class MessageContext:
    """For queries of single messages and requests relayed to consumers."""

    settings: BrokerSettings
    store: MessageStore
    clients: Clients
    slices: Slices
    relays: Relays


@dataclass(frozen=True, slots=True)
class ClientContext:
    """For requests of live clients and about them."""

    settings: BrokerSettings
    topics: Topics
    groups: Groups
    clients: Clients
    filters: Filters
    locks: QueueLockTable
    long_polling: LongPolling
    rejections: Rejections
    clock_ms: Callable[[], int]
    heartbeats: Slices
    slices: Slices


@dataclass(frozen=True, slots=True)
class OffsetContext:
    """For offsets of consumers, queues and delay levels."""

    store: MessageStore
    topics: Topics
    groups: Groups
    offsets: Offsets
    master: MasterServices
    slices: Slices


@dataclass(frozen=True, slots=True)
class AdminContext:
    """For changes of topics and groups, and for cleaning. removals: deletes files of queues."""

    store: MessageStore
    topics: Topics
    groups: Groups
    offsets: Offsets
    registrar: Registrar
    slices: Slices
    stats: Stats
    removals: Background


@dataclass(frozen=True, slots=True)
class RuntimeContext:
    """For the configuration and the runtime information. config_text: the configuration as `key=value` lines."""

    settings: BrokerSettings
    store: MessageStore
    stats: Stats
    clock_ms: Callable[[], int]
    in_flight: InFlight
    rejections: Rejections
    master: MasterServices
    config_text: Callable[[], str]
    configuration: Callable[[], ServerConfiguration]
    watermark: Watermark


@dataclass(frozen=True, slots=True)
class ProgressContext:
    """For the progress of consumer groups in queues."""

    settings: BrokerSettings
    store: MessageStore
    topics: Topics
    groups: Groups
    offsets: Offsets
    clients: Clients
    clock_ms: Callable[[], int]
    identity: Identity
    slices: Slices
    stats: Stats
    filters: Filters


@dataclass(frozen=True, slots=True)
class AclContext:
    """For reading and changing accounts. plain_validator: None without account files."""

    settings: BrokerSettings
    identity: Identity
    plain_validator: PlainValidator | None
