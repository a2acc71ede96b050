"""Misuse of the client API: each mistake raises at once, with a text that says what to do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from saturnmq import (
    Client,
    Closed,
    ConfigError,
    Message,
    MessageQueue,
    MessageRefused,
    ReplyTimeout,
    ResponseError,
    RouteNotFound,
)
from saturnmq.errors import NotStarted, WrongLoop
from saturnmq.testing import EmbeddedBroker

Run = Callable[[Callable[[], Any]], Any]


@dataclass
class Order:
    id: int


def offline() -> Client:
    return Client(name_servers="127.0.0.1:1")


async def test_use_before_start_or_after_stop_raises_with_a_hint(cluster: Any) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers) as client:
        out, inbox = client.producer("p"), client.consumer("g")
        with pytest.raises(NotStarted, match=r"Use `async with`, or `await producer\.start\(\)` first"):
            await out.send("T", b"x")
        with pytest.raises(NotStarted, match=r"`await consumer\.start\(\)`"):
            await inbox.recv()
        async with out:
            pass
        with pytest.raises(Closed, match="make a new producer"):
            await out.send("T", b"x")
    with pytest.raises(Closed, match="make a new client"):
        await client.start()


async def test_use_on_another_loop_names_what_was_used(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async with (
        cluster() as c, Client(name_servers=c.name_servers) as client, client.producer("p") as out, client.consumer("g") as inbox,
    ):  # fmt: skip
        monkeypatch.setattr(client._core, "_loop", None)
        uses = {"producer": out.send("T", b"x"), "consumer": inbox.recv(1), "puller": client.puller().queues("T"),
                "client": client.topic_exists("T")}  # fmt: skip
        for role, use in uses.items():
            with pytest.raises(WrongLoop, match=f"^this {role} was started on another event loop"):
                await use
        monkeypatch.undo()


@pytest.mark.parametrize(
    ("handler", "problem"),
    [
        (lambda: None, "must take the message as its one positional argument"),
        (lambda a, b: None, "must take the message as its one positional argument"),
        ("handler", "must be a function"),
    ],
)
def test_listener_not_callable_with_a_message_is_rejected(handler: Any, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        offline().listener("T", group="g")(handler)


def test_listener_annotated_with_the_value_type_is_rejected() -> None:
    async def handle(order: Order) -> None:
        pass

    with pytest.raises(ConfigError, match=r"parameter 'order' .* Message\[Order\]"):
        offline().listener("T", group="g")(handle)


def test_listener_accepts_methods_defaults_and_loose_annotations() -> None:
    class Service:
        async def handle(self, message: Message[Order], *, dry: bool = False) -> None:
            pass

        def loose(self, message: Any, verbose: bool = False) -> None:
            pass

        def plain(self, message: Message) -> None:  # type: ignore[type-arg]
            pass

    client, service = offline(), Service()
    for n, handler in enumerate((service.handle, service.loose, service.plain, lambda message: None)):
        assert client.listener("T", group=f"g{n}")(handler) is handler
    assert [spec.handler for spec in client._listeners] == [service.handle, service.loose, service.plain, handler]


def test_unknown_consumer_option_error_suggests_the_nearest_name() -> None:
    for make in (
        lambda **options: offline().consumer("a b", **options),
        lambda **options: offline().listener("T", group="a b", **options),
    ):
        with pytest.raises(ConfigError) as caught:
            make(prefetsch=1, ack_timeout=0)
        problems = caught.value.problems
        assert len(problems) == 3
        assert any("unknown option 'prefetsch', did you mean 'prefetch'?" in text for text in problems)
        assert any("ack_timeout is 0, must be 0.01..86400.0" in text for text in problems)
        assert any("'a b' contains illegal characters" in text for text in problems)


def test_transaction_check_that_is_not_callable_is_rejected() -> None:
    with pytest.raises(ConfigError, match="check is str, must be a function"):
        offline().producer("p", check="yes")  # type: ignore[call-overload]


async def test_conflicting_queue_choices_are_rejected_before_any_io(cluster: Any) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers) as client, client.producer("p") as out:
        queue = MessageQueue("T", "b0", 0)
        for call in (out.send, out.send_oneway):
            with pytest.raises(MessageRefused, match="one of shard_by, queue and selector"):
                await call("T", b"x", shard_by="k", queue=queue)
        with pytest.raises(MessageRefused, match="one of shard_by, queue and selector"):
            await out.send_many("T", [b"x"], shard_by="k", queue=queue)
        with pytest.raises(MessageRefused, match="one of shard_by, queue and selector"):
            await out.send("T", b"x", shard_by="k", selector=lambda queues, _: queues[0])
        assert not c.broker.of(310) and not c.broker.of(320)


async def test_broker_address_used_as_name_server_is_named_in_the_error(cluster: Any) -> None:
    async with cluster() as c:
        c.ns[0].script[105] = lambda command: command.reply(3, " request type 105 not supported")
        async with Client(name_servers=c.name_servers) as client, client.producer("p") as out:
            with pytest.raises(ResponseError, match="not supported") as caught:
                await out.send("T", b"x")
        error = caught.value
        assert error.code == 3 and error.broker == c.ns[0].address
        assert error.hint == f"{c.ns[0].address} is not a NameServer; its port is 9876 by default, a broker's 10911."


async def test_read_of_an_unknown_topic_explains_auto_creation() -> None:
    async with EmbeddedBroker() as server, Client.from_url(server.url) as client:
        puller = client.puller()
        for read in (
            lambda: puller.queues("Nope"),
            lambda: puller.refresh("Nope"),
            lambda: client.query_messages("Nope", "k"),
            lambda: client.query_trace("k", topic="Nope"),
        ):
            with pytest.raises(RouteNotFound, match=r"saturnmq admin updateTopic .* -t Nope") as caught:
                await read()
            assert "auto-creation is" not in str(caught.value), "this client did not ask"
            assert "autoCreateTopicEnable=true creates it with the first message" in str(caught.value)


async def test_reply_timeout_error_names_the_missing_consumer(cluster: Any) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers) as client, client.producer("p") as out:
        await out.send("T", b"x")  # the route is known then
        with pytest.raises(ReplyTimeout, match=r"A consumer of T must be running") as caught:
            await out.request("T", b"x", timeout=1.0)
        assert caught.value.hint is not None and "return a value" in caught.value.hint


@pytest.mark.parametrize("url", ["127.0.0.1:9876", "http://ak:topsecret@h", "rmq:/h"])
def test_malformed_url_error_shows_an_example(url: str) -> None:
    with pytest.raises(ConfigError, match=r"rmq://127\.0\.0\.1:9876") as caught:
        Client.from_url(url)
    assert "topsecret" not in str(caught.value)


def test_error_text_joins_message_and_hint_as_sentences() -> None:
    assert str(ResponseError("no filter", hint="Set it.")) == "no filter. Set it."
    assert str(ResponseError("Really?", hint="Yes.")) == "Really? Yes."
    assert str(ResponseError("no filter")) == "no filter"


async def test_committed_accepts_a_queue_topic_or_list(cluster: Any) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers) as client:
        c.broker.put("T", 1, b"x")
        async with client.consumer("g", start="first") as inbox:
            await inbox.subscribe("T")
            message = await inbox.recv(30)
            await message.ack()
            queue = MessageQueue("T", "b0", 1)
            assert inbox.committed(queue) == {queue: 1}
            assert inbox.committed("T")[queue] == 1 and inbox.committed([queue]) == {queue: 1}
            assert set(inbox.committed("other")) == set()
