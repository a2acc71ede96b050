"""The puller and message queries without a network: what is sent to which broker, with which timeout, and what an answer means."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

import pytest

from saturnmq import Client
from saturnmq.client.connection import deadline
from saturnmq.client.connection.core import Core
from saturnmq.client.connection.routes import TopicRoute
from saturnmq.client.filters import sql
from saturnmq.client.puller import puller as module
from saturnmq.client.puller.message_queries import Span, query_messages, span_of, view_message
from saturnmq.client.puller.puller import PULLER_GROUP, Puller, PullStatus, pull_command, pull_result
from saturnmq.errors import BrokerNotExist, CallTimeout, ConnectFailed
from saturnmq.protocol.bodies import MessageQueue
from saturnmq.protocol.codes import RequestCode, ResponseCode
from saturnmq.protocol.errors import HeaderError, MessageError, ResponseError, SaturnError, response_error
from saturnmq.protocol.frames.command import Command
from saturnmq.protocol.message import Host, Message, encode_record

QUEUE = MessageQueue("T", "b0", 3)
OFFSETS = {"nextBeginOffset": "6", "minOffset": "1", "maxOffset": "9"}
FIRST_MS = 1_700_000_000_000


class Peers:
    """Stands for Core: broker b0 has `members`, address by id. outcomes: of the next calls, else an empty answer."""

    def __init__(self, namespace: str | None = None, attempts: int = 3, timeout: float = 6.0) -> None:
        self.settings = SimpleNamespace(
            namespace=namespace, attempts=attempts, timeout=timeout, api_timeout_ms=3000, vip_channel=False
        )
        self.members = {0: "master", 1: "slave", 2: "second"}
        self.outcomes: list[Any] = []
        self.calls: list[tuple[str, Command, int]] = []
        self.refreshed: list[str] = []
        self.asked_for: list[tuple[str, str, int]] = []
        self.took_s = 0.0  # of each call
        self.pauses: list[float] | None = None  # of the fixture
        self.refresh_error: Exception | None = None
        self.route: TopicRoute | None = None
        self.remote = self
        self.routes = self

    async def call(self, address: str, command: Command, timeout_ms: int) -> Command:
        self.calls.append((address, command, timeout_ms))
        if self.pauses is not None:
            self.pauses.append(self.took_s)
        elif self.took_s:
            with suppress(TimeoutError):
                async with asyncio.timeout(self.took_s):
                    await asyncio.Event().wait()
        outcome = self.outcomes.pop(0) if self.outcomes else Command(0, ext=dict(OFFSETS))
        if isinstance(outcome, Exception):
            raise outcome
        return cast(Command, outcome)

    async def call_broker(self, address: str, command: Command, timeout_ms: int) -> Command:
        answer = await self.call(address, command, timeout_ms)
        if answer.code:
            raise self.answer_error(answer, address)
        return answer

    def check_running(self, role: str) -> None:
        assert role == "puller"

    async def read_address(self, topic: str, name: str, number: int) -> tuple[str, bool]:
        self.asked_for.append((topic, name, number))
        if name != "b0":
            raise BrokerNotExist(f"no {name}")
        return self.members[number], number != 0

    async def read_route(self, topic: str) -> TopicRoute:
        addresses = {"b1": {1: "b1-slave", 2: "b1-second"}, "b0": {1: "b0-slave", 0: "b0-master"}, "b2": {}}
        return cast(TopicRoute, SimpleNamespace(addresses=addresses))

    def channel_address(self, address: str) -> str:
        return f"vip-{address}" if self.settings.vip_channel else address

    async def refresh(self, topic: str) -> TopicRoute | None:
        self.refreshed.append(topic)
        if self.refresh_error is not None:
            raise self.refresh_error
        return self.route

    def cached(self, topic: str) -> TopicRoute | None:
        return self.route

    def route_not_found(self, topic: str, *, reading: bool) -> SaturnError:
        return SaturnError(f"no {topic} to {'read' if reading else 'write'}")

    def brokers(self) -> dict[str, dict[int, str]]:
        return {"b0": self.members}

    def answer_error(self, answer: Command, broker: str, *, topic: str = "", group: str = "") -> SaturnError:
        return response_error(answer.code, f"topic={topic} group={group}", broker=broker)

    def tried(self) -> list[str]:
        return [address for address, _, _ in self.calls]


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Pauses of the puller, and of peers that get this list; only they advance the clock of deadlines."""
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr(deadline, "time", SimpleNamespace(monotonic=lambda: 1024.0 + sum(slept)))
    monkeypatch.setattr(module, "asyncio", SimpleNamespace(sleep=sleep, timeout=asyncio.timeout))
    return slept


