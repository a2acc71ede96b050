"""The client of a slave: connects to the master's HA port, appends what it sends, and reports what is stored.

One connection at a time. It is closed when the master sends what does not continue this log, or is silent for
haHousekeepingInterval; after a pause, a short one if it had served, the slave connects again and goes on at the end of its last
whole record. It never truncates its log: a master that continues elsewhere is an operator's case (`tail.py` finds it).

Requirements: HA-02..HA-06, HA-14, HA-16, HA-17, DUR-12, SEC-19.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable
from typing import Final, cast

from saturnmq.net.tls import TlsSettings, client_context
from saturnmq.protocol.errors import RemoteProtocolError, SaturnError, StoreError
from saturnmq.protocol.offsets import PhysicalOffset
from saturnmq.raft.cluster_secret import ClusterSecret
from saturnmq.replication.masterslave.dispatch import STEP_SECONDS, DispatchStep, SlaveDispatch
from saturnmq.replication.masterslave.handshake import SlaveChannel
from saturnmq.replication.masterslave.settings import HaSettings
from saturnmq.replication.masterslave.stream import TransferDecoder, check_frame, encode_report
from saturnmq.replication.masterslave.tail import COMPARED_BYTES, WIDER, TailCheck
from saturnmq.store import wait_confirmed
from saturnmq.tasks import cancel, supervised

log = logging.getLogger(__name__)

RETRY_SECONDS: Final = 5.0
RETRY_SOON_SECONDS: Final = 0.5  # after a connection that served, as sends may wait for this slave (SYNC_MASTER)
SOON_SECONDS: Final = 15.0  # how long after it
CONNECT_SECONDS: Final = 5.0
FLUSH_TIMEOUT_MS: Final = 600_000
_CHECK_SECONDS: Final = 0.1
_FRAMES_PER_LOOK: Final = 64
_REPORT_BYTES_MAX: Final = 1024  # unsent reports, after which none are written


_NO_ANSWER: Final = (
    f"no answer to the opening for {CONNECT_SECONDS} s. A Java master knows neither TLS nor a secret on this port: for one, set "
    "haTlsEnable=false and no haClusterSecret"
)


class MasterConnection(asyncio.Protocol):
    """One connection to a master. closed: set with the reason when it has ended.

    served: a record or heartbeat that continues the log arrived. refused: this side closed the connection, for what arrived.
    """

    def __init__(
        self,
        settings: HaSettings,
        dispatch: SlaveDispatch,
        make_channel: Callable[[Callable[[bytes], object]], SlaveChannel],
        compared_bytes: int,
    ) -> None:
        """make_channel(send): the channel to the master. compared_bytes: how much of the log's end is compared with the
        master's before anything is appended.
        """
        self.tail = TailCheck(dispatch.log, compared_bytes)
        self._make_channel = make_channel
        self._settings = settings
        self._dispatch = dispatch
        self._loop = asyncio.get_running_loop()
        self._decoder = TransferDecoder()
        self._transport: asyncio.Transport | None = None
        self._channel: SlaveChannel | None = None
        self.served = self.refused = self._stuck = self._scheduled = False
        self._more = False  # the decoder holds frames that were not taken yet
        self._step = DispatchStep.FINISHED
        self._reported = PhysicalOffset(-1)
        self._opened_at = self._heard_at = self._reported_at = self._loop.time()
        self.closed: asyncio.Future[str] = self._loop.create_future()

    # ---- events of the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no instance of it
        self._transport.set_write_buffer_limits(high=_REPORT_BYTES_MAX)
        channel = self._channel = self._make_channel(self._transport.write)
        channel.start()
        if channel.established:
            self._report(always=True)  # at once: the master sends nothing before

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self.close(str(exc) if exc is not None else "closed by the master")

    def pause_writing(self) -> None:
        self._stuck = True

    def resume_writing(self) -> None:
        self._stuck = False

    def data_received(self, data: bytes) -> None:
        channel = self._channel
        if self.closed.done() or channel is None:
            return
        self._heard_at = self._loop.time()
        try:
            began = channel.established  # the handshake may end within this piece, with frames behind it
            data = channel.feed(data)
            if channel.established and not began:
                self._report(always=True)
            self._take_frames(data)
        except (RemoteProtocolError, StoreError, OSError) as error:
            # The master sent what cannot continue this log: the next attempt is not made soon.
            self.refused = True
            self.close(str(error))
            return
        if not self._scheduled:
            self._dispatch_received()

    def _take_frames(self, data: bytes) -> None:
        """Append the data of frames, for at most STEP_SECONDS; the rest stays in the decoder. Raises SaturnError, OSError."""
        slave_log, tail = self._dispatch.log, self.tail
        self._more = False
        until = time.monotonic() + STEP_SECONDS
        for count, frame in enumerate(self._decoder.feed(data), 1):
            # While the tails are compared, frames repeat what this log has.
            check_frame(frame, slave_log.received if tail.is_complete else tail.at, slave_log.file_bytes)
            new = tail.received(frame.data)
            if new:
                # An empty log begins where the first frame does.
                if frame.offset > slave_log.received:
                    self._dispatch.begin_at(PhysicalOffset(frame.offset))
                slave_log.receive(new)
            # A heartbeat shows that the master has nothing new: this log is complete.
            elif tail.is_complete:
                self.served = True
            if not count % _FRAMES_PER_LOOK and time.monotonic() >= until:
                self._more = True
                # The rest of the frames stays in the decoder, and reading is paused.
                return

    # ---- what was received

    def close(self, reason: str) -> None:
        """Close the connection; the reason of the first call counts."""
        if not self.closed.done():
            self.closed.set_result(reason)
        if self._transport is not None:
            self._transport.abort()

    def resume(self) -> None:
        """More of the log became durable: report it, and go on if that was waited for."""
        # The disk was waited for: go on where the last step ended.
        if self._step is DispatchStep.BLOCKED and not self._scheduled:
            self._dispatch_received()
        else:
            self._report()

    def _dispatch_received(self) -> None:
        """Dispatch for one step, and read no more while there is something left to dispatch."""
        self._scheduled = False
        if self.closed.done() or self._transport is None:
            return
        try:
            if self._more:
                self._take_frames(b"")
            end = self._dispatch.log.end
            self._step = self._dispatch.step()
            self.served = self.served or self._dispatch.log.end > end
        except (RemoteProtocolError, StoreError, OSError) as error:
            self.refused = True
            self.close(str(error))
            return
        if self._step is DispatchStep.FINISHED and self._more:
            self._step = DispatchStep.MORE
        if self._step is DispatchStep.FINISHED:
            self._transport.resume_reading()
        else:
            # TCP's flow control keeps the rest at the master.
            self._transport.pause_reading()
        if self._step is DispatchStep.MORE:
            self._scheduled = True
            self._loop.call_soon(self._dispatch_received)
        self._report()

    def _report(self, *, always: bool = False) -> None:
        """Report what is stored, if that has advanced."""
        # During the comparison it asks for the part that is compared.
        stored = self._dispatch.stored if self.tail.is_complete else self.tail.at
        channel = self._channel
        if self._transport is None or channel is None or not channel.established:
            return
        # The master reads no reports: older ones are still queued.
        if self._stuck or (stored <= self._reported and not always):
            return
        self._reported = stored
        self._reported_at = self._loop.time()
        try:
            channel.write(encode_report(stored))
        except RemoteProtocolError as error:
            self.close(error.message)

    def check(self) -> None:
        """Report as a heartbeat if due; close the connection if the master is silent or reads no reports."""
        now, settings = self._loop.time(), self._settings
        if self._channel is not None and not self._channel.established and now - self._opened_at > CONNECT_SECONDS:
            self.close(_NO_ANSWER)
        if self._step is DispatchStep.BLOCKED:
            self._heard_at = now  # not read from
            self.resume()
        if (now - self._reported_at) * 1000 > settings.heartbeat_ms:
            self._report(always=True)
        # A master that reads no reports cannot acknowledge sends by them.
        for since, failure in ((self._heard_at, "nothing received"), (self._reported_at, "no report sent")):
            if (now - since) * 1000 > settings.housekeeping_ms:
                self.close(f"{failure} for {settings.housekeeping_ms} ms")


class HaSlave:
    """Keeps a slave connected to its master. address: the master's HA port, `host:port`, or "" while it is unknown."""

    def __init__(
        self, settings: HaSettings, dispatch: SlaveDispatch, address: Callable[[], str], tls: TlsSettings | None = None
    ) -> None:
        """tls: used if tls.enable and haTlsEnable are set. Raises ConfigError."""
        self._settings = settings
        self._context = client_context(tls) if tls is not None and tls.enable and settings.tls_enable else None
        self._secret = ClusterSecret.of(settings.cluster_secret, required=True)
        self._dispatch = dispatch
        self._address = address
        self._task: asyncio.Task[None] | None = None
        self._connection: MasterConnection | None = None
        self._last_reason = ""
        self._compared_bytes = COMPARED_BYTES
        self._served_at = -math.inf  # when a connection that served was last seen
        dispatch.on_durable = self._durable

    @property
    def connected(self) -> bool:
        """Whether a master sends what continues this log."""
        return self._connection is not None and self._connection.served

    def start(self) -> None:
        """Connect in the background."""
        self._task = supervised(self._run(), "replication from the master")

    async def stop(self) -> None:
        """Close the connection; whole records that were received are kept."""
        await cancel(self._task)
        self._task = None

    def _durable(self) -> None:
        if self._connection is not None:
            self._connection.resume()

    async def _run(self) -> None:
        store, clock = self._dispatch.store, asyncio.get_running_loop().time
        # A store that has failed takes no more records.
        while store.failure is None:
            address = self._address()
            pause_s = 1.0
            if address:
                reason = await self._replicate(address)
                # Sends of a SYNC_MASTER may wait for this slave: try again soon.
                pause_s = RETRY_SOON_SECONDS if clock() < self._served_at + SOON_SECONDS else RETRY_SECONDS
                # The same reason is logged once, not every few seconds.
                if reason != self._last_reason:
                    log.warning("replication stopped master=%s reason=%s retry_s=%s", address, reason, pause_s)
                    self._last_reason = reason
            await asyncio.sleep(pause_s)
        log.critical("replication ended reason=%s", store.failure)

    async def _replicate(self, address: str) -> str:
        """Copy the log until the connection is closed; returns why it was."""
        host, _, port = address.rpartition(":")
        dispatch = self._dispatch

        def channel(send: Callable[[bytes], object]) -> SlaveChannel:
            return SlaveChannel(send, address, self._context, self._secret)

        def connected() -> MasterConnection:
            return MasterConnection(self._settings, dispatch, channel, self._compared_bytes)

        try:
            # Before connecting: the first report must be what is on disk.
            await self._settle()
            async with asyncio.timeout(CONNECT_SECONDS):
                _, connection = await asyncio.get_running_loop().create_connection(
                    connected, host.strip("[]"), int(port)
                )
        except (OSError, ValueError, SaturnError) as error:
            return f"cannot connect: {error or type(error).__name__}"
        self._connection = connection
        served, began = False, asyncio.get_running_loop().time()
        try:
            while not connection.closed.done():
                await asyncio.wait([connection.closed], timeout=_CHECK_SECONDS)
                connection.check()
                if connection.served and not served:
                    served = True
                    # The logs were equal: the next connection compares the usual length.
                    self._compared_bytes = COMPARED_BYTES
                    log.info("replication started master=%s offset=%s", address, dispatch.log.end)
            return await self._why(connection)
        finally:
            self._connection = None
            now = asyncio.get_running_loop().time()
            if connection.served and not connection.refused:
                self._served_at = now
            # After a while of service the same failure is worth a line again.
            if connection.served and now - began >= RETRY_SECONDS:
                self._last_reason = ""
            connection.close("this broker stops")

    async def _why(self, connection: MasterConnection) -> str:
        """Why a connection was closed. If the logs differ: from which record on, and what to do."""
        tail = connection.tail
        diverged = tail.diverged
        if not tail.is_complete and (diverged is None or not tail.is_certain(diverged.at)):
            self._compared_bytes *= (
                WIDER  # the logs may differ before what was compared: the next connection begins earlier
            )
        elif diverged is not None:
            slave_log = self._dispatch.log
            start = await asyncio.get_running_loop().run_in_executor(None, slave_log.record_start, diverged.at)
            return (
                f"{diverged}. Stop this broker, run `saturnmq store repair --data {self._dispatch.store.settings.root} "
                f"--at {start} --yes`, which moves the messages that its master does not have to a folder, and start it"
            )
        return connection.closed.result()

    async def _settle(self) -> None:
        """Begin where the last whole record ends; with SYNC_FLUSH, make everything before it durable (DUR-12)."""
        dispatch = self._dispatch
        dispatch.discard_rest()
        while not dispatch.store.confirms_at_once and dispatch.stored < dispatch.log.end:
            await wait_confirmed(dispatch.log, dispatch.log.end, FLUSH_TIMEOUT_MS)
            if dispatch.log.failure is not None:
                raise dispatch.log.failure
