"""Route tables of hundreds of thousands of topics: registered, listed and removed without a long step of the event loop."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from served import Served, served

from loopsteps import STEP_MAX, loop_steps
from saturnmq.namesrv.registration_queue import WAITING_MAX, RegistrationQueue
from saturnmq.net import NetSettings, RemotingClient
from saturnmq.protocol.bodies import DataVersion, RegisterBrokerBody, TopicConfig, TopicConfigTable, TopicList
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.errors import ResponseError
from saturnmq.protocol.frames.command import Command

TOPICS = 225_000
LARGE = {"brokerName": "large", "brokerAddr": "127.0.0.1:1", "clusterName": "large", "compressed": "true"}
LISTS = (
    RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
    RequestCode.GET_TOPICS_BY_CLUSTER,
    RequestCode.GET_UNIT_TOPIC_LIST,
    RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST,
    RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST,
)
MS = 60_000
pytestmark = pytest.mark.loop(seconds=120)


def packed(count: int, *, version: int = 1, queues: int = 4) -> bytes:
    topics = {f"topic-{number}": TopicConfig(f"topic-{number}", queues, queues) for number in range(count)}
    return RegisterBrokerBody(TopicConfigTable(topics, DataVersion(1, version)), []).encode_compressed()


async def call(s: Served, client: RemotingClient, code: int, body: bytes | None = None, **ext: str) -> Command:
    return await client.invoke(s.address, Command(code, ext=ext, body=body, version=407), MS)


async def register_large(s: Served, client: RemotingClient, body: bytes, **more: str) -> Command:
    ext = {"haServerAddr": "", "brokerId": "0"} | LARGE | more
    return await call(s, client, RequestCode.REGISTER_BROKER, body, **ext)


@asynccontextmanager
async def honest_beside(s: Served) -> AsyncIterator[list[int]]:
    """An honest client that asks for its route all the time; how often it got it."""
    answered = [0]
    ended = False

    async def ask() -> None:
        while not ended:
            assert await s.route() is not None
            answered[0] += 1

    asking = asyncio.create_task(ask())
    yield answered
    ended = True
    await asking


@pytest.mark.realtime
async def test_large_table_has_no_long_step(tmp_path: Path) -> None:
    """Each list took 90 to 130 ms of the event loop, a registration and the end of its connection as long."""
    first, second = packed(TOPICS), packed(TOPICS, version=2, queues=8)
    seen: dict[str, float] = {}

    async with served(tmp_path) as s:
        assert (await s.register()).code == 0
        hostile = RemotingClient(settings=NetSettings())
        async with honest_beside(s) as answered:
            for name, body in (("first", first), ("second", second)):
                with loop_steps() as steps:
                    assert (await register_large(s, hostile, body)).code == 0
                seen[f"{name} registration"] = steps.longest
            for code in LISTS:
                with loop_steps() as steps:
                    answer = await call(s, hostile, code, cluster="large")
                assert answer.code == 0
                seen[code.name] = steps.longest
            before = answered[0]
            with loop_steps() as steps:
                await hostile.close()
                while "large" in s.server.routes.brokers or s.server._disposal._task is not None:
                    await asyncio.sleep(0)  # poll
            seen["close"] = steps.longest
            while answered[0] == before:
                await asyncio.sleep(0)  # poll
        assert s.server.routes.topic_shares.total == 1
    assert max(seen.values()) < STEP_MAX, seen


async def test_list_made_while_the_table_changes_is_complete(served: Served) -> None:
    assert (await register_large(served, served.client, packed(60_000))).code == 0
    hostile = RemotingClient(settings=NetSettings())
    listing = [asyncio.create_task(call(served, served.client, LISTS[0])) for _ in range(8)]
    changes = 0
    while not all(task.done() for task in listing):
        name = {"brokerName": f"b{changes % 50}", "brokerAddr": f"127.0.0.1:{changes % 50 + 1}0"}
        table = TopicConfigTable({f"new-{changes}": TopicConfig("x", 1, 1)}, DataVersion(1, changes))
        body = RegisterBrokerBody(table, []).encode()
        assert (await served.register(hostile, body=body, ext=name)).code == 0
        assert (await call(served, hostile, RequestCode.DELETE_TOPIC_IN_NAMESRV, topic=f"topic-{changes}")).code == 0
        changes += 1
    await hostile.close()
    assert changes > 3
    for task in listing:
        topics = TopicList.decode(task.result().body).topic_list
        assert len(topics) == len(set(topics)) and set(topics) >= {
            f"topic-{number}" for number in range(changes, 60_000)
        }


async def test_lists_asked_for_together_are_computed_once(served: Served) -> None:
    """A stranger who asked 256 times at once occupied the server for 40 s, and others got code 2. Its answers leave one by one."""

    assert (await register_large(served, served.client, packed(60_000))).code == 0
    made = []
    names = served.server.routes.topic_names
    served.server.routes.topic_names = lambda: made.append(1) or names()  # type: ignore[method-assign, func-returns-value]
    hostile = RemotingClient(settings=NetSettings())
    asked = [asyncio.create_task(call(served, hostile, LISTS[0])) for _ in range(100)]
    honest = await call(served, served.client, LISTS[0])
    assert honest.code == 0 and {answer.code for answer in await asyncio.gather(*asked)} == {0}
    assert len(made) <= 2
    await hostile.close()


async def test_list_that_exceeds_a_frame_is_an_error_with_the_limit(served: Served) -> None:
    topics = {f"{number:0>120}": TopicConfig("", 1, 1) for number in range(145_000)}
    for name, config in topics.items():
        config.topic_name = name
    body = RegisterBrokerBody(TopicConfigTable(topics, DataVersion(1, 1)), []).encode_compressed()
    assert (await register_large(served, served.client, body)).code == 0
    answer = await call(served, served.client, LISTS[0])
    assert answer.code == 1 and "frameMaxLength" in (answer.remark or ""), answer.remark
    assert (await call(served, served.client, RequestCode.GET_BROKER_CLUSTER_INFO)).code == 0


async def test_honest_large_registration_waits_for_one_of_a_stranger(served: Served) -> None:
    """Registrations were parsed in order of arrival: behind those of a stranger a broker's came too late, and it expired."""

    order: list[str] = []
    before: list[int] = []  # how many of the stranger's had ended when the honest one arrived
    body = packed(10_000)
    put = served.server._registrations.put

    def of_networks(address: str, size: int, what: Any) -> Any:
        name = "hostile" if len(order) < 6 else "honest"
        order.append(name)
        if name == "honest":
            before.append(len(ended))
        result = put(f"10.0.0.{len(name)}", size, what)
        result.add_done_callback(lambda _: ended.append(name))
        return result

    ended: list[str] = []
    served.server._registrations.put = of_networks  # type: ignore[method-assign]
    hostile = RemotingClient(settings=NetSettings())
    sent = [
        asyncio.create_task(register_large(served, hostile, packed(20_000, version=number), brokerAddr=f"h:{number}"))
        for number in range(6)
    ]
    while len(order) < 6:
        await asyncio.sleep(0)  # poll
    honest = {"brokerName": "honest", "brokerAddr": "127.0.0.1:2"}
    assert (await register_large(served, served.client, body, **honest)).code == 0
    assert ended.index("honest") <= before[0] + 2, ended
    await asyncio.gather(*sent)
    await hostile.close()


