"""saturnmq.sync: the same names as the async API, with blocking calls."""

from __future__ import annotations

import concurrent.futures
import inspect
import os
import signal
import subprocess
import sys
import threading
import time
import types
from collections.abc import Iterator
from typing import Any

import pytest

import saturnmq
from saturnmq import sync
from saturnmq.client import client as client_module
from saturnmq.client import message as message_module
from saturnmq.client.consumer import batch as batch_module
from saturnmq.client.consumer import consumer as consumer_module
from saturnmq.client.producer import producer as producer_module
from saturnmq.client.puller import puller as puller_module
from saturnmq.testing import SyncEmbeddedBroker

PAIRS = [
    (client_module.Client, sync.Client),
    (producer_module.Producer, sync.Producer),
    (consumer_module.Consumer, sync.Consumer),
    (puller_module.Puller, sync.Puller),
    (message_module.Message, sync.Message),
    (batch_module.Batch, sync.Batch),
]
# Interfaces between the parts of the asyncio client, which the blocking classes do not have.
WITHOUT = {
    "Client": {"last_words"},
    "Producer": {"answer", "send_prepared"},
    "Consumer": {
        "bytes_left", "deliver", "deliver_first", "fail", "handle", "heartbeat_data", "persist_offsets", "prefetch_bytes_of",
        "prefetch_of", "redeliver_later", "reset_offsets", "resize", "room_made", "subscription_expression",
        "subscription_lost", "subscription_type", "subscription_version", "task_ended", "topic_missing",
        "wake_rebalance", "wanted_tags", "withdraw",
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with SyncEmbeddedBroker() as server:
        yield server.url


def public_functions(kind: type) -> dict[str, Any]:
    found = {}
    for base in reversed(kind.__mro__):
        for name, member in vars(base).items():
            function = member.__func__ if isinstance(member, classmethod) else member
            if not name.startswith("_") and isinstance(function, types.FunctionType):
                found[name] = function
    return found


@pytest.mark.spec("API-31")
@pytest.mark.parametrize(("plain", "facade"), PAIRS, ids=lambda kind: kind.__module__)
def test_sync_names_and_signatures_equal_the_async_ones(plain: type, facade: type) -> None:
    ours, theirs = public_functions(facade), public_functions(plain)
    expected = {name for name in theirs if name not in WITHOUT.get(plain.__name__, ())}
    assert set(ours) == expected
    for name, function in ours.items():
        mine, other = inspect.signature(function), inspect.signature(theirs[name])
        assert list(mine.parameters) == list(other.parameters), name
        for parameter, original in zip(mine.parameters.values(), other.parameters.values(), strict=True):
            assert (parameter.kind, parameter.default) == (original.kind, original.default), f"{name}({parameter.name})"
        assert not inspect.iscoroutinefunction(function)


def test_sync_docstrings_name_no_asyncio_keyword() -> None:
    for _, facade in PAIRS:
        for name, function in public_functions(facade).items():
            text = inspect.getdoc(function) or ""
            assert text, f"{facade.__name__}.{name} has no docstring"
            assert "await " not in text and "async " not in text, f"{facade.__name__}.{name}"


@pytest.mark.spec("API-31")
def test_sync_client_sends_receives_and_pulls(url: str) -> None:
    with sync.Client.from_url(url) as client, client.producer("sp") as out:
        receipt = out.send("SyncTopic", b"one", tag="a", keys="k")
        out.send_many("SyncTopic", [b"two", b"three"])
        out.send_oneway("SyncTopic", b"four")
        assert len(out.send_many_oneway("SyncOneway", [b"x", b"y"])) == 2
        with client.consumer("sg", start="first") as inbox:
            inbox.subscribe("SyncTopic")
            assert len(inbox.wait_assigned()) == 4
            got = []
            for message in inbox:
                got.append(message.value)
                message.ack()
                assert message.topic == "SyncTopic"
                if len(got) == 4:
                    break
            assert sorted(got) == [b"four", b"one", b"three", b"two"]
            assert sum(inbox.committed().values()) == 4
            out.send("SyncTopic", b"five")
            batch = next(inbox.batches(10, wait=0.05))
            assert [message.value for message in batch] == [b"five"] and batch.ack_index == 0
            batch.ack_index = -1
            batch.ack()
            with pytest.raises(saturnmq.AlreadySettled):
                batch[0].ack()
            with pytest.raises(TimeoutError):
                inbox.recv(0.01)
        puller = client.puller()
        result = puller.pull(receipt.queue, receipt.offset)
        assert result.messages()[0].value == b"one" and puller.max_offset(receipt.queue) >= 1
        puller.commit("other", receipt.queue, 1)
        assert puller.committed("other", receipt.queue) == 1


@pytest.mark.parametrize("name", ["send_many", "send_many_oneway"])
def test_values_of_a_sync_send_are_read_on_the_calling_thread(url: str, name: str) -> None:
    readers = []

    def values() -> Iterator[bytes]:
        for value in (b"one", b"two"):
            readers.append(threading.current_thread())
            yield value

    with sync.Client.from_url(url) as client, client.producer("reading-p") as out:
        assert len(getattr(out, name)("ReadTopic", values=values())) == 2
    assert readers == [threading.current_thread()] * 2


@pytest.mark.spec("RR-01")
def test_sync_request_returns_the_reply(url: str) -> None:
    with sync.Client.from_url(url) as client, concurrent.futures.ThreadPoolExecutor(1) as threads:
        client.create_topic("Ask", queues=1)
        with client.producer("askers") as out, client.consumer("answerers", start="first") as inbox:
            inbox.subscribe("Ask")
            asked = threads.submit(out.request, "Ask", b"7", timeout=20)
            message = inbox.recv(30)
            out.reply(message, b"seven")
            message.ack()
            assert asked.result(30).body == b"seven"


@pytest.mark.spec("API-31", "API-05")
@pytest.mark.loop(real=True)
async def test_sync_call_inside_a_running_loop_names_the_async_call(url: str) -> None:
    client = sync.Client.from_url(url)
    with pytest.raises(saturnmq.WrongLoop, match=r"await Client\.start\(\.\.\.\)"):
        client.start()


@pytest.mark.spec("API-31")
def test_many_threads_share_one_sync_client(url: str) -> None:
    with sync.Client.from_url(url) as client, client.producer("threads") as out:
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            receipts = list(pool.map(lambda n: out.send("Threads", b"%d" % n), range(200)))
        with sync.Client.from_url(url) as other:
            assert other.topic_exists("Threads")
            loops = [thread for thread in threading.enumerate() if thread.name == "saturnmq-sync"]
    assert len(loops) == 1, "one loop for all clients"
    assert len({receipt.message_id for receipt in receipts}) == 200
    assert len({(receipt.queue, receipt.offset) for receipt in receipts}) == 200


@pytest.mark.spec("API-31")
def test_sync_calls_raise_the_errors_of_the_async_client(url: str) -> None:
    with sync.Client.from_url(url) as client:
        out = client.producer("err")
        with pytest.raises(saturnmq.ClientError, match="CREATE_JUST"):
            out.send("T", b"x")
        with pytest.raises(saturnmq.RouteNotFound):
            client.puller().queues("NoSuchTopic")
    with pytest.raises(saturnmq.Closed):
        client.puller().queues("T")


@pytest.mark.spec("API-31")
def test_ctrl_c_interrupts_a_waiting_sync_call(url: str, request: pytest.FixtureRequest) -> None:
    # Shells start background processes with SIGINT ignored.
    found = signal.signal(signal.SIGINT, signal.default_int_handler)
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, found))
    with sync.Client.from_url(url) as client, client.consumer("ctrlc") as inbox:
        threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        begin = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            inbox.recv(30)
        assert time.monotonic() - begin < 5
        assert client.topic_exists("TBW102"), "the client still works"