def core_of(peers: Peers) -> Core:
    return cast(Core, peers)


def record(offset: int, topic: str = "T", properties: str = "", store_ms: int = FIRST_MS) -> bytes:
    host = Host("127.0.0.1", 10911)
    message = Message(
        topic, b"%d" % offset, properties.encode(), queue_id=3, queue_offset=offset, physical_offset=offset * 100, store_host=host,
        born_host=host, store_timestamp_ms=store_ms,
    )  # fmt: skip
    return encode_record(message)


# what is sent


def test_pull_request_has_these_fields() -> None:
    command = pull_command(QUEUE, group="g", offset=5, max_count=32, sys_flag=4)
    fields = {
        "consumerGroup": "g", "topic": "T", "queueId": "3", "queueOffset": "5", "maxMsgNums": "32", "sysFlag": "4",
        "commitOffset": "0", "suspendTimeoutMillis": "0", "subVersion": "0", "expressionType": "TAG", "bname": "b0",
    }  # fmt: skip
    assert (command.code, command.ext) == (11, fields)
    more = pull_command(
        QUEUE, group="g", offset=5, max_count=32, sys_flag=4, commit_offset=7, suspend_ms=9, expression="", kind="SQL92",
        version_ms=8, bulk_bytes=1,
    )  # fmt: skip
    assert more.ext == fields | {
        "commitOffset": "7", "suspendTimeoutMillis": "9", "subVersion": "8", "expressionType": "SQL92", "subscription": "",
        "bulkBytes": "1",
    }  # fmt: skip


@pytest.mark.usefixtures("pauses")
@pytest.mark.spec("OF-03")
@pytest.mark.parametrize("namespace", [None, "shop"])
async def test_offset_requests_name_queue_and_broker(namespace: str | None) -> None:
    peers = Peers(namespace)
    puller = Puller(core_of(peers))
    topic, group = ("T", "g") if namespace is None else ("shop%T", "shop%g")
    queue = {"topic": topic, "queueId": "3", "bname": "b0"}
    when = datetime(2023, 11, 14, 22, 13, 20, 5000, tzinfo=UTC)
    peers.outcomes = [
        *(Command(0, ext={"offset": str(number)}) for number in range(5)),
        Command(0, ext={"timestamp": "-1"}),
    ]
    assert await puller.min_offset(QUEUE) == 0
    assert await puller.max_offset(QUEUE, timeout=1.5) == 1
    assert await puller.offset_by_time(QUEUE, when) == 2
    assert await puller.offset_by_time(QUEUE, 77) == 3
    assert await puller.committed("g", QUEUE) == 4
    assert await puller.earliest_store_time(QUEUE) == -1
    await puller.commit("g", QUEUE, 8)
    assert [(command.code, command.ext) for _, command, _ in peers.calls] == [
        (RequestCode.GET_MIN_OFFSET, queue),
        (RequestCode.GET_MAX_OFFSET, queue),
        (RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, queue | {"timestamp": "1700000000005"}),
        (RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, queue | {"timestamp": "77"}),
        (RequestCode.QUERY_CONSUMER_OFFSET, queue | {"consumerGroup": group}),
        (RequestCode.GET_EARLIEST_MSG_STORETIME, queue),
        (RequestCode.UPDATE_CONSUMER_OFFSET, queue | {"consumerGroup": group, "commitOffset": "8"}),
    ]
    assert [timeout_ms for _, _, timeout_ms in peers.calls] == [2000, 500, *[2000] * 5], "a third for each attempt"
    assert set(peers.tried()) == {"master"} and {topic for topic, _, _ in peers.asked_for} == {topic}
    assert puller.group == PULLER_GROUP, "a system group is in no namespace"


async def test_group_without_a_committed_offset_has_none() -> None:
    peers = Peers()
    puller = Puller(core_of(peers))
    peers.outcomes = [Command(ResponseCode.QUERY_NOT_FOUND), Command(ResponseCode.SYSTEM_ERROR)]
    assert await puller.committed("g", QUEUE) is None
    with pytest.raises(ResponseError) as caught:
        await puller.committed("g", QUEUE)
    assert (caught.value.code, caught.value.broker) == (1, "b0") and f"topic=T group={PULLER_GROUP}" in str(
        caught.value
    )


