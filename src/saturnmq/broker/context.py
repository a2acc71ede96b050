"""What the handlers of a broker may use: narrow names for a few services, never the broker itself."""

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
    """There are no NameServers."""


@dataclass(slots=True)
class Context:
    """Shared by all handlers of one broker."""

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
    address: str = ""  # as clients are told
    id_prefix: str = ""  # of offset message ids: host and port, hex
    cluster_suffix: str = ""  # the CLUSTER property, encoded
    waiting_sends: int = 0  # sends whose durability is not confirmed yet
    waiting_replies: int = 0  # replies whose requester has not confirmed yet
    config_text: Callable[[], str] = str
    told: Callable[[], Awaitable[None]] = _nobody  # waits, not for long, until NameServers know all topics set so far
    is_slave: Callable[[], bool] = bool  # whether another broker of the name is the master now
