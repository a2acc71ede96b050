"""Decisions of a few lines: who settles a message, when two subscriptions are equal, which options are refused."""

from __future__ import annotations

import asyncio
import gc
from types import SimpleNamespace
from typing import Any, cast

import pytest

from saturnmq import Ack, Client, ClientError, Closed, ConfigError, Message, MessageQueue
from saturnmq.client.checks import check_text, join_keys
from saturnmq.client.codecs import BytesCodec
from saturnmq.client.connection import forks
from saturnmq.client.connection.core import ClientState
from saturnmq.client.connection.routes import RouteCache
from saturnmq.client.consumer.group_check import same_selection
from saturnmq.client.consumer.member import ConsumerMember
from saturnmq.client.consumer.settings import ConsumerSettings
from saturnmq.client.filters import tag
from saturnmq.client.producer.send_request import Prepared
from saturnmq.client.trace.records import MessageType
from saturnmq.errors import MessageRefused, NoNameServer
from saturnmq.protocol.bodies import SubscriptionData
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.errors import SaturnError
from saturnmq.protocol.message import Message as Record

QUEUE = MessageQueue("T", "b0", 0)


class Settled:
    """Stands for what delivered a message."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    async def settle(self, message: Message[Any], ack: Ack, **options: Any) -> None:
        self.calls.append((ack, options))


@pytest.mark.parametrize("namespace", [None, "shop"])
async def test_message_is_settled_where_it_was_delivered(namespace: str | None) -> None:
    settler = Settled()
    message = Message(Record("T", b"x"), QUEUE, BytesCodec(), cast(Any, settler), namespace, (1, 2))
    await message.ack()
    await message.retry(reason="busy")
    await message.reject("bad")
    assert settler.calls == [
        (Ack.SUCCESS, {}),
        (Ack.RETRY, {"after": None, "reason": "busy"}),
        (Ack.REJECT, {"reason": "bad"}),
    ]
    pulled = Message(Record("T", b"x"), QUEUE, BytesCodec(), None, namespace)
    for settle in (pulled.ack, pulled.commit, pulled.rollback, pulled.retry, pulled.extend, pulled.reject):
        with pytest.raises(ClientError, match="this message was pulled, not delivered by a consumer"):
            await settle()


@pytest.mark.parametrize(
    ("local", "remote", "is_same"),
    [
        (("TAG", "a || b"), ("TAG", "b||a"), True),
        (("", "a"), ("TAG", "a"), True),
        (("TAG", "a"), (None, "a"), True),
        (("TAG", "a"), ("TAG", "a || b"), False),
        (("TAG", "a"), ("SQL92", "a"), False),
        (("SQL92", "a > 1"), ("SQL92", "a > 1"), True),
        (("SQL92", "a > 1"), ("SQL92", "a > 2"), False),
    ],
)
def test_subscriptions_select_the_same_by_kind_and_expression(local: Any, remote: Any, is_same: bool) -> None:
    def subscription(kind: str, text: str) -> SubscriptionData:
        return SubscriptionData(topic="T", sub_string=text, expression_type=kind)

    assert same_selection(subscription(*local), subscription(*remote)) is is_same


def test_texts_of_another_type_are_refused_by_name() -> None:
    with pytest.raises(MessageRefused, match="a key is int, must be text"):
        join_keys(["a", 1])  # type: ignore[list-item]
    for separator in ("\x01", "\x02"):
        with pytest.raises(MessageRefused, match="a tag holds a separator character"):
            check_text("a tag", f"x{separator}")
    with pytest.raises(ConfigError, match=r"a tag filter is text like 'paid \|\| refunded', not int"):
        tag(5)  # type: ignore[arg-type]


@pytest.mark.parametrize(("seconds", "is_accepted"), [(0, False), (0.001, True), (86_400, True), (86_400.1, False)])
def test_handler_may_take_a_day(seconds: float, is_accepted: bool) -> None:
    async def handle(message: Message[bytes]) -> None: ...

    client = Client(name_servers="127.0.0.1:9876")
    register = client.listener("T", group="g", time_limit=seconds)
    if is_accepted:
        register(handle)
        assert client._listeners[0].consumer_options["ack_timeout"] == max(2 * seconds, 60)
    else:
        with pytest.raises(ConfigError, match=rf"time_limit is {seconds}, must be 0\.\.86400 seconds"):
            register(handle)


def test_model_of_a_consumer_is_cluster_or_broadcast() -> None:
    assert not ConsumerSettings(model="broadcast").validate()
    (problem,) = ConsumerSettings(model="both").validate()  # type: ignore[arg-type]
    assert problem == "model is 'both', must be 'cluster' or 'broadcast'"


async def test_copy_of_a_message_is_not_sent_by_a_stopped_client(cluster: Any) -> None:
    async with cluster() as c:
        async with Client(name_servers=c.name_servers) as client:
            inner = client._core
            out = client.producer("g")
            await out.start()
        assert inner.state.value == "SHUTDOWN_ALREADY"
        with pytest.raises(Closed):
            await out.send_many("T", [])  # not that there is no message
        with pytest.raises(Closed):
            await out.send_prepared(Prepared("T", b"x", ("id",), ""))


async def test_route_that_no_caller_waits_for_may_fail() -> None:
    fail = asyncio.Event()

    async def fetch(topic: str, timeout_ms: int) -> None:
        await fail.wait()
        raise NoNameServer("none")

    problems: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: problems.append(context))
    routes = RouteCache(fetch, default_topic="D", default_queues=4, timeout_ms=100)
    caller = asyncio.ensure_future(routes.refresh("T"))
    await asyncio.sleep(0)
    caller.cancel()
    await asyncio.wait([caller])
    del caller
    fail.set()
    while routes._pending:
        await asyncio.sleep(0)
    gc.collect()
    assert not problems, "it is no exception that was never retrieved"


def test_kinds_of_traced_messages_have_apaches_numbers() -> None:
    assert {kind.name: int(kind) for kind in MessageType} == {"NORMAL": 0, "HALF": 1, "COMMIT": 2, "DELAY": 3}


async def test_forked_child_stops_a_consumer_without_a_request(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers) as client:
        async with client.consumer("g") as inbox:
            await inbox.subscribe("T")
            with monkeypatch.context() as child:
                child.setattr(forks, "generation", forks.generation + 1)
                await inbox.stop()
                assert inbox.state is ClientState.STOPPED and not c.broker.of(RequestCode.UNREGISTER_CLIENT)
            inbox.state = ClientState.RUNNING  # the parent's has not changed
        assert c.broker.of(RequestCode.UNREGISTER_CLIENT)


@pytest.mark.parametrize(("error", "has_stack"), [(SaturnError("no route"), False), (ValueError("a defect"), True)])
async def test_topic_that_cannot_be_rebalanced_does_not_stop_the_others(
    caplog: pytest.LogCaptureFixture, error: Exception, has_stack: bool
) -> None:
    rounds: list[str] = []

    async def rebalance(topic: str) -> bool:
        rounds.append(topic)
        if topic == "A":
            raise error
        return True

    async def nothing(*_: Any) -> None: ...

    async def released(queues: Any) -> bool:
        return False

    member = SimpleNamespace(group="g", _assigned={}, _subscriptions={}, _topics=lambda: ["A", "B"], _heartbeat=nothing)
    member._rebalance_topic, member._release_all = rebalance, released
    member._compare_soon = lambda: rounds.append("compared")
    await ConsumerMember._rebalance(cast(Any, member))
    assert rounds == ["A", "B", "compared"]
    (record,) = caplog.records
    assert (
        record.getMessage() == f"rebalance failed group=g topic=A error={error}" and bool(record.exc_info) is has_stack
    )
