"""Master-slave replication of a broker without a group: the HA port of a master, or the client and the copies of a slave.

A slave serves reads and offsets; what changes messages, topics or groups is refused, since it would be overwritten or lost. There
is no automatic switch of roles.

Requirements: HA-01, HA-02, HA-19..HA-21, SW-02, ADM-08, ST-03.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from saturnmq.broker.requests.table import LEADER_ONLY
from saturnmq.broker.services.registrar import Registrar
from saturnmq.broker.settings import BrokerSettings
from saturnmq.metrics import Histogram
from saturnmq.net import Connection, TlsSettings
from saturnmq.net.rejections import Rejections
from saturnmq.protocol.codes import RequestCode as Code
from saturnmq.protocol.codes import ResponseCode
from saturnmq.protocol.errors import ConfigError
from saturnmq.protocol.frames.command import Command
from saturnmq.replication.masterslave.acks import SlaveAcks
from saturnmq.replication.masterslave.master import HaMaster, SlaveConnection
from saturnmq.replication.masterslave.settings import HaSettings
from saturnmq.store import MessageStore

if TYPE_CHECKING:
    from saturnmq.broker.master_copy import MasterCopy
    from saturnmq.replication.masterslave.dispatch import SlaveDispatch

log = logging.getLogger(__name__)

_ADDRESS_CHARS_MIN: Final = 6
_SENDS: Final = frozenset({
    Code.SEND_MESSAGE, Code.SEND_MESSAGE_V2, Code.SEND_BATCH_MESSAGE, Code.SEND_REPLY_MESSAGE, Code.SEND_REPLY_MESSAGE_V2,
    Code.CONSUMER_SEND_MSG_BACK,
})  # fmt: skip
_SERVED_BY_SLAVES: Final = frozenset({Code.UPDATE_CONSUMER_OFFSET, Code.LOCK_BATCH_MQ})
_NO_SEND: Final = (
    "service not available now. It may be caused by one of the following reasons: the broker's disk is full, messages are put "
    "to the slave, the broker is shutting down. (this broker is a slave)"
)
_NO_CHANGE: Final = "Can't modify topic or subscription group from slave broker, please execute it from master broker."


class Master:
    """The HA port of one master; with SYNC_MASTER, sends wait for a slave."""

    in_group = False
    damaged_entries = 0

    def __init__(
        self,
        settings: BrokerSettings,
        ha: HaSettings,
        store: MessageStore,
        rejections: Rejections,
        tls: TlsSettings | None = None,
    ) -> None:
        self._store = store
        self.authenticated = ha.secret_only(protected=settings.acl_enable)  # by the secret, not by addresses
        self._open = ha.port_open(protected=settings.acl_enable)
        self.acks = SlaveAcks(fall_behind_max=ha.fall_behind_max, timeout_ms=ha.slave_timeout_ms)
        self.port = HaMaster(
            ha,
            store.log,
            lambda: store.dispatched,
            store.disk,
            self.acks,
            protected=settings.acl_enable,
            rejections=rejections,
            tls=tls,
        )
        self.address = ("", 0)  # host and port, once it listens
        if settings.broker_role == "SYNC_MASTER":
            if not self._open:
                raise ConfigError(
                    "brokerRole=SYNC_MASTER needs slaves, and the HA port is closed: set haPortEnable=true, and with "
                    "aclEnable=true haClusterSecret, or the addresses of the slaves in haAllowedAddresses"
                )
            store.replicate_before_acknowledgement(self.acks)

    async def start(self, host: str, port: int) -> None:
        """Listen on a port, 0: any free one, if the HA port is to be open. Raises StartError."""
        if self._open:
            self.address = await self.port.start(host, port)

    async def stop(self) -> None:
        """Let connected slaves receive the rest, for a bounded time, and close the port."""
        await self.port.drain()
        await self.port.stop()

    @property
    def replication_seconds(self) -> Histogram:
        """Times that sends waited for a slave that has acknowledged them."""
        return self.acks.seconds

    def status(self) -> None:
        """None: there is no group."""

    def behind(self) -> list[tuple[str, int]]:
        """Host of each connected slave, and how many bytes it is behind; of two on one host the worse."""
        end, behind_bytes = self._store.max_physical_offset, dict[str, int]()
        for slave, offset in self.acks.positions:
            host = slave.host if isinstance(slave, SlaveConnection) else ""
            behind_bytes[host] = max(behind_bytes.get(host, 0), end - offset)
        return list(behind_bytes.items())

    def log_lag(self) -> None:
        """Log how far the slaves are behind (HA-19)."""
        if self._open:
            end, slaves = self._store.max_physical_offset, self.acks.slaves
            log.info("slave falls behind master %s bytes slaves=%s", end - self.acks.highest, slaves)


class Slave:
    """The replication client of one slave, and its copies of the master's tables."""

    def __init__(
        self, ha: HaSettings, dispatch: SlaveDispatch, copy: MasterCopy, registrar: Registrar, tls: TlsSettings | None
    ) -> None:
        from saturnmq.replication.masterslave.slave import HaSlave  # a master runs without it

        self._ha = ha
        self._registrar = registrar
        self.copy = copy
        dispatch.on_message = copy.replicated
        self.client = HaSlave(ha, dispatch, self._master_address, tls)

    def _master_address(self) -> str:
        """The HA port of the master: the configured one, else what the NameServers report (HA-02)."""
        fixed = self._ha.master_address.strip()
        return fixed if len(fixed) >= _ADDRESS_CHARS_MIN else self._registrar.ha_server_address

    def start(self) -> None:
        """Replicate and copy in the background."""
        self.client.start()
        self.copy.start()

    async def stop(self) -> None:
        """Stop replicating and copying."""
        await self.client.stop()
        await self.copy.stop()

    def instead(self, connection: Connection, request: Command) -> Command | None:
        """The refusal of what a slave does not serve; None if the request is served as on a master."""
        code = request.code
        if code not in LEADER_ONLY or code in _SERVED_BY_SLAVES:
            return None
        if code in _SENDS:
            return request.reply(ResponseCode.SERVICE_NOT_AVAILABLE, _NO_SEND)
        if code == Code.END_TRANSACTION:
            return request.reply(ResponseCode.SLAVE_NOT_AVAILABLE, "a slave ends no transactions")
        return request.reply(ResponseCode.SYSTEM_ERROR, _NO_CHANGE)
