"""Pull throughput of SaturnMQ's broker on loopback, with a reader that parses only frame lengths.

Requirements: SPP-11.
"""

from __future__ import annotations

import socket
import statistics
import struct
import threading
import time
from collections.abc import Sequence

from saturn import SaturnCluster

from saturnmq.client.puller.puller import pull_command
from saturnmq.protocol.bodies import MessageQueue
from saturnmq.protocol.codes import PullSysFlag, ResponseCode
from saturnmq.protocol.frames.command import Serialization, encode_frame
from saturnmq.protocol.frames.decoder import FrameDecoder
from saturnmq.spark.connect import READ_GROUP, linked
from saturnmq.spark.fetch import BULK_BYTES
from saturnmq.spark.options import SourceOptions, parse_options
from saturnmq.spark.planning import batch_ranges
from saturnmq.spark.ranges import QueueRange

COUNT = 512  # messages per response; small enough that the byte limit is not reached, which would make the count unpredictable
DEPTH = 4
_LENGTH = struct.Struct(">i")


class _Reader(threading.Thread):
    """Reads one queue on a connection of its own, with DEPTH requests in flight."""

    def __init__(self, address: str, piece: QueueRange) -> None:
        super().__init__(daemon=True)
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=60)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._piece = piece
        self._buffer = bytearray(8 * 1024 * 1024)
        self.bytes = 0
        self.error = ""

    def run(self) -> None:
        try:
            self._read()
        except (OSError, ValueError, RuntimeError) as error:
            self.error = f"{type(error).__name__}: {error}"
        finally:
            self._socket.close()

    def _ask(self, offset: int) -> None:
        piece = self._piece
        command = pull_command(
            MessageQueue(piece.topic, piece.broker, piece.queue_id),
            group=READ_GROUP,
            offset=offset,
            max_count=COUNT,
            sys_flag=int(PullSysFlag.SUBSCRIPTION),
            expression="*",
            bulk_bytes=BULK_BYTES,
        )
        command.serialization = Serialization.ROCKETMQ
        self._socket.sendall(encode_frame(command))

    def _answer(self) -> memoryview:
        self._fill(4)
        (length,) = _LENGTH.unpack_from(self._buffer)
        self._fill(length)
        self.bytes += length
        return memoryview(self._buffer)[:length]

    def _fill(self, count: int) -> None:
        view, at = memoryview(self._buffer), 0
        while at < count:
            got = self._socket.recv_into(view[at:count])
            if not got:
                raise RuntimeError("the broker closed the connection")
            at += got

    def _read(self) -> None:
        """Read the queue. The first response shows how many messages come at once; queue offsets are dense."""
        begin, end = self._piece.begin, self._piece.end
        self._ask(begin)
        frame = bytes(self._answer())
        (answer,) = FrameDecoder().feed(_LENGTH.pack(len(frame)) + frame)
        if answer.code != ResponseCode.SUCCESS:
            raise RuntimeError(f"code {answer.code}: {answer.remark}")
        span = int(answer.ext["nextBeginOffset"]) - begin
        offsets = iter(range(begin + span, end, span))
        flying = 0
        for offset in offsets:
            self._ask(offset)
            flying += 1
            if flying >= DEPTH:
                self._answer()
                flying -= 1
        for _ in range(flying):
            self._answer()


def _once(address: str, pieces: Sequence[QueueRange]) -> float:
    """Return MB/s of all queues read concurrently."""
    readers = [_Reader(address, piece) for piece in pieces]
    begin = time.perf_counter()
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join(300)
    seconds = time.perf_counter() - begin
    wrong = [reader.error for reader in readers if reader.error]
    if wrong:
        raise RuntimeError(f"pulls failed: {wrong[0]}")
    return sum(reader.bytes for reader in readers) / seconds / 1e6


def rates(saturn: SaturnCluster, topic: str, *, rounds: int) -> float:
    """Return the median MB/s over the rounds."""
    options: SourceOptions = parse_options({"nameserver": saturn.name_servers, "topic": topic}, streaming=False)
    with linked(options):
        pieces = batch_ranges(options)
    return statistics.median(_once(saturn.broker_address, pieces) for _ in range(rounds))
