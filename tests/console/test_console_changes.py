"""Changes and counts that need a certain cluster: two masters, a day of counts, a delay level."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from browsing import Console, name_server

from saturnmq import Client
from saturnmq.admin.brokers import BrokerState
from saturnmq.admin.survey import Survey
from saturnmq.console.state import View
from saturnmq.protocol.bodies import RegisterBrokerBody, TopicConfig, TopicConfigTable
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.headers.messaging import RegisterBroker
from saturnmq.testing import EmbeddedBroker

Open = Callable[..., Any]
DAYS = {
    "msgPutTotalYesterdayMorning": "100", "msgPutTotalTodayMorning": "1500", "msgPutTotalTodayNow": "1507",
    "msgGetTotalYesterdayMorning": "10", "msgGetTotalTodayMorning": "40", "msgGetTotalTodayNow": "95",
}  # fmt: skip


@pytest.mark.spec("CON-04")
async def test_brokers_show_their_counts_of_today_and_yesterday(console: Open) -> None:
    async with console("127.0.0.1:1") as one:
        await one.log_in()
        restarted = DAYS | {"msgPutTotalTodayNow": "3"}  # counts begin again with the process
        brokers = [
            BrokerState("C", name, 0, f"127.0.0.1:{port}", runtime)
            for port, (name, runtime) in enumerate({"a": DAYS, "b": restarted, "c": {}}.items(), 1)
        ]
        one.services.state._view = View(Survey(brokers, {}, {}, {}), 1000.0)
        page = (await one.browser.get("/brokers")).text
        head = re.findall(r"<th[^>]*>([^<]*)</th>", page)
        assert head[5:9] == ["In today", "Out today", "In yesterday", "Out yesterday"]
        rows = re.findall(r"<tr>\s*<td class=\"key\"><a.*?</tr>", page, re.S)
        counts = [re.findall(r'<td class="n">([^<]*)</td>', row)[-4:] for row in rows]
        assert counts == [["7", "55", "1,400", "30"], ["0", "55", "1,400", "30"], ["–"] * 4]


async def register(console: Console, second: EmbeddedBroker) -> None:
    """Let a broker be the second master, broker-b, of the console's cluster."""
    header = RegisterBroker(
        broker_name="broker-b", broker_addr=second.broker_address, cluster_name="DefaultCluster",
        ha_server_addr="", broker_id=0,
    )  # fmt: skip
    body = RegisterBrokerBody(TopicConfigTable({"shared": TopicConfig("shared", 4, 4)})).encode()
    connection = console.services.admin.connection
    await connection.read(connection.name_servers[0], RequestCode.REGISTER_BROKER, header, body)


async def test_topic_is_changed_on_the_chosen_masters_only(console: Open) -> None:
    async with EmbeddedBroker() as first, EmbeddedBroker() as second, console(name_server(first)) as one:
        await register(one, second)
        await one.log_in()
        form = {"csrf": await one.csrf(), "cluster": "DefaultCluster", "name": "orders", "read": "4", "perm": "6"}

        async def put(write: str, *brokers: str) -> tuple[int, str]:
            answer = await one.browser.post("/do/topic", data=form | {"write": write, "broker": list(brokers)})
            return answer.status_code, answer.text

        status, text = await put("2", "broker-b", "broker-c")
        assert status == 400 and f"choose brokers of the cluster DefaultCluster: {first.broker.name}, broker-b" in text
        assert second.broker.topics.get("orders") is None
        for write, brokers in (("2", ["broker-b"]), ("3", []), ("5", [first.broker.name])):
            assert (await put(write, *brokers))[0] == 303
        queues = [broker.topics.get("orders").write_queue_nums for broker in (first.broker, second.broker)]
        assert queues == [5, 3]


@pytest.mark.spec("CON-05")
async def test_topic_is_deleted_on_one_of_two_masters(console: Open) -> None:
    async with EmbeddedBroker() as first, EmbeddedBroker() as second, console(name_server(first)) as one:
        await register(one, second)
        await one.log_in()
        form = {"csrf": await one.csrf(), "cluster": "DefaultCluster", "name": "shared"}
        made = await one.browser.post("/do/topic", data=form | {"read": "4", "write": "4", "perm": "6"})
        assert made.status_code == 303, made.text
        assert first.broker.topics.get("shared") is not None and second.broker.topics.get("shared") is not None
        page = (await one.browser.get(made.headers["location"])).text
        assert f'<option value="{second.broker_address}">broker-b</option>' in page
        deletion = form | {"confirm": "shared"}
        wrong = await one.browser.post("/do/topic/delete", data=deletion | {"only": "127.0.0.1:1"})
        assert wrong.status_code == 400 and "is no master of cluster" in wrong.text
        done = await one.browser.post("/do/topic/delete", data=deletion | {"only": second.broker_address})
        assert done.status_code == 303
        assert second.broker.topics.get("shared") is None and first.broker.topics.get("shared") is not None
        route = await one.services.admin.topics.route("shared")
        assert first.broker.name in {one.broker_name for one in route.queue_datas}
        assert (await one.browser.get(made.headers["location"])).status_code == 200
        await one.browser.post("/do/topic/delete", data=deletion | {"only": ""})
        assert first.broker.topics.get("shared") is None


@pytest.mark.spec("CON-09")
async def test_test_message_with_a_delay_level_waits_at_the_broker(console: Open) -> None:
    async with EmbeddedBroker() as server, Client.from_url(server.url) as client:
        await client.create_topic("orders", queues=1)
        async with console(name_server(server)) as one:
            await one.log_in()
            form = {"csrf": await one.csrf(), "topic": "orders", "body": "later", "level": "18"}
            sent = await one.browser.post("/do/message", data=form)
            assert sent.status_code == 303
            await one.services.state.refresh()
            held = (await one.browser.get("/waiting")).text
            assert re.search(
                r'<td class="n">18</td><td class="n">2 h 0 min</td><td class="n">1</td>.*?<td>orders</td>', held
            )
            statistics = await one.services.admin.topics.statistics("orders")
            assert sum(queue.max_offset for queue in statistics.offsets.values()) == 0
            for level in ("19", "-1", "x"):
                answer = await one.browser.post("/do/message", data=form | {"level": level})
                assert answer.status_code == 400 and "level" in answer.text