@pytest.mark.parametrize("fields", [{}, {"offset": "x"}, {"offset": ""}])
async def test_answer_without_the_offset_is_refused(fields: dict[str, str]) -> None:
    peers = Peers()
    peers.outcomes = [Command(0, ext=fields)]
    with pytest.raises(HeaderError, match="the answer has no usable field offset"):
        await Puller(core_of(peers)).max_offset(QUEUE)


@pytest.mark.usefixtures("pauses")
async def test_pull_asks_for_its_filter_and_count() -> None:
    peers = Peers("shop")
    puller = Puller(core_of(peers), "reader")
    for expression, kind, text in (("*", "TAG", "*"), ("a || b", "TAG", "a||b"), (sql("x > 1"), "SQL92", "x > 1")):
        result = await puller.pull(QUEUE, 5, expression=expression, max_count=7, bulk_bytes=100)
        ext = peers.calls[-1][1].ext
        assert (ext["expressionType"], ext["subscription"].replace(" ", "")) == (kind, text.replace(" ", ""))
        assert (ext["sysFlag"], ext["suspendTimeoutMillis"], ext["maxMsgNums"], ext["bulkBytes"]) == (
            "4",
            "0",
            "7",
            "100",
        )
        assert (ext["consumerGroup"], ext["topic"], result.queue) == ("shop%reader", "shop%T", QUEUE)
    assert peers.calls[-1][2] == 2000
    await puller.pull(QUEUE, 5)
    ext = peers.calls[-1][1].ext
    assert (ext["maxMsgNums"], ext["subscription"], ext["expressionType"], "bulkBytes" in ext) == (
        "32",
        "*",
        "TAG",
        False,
    )


@pytest.mark.usefixtures("pauses")
@pytest.mark.parametrize(("wait", "held_ms"), [(0.0004, 0), (0.5, 500), (15.0, 15_000), (600.0, 15_000)])
async def test_broker_may_hold_a_pull_for_15_seconds(wait: float, held_ms: int) -> None:
    peers = Peers()
    await Puller(core_of(peers)).pull(QUEUE, 5, wait=wait, timeout=3.0)
    ((_, command, timeout_ms),) = peers.calls
    assert command.ext["suspendTimeoutMillis"] == str(held_ms)
    assert command.ext["sysFlag"] == ("6" if held_ms else "4")
    assert timeout_ms == (1000 + held_ms + 15_000 if held_ms else 1000), "a late answer of Apache is waited for, too"


@pytest.mark.spec("LP-04")
async def test_pull_that_is_answered_late_is_repeated_without_a_wait() -> None:
    peers = Peers()
    peers.took_s = 0.55
    await Puller(core_of(peers)).pull(QUEUE, 5, wait=0.5)
    assert len(peers.calls) == 1
    peers.took_s = 5.0
    await Puller(core_of(peers)).pull(QUEUE, 5, wait=0.5)
    assert [command.ext["sysFlag"] for _, command, _ in peers.calls[1:]] == ["6", "4"]


# the queues of a topic


async def test_queues_are_those_of_a_route_that_can_be_read() -> None:
    peers = Peers("shop")
    puller = Puller(core_of(peers))
    read, looked_up = MessageQueue("shop%T", "b0", 0), MessageQueue("shop%T", "b0", 1)

    async def read_route(topic: str) -> TopicRoute:
        assert topic == "shop%T"
        return TopicRoute(topic, read_queues=(looked_up,))

    peers.read_route = read_route  # type: ignore[method-assign]
    for cached, number in (
        (None, 1),
        (TopicRoute("shop%T", read_queues=(read,)), 0),
        (TopicRoute("shop%T", write_queues=(read,)), 1),
        (TopicRoute("shop%T", read_queues=(read,), substitute=True), 1),
    ):
        peers.route = cached
        assert await puller.queues("T") == [MessageQueue("T", "b0", number)]
    assert not peers.refreshed
    peers.route = TopicRoute("shop%T", read_queues=(read,))
    assert await puller.refresh("T") == [MessageQueue("T", "b0", 0)] and peers.refreshed == ["shop%T"]
    peers.route = None
    with pytest.raises(SaturnError, match="no shop%T to read"):
        await puller.refresh("T")


# which broker


