"""SIGKILL of a real broker under load: no acknowledged message is lost. KILLS=50 for the long run (`make crash`)."""

from __future__ import annotations

import asyncio
import os
import queue
import random
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import pytest

import saturnmq
from longruns import long_but
from saturnmq.client.puller.puller import PullStatus
from saturnmq.protocol.bodies import MessageQueue
from saturnmq.protocol.errors import SaturnError

KILLS = int(os.environ.get("KILLS", "3"))
SEED = int(os.environ.get("SEED", "1"))
TOPICS = ("alpha", "beta")
SENDERS = 24
READY_SECONDS_MAX = 60
LIFE_SECONDS_MAX = 90
STOP_SECONDS_MAX = 10  # DUR-17
TINY_FILES = {"mappedFileSizeCommitLog": "262144", "mappedFileSizeConsumeQueue": "2000", "maxMessageSize": "65536"}
LARGE_FILES = {"storeProfile": "standard", "mappedFileSizeCommitLog": "67108864", "maxIndexNum": "20000"}
BUSY_MAINTENANCE = {
    "flushIntervalConsumeQueue": "20",
    "flushConsumeQueueThoroughInterval": "60",
    "flushIntervalCommitLog": "20",
    "flushConsumeQueueLeastPages": "1",
}
VARIANTS = {
    "async, small files": {"flushDiskType": "ASYNC_FLUSH"} | TINY_FILES,
    "sync, small files": {"flushDiskType": "SYNC_FLUSH"} | TINY_FILES,
    "async, large files": {"flushDiskType": "ASYNC_FLUSH"} | LARGE_FILES,
}


class BrokerProcess:
    """A `saturnmq standalone` process on free ports, ready to serve. log: receives its stderr."""

    def __init__(self, data: Path, settings: dict[str, str], log: Path) -> None:
        words = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
        self._log = log.open("ab")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "saturnmq.cli", "standalone", "--data", str(data),
             "--namesrv-port", "0", "--port", "0", *words],
            stdout=subprocess.PIPE, stderr=self._log, text=True,
        )  # fmt: skip
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read, args=(self.process.stdout,))
        self._reader.start()
        self.name_servers = ""
        try:
            while not self.name_servers:
                line = self._lines.get(timeout=READY_SECONDS_MAX)
                assert line is not None, f"the broker did not start:\n{log.read_text()[-3000:]}"
                if line.startswith("saturnmq: ready "):
                    self.name_servers = dict(word.split("=", 1) for word in line.split()[2:])["namesrv"]
        except BaseException:
            self.end(signal.SIGKILL)
            raise

    def _read(self, stream: IO[str]) -> None:
        for line in stream:
            self._lines.put(line)
        self._lines.put(None)

    def end(self, number: signal.Signals) -> int:
        """Send the signal and wait; returns the exit code."""
        self.process.send_signal(number)
        code = self.process.wait(timeout=STOP_SECONDS_MAX)
        self._reader.join(timeout=10)
        assert self.process.stdout is not None
        self.process.stdout.close()
        self._log.close()
        return code


@dataclass
class History:
    """Every attempt, and the positions of the acknowledged ones: (topic, queue id, queue offset) -> body."""

    rng: random.Random
    attempts: set[bytes] = field(default_factory=set)
    acked: dict[tuple[str, int, int], bytes] = field(default_factory=dict)
    kills: int = 0

    def body(self, topic: str) -> bytes:
        body = b"%d %s " % (len(self.attempts), topic.encode())
        body = body.ljust(self.rng.choice((20, 100, 1000, 3000)), b".")
        self.attempts.add(body)
        return body


