"""Exported documents: which figure of a broker is shown under which name."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from saturnmq.admin.export import Export
from saturnmq.protocol.bodies import BrokerStatsData, BrokerStatsItem

MASTERS = {"a": "127.0.0.1:1", "b": "127.0.0.1:2"}
RUNTIME = {
    "putTps": "1.5 11 111", "getTransferedTps": "2.5 22 222", "putMessageAverageSize": "321.5",
    "msgPutTotalTodayMorning": "100", "msgPutTotalYesterdayMorning": "40",
    "msgGetTotalTodayMorning": "90", "msgGetTotalYesterdayMorning": "20",
    "commitLogDiskRatio": "0.25", "consumeQueueDiskRatio": "0.5",
}  # fmt: skip
PUTS = {
    "RMQ_SYS_TRANS_HALF_TOPIC": BrokerStatsData(BrokerStatsItem(1, 3.5, 1.0), BrokerStatsItem(2), BrokerStatsItem(30)),
    "SCHEDULE_TOPIC_XXXX": BrokerStatsData(BrokerStatsItem(1, 4.5, 1.0), BrokerStatsItem(2), BrokerStatsItem(40)),
}


@pytest.mark.spec("C-57")
async def test_metrics_are_the_figures_of_each_master_and_their_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    async def masters(cluster: str) -> dict[str, str]:
        return MASTERS

    async def runtime(address: str) -> dict[str, str]:
        return RUNTIME

    async def configuration(address: str) -> dict[str, str]:
        return {"clientCallbackExecutorThreads": "12"}

    async def item(address: str, name: str, key: str) -> BrokerStatsData:
        assert name == "TOPIC_PUT_NUMS"
        return PUTS[key]

    async def topics(self: Export, address: str) -> dict[str, Any]:
        return {"topicConfigTable": dict.fromkeys("abc")}

    async def groups(self: Export, address: str) -> dict[str, Any]:
        return {"subscriptionGroupTable": dict.fromkeys("gh")}

    async def clients(self: Export, groups: list[str], version_name: Any) -> list[str]:
        return ["JAVA%V4_9_7"]

    for name, function in (("topics", topics), ("groups", groups), ("_client_info", clients)):
        monkeypatch.setattr(Export, name, function)
    connection: Any = SimpleNamespace(masters=masters)
    brokers: Any = SimpleNamespace(runtime=runtime, configuration=configuration)
    statistics: Any = SimpleNamespace(broker=item)
    unused: Any = None
    document = await Export(connection, brokers, unused, statistics).metrics("C")
    tps = {"normalInTps": 1.5, "normalOutTps": 2.5, "transInTps": 3.5, "scheduleInTps": 4.5}
    day = {"normalOneDayInNum": 60, "normalOneDayOutNum": 70, "transOneDayInNum": 30, "scheduleOneDayInNum": 40}
    report = {
        "runtimeEnv": {"cpuNum": "12"},
        "runtimeQuota": {
            "diskRatio": {"commitLogDiskRatio": "0.25", "consumeQueueDiskRatio": "0.5"}, "tps": tps, "oneDayNum": day,
            "messageAverageSize": "321.5", "topicSize": 3, "groupSize": 2,
        },
        "runtimeVersion": {"rocketmqVersion": "V4_9_7", "clientInfo": ["JAVA%V4_9_7"]},
    }  # fmt: skip
    assert document == {
        "evaluateReport": dict.fromkeys(MASTERS, report),
        "totalData": {
            "totalTps": {
                "totalNormalInTps": 3.0, "totalNormalOutTps": 5.0, "totalTransInTps": 7.0, "totalScheduleInTps": 9.0,
            },
            "totalOneDayNum": {name: 2 * count for name, count in day.items()},
        },
    }  # fmt: skip
