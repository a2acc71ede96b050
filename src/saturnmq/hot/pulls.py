"""Plain pulls at the start of a read from a connection, from the frames to the answers.

    bytes -> frame -> header -> units of the queue -> records in the log -> answer

A pull is plain (see `pull_header`) if messages for it are there, in the page cache, in a queue without extension, and its filter is
made of tags codes. `Pulls.feed` takes these; the first frame that is anything else, a pull that must wait among them, ends it, and
the reference implementation (`broker/requests/pull.py`) handles it. A client notices no difference. Rules are the reference's:
`check` decides whether the client may pull and with which filter, `count` keeps the statistics, `encode` makes the answer's head.

Until it is sure that a pull is plain, nothing is changed, so that the reference can begin again.

`pulls.pxd` declares types for Cython.

Requirements: BP-01..BP-08.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic, perf_counter_ns
from typing import Any

from saturnmq.hot.gather import Gathering
from saturnmq.hot.pull_header import PullHeader
from saturnmq.protocol.codes import PullSysFlag
from saturnmq.protocol.frames.command import Serialization

_COMMIT = int(PullSysFlag.COMMIT_OFFSET)
_SERIALIZATIONS = (Serialization.JSON, Serialization.ROCKETMQ)
_PREFIX_BYTES = 8  # of a frame before its header
_FLUSH_BYTES = 131_072  # answers are written once they exceed this


class Pulls:
    """Takes plain pulls for one broker.

    context: the services of pulls (`broker/requests/context.PullContext`). serves: whether this broker takes pulls now. limits: of
    frames (`FrameLimits`). counts: how many messages a pull may return, and how many of them are looked for on the disk. own_group:
    the group whose offsets clients cannot commit. admits: whether access control allows a request; None without access control.
    """

    def __init__(
        self,
        context: Any,
        serves: Callable[[], bool],
        limits: Any,
        counts: tuple[int, int],
        own_group: str,
        check: Callable[..., Any],
        count: Callable[..., None],
        encode: Callable[..., bytes],
        admits: Callable[..., bool] | None = None,
    ) -> None:
        self._context, self._serves, self._store = context, serves, context.store
        self._length_max = limits.frame_bytes_max - 4
        self._header_bytes_max = limits.header_bytes_max
        self._header = PullHeader(limits.ext_fields_max, signed=admits is not None)
        self._count_max, self._read_ahead = counts
        self._own_group = own_group
        self._check, self._count, self._encode, self._admits = check, count, encode, admits
        self._counts: dict[int, int] = {}

    def feed(self, data: bytes, until: float, connection: Any) -> int:
        """Take the plain pulls at the start of data, and answer them.

        Returns the position of the first frame that is left. until: time.monotonic() after which no other frame is begun.
        """
        at = 0
        if not self._serves():
            return 0
        # Back-pressure: answers that the peer does not read would pile up in memory.
        while not connection.congested:
            header = self._header
            if (
                not header.find(data, at, self._length_max, self._header_bytes_max)
                # A pull has no body.
                or header.body_at != header.frame_end
                or not header.read(data, at + _PREFIX_BYTES, header.body_at, header.serialization)
            ):
                break
            began_ns = perf_counter_ns()
            try:
                gathering = self._gathered(connection)
            except Exception:
                break  # the reference meets it again, and answers it
            if gathering is None:
                break
            answer = self._answer(gathering, perf_counter_ns() - began_ns, connection)
            connection.out.append(answer)
            connection.out_bytes += len(answer)
            at = header.frame_end
            self._counts[header.code] = self._counts.get(header.code, 0) + 1
            if connection.out_bytes >= _FLUSH_BYTES:
                connection.flush()
            # Looked at after each pull: one may copy megabytes, unlike a send or a commit.
            if monotonic() > until:
                break
        if at:
            connection.flush()
        return at

    def finish(self) -> dict[int, int]:
        """The number of pulls since the last call, by request code."""
        counts, self._counts = self._counts, {}
        return counts

    def _gathered(self, connection: Any) -> Gathering | None:
        """The records for the pull, at least one; None if it is not plain. Raises what the reference answers with an error."""
        header, context, store = self._header, self._context, self._store
        group, topic, queue_id, offset = header.group, header.topic, header.queue_id, header.offset
        queue = store.queues.by_key.get((topic, queue_id))
        settings = store.settings
        if (
            queue is None
            or queue.extension is not None
            # A check per record is the reference's work; so is a group without settings, which may have to be created.
            or settings.check_crc_on_read
            or group not in context.groups.table
        ):
            return None
        # Outside the queue: the reference decides whether the client waits, or resets its offset.
        if offset < queue.min_offset or offset >= queue.max_offset:
            return None
        # Before the filter is parsed: that takes milliseconds, and would put a stranger's filters in place of the clients'.
        if self._admits is not None and not self._admits(connection, header, b"", topic, group):
            return None
        ext = {"subscription": header.subscription, "expressionType": header.kind, "subVersion": str(header.version)}
        pull_filter = self._check(context, connection, group, topic, queue_id, header.sys_flag, ext)
        codes = pull_filter.codes
        count = min(max(header.count, 1), self._count_max)
        # An SQL filter needs the properties of each record.
        if pull_filter.by_record is not None or pull_filter.by_extension is not None:
            return None
        units = store.units_without_wait(queue, offset, count, codes, min(count, self._read_ahead))
        # The units are not in memory: a read here would stop the event loop for the disk.
        if units is None:
            return None
        log = store.log
        gathering = Gathering(units, queue_id, offset)
        in_disk = settings.transfer_bytes_in_disk, settings.transfer_count_in_disk
        in_memory = settings.transfer_bytes_in_memory, settings.transfer_count_in_memory
        is_plain = gathering.gather(log, codes, count, log.end - store.memory_bytes, in_disk, in_memory)
        # Without a match the reference lets the pull wait, or moves the consumer on.
        return gathering if is_plain and gathering.count > 0 else None

    def _answer(self, gathering: Gathering, elapsed_ns: int, connection: Any) -> bytearray:
        """Commit the offset that the pull carries, count the pull, and encode the answer."""
        header, context, store = self._header, self._context, self._store
        group, topic, queue_id = header.group, header.topic, header.queue_id
        if (
            header.sys_flag & _COMMIT
            and header.commit_offset >= 0
            # A slave copies the offsets of its master and must not have its own.
            and not context.role.slave
            and group != self._own_group
        ):
            context.offsets.set(topic, group, queue_id, header.commit_offset, connection.remote_address)
        # For the statistics: the store time of the last record says how far the group is behind.
        file, begin, end = gathering.ranges[-1]
        last = memoryview(file)[begin:end]
        self._count(context, topic, group, queue_id, last, gathering.count, gathering.total, elapsed_ns)
        queue = store.queues.by_key[topic, queue_id]
        offsets = header.offset + gathering.scanned, queue.min_offset, queue.max_offset
        serialization = _SERIALIZATIONS[header.serialization]
        return gathering.frame(
            self._encode(serialization, header.opaque, group, gathering.behind, offsets, gathering.total)
        )