async def test_registrations_that_wait_are_bounded_by_address(served: Served) -> None:
    served.server._registrations._bytes_max = 2 * len(packed(20_000)) + 100
    answers = await asyncio.gather(*(register_large(served, served.client, packed(20_000)) for _ in range(8)))
    codes = [answer.code for answer in answers]
    assert set(codes) == {0, 2} and codes[0] == 0
    assert any("are waiting" in (answer.remark or "") for answer in answers)
    assert (await register_large(served, served.client, packed(20_000, version=9))).code == 0, "nothing is left over"
    assert served.server._registrations._bytes_by_address == {}


async def test_refused_compressed_registrations_leave_no_memory(tmp_path: Path) -> None:
    """15 KB inflate to 16 MB; the traceback of each refusal kept them until the garbage collector ran: 5 GB after 750."""
    bomb = zlib.compress(bytes(16_000_000), 9)

    async with served(tmp_path) as s:
        assert (await register_large(s, s.client, bomb)).code == 1
        gc.disable()
        tracemalloc.start()
        try:
            refused = await asyncio.gather(*(register_large(s, s.client, bomb) for _ in range(20)))
            kept, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
            gc.enable()
        assert {answer.code for answer in refused} == {1} and "after its end" in (refused[0].remark or "")
        assert kept < 32_000_000, kept
        assert (await register_large(s, s.client, packed(100))).code == 0


async def test_requests_that_wait_are_counted_by_address() -> None:
    go, queue = asyncio.Event(), RegistrationQueue()

    async def waits() -> Command:
        await go.wait()
        return Command(0)

    results = [queue.put("a", 1, waits) for _ in range(WAITING_MAX)]
    await asyncio.sleep(0)  # poll: the first one runs
    results += [queue.put("a", 1, waits)]
    with pytest.raises(ResponseError, match=f"{WAITING_MAX} registrations"):
        queue.put("a", 1, waits)
    results += [queue.put("b", 1, waits)]
    go.set()
    assert {answer.code for answer in await asyncio.gather(*results)} == {0}


async def test_large_registration_merges_with_changes_meanwhile(served: Served) -> None:
    assert (await register_large(served, served.client, packed(20_000))).code == 0
    other = RemotingClient(settings=NetSettings())
    merging = asyncio.create_task(register_large(served, served.client, packed(25_000, version=2)))
    small = {"brokerName": "large", "brokerAddr": "127.0.0.1:1", "clusterName": "large"}
    number = 0
    while not merging.done():
        number += 1
        table = TopicConfigTable({f"small-{number}": TopicConfig("x", 1, 1)}, DataVersion(2, number))
        body = RegisterBrokerBody(table, []).encode()
        answer = await served.register(other, body=body, ext=small)
        assert answer.code == 0
    assert (await merging).code in (0, 2)
    assert {f"small-{n}" for n in range(1, number)} <= set(served.server.routes.topics)
    assert (await register_large(served, served.client, packed(25_000, version=3))).code == 0
    assert served.server.routes.topic_shares.total == len(served.server.routes.queues["large"].topics)
    await other.close()


async def test_write_permission_of_a_large_table_changes_in_steps(served: Served) -> None:
    assert (await register_large(served, served.client, packed(30_000))).code == 0
    for code, field, perm in (
        (RequestCode.WIPE_WRITE_PERM_OF_BROKER, "wipeTopicCount", 4),
        (RequestCode.ADD_WRITE_PERM_OF_BROKER, "addTopicCount", 6),
    ):
        answer = await call(served, served.client, code, brokerName="large")
        assert answer.ext == {field: "30000"}
        route = await served.route("topic-29999")
        assert route is not None and route.queue_datas[0].perm == perm
