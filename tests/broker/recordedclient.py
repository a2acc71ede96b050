"""A client of a broker without sockets: a test hands bytes to its connection, and gets what the broker writes."""

from __future__ import annotations

import asyncio

from saturnmq.broker import Broker
from saturnmq.net import Connection
from saturnmq.protocol.frames.command import Command
from saturnmq.protocol.frames.decoder import FrameDecoder


class RecordedTransport(asyncio.Transport):
    """The transport of a connection of which a test calls the callbacks; keeps what is written."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 5), "sockname": ("127.0.0.1", 6)})
        self.written = bytearray()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """It never blocks."""

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        """What a test passes arrives."""

    def resume_reading(self) -> None:
        """What a test passes arrives."""

    def is_closing(self) -> bool:
        return False

    def abort(self) -> None:
        """As `close`."""

    def close(self) -> None:
        """The test asks whether the connection is closed."""


class RecordedClient:
    """A client with a connection to the main port of a broker."""

    def __init__(self, broker: Broker) -> None:
        self._transport = RecordedTransport()
        self._decoder = FrameDecoder()
        self.connection = Connection(broker._server)
        self.connection.connection_made(self._transport)

    async def send(self, pieces: list[bytes]) -> list[Command]:
        """The responses to pieces of bytes that arrive one by one, as far as they are there when all are handled."""
        connection = self.connection
        for piece in filter(None, pieces):
            if not connection.closed:
                connection.data_received(piece)
            while not connection.closed and (connection.limits.undecoded or connection.limits.backlog):
                await asyncio.sleep(0)
        await asyncio.sleep(0)
        while not connection.closed and connection.limits.in_flight:
            await asyncio.sleep(0)
        connection.flush()
        written, self._transport.written = self._transport.written, bytearray()
        return self._decoder.feed(bytes(written))

    def end(self) -> bool:
        """Lose the connection; whether the broker has closed it before."""
        closed = self.connection.closed
        self.connection.connection_lost(None)
        return closed