async def load_until_killed(broker: BrokerProcess, client: saturnmq.Client, history: History) -> None:
    """Send on all connections; the broker is killed after a random number of responses, with sends in flight."""
    producer = client.producer("chaos")
    puller = client.puller()
    queues = [found for topic in TOPICS for found in await puller.queues(topic)]
    left = history.rng.randrange(5, 500)
    dead = False

    async def send() -> None:
        nonlocal left, dead
        while not dead:
            to = history.rng.choice(queues)
            body = history.body(to.topic)
            try:
                receipt = await producer.send(to.topic, body, queue=to, keys=f"k{len(history.attempts)}", timeout=5)
            except (SaturnError, OSError):
                assert dead or broker.process.poll() is not None, "a send failed though the broker lives"
                return  # its outcome is unknown
            assert receipt.status is saturnmq.SendStatus.SEND_OK
            place = (to.topic, receipt.queue.queue_id, receipt.offset)
            assert place not in history.acked, f"{place} was given out twice"
            history.acked[place] = body
            left -= 1
            if left == 0:
                dead = True
                broker.process.send_signal(signal.SIGKILL)

    async with producer, asyncio.timeout(LIFE_SECONDS_MAX), asyncio.TaskGroup() as group:
        for _ in range(SENDERS):
            group.create_task(send())


async def stored(client: saturnmq.Client, place: MessageQueue) -> dict[int, bytes]:
    """Every message of a queue by offset; fails if an offset is missing."""
    puller = client.puller()
    offset, end = await puller.min_offset(place), await puller.max_offset(place)
    assert offset == 0
    found: dict[int, bytes] = {}
    while offset < end:
        result = await puller.pull(place, offset, timeout=10)
        assert result.status is PullStatus.FOUND, f"{place} at {offset} of {end}: {result.status}"
        for message in result.messages():
            assert message.offset == len(found), f"{place}: offset {message.offset} follows {len(found) - 1}"
            found[message.offset] = message.value
        offset = result.next_offset
    assert len(found) == end
    return found


async def check_everything(client: saturnmq.Client, history: History) -> None:
    puller = client.puller()
    seen: set[bytes] = set()
    for topic in TOPICS:
        for place in await puller.queues(topic):
            found = await stored(client, place)
            for offset, body in found.items():
                assert body in history.attempts, f"{topic}/{place.queue_id} at {offset}: no client sent {body[:40]!r}"
                assert body not in seen, f"{body[:40]!r} is there twice"
                seen.add(body)
            for (of_topic, queue_id, offset), body in history.acked.items():
                if (of_topic, queue_id) == (topic, place.queue_id):
                    assert found.get(offset) == body, (
                        f"after kill {history.kills} (SEED={SEED}): acknowledged message {body[:40]!r} is not at "
                        f"{topic}/{queue_id} offset {offset}, there is {found.get(offset, b'nothing')[:40]!r}"
                    )


async def one_life(broker: BrokerProcess, history: History, *, kill: bool) -> None:
    async with saturnmq.Client(name_servers=broker.name_servers, attempts=1) as client:
        for topic in TOPICS:
            await client.create_topic(topic, queues=3)
        await check_everything(client, history)
        if kill:
            await load_until_killed(broker, client, history)
            history.kills += 1


@pytest.mark.spec("DUR-01", "DUR-13", "DUR-17", "FLU-01", "RC-02", "RC-13")
@pytest.mark.timeout(120 + 20 * KILLS)
@pytest.mark.parametrize("name", long_but(1, VARIANTS))
def test_sigkill_under_load_keeps_every_acknowledged_message(name: str, tmp_path: Path) -> None:
    number = list(VARIANTS).index(name)
    kills = KILLS // len(VARIANTS) + (number < KILLS % len(VARIANTS))
    history = History(random.Random(f"{SEED} {name}"))
    for life in range(kills + 1):
        broker = BrokerProcess(tmp_path / "data", VARIANTS[name] | BUSY_MAINTENANCE, tmp_path / "log")
        try:
            asyncio.run(one_life(broker, history, kill=life < kills))
        finally:
            code = broker.end(signal.SIGTERM)
        assert code == (0 if life == kills else -signal.SIGKILL)
        assert (tmp_path / "data" / "abort").exists() is (life < kills)
    assert len(history.acked) >= 5 * kills
