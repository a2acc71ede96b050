"""Effects on a broker when a key of its configuration changes at run time (UPDATE_BROKER_CONFIG).

Requirements: SEC-07, NS-35, OPS-03, ADM-13.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from saturnmq.broker.services.registrar import Registrar
from saturnmq.broker.settings import BrokerSettings
from saturnmq.broker.state.topics import Topics
from saturnmq.config.runtime import RuntimeSettings
from saturnmq.config.settings import to_properties
from saturnmq.filter.bloom import BloomFilter
from saturnmq.net.tls import TlsSettings
from saturnmq.server_admin import ServerConfiguration, set_log_level
from saturnmq.store import MessageStore, StoreSettings

if TYPE_CHECKING:
    from saturnmq.replication.dledger.member import GroupMember

_NEVER: Final = ("brokerConfigPath", "configBlackList", "rocketmqHome")


def black_list(settings: BrokerSettings) -> dict[str, str]:
    """The keys that no request may change, each with what to do instead (ADM-13)."""
    switch = "it is listed in configBlackList; remove it there, in the configuration file, and restart this broker"
    never = "it never changes at run time; set it in the configuration file and restart this broker"
    names = [name.strip() for name in settings.config_black_list.split(";") if name.strip()]
    return dict.fromkeys(names, switch) | dict.fromkeys(_NEVER, never)


def shown_values(
    settings: BrokerSettings,
    store: StoreSettings,
    further_settings: Iterable[object],
    port: int,
    tls: TlsSettings | None,
) -> dict[str, str]:
    """The values of all keys for GET_BROKER_CONFIG (ADM-28); for keys that follow from others, the value in use.

    further_settings: of the network, the log copy and the group. port: the main port.
    """
    values: dict[str, str] = {}
    for part in (settings, store, *further_settings):
        values |= to_properties(part)
    values |= {name: str(size) for name, size in store.sizes.items()}
    uses_tls = tls is not None and tls.enable
    bits = BloomFilter(settings.bloom_error_percent, settings.bloom_consumers).bits
    return values | {
        "haListenPort": str(port + 1),
        "useTLS": "true" if uses_tls else "false",
        "bitMapLengthConsumeQueueExt": str(bits),
    }


def runtime_configuration(
    settings: BrokerSettings,
    store: MessageStore,
    topics: Topics,
    registrar: Registrar,
    group: GroupMember | None,
    *,
    file: Path | None,
    fixed: Mapping[str, str] | None,
    shown: Callable[[], Mapping[str, str]],
) -> ServerConfiguration:
    """The changes of one broker's settings and its store's. file, shown: see `ServerConfiguration`, fixed: `RuntimeSettings`."""

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
        "namesrvAddr": registrar.addresses_changed,
    }
    if group is not None:
        keys = ("fileReservedTime", "deleteWhen", "diskMaxUsedSpaceRatio", "cleanFileForciblyEnable")
        effects |= dict.fromkeys(keys, group.retention_changed)
    fixed = {**(fixed or {}), **(in_group if group is not None else pooled if store.log.pooled else {})}
    parts = RuntimeSettings(
        settings, store.settings, fixed=fixed, black_list=black_list(settings), required=frozenset({"namesrvAddr"})
    )
    return ServerConfiguration(parts, file, effects=effects, shown=shown)
