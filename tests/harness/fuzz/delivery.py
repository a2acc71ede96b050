"""Sends hostile frames to a port in every form: whole, cut into small writes, many in one write, with bytes after them.

Each connection works alone, so frames of several connections interleave. After every batch of frames with right lengths a harmless
request follows; its answer shows that the server has handled the batch and still serves this connection.

Requirements: FUZ-03.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
import struct
import time
from collections import Counter
from itertools import pairwise
from typing import Final, Protocol

from harness.fuzz.frames import Frame
from saturnmq.protocol.errors import RemoteProtocolError
from saturnmq.protocol.frames.command import Command, encode_frame
from saturnmq.protocol.frames.decoder import FrameDecoder

MARK_CODE: Final = 9_999  # no server serves it
MARK: Final = 1_234_567_890  # its opaque
ANSWER_SECONDS: Final = 60.0
READ_BYTES: Final = 262_144
BATCH_MAX: Final = 24
SINGLE_BYTES_MAX: Final = 400  # bytes of a batch that are sent one by one
CUTS_MAX: Final = 12
DECODED: Final = 0.1  # share of the connections whose answers are decoded in full
BEHIND_SECONDS: Final = 0.1  # a pace that was missed by more is not made up for
_MARK_FRAME: Final = encode_frame(Command(MARK_CODE, opaque=MARK))
_MARK_TEXT: Final = b'"opaque":%d' % MARK
_PREFIX: Final = struct.Struct(">iI")


async def pause(seconds: float) -> None:
    """The pace of an attack."""
    await asyncio.wait([asyncio.get_running_loop().create_future()], timeout=seconds)


class Count:
    """What a campaign has done so far."""

    def __init__(self) -> None:
        self.frames = 0
        self.connections = 0
        self.closed = 0  # connections that the server closed
        self.answered = 0  # frames that servers sent
        self.answers: Counter[int] = Counter()  # by response code, of those that were decoded
        self.problems: list[str] = []


class Pace:
    """Limits what all connections together send. rate: frames per second, 0 for no limit. seconds: in all."""

    def __init__(self, rate: float, seconds: float = math.inf) -> None:
        self._rate = rate
        self._until = time.monotonic() + seconds
        self._next = 0.0

    @property
    def over(self) -> bool:
        """Whether the time is used up."""
        return time.monotonic() >= self._until

    async def take(self, frames: int) -> None:
        """Wait until so many frames may be sent."""
        if not self._rate:
            return
        now = time.monotonic()
        self._next = max(self._next, now - BEHIND_SECONDS) + frames / self._rate
        if self._next > now:
            await pause(self._next - now)


class Answers:
    """Walks over the frames of one connection without decoding them, and looks for the answer to the mark."""

    def __init__(self, count: Count, *, decoded: bool) -> None:
        self._count = count
        self._decoder = FrameDecoder() if decoded else None
        self._rest = b""

    def feed(self, data: bytes) -> bool:
        """Whether these bytes complete the answer to the mark. Raises RemoteProtocolError for bytes that are no frame."""
        if self._decoder is not None:
            for command in self._decoder.feed(data):
                if command.is_response and command.opaque != MARK:
                    self._count.answers[command.code] += 1
        data = self._rest + data
        at, end, count, marked = 0, len(data), 0, False
        mark_at = data.rfind(_MARK_TEXT)
        while end - at >= 8:
            length, word = _PREFIX.unpack_from(data, at)
            if word >> 24 > 1 or (word & 0xFFFFFF) > length - 4:
                raise RemoteProtocolError(f"length {length}, second word {word:#x}")
            if at + 4 + length > end:
                break
            marked |= at < mark_at < at + 8 + (word & 0xFFFFFF)
            at += 4 + length
            count += 1
        self._count.answered += count
        self._rest = data[at:]
        return marked


class Maker(Protocol):
    """What makes the frames of a connection."""

    def frame(self) -> Frame: ...


class Attacker:
    """One connection after the other to a port."""

    def __init__(self, port: int, maker: Maker, seed: int, count: Count, pace: Pace) -> None:
        self._port = port
        self._maker = maker
        self._chance = random.Random(seed)
        self._count = count
        self._pace = pace

    async def run(self, frames: int) -> None:
        """Send so many frames. A server that neither answers nor closes within ANSWER_SECONDS is a problem, kept in the count."""
        left = frames
        while left > 0 and not self._count.problems and not self._pace.over:
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
            except OSError as error:
                self._count.problems.append(f"port {self._port} accepts no connection: {error}")
                return
            self._count.connections += 1
            answers = Answers(self._count, decoded=self._chance.random() < DECODED)
            alive = True
            try:
                while alive and left > 0 and not self._pace.over:
                    batch, whole = self._batch()
                    left -= len(batch)
                    await self._pace.take(len(batch))
                    async with asyncio.timeout(ANSWER_SECONDS):
                        alive = await self._send(batch, whole, reader, writer, answers)
                    self._count.frames += len(batch)
            except TimeoutError:
                self._count.problems.append(f"port {self._port}: no answer and no close in {ANSWER_SECONDS:.0f} s")
            except RemoteProtocolError as error:
                self._count.problems.append(f"port {self._port} sent bytes that are no frame: {error}")
            except OSError:
                self._count.closed += 1
            finally:
                writer.transport.abort()
                with contextlib.suppress(OSError):
                    await writer.wait_closed()

    def _batch(self) -> tuple[list[bytes], bool]:
        """The next frames, and whether the outer length of the last one is right; of all others it is.

        A frame that may end the connection is the last one, so that every frame of a batch is handled.
        """
        frames: list[bytes] = []
        size = self._chance.choice((1, 2, BATCH_MAX, BATCH_MAX, BATCH_MAX))
        while True:
            frame = self._maker.frame()
            frames.append(frame.raw)
            if not frame.sound or len(frames) >= size:
                return frames, frame.whole

    async def _send(
        self,
        frames: list[bytes],
        whole: bool,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        answers: Answers,
    ) -> bool:
        """Send a batch and read what answers it; returns whether the connection may be used again."""
        await self._write(writer, b"".join(frames) + (_MARK_FRAME if whole else b""))
        if not whole and writer.can_write_eof():
            writer.write_eof()
        while True:
            received = await reader.read(READ_BYTES)
            if not received:
                self._count.closed += 1
                return False
            if answers.feed(received) and whole:
                return True

    async def _write(self, writer: asyncio.StreamWriter, data: bytes) -> None:
        form = self._chance.random()
        if form < 0.02:
            first = self._chance.randrange(len(data))
            last = min(first + SINGLE_BYTES_MAX, len(data))
            cuts = [0, *range(first, last), len(data)]  # byte by byte from there
        elif form < 0.10:
            cuts = [0, *sorted(self._chance.choices(range(len(data)), k=CUTS_MAX)), len(data)]
        else:
            cuts = [0, len(data)]
        for number, (start, end) in enumerate(pairwise(cuts)):
            if writer.is_closing():
                break
            writer.write(data[start:end])
            if number % 4 == 3 or end - start > 1:
                await asyncio.sleep(0)
        await writer.drain()
