"""Rates and lag of topics and groups over several brokers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from scriptedadmin import ScriptedConnection

from saturnmq.admin.statistics import Flow, GroupFlow, Statistics, day_sum
from saturnmq.protocol.bodies import (
    BrokerStatsData,
    BrokerStatsItem,
    ConsumeStats,
    GroupList,
    MessageQueue,
    OffsetWrapper,
)
from saturnmq.protocol.codes import RequestCode, ResponseCode
from saturnmq.protocol.errors import response_error

BROKERS = {"a": "127.0.0.1:1", "b": "127.0.0.1:2"}


def data(day: int = 0, hour: int = 0, minute: int = 0, tps: float = 0.0) -> BrokerStatsData:
    return BrokerStatsData(BrokerStatsItem(minute, tps, 1.0), BrokerStatsItem(hour), BrokerStatsItem(day))


@pytest.mark.spec("C-44")
@pytest.mark.parametrize(("windows", "total"), [((9, 5, 1), 9), ((0, 5, 1), 5), ((0, 0, 1), 1), ((0, 0, 0), 0)])
def test_the_day_is_that_of_the_longest_window_with_messages(windows: tuple[int, int, int], total: int) -> None:
    assert day_sum(data(*windows)) == total


@pytest.mark.spec("C-44")
@pytest.mark.parametrize(("consumed", "lag"), [(4, 12), (13, 0)])
def test_flow_is_the_sum_over_masters_and_lag_is_never_negative(consumed: int, lag: int) -> None:
    def item(address: str, ext: Any) -> Any:
        if address == BROKERS["b"] and ext["statsName"] == "GROUP_GET_NUMS":
            return response_error(ResponseCode.SYSTEM_ERROR, "The stats <GROUP_GET_NUMS> <orders@g> not exist")
        assert ext["statsKey"] == ("orders" if ext["statsName"] == "TOPIC_PUT_NUMS" else "orders@g")
        return data(day=7, tps=1.5)

    def stats(address: str, ext: Any) -> ConsumeStats:
        return ConsumeStats({MessageQueue("orders", address[-1], 0): OffsetWrapper(10, consumed, 0)})

    script = {
        RequestCode.VIEW_BROKER_STATS_DATA: item,
        RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: lambda *_: GroupList(["g"]),
        RequestCode.GET_CONSUME_STATS: stats,
    }
    found = asyncio.run(Statistics(ScriptedConnection(BROKERS, script)).topic("orders"))
    assert (found.flow, found.groups) == (Flow(3.0, 14), [GroupFlow("g", Flow(1.5, 7), lag)])
