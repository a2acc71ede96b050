"""Settings of master-slave replication, under the keys of Apache RocketMQ's broker.conf.

Requirements: HA-01, HA-02, HA-05, HA-08, HA-09, HA-14, SW-03, SW-04, SEC-19.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from saturnmq.acl.addresses import AddressList, parse_list
from saturnmq.config.settings import key, without_effect
from saturnmq.protocol.errors import ConfigError
from saturnmq.replication.masterslave.stream import DATA_BYTES_MAX
from saturnmq.server_admin import LOOPBACK

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class HaSettings:
    """Settings of one broker, master or slave."""

    port_enable: bool = key("haPortEnable", True, spec="HA-01")
    ha_listen_port: int = key(
        "haListenPort", 10912, spec="HA-01", no_effect="the HA port is always listenPort + 1, as in Apache RocketMQ"
    )
    allowed_text: str = key("haAllowedAddresses", "", spec="SEC-19")
    master_address: str = key("haMasterAddress", "", spec="HA-02")
    heartbeat_ms: int = key("haSendHeartbeatInterval", 5000, unit="ms", low=1, spec="HA-05")
    housekeeping_ms: int = key("haHousekeepingInterval", 20_000, unit="ms", low=1, spec="HA-14")
    batch_bytes: int = key("haTransferBatchSize", 32_768, unit="bytes", low=1, high=DATA_BYTES_MAX, spec="HA-09")
    from_oldest: bool = key("haTransferFromOldestFile", False, spec="HA-08")
    fall_behind_max: int = key("haSlaveFallbehindMax", 268_435_456, unit="bytes", low=1, spec="SW-03")
    slave_timeout_ms: int = key("slaveTimeout", 3000, unit="ms", low=1, spec="SW-04")

    def validate(self) -> list[str]:
        """Return one sentence per problem; warns about keys without effect."""
        for text in without_effect(self):
            log.warning(text)
        try:
            self.allowed(protected=False)
        except ConfigError as error:
            return [f"haAllowedAddresses={self.allowed_text}: {error}"]
        return []

    def allowed(self, *, protected: bool) -> AddressList:
        """The addresses that may connect to the HA port: those configured, and loopback. Raises ConfigError.

        protected: messages need an account, which the HA port does not check; loopback must then be configured, too.
        """
        parts = (self.allowed_text,) if protected else (LOOPBACK, self.allowed_text)
        return parse_list(",".join(part for part in parts if part.strip()))

    def port_open(self, *, protected: bool) -> bool:
        """Whether a master opens the HA port: if any address may use it."""
        return self.port_enable and (not protected or bool(self.allowed_text.strip()))