async def test_pulls_go_where_the_last_answer_suggests() -> None:
    peers = Peers()
    puller = Puller(core_of(peers))
    peers.outcomes = [Command(0, ext=OFFSETS | {"suggestWhichBrokerId": number}) for number in ("1", "2", "0", "0")]
    for _ in range(4):
        await puller.pull(QUEUE, 5)
    assert peers.tried() == ["master", "slave", "second", "master"]
    peers.outcomes = [Command(0, ext=OFFSETS | {"suggestWhichBrokerId": "1"}), Command(ResponseCode.NO_PERMISSION)]
    await puller.pull(QUEUE, 5)
    with pytest.raises(ResponseError):
        await puller.pull(QUEUE, 5)
    await puller.pull(QUEUE, 5)
    assert peers.tried()[4:] == ["master", "slave", "master"], "a refusal ends the suggestion"
    peers.outcomes = [Command(0, ext=OFFSETS | {"suggestWhichBrokerId": "1"}), Command(0, ext={"offset": "1"})]
    await puller.pull(QUEUE, 5)
    await puller.max_offset(QUEUE)
    await puller.pull(MessageQueue("T", "b0", 4), 5)
    assert peers.tried()[7:] == ["master"] * 3, "offsets are asked of the master; another queue has no suggestion"


async def test_failed_pull_goes_to_another_member_after_the_route(
    monkeypatch: pytest.MonkeyPatch, pauses: list[float]
) -> None:
    monkeypatch.setattr(random, "random", lambda: 1.0)
    peers = Peers(attempts=4)
    peers.outcomes = [ConnectFailed("refused"), CallTimeout("late"), ConnectFailed("refused")]
    await Puller(core_of(peers)).pull(QUEUE, 5)
    assert peers.tried() == ["master", "slave", "master", "slave"] and peers.refreshed == ["T"] * 3
    assert [pause for pause in pauses if pause] == pytest.approx([0.02, 0.08, 0.32]), "pauses grow fourfold"
    shares = [timeout_ms for _, _, timeout_ms in peers.calls]
    assert shares == pytest.approx([1500, 1993, 2950, 5580], abs=1), "equal parts of what remains"
    monkeypatch.setattr(random, "random", lambda: 0.0)
    pauses.clear()
    peers.outcomes = [ConnectFailed("refused"), Command(ResponseCode.SYSTEM_BUSY)]
    await Puller(core_of(peers)).pull(QUEUE, 5, timeout=0.045)
    assert [pause for pause in pauses if pause] == pytest.approx([0.01, 0.035]), "no longer than what remains"


async def test_failed_pull_keeps_the_route_without_a_name_server() -> None:
    peers = Peers()
    peers.refresh_error = SaturnError("no NameServer")
    peers.outcomes = [ConnectFailed("refused")]
    await Puller(core_of(peers)).pull(QUEUE, 5)
    assert peers.tried() == ["master", "slave"]
    peers.members = {0: "master"}
    peers.outcomes = [ConnectFailed("refused")]
    await Puller(core_of(peers)).pull(QUEUE, 5)
    assert peers.tried()[2:] == ["master", "master"], "there is no other"


@pytest.mark.parametrize("error", [ConnectFailed("refused"), CallTimeout("late"), ConnectFailed("lost", sent=True)])
async def test_last_failure_is_raised_with_its_broker(error: Any) -> None:
    peers = Peers(attempts=2)
    peers.outcomes = [ConnectFailed("first"), error]
    with pytest.raises(type(error)) as caught:
        await Puller(core_of(peers)).pull(QUEUE, 5)
    assert caught.value is error and error.broker == "b0" and len(peers.calls) == 2
    assert bool(error.hint) is (isinstance(error, ConnectFailed) and not error.sent)
    assert not error.hint or "topic T is on b0 at slave" in error.hint


async def test_no_attempt_begins_after_the_deadline(pauses: list[float]) -> None:
    for outcome, error in (
        (ConnectFailed("refused"), ConnectFailed),
        (Command(ResponseCode.SYSTEM_BUSY), ResponseError),
    ):
        peers = Peers(attempts=5)
        peers.pauses = pauses
        peers.took_s = 1.0
        peers.outcomes = [outcome] * 5
        with pytest.raises(error):
            await Puller(core_of(peers)).pull(QUEUE, 5, timeout=1.0)
        assert len(peers.calls) == 1


