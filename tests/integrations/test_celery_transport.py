"""The kombu transport without Celery, against a broker: queues, exchanges, settling, connections."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import kombu
import pytest
from kombu.exceptions import ChannelError, OperationalError
from kombu.transport import TRANSPORT_ALIASES

import saturnmq.kombu
from saturnmq import sync
from saturnmq.extras import install_command
from saturnmq.kombu.names import topic_of_queue
from saturnmq.protocol.errors import ConfigError
from saturnmq.testing import SyncEmbeddedBroker

Connect = Callable[..., kombu.Connection]


@pytest.fixture(scope="module")
def server() -> Iterator[SyncEmbeddedBroker]:
    with SyncEmbeddedBroker() as server:
        yield server


@pytest.fixture
def connect(server: SyncEmbeddedBroker) -> Iterator[Connect]:
    connections: list[kombu.Connection] = []

    def make(path: str = "", **options: Any) -> kombu.Connection:
        options = {"queues": 2, "requeue_delay": 0, **options}
        connection = kombu.Connection(f"rocketmq://{server.name_servers}/{path}", transport_options=options)
        connections.append(connection)
        return connection

    yield make
    for connection in connections:
        connection.release()


@pytest.fixture
def client(server: SyncEmbeddedBroker) -> Iterator[sync.Client]:
    with sync.Client.from_url(server.url) as client:
        yield client


def publish(connection: kombu.Connection, queue: kombu.Queue, *bodies: Any, **options: Any) -> None:
    producer = kombu.Producer(connection.default_channel)
    for body in bodies:
        producer.publish(body, routing_key=queue.name, declare=[queue], **options)


def received(connection: kombu.Connection, *queues: kombu.Queue, count: int, ack: bool = True) -> list[Any]:
    """The payloads of so many messages."""
    messages: list[Any] = []
    with kombu.Consumer(connection, list(queues), on_message=messages.append):
        while len(messages) < count:
            connection.drain_events(timeout=10)
    if ack:
        for message in messages:
            message.ack()
    return [message.payload for message in messages]


def nothing(connection: kombu.Connection, queue: kombu.Queue) -> None:
    with kombu.Consumer(connection, [queue]), pytest.raises(socket.timeout):
        connection.drain_events(timeout=0.2)


# ---- connections


@pytest.mark.spec("INT-03")
def test_the_import_registers_the_alias_only_if_it_is_free() -> None:
    assert TRANSPORT_ALIASES["rocketmq"] == "saturnmq.kombu:Transport"
    program = (
        "from kombu.transport import TRANSPORT_ALIASES as a; a['rocketmq'] = 'other:Transport'; import saturnmq.kombu; "
        "assert a['rocketmq'] == 'other:Transport'"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_import_without_kombu_names_the_command_that_installs_it() -> None:
    program = "import sys; sys.modules['kombu.transport'] = None; import saturnmq.kombu"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert f"ImportError: saturnmq.kombu needs kombu: {install_command('celery')}\n" in done.stderr


@pytest.mark.spec("INT-04")
def test_url_names_one_server_and_the_namespace_and_options_name_more(
    server: SyncEmbeddedBroker, connect: Connect
) -> None:
    shop = connect("shop")
    with closing(shop.SimpleQueue("urls")) as queue:
        queue.put("namespaced")
    with sync.Client.from_url(server.url) as client:
        assert client.topic_exists("shop%urls")
    others = kombu.Connection(
        "rocketmq://127.0.0.1:1/shop",
        transport="saturnmq.kombu:Transport",
        transport_options={"name_servers": ["127.0.0.1:1", server.name_servers]},
    )
    with others, closing(others.SimpleQueue("urls")) as queue:
        message = queue.get(timeout=10)
        assert message.payload == "namespaced"
        message.ack()
    assert kombu.Connection("rocketmq://").transport.default_port == 9876
    assert kombu.Connection("rocketmq://").transport.can_parse_url is False


def test_url_and_errors_show_no_secret() -> None:
    connection = kombu.Connection("rocketmq://reader:s3cret@127.0.0.1:1/shop", connect_timeout=0.1)
    options = connection.transport._options()
    assert (options.client["access_key"], options.client["secret_key"]) == ("reader", "s3cret")
    assert connection.as_uri() == "rocketmq://reader:**@127.0.0.1:1/shop"
    with pytest.raises(OperationalError) as error:
        connection.ensure_connection(max_retries=1, interval_start=0)
    assert "s3cret" not in str(error.value)
    assert "127.0.0.1:1" in str(error.value)


def test_bad_options_are_refused_together(connect: Connect) -> None:
    with pytest.raises(ConfigError) as error:
        connect(queues=0, requeue_delay=-1).connect()
    assert error.value.problems == ["queues is 0, must be 1..65535", "requeue_delay is -1, must be 0..86400 or None"]
    with pytest.raises(ConfigError, match=r"visibility_timeout is 0, must be 1..86400"):
        connect(visibility_timeout=0).connect()
    with pytest.raises(ConfigError, match="broker_use_ssl must be True"):
        kombu.Connection("rocketmq://", ssl={"ca_certs": "ca.pem"}).transport.establish_connection()
    with pytest.raises(ConfigError, match="unknown setting 'tiemout', did you mean 'timeout'"):
        connect(client={"tiemout": 1}).connect()


def test_a_call_inside_an_event_loop_is_answered(connect: Connect) -> None:
    async def handler() -> None:
        with closing(connect().SimpleQueue("from-a-loop")) as queue:
            queue.put("x")
            queue.get(timeout=10).ack()

    asyncio.run(handler())


# ---- queues


@pytest.mark.spec("INT-05")
@pytest.mark.parametrize("name", ["plain", "orders.high@eu", "TBW102"])
def test_a_queue_of_any_name_delivers_and_is_counted_purged_and_deleted(
    connect: Connect, client: sync.Client, name: str
) -> None:
    with closing(connect().SimpleQueue(name)) as queue:
        for number in range(3):
            queue.put(number, headers={"id": f"task-{number}"})
        assert queue.qsize() == 3
        messages = [queue.get(timeout=10) for _ in range(3)]
        assert sorted(message.payload for message in messages) == [0, 1, 2]
        assert queue.qsize() == 3
        for message in messages:
            message.ack()
        assert queue.qsize() == 0
        queue.put("purged")
        assert queue.clear() == 1
        with pytest.raises(queue.Empty):
            queue.get(timeout=0.2)
        channel, topic = queue.channel, topic_of_queue(name)
        assert channel.queue_declare(name, passive=True).message_count == 0
        queue.queue.delete()
        assert not client.topic_exists(topic)
        with pytest.raises(ChannelError, match="NOT_FOUND - no queue"):
            channel.queue_declare(name, passive=True)


def test_the_task_id_is_a_key_by_which_the_message_is_found(connect: Connect, client: sync.Client) -> None:
    with closing(connect().SimpleQueue("keys")) as queue:
        queue.put("x", headers={"id": "3f2c"})
    assert [message.keys for message in client.query_messages("keys", "3f2c")] == [("3f2c",)]


@pytest.mark.spec("INT-05")
def test_ack_reject_requeue_and_close_settle_as_the_client_does(connect: Connect, client: sync.Client) -> None:
    connection, queue = connect(), kombu.Queue("settling")
    publish(connection, queue, "ack", "reject", "requeue", "unfinished")
    seen: list[tuple[str, bool]] = []

    def settle(message: Any) -> None:
        seen.append((message.payload, bool(message.delivery_info.get("redelivered"))))
        if message.payload == "ack":
            message.ack()
        elif message.payload == "reject":
            message.reject()
        elif message.payload == "requeue" and not message.delivery_info.get("redelivered"):
            message.requeue()
        elif message.payload == "requeue":
            message.ack()

    with kombu.Consumer(connection, [queue], on_message=settle):
        while len(seen) < 5:
            connection.drain_events(timeout=10)
    assert sorted(seen) == [
        ("ack", False), ("reject", False), ("requeue", False), ("requeue", True), ("unfinished", False)
    ]  # fmt: skip
    connection.release()  # leaves `unfinished` unsettled
    assert received(connect(), queue, count=1) == ["unfinished"]
    nothing(connect(), queue)
    with client.consumer("support", start="first") as inbox:
        inbox.subscribe("%DLQ%settling")
        dead = inbox.recv(timeout=10)
        assert b"reject" in dead.body or dead.properties["DEAD_LETTER_REASON"] == "rejected"
        dead.ack()


def test_a_message_that_is_requeued_for_ever_becomes_a_dead_letter(connect: Connect, client: sync.Client) -> None:
    connection, queue = connect(), kombu.Queue("hopeless")
    publish(connection, queue, "x")
    messages: list[Any] = []
    with kombu.Consumer(connection, [queue], on_message=messages.append):
        for times in range(17):
            while len(messages) <= times:
                connection.drain_events(timeout=10)
            if times % 2:
                messages[-1].requeue()
            else:
                messages[-1].channel.basic_recover(requeue=True)
        with client.consumer("hopeless-support", start="first") as inbox:
            inbox.subscribe("%DLQ%hopeless")
            assert inbox.recv(timeout=10).attempt == 18
    assert len(messages) == 17


def test_a_channel_that_closes_leaves_its_group_though_the_connection_stays(connect: Connect) -> None:
    connection, queue = connect(), kombu.Queue("channels")
    publish(connection, queue, "x")
    channel = connection.channel()
    messages: list[Any] = []
    kombu.Consumer(channel, [queue], on_message=messages.append).consume()
    connection.drain_events(timeout=10)
    channel.close()
    assert received(connect(), queue, count=1) == ["x"]
    with pytest.raises(connection.connection_errors, match="the channel is closed"):
        messages[0].ack()


def test_a_task_that_runs_while_its_consumer_is_cancelled_can_be_acknowledged(connect: Connect) -> None:
    connection, queue = connect(), kombu.Queue("cancelled")
    publish(connection, queue, "x")
    messages: list[Any] = []
    with kombu.Consumer(connection, [queue], on_message=messages.append):
        connection.drain_events(timeout=10)
    messages[0].ack()
    messages[0].channel.basic_ack(messages[0].delivery_tag)  # once more: nothing happens
    nothing(connect(), queue)


def test_the_prefetch_count_bounds_messages_and_an_ack_of_another_thread_goes_on(connect: Connect) -> None:
    connection, queue = connect(), kombu.Queue("prefetch")
    publish(connection, queue, *range(6))
    messages: list[Any] = []
    with kombu.Consumer(connection, [queue], on_message=messages.append, prefetch_count=2):
        while len(messages) < 2:
            connection.drain_events(timeout=10)
        with pytest.raises(socket.timeout):
            connection.drain_events(timeout=0.1)
        acking = threading.Timer(0.05, messages[0].ack)
        acking.start()
        connection.drain_events(timeout=10)  # waits for the ack
        acking.join()
    assert len(messages) == 3


def test_messages_that_are_not_from_kombu_go_to_the_dead_letters(connect: Connect, client: sync.Client) -> None:
    connection, queue = connect(), kombu.Queue("strangers")
    queue(connection.default_channel).declare()
    with client.producer("strangers-p") as out:
        for body in (b"\xff", b"[]", b'{"properties": 1}'):
            out.send("strangers", body)
    publish(connection, queue, "kombu's")
    assert received(connection, queue, count=1) == ["kombu's"]
    nothing(connection, queue)
    with client.consumer("strangers-support", start="first") as inbox:
        inbox.subscribe("%DLQ%strangers")
        assert {inbox.recv(timeout=10).body for _ in range(3)} == {b"\xff", b"[]", b'{"properties": 1}'}


def test_a_message_without_ack_is_settled_when_it_is_delivered(connect: Connect) -> None:
    queue = kombu.Queue("no-ack", no_ack=True)
    publish(connect(), queue, "x", "y")
    assert sorted(received(connect(), queue, count=2, ack=False)) == ["x", "y"]
    nothing(connect(), queue)
    publish(connect(), queue, "z")
    channel = connect().channel()
    assert channel.basic_get("no-ack", no_ack=True).payload == "z"
    channel.close()
    nothing(connect(), queue)


# ---- exchanges


def test_fanout_reaches_queues_of_other_connections_bound_before_the_message(connect: Connect) -> None:
    exchange = kombu.Exchange("news", type="fanout")
    durable, own = kombu.Queue("news-archive", exchange), kombu.Queue("news-1", exchange, exclusive=True)
    reader, sender = connect(), connect()
    durable(reader.default_channel).declare()
    own(reader.default_channel).declare()
    kombu.Producer(sender.default_channel, exchange(sender.default_channel)).publish("first")
    late = kombu.Queue("news-2", exchange, exclusive=True)
    late(reader.default_channel).declare()
    assert received(reader, durable, own, count=2) == ["first", "first"]
    nothing(reader, late)
    kombu.Producer(sender.default_channel, exchange(sender.default_channel)).publish("second")
    assert received(reader, durable, own, late, count=3) == ["second"] * 3
    assert received(connect(), kombu.Queue("news-late", exchange), count=0) == []


def test_a_topic_exchange_selects_by_pattern_for_queues_that_the_sender_does_not_know(connect: Connect) -> None:
    exchange = kombu.Exchange("logs", type="topic")
    errors = kombu.Queue("errors", exchange, routing_key="*.error")
    shop = kombu.Queue("shop-log", exchange, routing_key="shop.#", auto_delete=True)
    reader, sender = connect(), connect()
    for queue in (errors, shop):
        queue(reader.default_channel).declare()
    errors(reader.default_channel).bind_to(exchange, routing_key="bank.info")
    producer = kombu.Producer(sender.default_channel, exchange(sender.default_channel))
    for key in ("shop.info", "shop.error", "bank.info", "bank.error"):
        producer.publish(key, routing_key=key)
    assert sorted(received(reader, errors, count=3)) == ["bank.error", "bank.info", "shop.error"]
    assert received(reader, shop, count=2) == ["shop.info", "shop.error"]
    for queue in (errors, shop):
        nothing(reader, queue)


def test_a_durable_direct_exchange_leads_to_the_queues_bound_on_the_connection(connect: Connect) -> None:
    exchange = kombu.Exchange("media", type="direct")
    video, audio = (kombu.Queue(name, exchange, routing_key=f"media.{name}") for name in ("video", "audio"))
    connection = connect()
    for queue in (video, audio):
        queue(connection.default_channel).declare()
    producer = kombu.Producer(connection.default_channel, exchange)
    for key in ("media.video", "media.audio", "media.none"):
        producer.publish(key, routing_key=key)
    assert received(connect(), video, count=1) == ["media.video"]
    assert received(connect(), audio, count=1) == ["media.audio"]
    connection.default_channel.exchange_delete("media")
    assert "media" not in connection.default_channel.state.exchanges


def test_a_temporary_queue_gets_what_was_sent_to_its_name_since_its_declaration(connect: Connect) -> None:
    """Celery's result backend rpc:// declares its queue on the sending connection and reads it on another one."""
    queue = kombu.Queue("reply-of-client", routing_key="reply-of-client", auto_delete=True)
    queue(connect().default_channel).declare()
    worker = kombu.Producer(connect().default_channel)
    worker.publish("result", routing_key="reply-of-client")
    worker.publish("of another client", routing_key="another")
    reader = connect()
    assert received(reader, queue, count=1) == ["result"]
    nothing(reader, queue)
    channel = reader.default_channel
    assert (
        channel.queue_declare("reply-of-client", passive=True).message_count,
        channel.queue_purge("reply-of-client"),
    ) == (0, 0)
    queue(channel).delete()


