"""Clients in forked children, as created by gunicorn and Celery."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from saturnmq.testing import BrokerFixture

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
SECONDS_MAX = 60

CHILDREN = """
import json, os, sys, traceback
from saturnmq.sync import Client
from saturnmq.testing.leftovers import inet_sockets
url, topic, children, count = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])

with Client.from_url(url, timeout=20.0) as client, client.producer("forked") as out:
    out.send(topic, b"parent before")
    own = client.client_id
    sockets = inet_sockets()
    pipes, pids = [], []
    for child in range(children):
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                kept = sorted(set(sockets) & set(inet_sockets()))
                ids = []
                for number in range(count):
                    ids.append(out.send(topic, f"{child}/{number}".encode()).message_id)
                answer = {"id": client.client_id, "messages": ids, "kept": kept, "queues": len(out.queues(topic))}
                out.stop()
                client.stop()
            except BaseException:
                answer = {"error": traceback.format_exc()}
            with os.fdopen(writing, "w") as pipe:
                json.dump(answer, pipe)
            os._exit(0)
        os.close(writing)
        pipes.append(os.fdopen(reading))
        pids.append(pid)
    for number in range(count):
        out.send(topic, f"parent/{number}".encode())
    answers = [json.load(pipe) for pipe in pipes]
    for pipe in pipes:
        pipe.close()
    for pid in pids:
        os.waitpid(pid, 0)
    out.send(topic, b"parent after")
    print(json.dumps({"id": own, "now": client.client_id, "sockets": len(sockets), "answers": answers}))
"""

ASYNC = """
import asyncio, os, sys
from saturnmq import Client, ForkedClient
url, topic = sys.argv[1:]

async def in_child(client, out):
    said = []
    for call in (lambda: out.send(topic, b"child"), lambda: client.topic_exists(topic), lambda: client.puller().queues(topic)):
        try:
            await call()
            said.append("no error")
        except ForkedClient as error:
            said.append(f"{type(error).__name__}: {error} {error.hint}")
    await out.stop()
    await client.stop()
    return said

async def main():
    async with Client.from_url(url) as client, client.producer("p") as out:
        await out.send(topic, b"before")
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            asyncio._set_running_loop(None)
            os.write(writing, "\\n".join(asyncio.new_event_loop().run_until_complete(in_child(client, out))).encode())
            os._exit(0)
        os.close(writing)
        await asyncio.to_thread(os.waitpid, pid, 0)
        print(os.read(reading, 65536).decode())
        await out.send(topic, b"after")

asyncio.run(main())
"""


def python(code: str, *arguments: str) -> str:
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=SECONDS_MAX)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    return done.stdout


@pytest.mark.spec("API-32")
@pytest.mark.parametrize("count", [1000])
def test_sync_client_sends_in_forked_children_and_in_the_parent(
    saturn_broker: BrokerFixture, saturn_topic: str, count: int
) -> None:
    said: dict[str, Any] = json.loads(python(CHILDREN, saturn_broker.url, saturn_topic, "4", str(count)))
    answers = said["answers"]
    assert not [answer["error"] for answer in answers if "error" in answer]
    assert said["sockets"] >= 2
    assert [answer["kept"] for answer in answers] == [[]] * 4  # closed before anything else
    assert len({said["id"], *(answer["id"] for answer in answers)}) == 5
    assert said["now"] == said["id"]
    messages = saturn_broker.published(saturn_topic)
    bodies = [message.body.decode() for message in messages]
    wanted = [f"{name}/{n}" for name in ("0", "1", "2", "3", "parent") for n in range(count)]
    assert sorted(bodies) == sorted([*wanted, "parent before", "parent after"])
    assert len({message.message_id for message in messages}) == 5 * count + 2
    assert {i for answer in answers for i in answer["messages"]} <= {message.message_id for message in messages}
    peers = {request.peer for request in saturn_broker.requests if request.name == "SEND_MESSAGE_V2"}
    assert len(peers) == 5  # each process has its own connection


@pytest.mark.spec("API-32")
def test_async_client_raises_in_a_forked_child_and_works_in_the_parent(
    saturn_broker: BrokerFixture, saturn_topic: str
) -> None:
    said = python(ASYNC, saturn_broker.url, saturn_topic).split("\n")
    assert [line.partition(":")[0] for line in said if line] == ["ForkedClient"] * 3
    assert "Make clients after the fork" in said[0]
    assert [message.body for message in saturn_broker.published(saturn_topic)] == [b"before", b"after"]


@pytest.mark.spec("API-32")
def test_client_not_started_before_the_fork_starts_in_the_child(
    saturn_broker: BrokerFixture, saturn_topic: str
) -> None:
    code = """
import asyncio, os, sys
from saturnmq import Client
client = Client.from_url(sys.argv[1])

async def main():
    async with client, client.producer("p") as out:
        await out.send(sys.argv[2], b"%d" % os.getpid())

pid = os.fork()
asyncio.run(main())
if pid:
    assert os.waitpid(pid, 0)[1] == 0
    print(pid)
"""
    child = python(code, saturn_broker.url, saturn_topic).strip()
    bodies = [message.body.decode() for message in saturn_broker.published(saturn_topic)]
    assert len(bodies) == 2
    assert child in bodies


@pytest.mark.spec("API-32")
def test_forked_child_writes_nothing_to_connections_of_the_parent(
    saturn_broker: BrokerFixture, saturn_topic: str
) -> None:
    """A consumer waits in the parent while children start and exit; the parent's connection stays usable."""
    code = """
import os, sys
from saturnmq import ForkedClient
from saturnmq.sync import Client
url, topic = sys.argv[1:]
client = Client.from_url(url, route_poll_ms=200)
with client, client.consumer("waiting", start="first") as inbox, client.producer("p") as out:
    inbox.subscribe(topic)
    out.send(topic, b"one")
    assert inbox.recv(timeout=20).body == b"one"
    puller = client.puller()
    assert len(puller.queues(topic)) == 4
    for number in range(3):
        pid = os.fork()
        if pid == 0:
            for call in (lambda: inbox.recv(timeout=5), lambda: puller.queues(topic)) if number else ():
                try:
                    call()
                    os._exit(3)
                except ForkedClient:
                    pass
            sys.exit(0)  # the interpreter ends in full: with blocks, finalizers, atexit
        assert os.waitpid(pid, 0)[1] == 0
    out.send(topic, b"two")
    assert inbox.recv(timeout=20).body == b"two"
    print(client.client_id)
"""
    python(code, saturn_broker.url, saturn_topic)
    registered = [request for request in saturn_broker.requests if request.name == "UNREGISTER_CLIENT"]
    assert len({request.ext["clientID"] for request in registered}) == 1