async def test_unknown_broker_is_looked_up_with_each_attempt() -> None:
    peers = Peers(attempts=3)
    unknown = MessageQueue("T", "b7", 0)
    with pytest.raises(BrokerNotExist):
        await Puller(core_of(peers)).pull(unknown, 5)
    assert peers.asked_for == [("T", "b7", 0)] * 3 and not peers.calls
    peers.asked_for.clear()
    with pytest.raises(BrokerNotExist):
        await Puller(core_of(peers)).pull(unknown, 5, timeout=0)
    assert len(peers.asked_for) == 1


# what an answer means


@pytest.mark.parametrize(("next_offset", "is_refused"), [("5", True), ("4", True), ("6", False)])
async def test_messages_without_progress_are_refused(next_offset: str, is_refused: bool) -> None:
    peers = Peers()
    peers.outcomes = [Command(code, ext=OFFSETS | {"nextBeginOffset": next_offset}) for code in (0, 19)]
    puller = Puller(core_of(peers))
    if is_refused:
        with pytest.raises(HeaderError, match=f"nextBeginOffset={next_offset} does not follow offset 5"):
            await puller.pull(QUEUE, 5)
    else:
        await puller.pull(QUEUE, 5)
    assert (await puller.pull(QUEUE, 5)).status is PullStatus.NO_NEW_MESSAGE


def test_pull_answer_has_offsets_and_only_found_messages() -> None:
    for code, status in ((0, "FOUND"), (19, "NO_NEW_MESSAGE"), (20, "NO_MATCHED_MESSAGE"), (21, "OFFSET_ILLEGAL")):
        result = pull_result(Command(code, ext=OFFSETS | {"suggestWhichBrokerId": "2"}, body=b"body"), QUEUE)
        assert result is not None and result.status.value == status
        assert (result.next_offset, result.min_offset, result.max_offset, result.suggested_broker_id) == (6, 1, 9, 2)
        assert result.body == (b"body" if code == 0 else b"") and "body" not in repr(result).partition("status")[2]
    assert pull_result(Command(2, ext=OFFSETS), QUEUE) is None
    for name in OFFSETS:
        with pytest.raises(HeaderError, match="pull answer of b0 has no usable"):
            pull_result(Command(0, ext={key: text for key, text in OFFSETS.items() if key != name}), QUEUE)
    without = pull_result(Command(0, ext=dict(OFFSETS)), QUEUE)
    assert without is not None and (without.body, without.suggested_broker_id) == (b"", 0)


def test_messages_of_a_pull_have_the_tags_that_were_asked_for() -> None:
    body = b"".join(record(offset, properties=f"TAGS\x01{tag}") for offset, tag in enumerate(("a", "b", "c")))
    for tags, offsets in ((frozenset(), [0, 1, 2]), (frozenset(("a", "c")), [0, 2]), (frozenset(("x",)), [])):
        result = pull_result(Command(0, ext=dict(OFFSETS), body=body), QUEUE, tags, "shop")
        assert result is not None
        messages = result.messages()
        assert [message.offset for message in messages] == offsets
        assert all(message.queue == QUEUE for message in messages)


# message queries


def test_span_is_given_in_ms_or_as_times() -> None:
    when = datetime(2023, 11, 14, 22, 13, 20, 5000, tzinfo=UTC)
    assert span_of(5, None) == Span(5, 2**63 - 1) and span_of(0, None) == Span()
    assert span_of(when, when) == Span(1_700_000_000_005, 1_700_000_000_005) and span_of(1, 2) == Span(1, 2)


async def test_query_asks_one_member_of_each_broker() -> None:
    peers = Peers("shop")
    peers.settings.vip_channel = True
    peers.outcomes = [Command(ResponseCode.QUERY_NOT_FOUND)] * 4
    assert await query_messages(core_of(peers), "T", "k", 9, Span(1, 2)) == []
    assert peers.tried() == ["vip-b0-master", "vip-b1-slave"]
    _, command, timeout_ms = peers.calls[0]
    assert (command.code, command.version, timeout_ms) == (RequestCode.QUERY_MESSAGE, 399, 3000)
    assert command.ext == {
        "topic": "shop%T", "key": "k", "maxNum": "9", "beginTimestamp": "1", "endTimestamp": "2", "_UNIQUE_KEY_QUERY": "false",
    }  # fmt: skip
    await query_messages(core_of(peers), "T", "k", 9, Span(), unique=True, outside_namespace=True, timeout_ms=5)
    _, command, timeout_ms = peers.calls[-1]
    assert (command.ext["topic"], command.ext["_UNIQUE_KEY_QUERY"], timeout_ms) == ("T", "true", 5)