# ---- forks and interrupts


def test_an_inherited_connection_counts_as_lost_and_a_new_one_works(server: SyncEmbeddedBroker) -> None:
    program = f"""
import os, kombu, saturnmq.kombu
connection = kombu.Connection("rocketmq://{server.name_servers}/", transport_options={{"queues": 1}})
queue = kombu.Queue("forks")
producer = kombu.Producer(connection.channel())
producer.publish("parent", routing_key="forks", declare=[queue])
child = os.fork()
if child == 0:
    producer.publish("child", routing_key="forks", declare=[queue], retry=True, retry_policy={{"interval_start": 0}})
    connection.release()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
producer.publish("parent", routing_key="forks")
connection.release()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    with kombu.Connection(f"rocketmq://{server.name_servers}/") as connection:
        assert sorted(received(connection, kombu.Queue("forks"), count=3)) == ["child", "parent", "parent"]


def test_a_call_after_the_connection_is_closed_is_a_connection_error(connect: Connect) -> None:
    connection = connect()
    transport = connection.transport
    channel = connection.channel()
    connection.release()
    with pytest.raises(transport.connection_errors):
        transport.run(transport.session.size, "x")
    assert channel.closed


def test_a_failed_start_leaves_no_thread() -> None:
    before = threading.active_count()
    with pytest.raises(saturnmq.kombu.Transport.connection_errors):
        kombu.Connection("rocketmq://127.0.0.1:1/").transport.establish_connection()
    assert threading.active_count() == before
