"""The message trace as producers and consumers use it: its topic, its counters, and the interface of package `trace`. Pure.

Requirements: TR-02.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from saturnmq.client.checks import check_topic
from saturnmq.protocol.codes import TRACE_TOPIC
from saturnmq.protocol.errors import LocalProtocolError

if TYPE_CHECKING:
    from saturnmq.client.hooks import ConsumeHook, SendHook

PRODUCE: Final = "PRODUCE"  # role of the traced party, part of the trace producer's group name (TR-08)
CONSUME: Final = "CONSUME"


@dataclass(slots=True)
class TraceStats:
    """Counters of the trace records of one producer or consumer.

    made: created. sent: stored by a broker. failed: the send failed or was cancelled. dropped: the queue was full, or tracing
    was stopped. Records in none of the last three are still queued or in flight.

    Example:
        stats = out.trace_stats
        print(stats.sent, stats.failed + stats.dropped)
    """

    made: int = 0
    sent: int = 0
    failed: int = 0
    dropped: int = 0


class Tracer(Protocol):
    """The trace of one producer or consumer, which it feeds by the hook of its kind."""

    @property
    def stats(self) -> TraceStats: ...
    @property
    def send_hook(self) -> SendHook: ...
    @property
    def consume_hook(self) -> ConsumeHook: ...
    async def close(self) -> None:
        """Flush within a time limit. Idempotent."""


class Tracing(Protocol):
    """The tracers of one client."""

    def open(self, group: str, role: str, topic: str) -> Tracer:
        """Create the tracer of a group. role: PRODUCE or CONSUME. Does no I/O."""

    def begin_shutdown(self) -> None:
        """Begin shutdown: from now on all tracers together share one time limit."""

    async def close(self) -> None:
        """Flush all tracers and close their connections."""


def trace_topic(setting: bool | str | None, default: bool | str) -> str | None:
    """The trace topic, None if tracing is off. setting: that of a producer or consumer; default: of its client (TR-02)."""
    if setting is None:
        setting = default
    if setting is True:
        return default if isinstance(default, str) else TRACE_TOPIC
    return setting or None


def trace_topic_problem(trace: bool | str | None) -> str | None:
    """Why the trace setting is invalid, None if it is valid: a boolean, a topic name or None."""
    if trace is None or isinstance(trace, bool):
        return None
    try:
        check_topic(trace)
    except LocalProtocolError as error:
        return f"trace is {trace!r:.60}, must be True, False or the name of a topic: {error.message}"
    return None
