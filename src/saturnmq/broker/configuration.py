"""What a broker does when a key of its configuration changes at run time (UPDATE_BROKER_CONFIG).

Requirements: SEC-07, NS-35, OPS-03.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from saturnmq.broker.services.registrar import Registrar
from saturnmq.broker.settings import BrokerSettings
from saturnmq.broker.state.topics import Topics
from saturnmq.config.runtime import RuntimeSettings
from saturnmq.replication.dledger.member import GroupMember
from saturnmq.server_admin import Configuration, set_log_level
from saturnmq.store import MessageStore


def runtime_configuration(
    settings: BrokerSettings,
    store: MessageStore,
    topics: Topics,
    registrar: Registrar,
    group: GroupMember | None,
    *,
    file: Path | None,
    shown: Callable[[], Mapping[str, str]],
) -> Configuration:
    """The changes of one broker's settings and of its store's. file, shown: see `Configuration`."""

    def permission_changed() -> None:
        topics.next_version()
        registrar.require_full()

    in_group = {"flushDiskType": "a member of a DLedger group takes flushDiskType at its start"}
    pooled = {"flushDiskType": "transientStorePoolEnable=true works with ASYNC_FLUSH only"}
    effects: dict[str, Callable[[], object]] = {
        "brokerPermission": permission_changed,
        "autoCreateTopicEnable": topics.add_default_topic,
        "flushDiskType": store.flush_before_acknowledgement,
        "logLevel": lambda: set_log_level(settings.log_level),
    }
    if group is not None:
        keys = ("fileReservedTime", "deleteWhen", "diskMaxUsedSpaceRatio", "cleanFileForciblyEnable")
        effects |= dict.fromkeys(keys, group.retention_changed)
    fixed = in_group if group is not None else pooled if store.log.pooled else {}
    return Configuration(RuntimeSettings(settings, store.settings, fixed=fixed), file, effects=effects, shown=shown)
