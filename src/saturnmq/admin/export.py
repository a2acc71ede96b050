"""The parts of a cluster, as documents: topics and groups, settings of brokers, load of brokers.

The documents have the names and values of those that Apache's tools export.

Requirements: ADM-09, ADM-28, C-55..C-57.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any, Final

from saturnmq.admin.brokers import Brokers
from saturnmq.admin.connection import MASTER_ID, AdminConnection
from saturnmq.admin.consumption import consumer_connection
from saturnmq.admin.groups import Groups
from saturnmq.admin.listings import group_table, topic_table
from saturnmq.admin.statistics import TOPIC_PUT, Statistics, day_sum
from saturnmq.protocol.bodies import BrokerStatsData, TopicList
from saturnmq.protocol.codes import DLQ_PREFIX, HALF_TOPIC, RETRY_PREFIX, SCHEDULE_TOPIC, VERSION_DESC, RequestCode
from saturnmq.protocol.errors import SaturnError

Document = dict[str, Any]

TIMEOUT_MS: Final = 10_000
SETTINGS: Final = (
    "brokerClusterName", "brokerId", "brokerName", "brokerRole", "fileReservedTime", "filterServerNums", "flushDiskType",
    "maxMessageSize", "messageDelayLevel", "msgTraceTopicName", "slaveReadEnable", "traceOn", "traceTopicEnable", "useTLS",
    "autoCreateTopicEnable", "autoCreateSubscriptionGroup",
)  # fmt: skip
_SYSTEM_PREFIX: Final = "CID_RMQ_SYS_"
_SYSTEM_GROUPS: Final = frozenset({
    "DEFAULT_CONSUMER", "DEFAULT_PRODUCER", "TOOLS_CONSUMER", "FILTERSRV_CONSUMER", "__MONITOR_CONSUMER",
    "CLIENT_INNER_PRODUCER", "SELF_TEST_P_GROUP", "SELF_TEST_C_GROUP", "CID_ONS-HTTP-PROXY", "CID_ONSAPI_PERMISSION",
    "CID_ONSAPI_OWNER", "CID_ONSAPI_PULL",
})  # fmt: skip
_TPS: Final = ("normalInTps", "normalOutTps", "transInTps", "scheduleInTps")
_DAY: Final = ("normalOneDayInNum", "normalOneDayOutNum", "transOneDayInNum", "scheduleOneDayInNum")


class Export:
    """The parts of a cluster, as documents.

    Example:
        document = await admin.export.metadata("DefaultCluster")
        print(sorted(document["topicConfigTable"]))
    """

    def __init__(self, connection: AdminConnection, brokers: Brokers, groups: Groups, statistics: Statistics) -> None:
        self._connection = connection
        self._brokers = brokers
        self._groups = groups
        self._statistics = statistics

    # ---- topics and groups

    async def topics(self, address: str, *, special: bool = False) -> Document:
        """Topics of users on a broker, by name, with the version of the table (21, 305). special: also retry and dead letters."""
        topic_configs = await topic_table(self._connection, address, timeout_ms=TIMEOUT_MS)
        document: Document = json.loads(topic_configs.encode())
        answer = await self._connection.read(
            address, RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER, timeout_ms=TIMEOUT_MS
        )
        system = set(TopicList.decode(answer.body).topic_list)
        table = document["topicConfigTable"]
        document["topicConfigTable"] = {
            name: config
            for name, config in table.items()
            if name not in system and (special or not name.startswith((RETRY_PREFIX, DLQ_PREFIX)))
        }
        return document

    async def groups(self, address: str) -> Document:
        """Groups of users on a broker, by name, with the version of the table (201)."""
        group_configs = await group_table(self._connection, address, timeout_ms=TIMEOUT_MS)
        document: Document = json.loads(group_configs.encode())
        table = document["subscriptionGroupTable"]
        document["subscriptionGroupTable"] = {
            name: config
            for name, config in table.items()
            if not name.startswith(_SYSTEM_PREFIX) and name not in _SYSTEM_GROUPS
        }
        return document

    async def metadata(
        self, cluster: str, *, topics: bool = True, groups: bool = True, special: bool = False
    ) -> Document:
        """Topics and groups of all masters of a cluster; counts of queues and of retry queues are sums. Raises UnknownCluster."""
        topic_table: Document = {}
        group_table: Document = {}
        for address in (await self._connection.masters(cluster)).values():
            if topics:
                exported = await self.topics(address, special=special)
                _add(topic_table, exported["topicConfigTable"], ("writeQueueNums", "readQueueNums"))
            if groups:
                exported = await self.groups(address)
                _add(group_table, exported["subscriptionGroupTable"], ("retryQueueNums",))
        document: Document = {"exportTime": int(time.time() * 1000)}
        if topics:
            document["topicConfigTable"] = topic_table
        if groups:
            document["subscriptionGroupTable"] = group_table
        return document

    # ---- settings

    async def settings(self, cluster: str) -> Document:
        """Settings of the masters of a cluster that matter to others, and its size. Raises UnknownCluster."""
        configs: Document = {}
        slaves = 0
        for broker in await self._connection.brokers(cluster):
            if MASTER_ID not in broker.broker_addrs:
                continue
            slaves += len(broker.broker_addrs) - 1
            configuration = await self._brokers.configuration(broker.broker_addrs[MASTER_ID])
            configs[configuration.get("brokerName", broker.broker_name)] = {
                name: configuration[name] for name in SETTINGS if name in configuration
            }
        scale = {
            "namesrvSize": len(self._connection.name_servers),
            "masterBrokerSize": len(configs),
            "slaveBrokerSize": slaves,
        }
        return {"brokerConfigs": configs, "clusterScale": scale}

    # ---- load

    async def metrics(self, cluster: str, version_name: Callable[[int], str] = str) -> Document:
        """Load, size and clients of the masters of a cluster. version_name: text of a client's version. Raises UnknownCluster."""
        report: Document = {}
        total_tps, total_day = dict.fromkeys(_TPS, 0.0), dict.fromkeys(_DAY, 0)
        for name, address in (await self._connection.masters(cluster)).items():
            runtime = await self._brokers.runtime(address)
            settings = await self._brokers.configuration(address)
            groups = (await self.groups(address))["subscriptionGroupTable"]
            quota = await self._quota(address, runtime, len(groups))
            for key in _TPS:
                total_tps[key] += quota["tps"][key]
            for key in _DAY:
                total_day[key] += quota["oneDayNum"][key]
            env = {
                "cpuNum": settings.get("clientCallbackExecutorThreads"),
                "totalMemKBytes": runtime.get("totalMemKBytes"),
            }
            report[name] = {
                "runtimeEnv": {key: value for key, value in env.items() if value is not None},
                "runtimeQuota": quota,
                "runtimeVersion": {
                    "rocketmqVersion": VERSION_DESC,
                    "clientInfo": await self._client_info(list(groups), version_name),
                },
            }
        totals = {
            "totalTps": {f"total{key[0].upper()}{key[1:]}": value for key, value in total_tps.items()},
            "totalOneDayNum": total_day,
        }
        return {"evaluateReport": report, "totalData": totals}

    async def _quota(self, address: str, runtime: dict[str, str], groups: int) -> Document:
        half = await self._item(address, HALF_TOPIC)
        delay = await self._item(address, SCHEDULE_TOPIC)
        tps = (_rate(runtime, "putTps"), _rate(runtime, "getTransferedTps"), half[0], delay[0])
        day = (_growth(runtime, "msgPutTotal"), _growth(runtime, "msgGetTotal"), half[1], delay[1])
        return {
            "diskRatio": {
                name: runtime[name] for name in ("commitLogDiskRatio", "consumeQueueDiskRatio") if name in runtime
            },
            "tps": dict(zip(_TPS, tps, strict=True)),
            "oneDayNum": dict(zip(_DAY, day, strict=True)),
            "messageAverageSize": runtime.get("putMessageAverageSize", ""),
            "topicSize": len((await self.topics(address))["topicConfigTable"]),
            "groupSize": groups,
        }

    async def _item(self, address: str, topic: str) -> tuple[float, int]:
        """Messages per second and of the day that were put to a topic; zeros for one without statistics."""
        try:
            stats: BrokerStatsData = await self._statistics.broker(address, TOPIC_PUT, topic)
        except SaturnError:
            return 0.0, 0
        return stats.stats_minute.tps, day_sum(stats)

    async def _client_info(self, groups: list[str], version_name: Callable[[int], str]) -> list[str]:
        versions: set[str] = set()
        for group in groups:
            try:
                clients = await consumer_connection(self._connection, group, [])
            except SaturnError:
                continue  # no client is connected
            versions |= {
                f"{connection.language}%{version_name(connection.version)}" for connection in clients.connection_set
            }
        return sorted(versions)


def _add(table: Document, more: Document, sums: tuple[str, ...]) -> None:
    """Add the entries of another broker to a table; the fields of `sums` are added up."""
    for name, config in more.items():
        for field in sums if name in table else ():
            config[field] += table[name][field]
        table[name] = config


def _rate(runtime: dict[str, str], key: str) -> float:
    """The first of three rates; 0 in the first seconds, in which the text is empty."""
    try:
        return float(runtime.get(key, "").split()[0])
    except (IndexError, ValueError):
        return 0.0


def _growth(runtime: dict[str, str], key: str) -> int:
    """The number of messages of yesterday."""
    try:
        return int(runtime[f"{key}TodayMorning"]) - int(runtime[f"{key}YesterdayMorning"])
    except (KeyError, ValueError):
        return 0
