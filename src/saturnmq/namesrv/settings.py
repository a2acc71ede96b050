"""NameServer settings, with Apache RocketMQ's keys.

Requirements: NS-03, NS-04, NS-05.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from saturnmq.config.settings import LOG_LEVELS, Loaded, key
from saturnmq.server_admin import LOOPBACK, addresses_problems

_NO_ENVIRONMENT: Final = "routes are not looked up in a product environment"


@dataclass(frozen=True, slots=True)
class NameServerSettings:
    """Settings of one NameServer; those of its network layer are NetSettings."""

    rocketmq_home: str = key("rocketmqHome", "", spec="NS-03")
    kv_config_path: str = key("kvConfigPath", str(Path.home() / "namesrv" / "kvConfig.json"), spec="NS-03")
    config_store_path: str = key("configStorePath", str(Path.home() / "namesrv" / "namesrv.properties"), spec="NS-03")
    product_env_name: str = key("productEnvName", "center", spec="NS-03", no_effect=_NO_ENVIRONMENT)
    cluster_test: bool = key("clusterTest", False, spec="NS-03", no_effect=_NO_ENVIRONMENT)
    order_message_enable: bool = key("orderMessageEnable", False, spec="NS-21", runtime=True)
    listen_port: int = key("listenPort", 9876, low=0, high=65535, spec="NS-04")
    bind_address: str = key("bindAddress", "127.0.0.1", spec="UX-12")
    broker_expiry_ms: int = key("brokerChannelExpiredTime", 120_000, unit="ms", low=1, spec="NS-15", runtime=True)
    scan_first_ms: int = key("scanNotActiveBrokerFirst", 5_000, unit="ms", low=1, spec="NS-05")
    scan_interval_ms: int = key("scanNotActiveBrokerInterval", 10_000, unit="ms", low=1, spec="NS-05", runtime=True)
    brokers_max: int = key("brokersMax", 2000, low=1, spec="LIM-13", runtime=True)
    topics_max: int = key("topicsMax", 1_000_000, low=1, spec="LIM-13", runtime=True)
    kv_entries_max: int = key("kvEntriesMax", 10_000, low=1, spec="LIM-13", runtime=True)
    production_waive: str = key("production.waive", "", spec="SEC-21")
    namesrv_access: str = key("namesrvAccess", "open", choices=("open", "signed"), spec="SEC-17")
    acl_file: str = key("rocketmq.acl.plain.file", "conf/plain_acl.yml", spec="ACL-03")
    acl_plain_admin_addresses: str = key("aclPlainAdminAddresses", LOOPBACK, spec="SEC-09")
    admin_addresses: str = key("adminAddresses", LOOPBACK, spec="SEC-17")
    metrics_port: int = key("metricsPort", 0, low=0, high=65535, spec="INT-11")
    metrics_address: str = key("metricsAddress", "127.0.0.1", spec="INT-11")
    kv_log_first_ms: int = key("printKvConfigFirst", 60_000, unit="ms", low=1, spec="NS-05")
    kv_log_interval_ms: int = key("printKvConfigInterval", 600_000, unit="ms", low=1, spec="NS-05", runtime=True)
    log_level: str = key("logLevel", "", choices=LOG_LEVELS, spec="SEC-07", runtime=True)

    def validate(self) -> list[str]:
        """Return one sentence per problem."""
        return addresses_problems(self.admin_addresses) + addresses_problems(
            self.acl_plain_admin_addresses, "aclPlainAdminAddresses"
        )


def stored_in(loaded: Loaded[NameServerSettings], path: str) -> Loaded[NameServerSettings]:
    """The settings with configStorePath set to the file they were read from (NS-02)."""
    settings = dataclasses.replace(loaded.settings, config_store_path=path)
    return dataclasses.replace(loaded, settings=settings, origins=loaded.origins | {"configStorePath": path})
