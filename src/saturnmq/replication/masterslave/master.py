"""The HA port: sends the log to the slaves that connect, and notes what they acknowledge.

Only records that consumers may see are sent: with SYNC_FLUSH those that are durable here, so that a power failure of the master
cannot leave a slave with records that its master lost.

A connection is closed for any offset that it cannot have, when it is silent for haHousekeepingInterval, and when the master no
longer has what it needs next. Data is read from the mapped files in small frames, at most STEP_BYTES per connection and event-loop
iteration and only while the socket accepts it, so a slave costs at most _BUFFER_BYTES and one frame of memory. What is not in the
page cache is read by a thread first.

Requirements: HA-01, HA-07..HA-15, SEC-16, SEC-19.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final, cast

from saturnmq.net.rejections import Rejections
from saturnmq.net.server import start_error
from saturnmq.net.tls import ContextHolder, TlsSettings
from saturnmq.protocol.addresses import host_of, network_of
from saturnmq.protocol.errors import RemoteProtocolError, StoreError
from saturnmq.protocol.offsets import PhysicalOffset
from saturnmq.raft.cluster_secret import ClusterSecret
from saturnmq.replication.masterslave.acks import SlaveAcks
from saturnmq.replication.masterslave.handshake import MasterChannel, Terms
from saturnmq.replication.masterslave.settings import HaSettings
from saturnmq.replication.masterslave.stream import HEADER, Extent, SlavePosition, encode_heartbeat
from saturnmq.store.cold import RECENT_BYTES
from saturnmq.store.files.disk import Disk
from saturnmq.store.files.mapped_file import MappedFile
from saturnmq.store.log.log import ReadableLog
from saturnmq.tasks import cancel, supervised

log = logging.getLogger(__name__)

SLAVES_MAX: Final = 16
WAITING_MAX: Final = 64  # connections without a first report
WAITING_PER_HOST: Final = 16
PROOF_SECONDS: Final = 5.0  # for a connection whose address does not suffice
STEP_BYTES: Final = 512 * 1024
POLL_SECONDS: Final = 0.02  # how soon new records are sent if no send waits for a slave; Apache: 0.1
DRAIN_SECONDS: Final = 1.0
PAUSE_SECONDS: Final = 1.0
REFUSED_MAX: Final = 64
_BUFFER_BYTES: Final = 256 * 1024  # of the socket, above which nothing more is written
_READ_AHEAD_BYTES: Final = 1024 * 1024


class SlaveConnection(asyncio.Protocol):
    """One connection to the HA port."""

    def __init__(self, master: HaMaster) -> None:
        self._master = master
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._channel: MasterChannel | None = None
        self._closing: asyncio.TimerHandle | None = None
        self._paused = self._scheduled = self._reading = False
        self._warm_until = 0  # everything before this offset has just been read into the page cache
        self.stream = SlavePosition(from_oldest=master.settings.from_oldest)
        self.peer = self.host = ""
        self.trusted = False  # the address suffices
        self.opened_at = self.heard_at = self.wrote_at = self._loop.time()

    # ---- events of the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no instance of it
        name = transport.get_extra_info("peername")
        self.peer = f"{name[0]}:{name[1]}" if name else ""
        self.host = host_of(self.peer)
        problem = self._master.opened(self)
        if problem:
            self.close(problem)
            return
        self._channel = MasterChannel(self._transport.write, self._master.terms, trusted=self.trusted)
        # Above it `pause_writing` is called: a slow slave must not fill this process's memory.
        self._transport.set_write_buffer_limits(high=_BUFFER_BYTES)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._closing is not None:
            self._closing.cancel()
        self._master.lost(self, str(exc) if exc is not None else "closed by the slave")

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self.send()

    def data_received(self, data: bytes) -> None:
        channel = self._channel
        # A connection in its pause before the close is ignored.
        if channel is None or self._transport is None or self._closing is not None:
            return
        self.heard_at = self._loop.time()
        try:
            data = channel.feed(data)
        except RemoteProtocolError as error:
            self.close(error.message)
            return
        if channel.established:
            self._reports(data, channel)

    def _reports(self, data: bytes, channel: MasterChannel) -> None:
        first = self.stream.position is None
        try:
            reported = self.stream.received(data, self._master.extent)
        except RemoteProtocolError as error:
            # Only the first report decides where the stream begins, so only it can be helped by a new setup.
            hint = " To set the slave up again, stop it and remove its store" if first else ""
            self.close(f"{error.message}.{hint}" if hint else error.message)
            return
        if not reported:
            return
        # Counted after its report: a stranger that connects takes no place.
        if first:
            if self._master.slaves > SLAVES_MAX:
                self.close(f"{SLAVES_MAX} slaves are connected")
                return
            log.info(
                "slave connected peer=%s stored=%s from=%s tls=%s",
                self.peer,
                self.stream.acknowledged,
                self.stream.position,
                channel.encrypted,
            )
        self._master.acks.set(self, self.stream.acknowledged)
        if first:
            self.send()

    # ---- sending

    def close(self, reason: str) -> None:
        """Log why the connection is closed, and close it after a pause: a Java slave connects again at once."""
        if self._transport is None or self._closing is not None:
            return
        self._master.rejections.note("ha", self.peer, reason)
        self._master.refused(self)
        # It may send on: nothing of it is read any more.
        self._transport.pause_reading()
        self._closing = self._loop.call_later(self._master.pause_seconds, self.abort)

    def abort(self) -> None:
        """Close the connection."""
        if self._transport is not None:
            self._transport.abort()

    @property
    def _waits(self) -> bool:
        """Whether nothing can be sent now."""
        return self._paused or self._reading or self._closing is not None

    def send(self) -> None:
        """Send what the slave does not have, until the socket or this step is full."""
        self._scheduled = False
        try:
            remaining_bytes = STEP_BYTES
            while remaining_bytes > 0 and self._channel is not None and self._transport is not None and not self._waits:
                size = self._send_frame(self._channel)
                if not size:
                    return
                remaining_bytes -= size
        except StoreError as error:
            self.close(f"the log cannot be read: {error.message}")
            return
        except RemoteProtocolError as error:
            self.close(error.message)
            return
        if remaining_bytes <= 0 and not self._scheduled:
            self._scheduled = True
            # After a step the other connections and requests have their turn.
            self._loop.call_soon(self.send)

    def _send_frame(self, channel: MasterChannel) -> int:
        """Send the next frame; returns the size of its data, 0 if there is none now.

        Raises CorruptRecord, RemoteProtocolError.
        """
        master, extent = self._master, self._master.extent
        offset, size = self.stream.next_data(extent, master.settings.batch_bytes)
        if not size:
            return 0
        file = master.log.file_at(offset)
        # Reading the mapping would make the whole event loop wait for the disk.
        if file is not None and self._is_cold(file, offset, size, extent.end):
            self._read(file, offset - file.start)
            return 0
        data = master.log.view(offset, size)
        # Deleted by retention, or never there: the slave needs a new copy.
        if data is None:
            self.close(
                f"the slave needs the log from offset {offset} on, this master has it from {extent.first} to {extent.end}"
            )
            return 0
        channel.write(b"".join((HEADER.pack(offset, size), data)))
        self.wrote_at = self._loop.time()
        self.stream.sent(size)
        return size

    def _is_cold(self, file: MappedFile, offset: PhysicalOffset, size: int, end: PhysicalOffset) -> bool:
        # The end of the log has just been written and is in the page cache.
        if offset >= end - RECENT_BYTES or offset + size <= self._warm_until:
            return False
        return not file.is_cached(offset - file.start, size)

    def _read(self, file: MappedFile, at: int) -> None:
        """Let a thread read the next part of an old file into the page cache, and go on."""
        self._reading = True
        size = min(max(_READ_AHEAD_BYTES, self._master.settings.batch_bytes), file.size_bytes - at)

        def read_ended(reading: asyncio.Future[None]) -> None:
            self._reading = False
            if reading.cancelled() or reading.exception() is not None:
                log.debug("read of old records failed peer=%s offset=%s", self.peer, file.start + at)
            # Set also after an error: the send then reads, and reports it.
            self._warm_until = file.start + at + size
            self.send()

        self._master.read(file, at, size).add_done_callback(
            read_ended
        )  # a failed read is repeated, and reported, by the send

    def check(self, now: float) -> None:
        """Send new records or a heartbeat if due; close a connection that has been silent for too long."""
        settings = self._master.settings
        # A slave reports every few seconds even if nothing arrives (HA-05).
        if (now - self.heard_at) * 1000 > settings.housekeeping_ms:
            self.close(f"no report for {settings.housekeeping_ms} ms")
            return
        channel = self._channel
        if not self.trusted and now - self.opened_at > PROOF_SECONDS and not (channel and channel.established):
            self.close(f"haClusterSecret is not proved within {PROOF_SECONDS} s")
            return
        if channel is None or self._transport is None or self._waits or self.stream.position is None:
            return
        if not self._scheduled:
            self.send()
        if (now - self.wrote_at) * 1000 > settings.heartbeat_ms:
            # Before the write: after a failure it is not tried at once again.
            self.wrote_at = now
            try:
                channel.write(encode_heartbeat(self.stream.position))
            except RemoteProtocolError as error:
                self.close(error.message)


class HaMaster:
    """Listens on the HA port of one broker. Every method runs on the event loop."""

    def __init__(
        self,
        settings: HaSettings,
        log: ReadableLog,
        visible_end: Callable[[], PhysicalOffset],
        disk: Disk,
        acks: SlaveAcks,
        *,
        protected: bool = False,
        rejections: Rejections | None = None,
        tls: TlsSettings | None = None,
    ) -> None:
        """visible_end: everything before this offset may be sent. protected: see `HaSettings.allowed`. Raises ConfigError."""
        self.settings = settings
        self.log = log
        self.acks = acks
        self._visible_end = visible_end
        self.rejections = rejections or Rejections()
        self._disk = disk
        self._allowed = settings.allowed(protected=protected)
        holder = ContextHolder(tls if tls is not None and settings.tls_enable else TlsSettings(mode="disabled"))
        # Responses are always signed: both ends prove the secret.
        self.terms = Terms(holder, ClusterSecret.of(settings.cluster_secret, required=True))
        self._connections: dict[SlaveConnection, None] = {}
        self._refused: set[SlaveConnection] = set()  # closed after a pause
        self._server: asyncio.Server | None = None
        self._task: asyncio.Task[None] | None = None
        self._reads: set[asyncio.Future[None]] = set()
        self._any_slave = asyncio.Event()
        self._wake_scheduled = False

    @property
    def extent(self) -> Extent:
        """The part of the log that can be sent."""
        return Extent(self.log.first_position, self._visible_end(), self.log.file_bytes)

    async def start(self, host: str, port: int) -> tuple[str, int]:
        """Listen and return the bound address; port 0 binds a free port. Raises StartError."""
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(
                lambda: SlaveConnection(self), host, port, backlog=SLAVES_MAX, reuse_address=True
            )
        except OSError as error:
            chosen_by = "the HA port is 1 above listenPort; haPortEnable=false starts without it"
            raise start_error(host, port, error, chosen_by) from error
        self.terms.tls.watch()
        self.acks.on_wait = self._wake
        self._task = supervised(self._run(), "HA port")
        name = self._server.sockets[0].getsockname()
        return name[0], name[1]

    async def drain(self) -> None:
        """Wait until all connected slaves have everything, at most DRAIN_SECONDS: an orderly stop leaves nothing behind."""
        for _ in range(round(DRAIN_SECONDS / POLL_SECONDS)):
            # Of all slaves: the slowest decides.
            if not self.acks.slaves or self.acks.lowest >= self._visible_end():
                return
            await asyncio.sleep(POLL_SECONDS)

    async def stop(self) -> None:
        """Close the port and all connections; waiting sends get FLUSH_SLAVE_TIMEOUT."""
        if self._server is not None:
            self._server.close()
            self._server = None
        await cancel(self._task)
        self._task = None
        # A copy: `abort` changes both.
        for connection in [*self._connections, *self._refused]:
            connection.abort()
        self.acks.stop()
        await self.terms.tls.stop()
        await asyncio.gather(*self._reads, return_exceptions=True)

    @property
    def slaves(self) -> int:
        """Number of connections with a first report."""
        return sum(connection.stream.position is not None for connection in self._connections)

    @property
    def peers(self) -> list[str]:
        """Addresses of the connected slaves, `ip:port`."""
        return [connection.peer for connection in self._connections]

    # ---- for connections

    def opened(self, connection: SlaveConnection) -> str:
        """Register a connection; returns why it is refused, "" if it is not."""
        connection.trusted = not self.settings.require_secret and self._allowed.matches(connection.host)
        if not connection.trusted and self.terms.secret is None:
            return "the address is not in haAllowedAddresses"
        self._make_space(network_of(connection.host))
        self._connections[connection] = None
        self._any_slave.set()
        return ""

    def _make_space(self, network: str) -> None:
        """Close the oldest connection without a first report if there are too many of them, of one network or in all."""
        waiting = [each for each in self._connections if each.stream.position is None]
        same = [each for each in waiting if network_of(each.host) == network]
        oldest = None
        if len(same) >= WAITING_PER_HOST:
            oldest = same[0]
        elif len(waiting) >= WAITING_MAX:
            # Connections that are not trusted by their address go first.
            oldest = next((each for each in waiting if not each.trusted), waiting[0])
        if oldest is not None:
            self.rejections.note("ha", oldest.peer, "no report, and others wait")
            oldest.abort()
            # At once, not when the transport reports it: the next connection counts again.
            self._forget(oldest)

    def lost(self, connection: SlaveConnection, reason: str) -> None:
        """Forget a closed connection."""
        self._refused.discard(connection)
        if not self._forget(connection):
            return
        if connection.stream.position is not None:
            log.warning(
                "slave disconnected peer=%s stored=%s reason=%s",
                connection.peer,
                connection.stream.acknowledged,
                reason,
            )

    def refused(self, connection: SlaveConnection) -> None:
        """Forget a connection that is about to be closed."""
        self._refused.add(connection)
        if self._forget(connection) and connection.stream.position is not None:
            log.warning("slave refused peer=%s stored=%s", connection.peer, connection.stream.acknowledged)

    @property
    def pause_seconds(self) -> float:
        """Seconds that a refused connection is kept; 0 if there are too many of them."""
        return PAUSE_SECONDS if len(self._refused) <= REFUSED_MAX else 0

    def _forget(self, connection: SlaveConnection) -> bool:
        """Whether it was connected."""
        if connection not in self._connections:
            return False
        del self._connections[connection]
        self.acks.remove(connection)
        if not self._connections:
            self._any_slave.clear()
        return True

    def read(self, file: MappedFile, at: int, size: int) -> asyncio.Future[None]:
        """Read part of a file into the page cache, in a thread."""
        loop = asyncio.get_running_loop()
        reading: asyncio.Future[None] = loop.run_in_executor(self._disk.read_threads, file.warm, at, size)
        self._reads.add(reading)
        reading.add_done_callback(self._reads.discard)
        return reading

    # ---- background

    async def _run(self) -> None:
        clock = asyncio.get_running_loop().time
        while True:
            await self._any_slave.wait()
            self._check(clock())
            await asyncio.sleep(POLL_SECONDS)

    def _check(self, now: float) -> None:
        for connection in list(self._connections):
            connection.check(now)

    def _wake(self) -> None:
        """Send the records of this event-loop iteration at its end: sends wait for them (HA-10)."""
        if not self._wake_scheduled:
            self._wake_scheduled = True
            asyncio.get_running_loop().call_soon(self._send_all)

    def _send_all(self) -> None:
        self._wake_scheduled = False
        for connection in list(self._connections):
            if connection.stream.position is not None:
                connection.send()