async def test_query_without_bounds_reads_all_times(cluster: Any) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers) as client:
        await client.query_messages("T", "k")
        ((first,),) = [c.broker.of(RequestCode.QUERY_MESSAGE)]
        fields = ("beginTimestamp", "endTimestamp", "maxNum", "_UNIQUE_KEY_QUERY")
        assert [first.ext[name] for name in fields] == ["0", str(2**63 - 1), "64", "false"]


async def test_query_skips_brokers_that_fail_unless_all_do() -> None:
    peers = Peers()
    matching = Command(0, body=record(1, properties="KEYS\x01k other"))
    for failure in (ConnectFailed("refused"), CallTimeout("late"), Command(ResponseCode.SYSTEM_ERROR)):
        peers.outcomes = [failure, matching]
        assert [message.offset for message in await query_messages(core_of(peers), "T", "k", 9, Span())] == [1]
        peers.outcomes = [failure, Command(ResponseCode.QUERY_NOT_FOUND)]
        assert await query_messages(core_of(peers), "T", "k", 9, Span()) == []
    peers.outcomes = [Command(ResponseCode.SYSTEM_ERROR), ConnectFailed("refused")]
    with pytest.raises(ResponseError) as caught:
        await query_messages(core_of(peers), "T", "k", 9, Span())
    assert caught.value.broker == "b0-master" and "topic=T" in str(caught.value), "the first failure"


async def test_query_returns_each_match_once_oldest_first() -> None:
    peers = Peers()
    records = [
        record(1, properties="KEYS\x01k", store_ms=FIRST_MS + 3),
        record(2, properties="KEYS\x01a k", store_ms=FIRST_MS + 1),
        record(2, properties="KEYS\x01a k", store_ms=FIRST_MS + 1),
        record(3, properties="KEYS\x01kk"),
        record(4, "other", "KEYS\x01k"),
        record(5),
        record(6, properties="KEYS\x01k", store_ms=FIRST_MS + 2),
    ]
    peers.outcomes = [Command(0, body=b"".join(records)), Command(0)] * 2
    assert [message.offset for message in await query_messages(core_of(peers), "T", "k", 9, Span())] == [2, 6, 1]
    assert [message.offset for message in await query_messages(core_of(peers), "T", "k", 2, Span())] == [2, 6]


async def test_message_is_viewed_by_its_offset_id_or_its_unique_id() -> None:
    peers = Peers()
    for message_id, where in (
        ("7F00000100002A9F00000000000000C8", "127.0.0.1:10911"),
        ("0" * 31 + "100002A9F00000000000000C8", "[::1]:10911"),
    ):
        peers.outcomes = [Command(0, body=record(2))]
        message = await view_message(core_of(peers), message_id)
        address, command, timeout_ms = peers.calls[-1]
        assert (address, command.code, command.ext, timeout_ms) == (where, 33, {"offset": "200"}, 3000)
        assert (message.offset, message.queue) == (2, MessageQueue("T", "", 3))
    unique = "7F00000100002A9F00000000000000C8"
    matches = b"".join(record(at, properties=f"UNIQ_KEY\x01{unique}", store_ms=FIRST_MS - at) for at in (3, 4))
    for first in (ConnectFailed("refused"), Command(ResponseCode.SYSTEM_ERROR), Command(0)):
        peers.outcomes = [first, Command(0, body=matches), Command(0)]
        assert (await view_message(core_of(peers), unique, "T")).offset == 4
        assert peers.calls[-1][1].ext["maxNum"] == "32"
        peers.outcomes = [first, Command(0), Command(0)]
        with pytest.raises(ResponseError, match=f"no message has the id {unique}") as caught:
            await view_message(core_of(peers), unique, "T")
        assert caught.value.code == ResponseCode.NO_MESSAGE


async def test_view_without_a_topic_raises_what_the_broker_says() -> None:
    peers = Peers()
    peers.outcomes = [ConnectFailed("refused"), Command(0)]
    with pytest.raises(ConnectFailed):
        await view_message(core_of(peers), "7F00000100002A9F00000000000000C8")
    with pytest.raises(ResponseError, match="no message has the id") as caught:
        await view_message(core_of(peers), "7F00000100002A9F00000000000000C8")
    assert caught.value.code == ResponseCode.NO_MESSAGE
    with pytest.raises(MessageError):
        await view_message(core_of(peers), "no id")
    assert len(peers.calls) == 2
    with pytest.raises(ResponseError, match="no message has the id no id"):
        await view_message(core_of(peers), "no id", "T")