@pytest.mark.spec("API-31", "SPR-10")
def test_script_without_stop_still_exits(url: str) -> None:
    code = f"import saturnmq.sync as s; c = s.Client.from_url({url!r}); c.start(); print(c.topic_exists('TBW102'))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    assert done.returncode == 0 and done.stdout.strip() == "True", done.stderr


@pytest.mark.spec("API-31")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_forked_child_gets_its_own_loop_and_the_parent_continues(url: str) -> None:
    code = f"""
import os, saturnmq.sync as s
url = {url!r}
parent = s.Client.from_url(url)
with parent, parent.producer("fp") as out:
    out.send("Forked", b"parent")
    child = os.fork()
    if child == 0:
        with s.Client.from_url(url) as mine, mine.producer("fp") as forked:
            same = mine.client_id == parent.client_id
            forked.send("Forked", b"child")
        os._exit(1 if same else 0)
    assert os.waitpid(child, 0)[1] == 0
    out.send("Forked", b"parent again")
"""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr


def test_sync_send_soon_returns_futures_for_threads(url: str) -> None:
    with sync.Client.from_url(url) as client:
        with client.producer("soon", max_in_flight=10) as out:
            futures = [out.send_soon("SyncSoon", b"%d" % n, shard_by="k") for n in range(50)]
            receipts = [future.result(timeout=30) for future in futures]
            assert [receipt.offset for receipt in receipts] == list(range(50))
            with pytest.raises(saturnmq.MessageRefused):
                out.send_soon("SyncSoon", b"")
            assert not futures[0].cancel()
        late = client.producer("late", linger_ms=10_000)
        late.start()
        future = late.send_soon("SyncSoon", b"last")
        late.stop()
        assert future.result(timeout=0).offset >= 0
