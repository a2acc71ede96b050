"""Limits and timeouts of connections, with Apache RocketMQ's keys where it has them.

Requirements: REM-02, REM-16..REM-26, NS-04, LIM-03..LIM-11.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from saturnmq.config.settings import key
from saturnmq.config.unused import CPUS, NO_THREADS, UNREAD
from saturnmq.protocol.frames.command import HEADER_BYTES_MAX, FrameLimits

# Thread and buffer settings of Apache's network layer: accepted so that its files load.
_NO_NETTY: Final = "the event loop chooses its buffers and its way to wait for sockets"


@dataclass(frozen=True, slots=True)
class NetSettings:
    """Network settings shared by all listeners and clients of a process."""

    frame_bytes_max: int = key(
        "com.rocketmq.remoting.frameMaxLength", 16_777_216, unit="bytes", low=1024, high=2**31 - 1, spec="REM-02"
    )
    header_bytes_max: int = key(
        "headerMaxLength", HEADER_BYTES_MAX, unit="bytes", low=256, high=0xFFFFFF, spec="REM-02"
    )
    request_header_bytes_max: int = key(
        "requestHeaderMaxLength", 262_144, unit="bytes", low=256, high=0xFFFFFF, spec="REM-02"
    )
    server_idle_seconds: int = key("serverChannelMaxIdleTimeSeconds", 120, unit="s", low=0, spec="REM-23")
    client_idle_seconds: int = key("clientChannelMaxIdleTimeSeconds", 120, unit="s", low=0, spec="REM-23")
    request_fields_max: int = key("requestHeaderFieldsMax", 256, low=16, spec="LIM-03")
    request_key_bytes_max: int = key("requestHeaderKeyMaxLength", 256, unit="bytes", low=32, high=32767, spec="LIM-03")
    unsigned_bytes_max: int = key("unsignedBytesMax", 67_108_864, unit="bytes", low=1024, spec="LIM-04")
    slow_frame_ms: int = key("slowFrameTimeoutMillis", 10_000, unit="ms", low=1, spec="LIM-06")
    slow_frame_bytes_per_second: int = key("slowFrameBytesPerSecond", 262_144, unit="bytes", low=1, spec="LIM-06")
    first_frame_ms: int = key("firstFrameTimeoutMillis", 5_000, unit="ms", low=1, spec="LIM-07")
    connections_max: int = key("serverConnectionsMax", 10_000, low=1, spec="LIM-08")
    connections_per_address: int = key("serverConnectionsMaxPerAddress", 500, low=1, spec="LIM-08")
    descriptors_reserved: int = key("serverDescriptorsReserved", 256, low=0, spec="LIM-08")
    in_flight_max: int = key("serverInFlightMaxPerConnection", 256, low=1, spec="LIM-09")
    in_flight_bytes_max: int = key(
        "serverInFlightBytesMaxPerConnection", 33_554_432, unit="bytes", low=1024, spec="LIM-09"
    )
    request_bytes_max: int = key("serverRequestBytesMax", 268_435_456, unit="bytes", low=1024, spec="LIM-10")
    unread_bytes_max: int = key("unreadBytesMaxPerConnection", 67_108_864, unit="bytes", low=1024, spec="LIM-11")
    unread_total_max: int = key("unreadBytesMax", 268_435_456, unit="bytes", low=1024, spec="LIM-11")
    unread_ms: int = key("unreadTimeoutMillis", 30_000, unit="ms", low=1, spec="LIM-11")
    write_buffer_high_bytes: int = key("writeBufferHighWaterMark", 0, unit="bytes", low=0, spec="NS-04")
    write_buffer_low_bytes: int = key("writeBufferLowWaterMark", 0, unit="bytes", low=0, spec="NS-04")
    backlog: int = key("serverSocketBacklog", 1024, low=1, spec="REM-25")
    server_sndbuf_bytes: int = key("serverSocketSndBufSize", 0, unit="bytes", low=0, spec="REM-25")
    server_rcvbuf_bytes: int = key("serverSocketRcvBufSize", 0, unit="bytes", low=0, spec="REM-25")
    client_sndbuf_bytes: int = key("clientSocketSndBufSize", 0, unit="bytes", low=0, spec="REM-25")
    client_rcvbuf_bytes: int = key("clientSocketRcvBufSize", 0, unit="bytes", low=0, spec="REM-25")
    server_async_permits: int = key("serverAsyncSemaphoreValue", 64, low=1, spec="REM-20")
    client_oneway_permits: int = key("clientOnewaySemaphoreValue", 65535, low=1, spec="REM-18")
    client_async_permits: int = key("clientAsyncSemaphoreValue", 65535, low=1, spec="REM-17")
    connect_timeout_ms: int = key("connectTimeoutMillis", 3000, unit="ms", low=1, spec="REM-26")
    close_on_timeout: bool = key("clientCloseSocketIfTimeout", True, spec="REM-16")
    stop_timeout_ms: int = key("serverStopTimeoutMillis", 3000, unit="ms", low=0, spec="NS-06")
    # A one-way call of a server holds its permit only while it is written, within one event-loop iteration: calls never contend.
    server_oneway_permits: int = key("serverOnewaySemaphoreValue", 256, low=1, spec="REM-20")
    worker_threads: int = key("serverWorkerThreads", 8, low=0, spec="NS-04", no_effect=NO_THREADS)
    callback_threads: int = key("serverCallbackExecutorThreads", 0, low=0, spec="NS-04", no_effect=NO_THREADS)
    selector_threads: int = key("serverSelectorThreads", 3, low=0, spec="NS-04", no_effect=NO_THREADS)
    pooled_buffers: bool = key("serverPooledByteBufAllocatorEnable", True, spec="NS-04", no_effect=_NO_NETTY)
    epoll_selector: bool = key("useEpollNativeSelector", False, spec="NS-04", no_effect=_NO_NETTY)
    client_worker_threads: int = key("clientWorkerThreads", 4, low=0, spec="CFG-03", no_effect=NO_THREADS)
    client_callback_threads: int = key(
        "clientCallbackExecutorThreads", CPUS, low=0, spec="CFG-03", default_text="CPUs", no_effect=NO_THREADS
    )
    channel_inactive_ms: int = key(
        "channelNotActiveInterval", 60_000, unit="ms", low=0, spec="CFG-03", no_effect=UNREAD
    )
    client_pooled_buffers: bool = key("clientPooledByteBufAllocatorEnable", False, spec="CFG-03", no_effect=_NO_NETTY)

    @property
    def frame_limits(self) -> FrameLimits:
        # A header cannot be longer than its frame.
        return FrameLimits(self.frame_bytes_max, min(self.header_bytes_max, self.frame_bytes_max))

    @property
    def request_limits(self) -> FrameLimits:
        """Frame limits of a server. 32 KiB of properties fit a header, even if every character is escaped."""
        limits = self.frame_limits
        header_bytes_max = min(self.request_header_bytes_max, limits.header_bytes_max)
        return FrameLimits(
            limits.frame_bytes_max, header_bytes_max, self.request_fields_max, self.request_key_bytes_max
        )

    @property
    def write_high_bytes(self) -> int:
        """Unsent bytes at which reading from the peer pauses; 0 means 1 MiB."""
        return self.write_buffer_high_bytes or 1_048_576

    @property
    def write_low_bytes(self) -> int:
        """Unsent bytes at which reading resumes; 0 means a quarter of the high watermark."""
        return self.write_buffer_low_bytes or self.write_high_bytes // 4

    def validate(self) -> list[str]:
        """Problems of combinations of settings, one sentence each."""
        if self.write_low_bytes > self.write_high_bytes:
            return [
                f"writeBufferLowWaterMark={self.write_low_bytes} must be at most "
                f"writeBufferHighWaterMark={self.write_high_bytes}"
            ]
        return []
