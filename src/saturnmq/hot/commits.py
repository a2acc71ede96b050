"""Plain offset commits at the start of a read from a connection, from the frames to the answers.

A commit is plain if it has the four fields that clients of RocketMQ 4.9 send, none repeated, numbers written in digits, for a queue
of which the group has an offset already. `Commits.feed` takes these; the first frame that is anything else ends it, and the
reference implementation (`broker/requests/offsets.py`) handles it. Rules are the reference's: `check` decides about group, topic
and queue, `Offsets.set` stores.

`commits.pxd` declares types for Cython.

Requirements: OF-05.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import Any

from saturnmq.hot.answer_frame import OpaqueFrame
from saturnmq.hot.header import HeaderReader
from saturnmq.protocol.codes import CommandFlag, RequestCode

_COMMIT = int(RequestCode.UPDATE_CONSUMER_OFFSET)
_ONEWAY = int(CommandFlag.ONEWAY)
_INT32_MAX = 2**31 - 1
_PREFIX_BYTES = 8  # of a frame before its header
_CLOCK_FRAMES = 16  # between two looks at the clock
_GROUP, _TOPIC, _QUEUE_ID, _OFFSET = (1 << bit for bit in range(4))
_FIELDS = {b"consumerGroup": _GROUP, b"topic": _TOPIC, b"queueId": _QUEUE_ID, b"commitOffset": _OFFSET}
_ALL = _GROUP | _TOPIC | _QUEUE_ID | _OFFSET


class CommitHeader(HeaderReader):
    """The values of the last header that `read` accepted."""

    def __init__(self, fields_max: int, *, signed: bool = False) -> None:
        super().__init__(fields_max, signed=signed)
        self.group = self.topic = ""
        self.queue_id = self.offset = 0

    def read(self, data: bytes, at: int, end: int, serialization: int) -> bool:
        """Whether the header in data[at:end] is that of a plain commit; the attributes have its values then."""
        return (
            self._read(data, at, end, serialization)
            and self._present == _ALL
            and (self.flag == 0 or self.flag == _ONEWAY)
        )

    def _expects(self, code: int) -> bool:
        """Whether it is the code of a commit."""
        return code == _COMMIT

    def _field(self, data: bytes, key_at: int, key_end: int, at: int, end: int) -> bool:
        """Take the field named data[key_at:key_end] with the value data[at:end]; whether a plain commit has such a field."""
        bit = self._plain(_FIELDS, data[key_at:key_end])
        if bit == 0:
            return False
        if bit == _GROUP:
            # Cannot fail: `_plain` has refused what is not ASCII.
            self.group = data[at:end].decode()
            return True
        if bit == _TOPIC:
            self.topic = data[at:end].decode()
            return True
        number = self._digits(data, at, end)
        if bit == _OFFSET:
            self.offset = number
        else:
            self.queue_id = number
        # An offset is a Java long, a queue id a Java int.
        return number >= 0 and (bit == _OFFSET or number <= _INT32_MAX)


class Commits:
    """Takes plain offset commits for one broker.

    context: the services of offsets (`broker/requests/context.OffsetContext`). serves: whether this broker takes commits now.
    limits: of frames (`FrameLimits`). check: raises what refuses a commit. answer: its frames. admits: whether access control
    allows a request; None without access control.
    """

    def __init__(
        self,
        context: Any,
        serves: Callable[[], bool],
        limits: Any,
        check: Callable[..., None],
        answer: OpaqueFrame,
        admits: Callable[..., bool] | None = None,
    ) -> None:
        self._context, self._serves, self._check, self._admits = context, serves, check, admits
        self._length_max = limits.frame_bytes_max - 4
        self._header_bytes_max = limits.header_bytes_max
        self._header = CommitHeader(limits.ext_fields_max, signed=admits is not None)
        self._response = answer
        self._count = 0

    def feed(self, data: bytes, until: float, connection: Any) -> int:
        """Take the plain commits at the start of data, and append their answers to `connection.out`.

        Returns the position of the first frame that is left. until: time.monotonic() after which no other frame is begun.
        """
        at = count = 0
        header = self._header
        out = connection.out
        while (
            header.find(data, at, self._length_max, self._header_bytes_max)
            # A commit has no body.
            and header.body_at == header.frame_end
            and header.read(data, at + _PREFIX_BYTES, header.body_at, header.serialization)
            # Asked once per call: the role cannot change within one step of the event loop.
            and (count > 0 or self._serves())
            and self._take(connection)
        ):
            if header.flag != _ONEWAY:
                out.append(self._response.answer(header.serialization, header.opaque))
            at = header.frame_end
            count += 1
            if count % _CLOCK_FRAMES == 0 and monotonic() > until:
                break
        self._count += count
        return at

    def _take(self, connection: Any) -> bool:
        """Store the offset; False, without effect, if that is left to the reference."""
        header, context = self._header, self._context
        group, topic, queue_id = header.group, header.topic, header.queue_id
        # A first commit makes an entry in the table, which the reference counts and limits.
        if group not in context.groups.table or context.offsets.get(topic, group, queue_id) is None:
            return False
        if self._admits is not None and not self._admits(connection, header, b"", topic, group):
            return False
        # Last: rights are decided before the group and the topic are looked at, as in the reference.
        try:
            self._check(context, connection, topic, group, queue_id)
        except Exception:
            return False  # the reference meets it again, and answers it
        context.offsets.set(topic, group, queue_id, header.offset, connection.remote_address)
        return True

    def finish(self) -> dict[int, int]:
        """The number of commits since the last call, by request code."""
        count, self._count = self._count, 0
        return {_COMMIT: count} if count else {}
