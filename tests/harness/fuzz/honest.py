"""A client that behaves, in a process of its own: sends one message after the other and keeps how long each answer took.

It speaks the protocol over a plain socket, so that its own cost stays small beside what it measures.
"""

from __future__ import annotations

import multiprocessing
import socket
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any, Final, NamedTuple

from saturnmq.protocol.codes import RequestCode, ResponseCode
from saturnmq.protocol.frames.command import Command, encode_frame
from saturnmq.protocol.frames.decoder import FrameDecoder

ANSWER_SECONDS: Final = 30.0
PAUSE_SECONDS: Final = 0.002
_FIELDS: Final = {"a": "honest", "b": "HonestTopic", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1700000000000", "h": "0",
                  "i": "UNIQ_KEY\x017F00000100002A139A5508E8A3000001\x02WAIT\x01true\x02TAGS\x01paid", "j": "0", "k": "false",
                  "m": "false"}  # fmt: skip


class Period(NamedTuple):
    """What one period brought: how long each answer took, sends that failed, and its length in seconds."""

    taken: list[float]
    failed: int
    seconds: float


class Latencies(NamedTuple):
    """Sends of one period: their number, how many were refused or got no answer, rate and latencies."""

    sent: int
    failed: int
    rate: float  # per second
    p50_ms: float
    p99_ms: float
    max_ms: float

    @classmethod
    def of(cls, periods: Sequence[Period]) -> Latencies:
        """Of several periods together."""
        ordered = sorted(seconds for period in periods for seconds in period.taken) or [0.0]
        sent, lasted = sum(len(period.taken) for period in periods), sum(period.seconds for period in periods)
        return cls(
            sent, sum(period.failed for period in periods), sent / lasted if lasted else 0.0,
            ordered[len(ordered) // 2] * 1e3, ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))] * 1e3, ordered[-1] * 1e3,
        )  # fmt: skip


class HonestClient:
    """Sends all the time until `stop`. Use as a context manager."""

    def __init__(self, port: int) -> None:
        self._mine, theirs = multiprocessing.Pipe()
        self._process = multiprocessing.get_context("spawn").Process(target=_run, args=(port, theirs), daemon=True)
        self._process.start()
        theirs.close()
        self.period()  # it is connected and has sent

    def period(self) -> Latencies:
        """What happened since the last call."""
        return Latencies.of([self.raw()])

    def raw(self) -> Period:
        """As `period`, with each send."""
        self._mine.send("period")
        if not self._mine.poll(2 * ANSWER_SECONDS):
            raise RuntimeError("the honest client does not answer")
        return Period(*self._mine.recv())

    def wait(self, seconds: float) -> None:
        """Let it send for some seconds."""
        self._mine.poll(seconds)

    def stop(self) -> None:
        self._process.terminate()
        self._process.join()
        self._process.close()
        self._mine.close()

    def __enter__(self) -> HonestClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def _run(port: int, pipe: Connection) -> None:
    taken: list[float] = []
    failed, since, number = 0, time.perf_counter(), 0
    client: socket.socket | None = None
    while True:
        if pipe.poll(PAUSE_SECONDS):  # also the pause between two sends
            pipe.recv()
            pipe.send((taken, failed, time.perf_counter() - since))
            taken, failed, since = [], 0, time.perf_counter()
        number += 1
        begin = time.perf_counter()
        try:
            if client is None:
                client = socket.create_connection(("127.0.0.1", port), ANSWER_SECONDS)
            if _send(client, number) == ResponseCode.SUCCESS:
                taken.append(time.perf_counter() - begin)
            else:
                failed += 1
        except OSError:
            failed += 1
            client = None


def _send(client: socket.socket, number: int) -> int:
    client.sendall(
        encode_frame(Command(RequestCode.SEND_MESSAGE_V2, opaque=number, ext=dict(_FIELDS), body=bytes(128)))
    )
    decoder = FrameDecoder()
    while True:
        data = client.recv(65536)
        if not data:
            raise ConnectionError("closed")
        commands: list[Any] = decoder.feed(data)
        for command in commands:
            if command.is_response and command.opaque == number:
                return int(command.code)
