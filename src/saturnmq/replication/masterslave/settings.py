"""Settings of master-slave replication, under the keys of Apache RocketMQ's broker.conf.

Requirements: HA-01, HA-02, HA-05, HA-08, HA-09, HA-14, SW-03, SW-04, SEC-19.
"""

from __future__ import annotations

from dataclasses import dataclass

from saturnmq.acl.addresses import AddressList, parse_list
from saturnmq.config.settings import key
from saturnmq.net.signer import Signer
from saturnmq.protocol.errors import ConfigError
from saturnmq.raft.cluster_secret import SECRET_BYTES_MIN
from saturnmq.replication.masterslave.stream import DATA_BYTES_MAX
from saturnmq.server_admin import LOOPBACK


@dataclass(frozen=True, slots=True)
class HaSettings:
    """Settings of one broker, master or slave."""

    port_enable: bool = key("haPortEnable", True, spec="HA-01")
    ha_listen_port: int = key(
        "haListenPort", 10912, spec="HA-01", no_effect="the HA port is always listenPort + 1, as in Apache RocketMQ"
    )
    allowed_text: str = key("haAllowedAddresses", "", spec="SEC-19")
    cluster_secret: str = key("haClusterSecret", "", secret=True, spec="SEC-19")
    require_secret: bool = key("haRequireClusterSecret", False, spec="SEC-19")
    tls_enable: bool = key("haTlsEnable", True, spec="SEC-19")
    access_key: str = key("haAccessKey", "", spec="SEC-19")
    secret_key: str = key("haSecretKey", "", secret=True, spec="SEC-19")
    signature_version: int = key("haSignatureVersion", 2, low=1, high=2, spec="SEC-19")
    master_address: str = key("haMasterAddress", "", spec="HA-02")
    heartbeat_ms: int = key("haSendHeartbeatInterval", 5000, unit="ms", low=1, spec="HA-05")
    housekeeping_ms: int = key("haHousekeepingInterval", 20_000, unit="ms", low=1, spec="HA-14")
    batch_bytes: int = key("haTransferBatchSize", 32_768, unit="bytes", low=1, high=DATA_BYTES_MAX, spec="HA-09")
    from_oldest: bool = key("haTransferFromOldestFile", False, spec="HA-08")
    fall_behind_max: int = key("haSlaveFallbehindMax", 268_435_456, unit="bytes", low=1, spec="SW-03")
    slave_timeout_ms: int = key("slaveTimeout", 3000, unit="ms", low=1, spec="SW-04")

    def validate(self) -> list[str]:
        """Return one sentence per problem."""
        problems = []
        try:
            self.allowed(protected=False)
        except ConfigError as error:
            problems.append(f"haAllowedAddresses={self.allowed_text}: {error}")
        if self.require_secret and not self.cluster_secret:
            problems.append("haRequireClusterSecret=true needs haClusterSecret")
        if 0 < len(self.cluster_secret.encode()) < SECRET_BYTES_MIN:
            problems.append(f"haClusterSecret must have at least {SECRET_BYTES_MIN} bytes")
        if bool(self.access_key) != bool(self.secret_key):
            problems.append("haAccessKey and haSecretKey must be set together")
        return problems

    @property
    def signer(self) -> Signer | None:
        """Signs a slave's requests to its master; None without an account."""
        version = f"v{self.signature_version}"
        return Signer(self.access_key, self.secret_key, version=version) if self.access_key else None

    def allowed(self, *, protected: bool) -> AddressList:
        """The addresses that may use the HA port without haClusterSecret: those configured, and loopback. Raises ConfigError.

        protected: messages need an account, which the HA port does not check; loopback must then be configured, too.
        """
        parts = (self.allowed_text,) if protected else (LOOPBACK, self.allowed_text)
        return parse_list(",".join(part for part in parts if part.strip()))

    def port_open(self, *, protected: bool) -> bool:
        """Whether a master opens the HA port: if any address may use it, or the secret."""
        return self.port_enable and (not protected or bool(self.allowed_text.strip()) or bool(self.cluster_secret))

    def secret_only(self, *, protected: bool) -> bool:
        """Whether no address suffices to use the HA port."""
        if not self.cluster_secret:
            return False
        return self.require_secret or (protected and not self.allowed_text.strip())
