"""What request handlers may use: the broker's state tables and services, never the broker itself.

Fields declared with `init=False` are set by `Broker`; `store_host`, `answers`, `address` and `id_prefix` only once it listens.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from saturnmq.broker.requests.send_answer import SendAnswers
from saturnmq.broker.services.delay import DelayService
from saturnmq.broker.services.long_polling import Hold
from saturnmq.broker.services.statistics import Stats
from saturnmq.broker.services.timer import TimerService
from saturnmq.broker.services.transactions import Transactions
from saturnmq.broker.settings import BrokerSettings
from saturnmq.broker.state.clients import Clients
from saturnmq.broker.state.filters import Filters
from saturnmq.broker.state.groups import Groups
from saturnmq.broker.state.locks import QueueLocks
from saturnmq.broker.state.offset_moved import OffsetMoved
from saturnmq.broker.state.offsets import Offsets
from saturnmq.broker.state.topics import Topics
from saturnmq.net.refusals import Refusals
from saturnmq.protocol.message import Host
from saturnmq.store import MessageStore


async def _nobody() -> None:
    """Default of `Context.told`: no NameServers, nothing to wait for."""


@dataclass(slots=True)
class Context:
    """Services and state shared by all handlers of one broker."""

    settings: BrokerSettings
    store: MessageStore
    topics: Topics
    groups: Groups
    offsets: Offsets
    clients: Clients
    locks: QueueLocks
    stats: Stats
    clock_ms: Callable[[], int]
    filters: Filters
    refusals: Refusals
    hold: Hold = field(init=False)
    delay: DelayService = field(init=False)
    timer: TimerService = field(init=False)
    transactions: Transactions = field(init=False)
    store_host: Host = field(init=False)
    answers: SendAnswers = field(init=False)
    moved: OffsetMoved = field(init=False)
    address: str = ""  # advertised to clients, host:port
    id_prefix: str = ""  # prefix of offset message ids: packed host and port, hex
    cluster_suffix: str = ""  # the CLUSTER property, encoded
    waiting_sends: int = 0  # sends that wait for durability or replication
    waiting_replies: int = 0  # replies pushed to a requester that has not confirmed yet
    config_text: Callable[[], str] = str
    told: Callable[[], Awaitable[None]] = _nobody  # waits, bounded, until NameServers have every topic set so far
    is_slave: Callable[[], bool] = bool  # whether this broker is currently a slave of another one with the same name
