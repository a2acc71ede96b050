"""NameServer settings, with Apache RocketMQ's keys.

Requirements: NS-03, NS-04, NS-05.
"""

from __future__ import annotations

import dataclasses
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from saturnmq.config.settings import Loaded, key, without_effect

log = logging.getLogger(__name__)

_NO_HOME: Final = "every file has a key of its own"
_NO_ENVIRONMENT: Final = "routes are not looked up in a product environment"


@dataclass(frozen=True, slots=True)
class NameServerSettings:
    """Settings of one NameServer; those of its network layer are NetSettings."""

    rocketmq_home: str = key("rocketmqHome", "", spec="NS-03", no_effect=_NO_HOME)
    kv_config_path: str = key("kvConfigPath", str(Path.home() / "namesrv" / "kvConfig.json"), spec="NS-03")
    config_store_path: str = key("configStorePath", str(Path.home() / "namesrv" / "namesrv.properties"), spec="NS-03")
    product_env_name: str = key("productEnvName", "center", spec="NS-03", no_effect=_NO_ENVIRONMENT)
    cluster_test: bool = key("clusterTest", False, spec="NS-03", no_effect=_NO_ENVIRONMENT)
    order_message_enable: bool = key("orderMessageEnable", False, spec="NS-21")
    listen_port: int = key("listenPort", 9876, low=0, high=65535, spec="NS-04")
    bind_address: str = key("bindAddress", "127.0.0.1", spec="UX-12")
    remote_config_enable: bool = key("remoteConfigEnable", False, spec="NS-29")
    broker_expiry_ms: int = key("brokerChannelExpiredTime", 120_000, unit="ms", low=1, spec="NS-15")
    scan_first_ms: int = key("scanNotActiveBrokerFirst", 5_000, unit="ms", low=1, spec="NS-05")
    scan_interval_ms: int = key("scanNotActiveBrokerInterval", 10_000, unit="ms", low=1, spec="NS-05")
    brokers_max: int = key("brokersMax", 2000, low=1, spec="LIM-13")
    topics_max: int = key("topicsMax", 300_000, low=1, spec="LIM-13")
    kv_entries_max: int = key("kvEntriesMax", 10_000, low=1, spec="LIM-13")
    kv_log_first_ms: int = key("printKvConfigFirst", 60_000, unit="ms", low=1, spec="NS-05")
    kv_log_interval_ms: int = key("printKvConfigInterval", 600_000, unit="ms", low=1, spec="NS-05")

    def validate(self) -> list[str]:
        """No combination of settings is invalid. Warns about keys without effect."""
        for text in without_effect(self):
            log.warning(text)
        return []


def stored_in(loaded: Loaded[NameServerSettings], path: str) -> Loaded[NameServerSettings]:
    """The settings with configStorePath set to the file they were read from (NS-02)."""
    settings = dataclasses.replace(loaded.settings, config_store_path=path)
    return dataclasses.replace(loaded, settings=settings, origins=loaded.origins | {"configStorePath": path})
