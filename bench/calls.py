"""Python calls of a broker per plain send, per message of a batch and per pull of 32 records, and of an administrator's command.

Calls show what a change costs on a machine whose times are noisy; CPU time follows them. `python bench/calls.py` prints a
table, `--json` a line. The client is a socket in another thread, so that only the broker's event loop is counted. Each figure
is the difference between a long and a short exchange: the fixed cost of an exchange is not in it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import io
import json
import os
import socket
import struct
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import uvloop
from rich.console import Console
from rich.table import Table

from saturnmq.broker import Broker, BrokerSettings
from saturnmq.cli.mqadmin.run import main as run_command
from saturnmq.net import NetSettings
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.frames.command import Command, encode_frame
from saturnmq.protocol.message import BatchItem, encode_batch, encode_properties
from saturnmq.store import StoreProfile, StoreSettings
from saturnmq.testing import SyncEmbeddedBroker

TOPIC, GROUP = "calls", "producers"
BODY = bytes(128)
PULL_RECORDS = 32
SHORT, LONG = 64, 320  # requests of an exchange
AT_ONCE = 32  # requests in flight, as a client with asynchronous sends has them
ROUNDS = 5


def properties(number: int) -> dict[str, str]:
    """What a Java producer writes for a message with a tag, a key and two properties of the user."""
    return {
        "KEYS": f"order-{number}",
        "UNIQ_KEY": f"7F00000100002A139A5508E8A3{number:06X}",
        "WAIT": "true",
        "TAGS": "paid",
        "region": "eu",
        "channel": "web",
    }


def send_request(number: int) -> bytes:
    """A SEND_MESSAGE_V2 frame with a JSON header."""
    text = encode_properties(properties(number)).decode()
    fields = {"a": GROUP, "b": TOPIC, "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1700000000000", "h": "0",
              "i": text, "j": "0", "k": "false", "m": "false"}  # fmt: skip
    return encode_frame(Command(RequestCode.SEND_MESSAGE_V2, opaque=number, ext=fields, body=BODY))


def batch_request(messages: int) -> Callable[[int], bytes]:
    """Makes SEND_BATCH_MESSAGE frames of so many messages."""

    def make(number: int) -> bytes:
        items = [BatchItem(BODY, encode_properties(properties(number * 100 + i))) for i in range(messages)]
        fields = {"a": GROUP, "b": TOPIC, "c": "TBW102", "d": "4", "e": "1", "f": "0", "g": "1700000000000", "h": "0",
                  "i": "WAIT\x01true", "j": "0", "k": "false", "m": "true"}  # fmt: skip
        return encode_frame(
            Command(RequestCode.SEND_BATCH_MESSAGE, opaque=number, ext=fields, body=encode_batch(items))
        )

    return make


def pull_request(number: int) -> bytes:
    """A PULL_MESSAGE frame for the first 32 records of the queue that plain sends filled."""
    fields = {"consumerGroup": "consumers", "topic": TOPIC, "queueId": "0", "queueOffset": "0", "commitOffset": "0",
              "maxMsgNums": str(PULL_RECORDS), "sysFlag": "4", "suspendTimeoutMillis": "0", "subscription": "*",
              "subVersion": "0", "expressionType": "TAG"}  # fmt: skip
    return encode_frame(Command(RequestCode.PULL_MESSAGE, opaque=number, ext=fields))


def exchange(client: socket.socket, frames: list[bytes]) -> None:
    """Send the frames, AT_ONCE in flight, and read their responses; each must say SUCCESS."""
    reader = client.makefile("rb")
    for at in range(0, len(frames), AT_ONCE):
        some = frames[at : at + AT_ONCE]
        client.sendall(b"".join(some))
        for _ in some:
            (size,) = struct.unpack(">i", reader.read(4))
            frame = reader.read(size)
            header = json.loads(frame[4 : 4 + int.from_bytes(frame[1:4], "big")])
            if header["code"] != 0:
                raise RuntimeError(f"the broker answered code {header['code']}: {header.get('remark')}")


class CallCount:
    """Counts calls of Python functions in the thread that makes it."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, _frame: FrameType, event: str, _argument: Any) -> None:
        self.calls += event == "call"


async def calls_of(client: socket.socket, make: Callable[[int], bytes], requests: int) -> int:
    """Calls of the event loop's thread during an exchange of so many requests."""
    frames = [make(number) for number in range(requests)]
    count = CallCount()
    sys.setprofile(count)
    try:
        await asyncio.to_thread(exchange, client, frames)
    finally:
        sys.setprofile(None)
    return count.calls


async def per_request(broker: Broker, client: socket.socket, make: Callable[[int], bytes]) -> float:
    """Calls per request; the smallest of several rounds, for timers of the broker fall into some.

    First the messages of the row before are put into the index, which may lag behind.
    """
    if broker.store.index_queue is not None:
        broker.store.index_queue.put_all()
    found = []
    for _ in range(ROUNDS):
        short, long = await calls_of(client, make, SHORT), await calls_of(client, make, LONG)
        found.append((long - short) / (LONG - SHORT))
    return min(found)


async def measure(folder: Path) -> dict[str, float]:
    """Row -> calls."""
    settings = BrokerSettings(
        bind_address="127.0.0.1",
        listen_port=0,
        fast_port_enable=False,
        send_wait_ms=60_000,  # counts need no quiet machine
    )
    broker = Broker(settings, StoreSettings(profile=StoreProfile.SMALL, store_path_root_dir=str(folder)), NetSettings())
    await broker.start()
    try:
        host, port = broker.address.rsplit(":", 1)
        with socket.create_connection((host, int(port))) as client:
            await asyncio.to_thread(exchange, client, [send_request(number) for number in range(PULL_RECORDS)])
            one, many = (
                await per_request(broker, client, batch_request(1)),
                await per_request(broker, client, batch_request(33)),
            )
            return {
                "plain send": await per_request(broker, client, send_request),
                "message of a batch of 32": (many - one) / 32,
                f"pull of {PULL_RECORDS} records": await per_request(broker, client, pull_request),
            }
    finally:
        await broker.stop()


def calls_of_command() -> dict[str, float]:
    """Row -> calls of `saturnmq admin topicStatus` for 8 queues, from parsed words to printed text: two requests to two servers."""
    count, own = CallCount(), 0

    def profile(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal own
        count(frame, event, argument)
        own += event == "call" and f"{os.sep}saturnmq{os.sep}" in frame.f_code.co_filename

    with SyncEmbeddedBroker() as server, contextlib.redirect_stdout(io.StringIO()):
        words = ["-n", server.name_servers, "-t", TOPIC]
        run_command(["updateTopic", *words, "-b", server.broker_address, "--quiet"])
        run_command(["topicStatus", *words])  # imports
        sys.setprofile(profile)
        try:
            run_command(["topicStatus", *words])
        finally:
            sys.setprofile(None)
    return {"admin topicStatus": count.calls, "admin topicStatus, without the event loop": own}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help="one line of JSON instead of the table")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="saturnmq-calls-") as folder:
        rows = uvloop.run(measure(Path(folder))) | calls_of_command()
    if args.json:
        print(json.dumps({name: round(calls, 1) for name, calls in rows.items()}))
        return
    table = Table("request", "Python calls")
    for name, calls in rows.items():
        table.add_row(name, f"{calls:.1f}")
    Console().print(table)


if __name__ == "__main__":
    main()
